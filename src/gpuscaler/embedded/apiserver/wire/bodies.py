"""Reads bodies of requests."""

from typing import Any, Final

import msgspec
import yaml

from gpuscaler.embedded.apiserver.wire import protobuf
from gpuscaler.embedded.apiserver.wire.failures import Failure, bad_request, unsupported_media_type
from gpuscaler.kube.transport import Request

#: The largest accepted body, in bytes, as in a real API server.
LARGEST: Final = 3 * 1024 * 1024
_JSON = ("", "application/json")
_YAML = ("application/yaml", "application/apply-patch+yaml")


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def read(request: Request, *accepted: str) -> Any:
    """The body's value.

    Raises a Failure: 415 for a media type other than JSON, YAML, protobuf or ``accepted``, 413 for a body too large, 400 for a damaged one.
    """
    if len(request.body) > LARGEST:
        raise Failure(413, "RequestEntityTooLarge", f"Request entity too large: limit is {LARGEST}")
    kind = media_type(request)
    if kind not in (*_JSON, *_YAML, protobuf.MEDIA_TYPE, *accepted):
        raise unsupported_media_type()
    try:
        if kind == protobuf.MEDIA_TYPE:
            return protobuf.decode(request.body)
        if kind in _YAML and not request.body.lstrip().startswith(b"{"):
            # Through JSON, so that times that YAML has parsed are text again.
            return msgspec.json.decode(msgspec.json.encode(yaml.load(request.body, Loader=yaml.CSafeLoader)))
        return msgspec.json.decode(request.body)
    except (msgspec.MsgspecError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise bad_request(f"the object provided is unrecognized (must be of type object): couldn't get version/kind; {error}") from error


def read_object(request: Request) -> dict[str, Any]:
    """The body as an object; raises the same as :func:`read`."""
    value = read(request)
    if not isinstance(value, dict):
        raise bad_request("the object provided is unrecognized (must be of type object)")
    return value


def read_options(request: Request) -> dict[str, Any]:
    """The body as options, which are optional."""
    return read_object(request) if request.body.strip() else {}
