"""Decodes objects in Kubernetes' protobuf, which kubectl's typed clients send since 1.32, to their JSON form.

Answers are always JSON: every client of protobuf accepts that too. Format: ``k8s.io/apimachinery/pkg/runtime/serializer/protobuf``
(four magic bytes, then ``runtime.Unknown``) and https://protobuf.dev/programming-guides/encoding/; ``protobuf_fields.json`` is made by
``tools/make_protobuf_fields.py``.
"""

import base64
import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any, Final

import msgspec

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
#: Structures that Go embeds: in JSON their fields are in the structure that contains them.
_INLINE: Final = frozenset(
    {"deviceConfiguration", "ephemeralContainerCommon", "localObjectReference", "persistentVolumeSource", "handler", "volumeSource"}
)


class ProtobufError(ValueError):
    """The bytes are not protobuf, or are of an unknown kind; the text says which."""


@cache
def _messages() -> Mapping[str, Mapping[int, tuple[str, str, str]]]:
    text = (resources.files(__package__) / "protobuf_fields.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, dict[int, tuple[str, str, str]]])


def decode(body: bytes) -> dict[str, Any]:
    """The object in ``body``, with its kind and version. Raises :class:`ProtobufError`."""
    if not body.startswith(_MAGIC):
        raise ProtobufError("expected the four bytes at the start of Kubernetes' protobuf")
    parts = {number: value for number, value in _fields(body[len(_MAGIC) :]) if isinstance(value, bytes)}
    named = {number: value.decode() for number, value in _fields(parts.get(1, b"")) if isinstance(value, bytes)}
    version, kind = named.get(1, ""), named.get(2, "")
    name = "meta.v1.DeleteOptions" if kind == "DeleteOptions" else f"{_package(version)}.{kind}"
    if name not in _messages():
        raise ProtobufError(f'no kind "{kind}" of {version or "no version"} is known; send it as JSON')
    return {"apiVersion": version, "kind": kind, **_message(name, parts.get(2, b""))}


def _package(version: str) -> str:
    group, _, number = version.rpartition("/")
    return f"{group.partition('.')[0] or 'core'}.{number}"


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if place >= len(data) or shift > 63:
            raise ProtobufError("a number does not end")
        byte = data[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values: numbers of any width, everything else as its bytes."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        wire = tag & 7
        if wire == 0:
            value, place = _varint(data, place)
            yield tag >> 3, value
            continue
        if wire not in (1, 2, 5):
            raise ProtobufError(f"wire type {wire} is not one of 0, 1, 2 and 5")
        length = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            length, place = _varint(data, place)
        if place + length > len(data):
            raise ProtobufError("the bytes end within a field")
        yield tag >> 3, data[place : place + length]
        place += length


def _message(name: str, data: bytes) -> Any:
    if special := _SPECIAL.get(name):
        return special(data)
    schema = _messages()[name]
    result: dict[str, Any] = {}
    for number, raw in _fields(data):
        if number not in schema:
            continue
        field, kind, often = schema[number]
        if often == "map":
            entry = dict(_fields(raw if isinstance(raw, bytes) else b""))
            result.setdefault(field, {})[_value("string", entry.get(1, b""))] = _value(kind, entry.get(2, b""))
            continue
        value = _value(kind, raw)
        if often:
            result.setdefault(field, []).append(value)
        elif field in _INLINE and isinstance(value, dict):
            result |= value
        elif value not in ("", None):
            # Go writes unset fields as empty text or a zero time; in JSON it leaves them out.
            result[field] = value
    return result


def _value(kind: str, raw: int | bytes) -> Any:
    if isinstance(raw, int):
        return bool(raw) if kind == "bool" else raw - (1 << 64) if raw >= 1 << 63 else raw
    if kind == "string":
        return raw.decode()
    if kind == "bytes":
        return base64.b64encode(raw).decode()
    if kind == "double":
        return struct.unpack("<d", raw.rjust(8, b"\0")[:8])[0]
    if kind in ("int", "bool"):
        raise ProtobufError("saw bytes, expected a number")
    return _message(kind, raw)


def _time(data: bytes) -> str | None:
    parts = dict(_fields(data))
    seconds, nanos = _value("int", parts.get(1, 0)), _value("int", parts.get(2, 0))
    # An empty message, or the first second of the year 1, is Go's zero time.
    if not parts or (seconds, nanos) == (-62_135_596_800, 0):
        return None
    try:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, OSError, ValueError) as error:
        raise ProtobufError(f"{seconds} s is not a time") from error
    return text + (f".{nanos // 1000:06d}Z" if nanos else "Z")


def _number_or_text(data: bytes) -> int | str:
    parts = dict(_fields(data))
    value: int | str = _value("string", parts.get(3, b"")) if parts.get(1) else _value("int", parts.get(2, 0))
    return value


def _raw(data: bytes) -> Any:
    raw = dict(_fields(data)).get(1, b"")
    return msgspec.json.decode(raw) if isinstance(raw, bytes) and raw else None


_SPECIAL: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "meta.v1.Time": _time,
    "meta.v1.MicroTime": _time,
    "resource.Quantity": lambda data: _value("string", dict(_fields(data)).get(1, b"")),
    "intstr.IntOrString": _number_or_text,
    "runtime.RawExtension": _raw,
    "meta.v1.FieldsV1": _raw,
}
