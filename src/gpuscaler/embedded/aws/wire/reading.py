"""Reads requests in their wire formats, by the service's model."""

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl

from gpuscaler.embedded.aws.wire.errors import AwsError
from gpuscaler.embedded.aws.wire.models import Models

_SCOPE: Final = re.compile(r"Credential=(?P<key>[^/]+)/\d{8}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request")
#: In JSON services, the name of the operation follows this prefix in the target.
_TARGET: Final = "x-amz-target"


@dataclass(frozen=True, slots=True)
class Request:
    """An incoming request: header names in lower case, ``path`` without its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    query: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One operation with its parameters, as boto3's caller wrote them. ``model`` is botocore's OperationModel, ``key`` the access key."""

    service: str
    region: str
    operation: str
    params: dict[str, Any]
    model: Any
    key: str = ""


def scope_of(request: Request) -> tuple[str, str, str]:
    """(access key, region, service) that a request is signed for."""
    match = _SCOPE.search(request.headers.get("authorization", ""))
    if match is None:
        raise AwsError("MissingAuthenticationToken", "Request is missing Authentication Token", status=403)
    return match["key"], match["region"], match["service"]


def read(models: Models, request: Request) -> Call:
    """The requested operation. Parameters that do not fit the model are refused in the service's words."""
    key, region, service = scope_of(request)
    protocol = models.service(service).metadata["protocol"]
    if protocol == "rest-json":
        name, labels = models.route(service, request.method, request.path)
        model = models.operation(service, name)
        params = _rest(model, request, labels)
    elif protocol == "json":
        name = request.headers.get(_TARGET, "").rpartition(".")[2]
        model = models.operation(service, name)
        params = _from_json(model.input_shape, json.loads(request.body or b"{}")) if model.input_shape else {}
    else:
        fields = dict(parse_qsl(request.body.decode() or request.query, keep_blank_values=True))
        name = fields.pop("Action", "")
        fields.pop("Version", None)
        model = models.operation(service, name)
        params = _structure(model.input_shape, _tree(fields), protocol) if model.input_shape else {}
    _check(model, params)
    return Call(service, region, name, params, model, key)


def _check(model: Any, params: dict[str, Any]) -> None:
    from botocore.validate import ParamValidator  # noqa: PLC0415 - an extra

    report = ParamValidator().validate(params, model.input_shape) if model.input_shape else None
    if report is not None and report.has_errors():
        raise AwsError("ValidationError", report.generate_report().replace("\n", " "))


# The query protocols: a tree of names with dots.


def _tree(fields: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        *above, last = name.split(".")
        place = tree
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return tree


def _structure(shape: Any, tree: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    result = {}
    names = set()
    for name, member in shape.members.items():
        on_wire = _name(member, name, protocol)
        names.add(on_wire)
        if on_wire in tree:
            result[name] = _value(member, tree[on_wire], protocol)
    if unknown := tree.keys() - names:
        raise AwsError("UnknownParameter", f"The parameter {min(unknown)} is not recognized")
    return result


def _value(shape: Any, content: Any, protocol: str) -> Any:
    if shape.type_name == "structure":
        return _structure(shape, content if isinstance(content, dict) else {}, protocol)
    if shape.type_name == "list":
        return _list(shape, content, protocol)
    if shape.type_name == "map":
        entries = _numbered(content if shape.serialization.get("flattened") else content["entry"])
        key, value = shape.key.serialization.get("name", "key"), shape.value.serialization.get("name", "value")
        return {entry[key]: _value(shape.value, entry[value], protocol) for entry in entries}
    return _scalar(shape, content)


def _list(shape: Any, content: Any, protocol: str) -> list[Any]:
    if not isinstance(content, dict):
        return []
    if protocol != "ec2" and not shape.serialization.get("flattened"):
        content = content.get(shape.member.serialization.get("name", "member"), {})
    return [_value(shape.member, entry, protocol) for entry in _numbered(content)]


def _numbered(entries: Mapping[str, Any]) -> list[Any]:
    if not all(number.isdigit() for number in entries):
        raise AwsError("MalformedQueryString", f"saw {sorted(entries)}, expected numbers")
    return [entries[number] for number in sorted(entries, key=int)]


def _name(member: Any, name: str, protocol: str) -> str:
    serialization = member.serialization
    if protocol == "ec2":
        if "queryName" in serialization:
            return str(serialization["queryName"])
        own = str(serialization.get("name", name))
        return own[:1].upper() + own[1:]
    if member.type_name == "list" and serialization.get("flattened") and member.member.serialization.get("name"):
        return str(member.member.serialization["name"])
    return str(serialization.get("name", name))


def _scalar(shape: Any, text: Any) -> Any:
    try:
        match shape.type_name:
            case "integer" | "long":
                return int(text)
            case "float" | "double":
                return float(text)
            case "boolean":
                return {"true": True, "false": False}[text.lower()]
            case "timestamp":
                return parse_time(text)
            case "blob":
                return b64decode(text)
    except (ValueError, KeyError, AttributeError) as error:
        raise AwsError("MalformedInput", f"saw {text!r}, expected {shape.type_name}") from error
    return text


def parse_time(text: str | float) -> datetime:
    """A time as clients write it: ISO 8601, UTC by default, or seconds since the epoch."""
    if isinstance(text, int | float):
        return datetime.fromtimestamp(text, UTC)
    parsed = datetime.fromisoformat(text)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


# JSON


def _rest(model: Any, request: Request, labels: Mapping[str, str]) -> dict[str, Any]:
    shape = model.input_shape
    query = dict(parse_qsl(request.query, keep_blank_values=True))
    body = json.loads(request.body) if request.body else {}
    result = {}
    for name, member in shape.members.items():
        on_wire, where = member.serialization.get("name", name), member.serialization.get("location")
        source: Mapping[str, Any] = {"uri": labels, "querystring": query, "header": request.headers}.get(where, body)
        if on_wire in source:
            result[name] = _scalar(member, source[on_wire]) if where and member.type_name != "list" else _from_json(member, source[on_wire])
    return result


def _from_json(shape: Any, content: Any) -> Any:
    if content is None:
        return None
    if shape.type_name == "structure":
        names = {member.serialization.get("name", name): (name, member) for name, member in shape.members.items()}
        return {names[key][0]: _from_json(names[key][1], value) for key, value in content.items() if key in names and value is not None}
    if shape.type_name == "list":
        return [_from_json(shape.member, item) for item in content]
    if shape.type_name == "map":
        return {key: _from_json(shape.value, value) for key, value in content.items()}
    return _scalar(shape, content) if shape.type_name in {"timestamp", "blob"} else content
