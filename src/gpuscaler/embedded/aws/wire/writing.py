"""Writes answers in their wire formats, by the service's model: fields that the model does not have are never sent."""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from xml.sax.saxutils import escape

from gpuscaler.embedded.aws.wire.errors import AwsError


class RespelledText(str):
    """A word whose spelling is up to the service, and not to the model."""

    __slots__ = ()


class ReplyError(Exception):
    """An answer of ours does not fit the service's model: an error in this program."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The output, sent ``after`` seconds. ``wait`` says that there is nothing yet, and for how many seconds to retry."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    after: float = 0.0
    wait: float = 0.0


def write(model: Any, reply: Mapping[str, Any], request_id: str) -> Answer:
    """Encode ``reply`` to an operation. Raises :class:`ReplyError` if it does not fit the model."""
    shape, protocol = model.output_shape, model.service_model.metadata["protocol"]
    if shape is not None:
        _check(model, dict(reply))
    if protocol in {"json", "rest-json"}:
        version = model.service_model.metadata["jsonVersion"]
        media = "application/json" if protocol == "rest-json" else f"application/x-amz-json-{version}"
        body = json.dumps(_to_json(shape, reply) if shape else {}).encode()
        return Answer(200, {"content-type": media, "x-amzn-requestid": request_id}, body)
    inside = "".join(_members(shape, reply, ec2=protocol == "ec2")) if shape else ""
    if protocol == "ec2":
        inside = f"<requestId>{request_id}</requestId>{inside}"
    else:
        wrapper = shape.serialization.get("resultWrapper") if shape else None
        inside = f"<{wrapper}>{inside}</{wrapper}>" if wrapper else inside
        inside += f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
    space = model.service_model.metadata["xmlNamespace"]
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{model.name}Response xmlns="{space}">{inside}</{model.name}Response>'
    return Answer(200, {"content-type": "text/xml", "x-amzn-requestid": request_id}, text.encode())


def write_error(service: Any, error: AwsError, request_id: str) -> Answer:
    """Encode a refusal in the form of ``service``, botocore's ServiceModel, or in that of JSON if None."""
    headers = {"x-amzn-requestid": request_id}
    if error.retry_after:
        headers["retry-after"] = f"{error.retry_after:g}"
    protocol = service.metadata["protocol"] if service is not None else "json"
    code, message = escape(error.code), escape(error.message)
    if protocol in {"json", "rest-json"}:
        sender = "Sender" if error.status < 500 else "Receiver"
        # SQS has two names for an error: the current one, and that of its old protocol, which clients use.
        name = {"NonExistentQueue": "QueueDoesNotExist"}.get(last := error.code.rpartition(".")[2], last)
        headers |= {"x-amzn-errortype": name, "x-amzn-query-error": f"{error.code};{sender}", "content-type": "application/json"}
        return Answer(error.status, headers, json.dumps({"__type": name, "message": error.message}).encode())
    headers["content-type"] = "text/xml"
    if protocol == "ec2":
        text = f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
        return Answer(error.status, headers, f"{text}<RequestID>{request_id}</RequestID></Response>".encode())
    kind = "Sender" if error.status < 500 else "Receiver"
    text = f"<ErrorResponse><Error><Type>{kind}</Type><Code>{code}</Code><Message>{message}</Message></Error>"
    return Answer(error.status, headers, f"{text}<RequestId>{request_id}</RequestId></ErrorResponse>".encode())


def _check(model: Any, reply: dict[str, Any]) -> None:
    from botocore.validate import ParamValidator  # noqa: PLC0415 - an extra

    report = ParamValidator().validate(reply, model.output_shape)
    if report.has_errors():
        raise ReplyError(f"{model.name}: {report.generate_report()}")


def _members(shape: Any, value: Mapping[str, Any], *, ec2: bool) -> Iterator[str]:
    for name, member in shape.members.items():
        if value.get(name) is None:
            continue
        serialization = member.serialization
        tag = serialization.get("name", name)
        if member.type_name == "list" and serialization.get("flattened"):
            tag = member.member.serialization.get("name", tag)
            yield from (f"<{tag}>{_text(member.member, item, ec2=ec2)}</{tag}>" for item in value[name])
        else:
            yield f"<{tag}>{_text(member, value[name], ec2=ec2)}</{tag}>"


def _text(shape: Any, value: Any, *, ec2: bool) -> str:
    match shape.type_name:
        case "structure":
            return "".join(_members(shape, value, ec2=ec2))
        case "list":
            tag = shape.member.serialization.get("name", "item" if ec2 else "member")
            return "".join(f"<{tag}>{_text(shape.member, item, ec2=ec2)}</{tag}>" for item in value)
        case "map":
            key, worth = shape.key.serialization.get("name", "key"), shape.value.serialization.get("name", "value")
            pairs = ((escape(name), _text(shape.value, item, ec2=ec2)) for name, item in value.items())
            return "".join(f"<entry><{key}>{name}</{key}><{worth}>{text}</{worth}></entry>" for name, text in pairs)
        case "boolean":
            return "true" if value else "false"
        case "timestamp":
            return iso(value)
        case "blob":
            return b64encode(value).decode()
    return escape(str(_known(shape, value)))


def _known(shape: Any, value: Any) -> Any:
    """Check that a word of an enumeration is in it; new instance types come faster than new models."""
    words = getattr(shape, "enum", None)
    if words and not isinstance(value, RespelledText) and shape.name != "InstanceType" and value not in words:
        raise ReplyError(f"{shape.name}: saw {value!r}, expected one of {', '.join(words)}")
    return value


def _to_json(shape: Any, value: Any) -> Any:
    match shape.type_name:
        case "structure":
            names = ((name, member) for name, member in shape.members.items() if value.get(name) is not None)
            return {member.serialization.get("name", name): _to_json(member, value[name]) for name, member in names}
        case "list":
            return [_to_json(shape.member, item) for item in value]
        case "map":
            return {name: _to_json(shape.value, item) for name, item in value.items()}
        case "timestamp":
            return value.timestamp()
        case "blob":
            return b64encode(value).decode()
    return _known(shape, value)


def iso(moment: datetime) -> str:
    """ISO 8601 in UTC, with milliseconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def to_datetime(seconds: float) -> datetime:
    """A time, from seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)
