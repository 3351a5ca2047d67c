"""Decoding of a single object: its kind, its content, and the error if it cannot be parsed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Item
from gpuscaler.model.decoding.depth import without_depths
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.kinds import Reader, reader_of
from gpuscaler.model.quantities import shorten_value
from gpuscaler.model.wire import UnreadableError

Data: TypeAlias = bytes | bytearray | memoryview
Decoded: TypeAlias = Item | Sequence[Item] | Skipped | None

_VALIDATION = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>(?:key in )?[^`]*)`)?", re.DOTALL)
_EXPECTED = re.compile(r"Expected (?P<expected>.*?)(?:, got `(?P<got>[^`]*)`)?", re.DOTALL)


class Header(Struct, gc=False, rename="camel"):
    kind: str | None = None
    api_version: str | None = None


class _Identity(Struct, gc=False):
    """The identity of an object, with values of any type: this must not fail if the object is invalid."""

    kind: Any = None
    metadata: Any = None


class _Whereabouts(Struct, gc=False, rename="camel"):
    node_name: str | None = None


class _Bound(Struct, gc=False):
    """The node of a pod, without its other fields: errors in those must not hide it."""

    spec: _Whereabouts | None = None
    status: Any = None


_header = msgspec.json.Decoder(Header).decode
_identity = msgspec.json.Decoder(_Identity).decode
_bound = msgspec.json.Decoder(_Bound).decode
_anything = msgspec.json.Decoder(Any).decode
#: The decoder's names of types, as shown in messages.
_WORDS = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}
_FAILURES = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


def decode_object(raw: Data | Mapping[str, Any], interner: Interner, *, kind: str = "", api_version: str = "") -> Decoded:
    """Decode ``raw``, a Kubernetes object as JSON or as a mapping, for planning.

    Returns None for kinds that are not read, a list if the object declares several, and a :class:`Skipped` if it cannot be parsed; never
    raises. ``kind`` and ``api_version`` are used if the object has none, as in the items of a PodList.
    """
    if isinstance(raw, Mapping):
        try:
            data: Data = msgspec.json.encode(raw)
        except (*_FAILURES, TypeError) as error:
            return Skipped(identify(raw, kind), f"saw a value that JSON does not have ({error}), expected a Kubernetes object")
    else:
        data = raw
    return decode_with(data, interner, find_reader(data, kind, api_version), kind=kind, api_version=api_version)


def find_reader(data: Data, kind: str = "", api_version: str = "") -> Reader | Skipped | None:
    """Return the reader for this object; None for kinds that are not read."""
    try:
        header = _header(data)
    except RecursionError as error:
        return _skipped(without_depths(data), error, kind)
    except _FAILURES as error:
        return _skipped(data, error, kind)
    kind = header.kind or kind
    if not kind:
        return Skipped(_name_of(data, ""), "kind: saw nothing, expected the kind of the object")
    return reader_of(header.api_version or api_version, kind)


def decode_with(
    data: Data, interner: Interner, reader: Reader | Skipped | None, *, kind: str = "", api_version: str = "", wire: Any = None
) -> Decoded:
    """Decode ``data`` with ``reader``; ``wire`` is ``data`` as a structure, if the caller has it already."""
    if reader is None or isinstance(reader, Skipped):
        return reader
    try:
        decoded = reader.decode(data) if wire is None else wire
        decoded.api_version = decoded.api_version or api_version
        return reader.read(decoded, interner)
    except RecursionError as error:
        return _skipped(without_depths(data), error, kind)
    except _FAILURES as error:
        return _skipped(data, error, kind)


def _skipped(data: Data, error: Exception, kind: str) -> Skipped:
    name = _name_of(data, kind)
    return Skipped(name, _describe_failure(data, error), _node_of(data) if name.split(" ")[0] == "Pod" else None)


def _describe_failure(data: Data, error: Exception) -> str:
    if isinstance(error, UnreadableError):
        return str(error)
    if isinstance(error, RecursionError):
        return "saw values nested too deeply, expected a Kubernetes object"
    if isinstance(error, msgspec.ValidationError):
        return _explain_error(data, str(error))
    return f"saw {shorten_value(str(error), 120)}, expected a Kubernetes object as JSON"


def _node_of(data: Data) -> str | None:
    """Return the node on which an unreadable pod uses resources; None if not even that can be read."""
    try:
        partial = _bound(data)
    except _FAILURES:
        return None
    finished = isinstance(partial.status, Mapping) and partial.status.get("phase") in ("Succeeded", "Failed")
    if finished:
        return ""
    return None if partial.spec is None else partial.spec.node_name or ""


def _explain_error(data: Data, message: str) -> str:
    """Describe a validation error: path, value seen and type expected."""
    parts = _VALIDATION.fullmatch(message)
    problem, path = (parts["what"], parts["path"] or "") if parts else (message, "")
    place = path.removeprefix("key in ").removeprefix("$").removeprefix(".") or "object"
    mismatch = _EXPECTED.fullmatch(problem)
    expected = mismatch["expected"].replace("`", "").replace(" | null", "") if mismatch else "another value"
    try:
        place, seen = _find_place(_anything(data), path, expected)
    except (*_FAILURES, LookupError, TypeError, AttributeError, StopIteration):
        seen = (mismatch and mismatch["got"]) or problem
    return f"{place}: saw {seen}, expected {_describe_type(expected)}"


def _describe_type(expected: str) -> str:
    return re.sub(r"\b(str|int|float|bool)\b", lambda match: _WORDS[match[0]], expected).replace(" | ", " or ")


def _find_place(value: Any, path: str, expected: str) -> tuple[str, str]:
    """Return the place and the value at a validation error's path. Keys may contain dots, so they are looked up, not split.

    ``[...]`` stands for any key of a mapping: the first with a value of a wrong type is used.
    """
    place, rest = "", path.removeprefix("$")
    while rest:
        if rest.startswith("[...]"):
            key: Any = next(name for name, item in value.items() if not (isinstance(item, str) and "str" in expected) and item is not None)
            rest = rest[5:]
        elif rest.startswith("["):
            index, rest = rest[1:].split("]", 1)
            key = int(index)
        else:
            key = max((name for name in value if rest[1:] == name or rest[1:].startswith((f"{name}.", f"{name}["))), key=len)
            rest = rest[1 + len(key) :]
        place += f"[{key}]" if isinstance(key, int) else f".{key}"
        value = value[key]
    value_text = shorten_value(value) if isinstance(value, str) else shorten_value(msgspec.json.encode(value).decode())[1:-1]
    return place.removeprefix(".") or "object", value_text


def _name_of(data: Data, kind: str) -> str:
    try:
        identity = _identity(data)
    except _FAILURES:
        return kind or "object"
    return identify({"kind": identity.kind, "metadata": identity.metadata}, kind)


def identify(raw: Mapping[str, Any], kind: str = "") -> str:
    """Return ``Kind namespace/name``, as far as it can be read."""
    found_kind, metadata = raw.get("kind"), raw.get("metadata")
    names = [metadata.get("namespace"), metadata.get("name")] if isinstance(metadata, Mapping) else []
    path = "/".join(_printable(name[:253]) for name in names if isinstance(name, str) and name)
    label = _printable(found_kind[:63]) if isinstance(found_kind, str) and found_kind else kind or "object"
    return f"{label} {path}" if path else label


def _printable(text: str) -> str:
    """Return ``text`` without characters that are unsafe on a terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]
