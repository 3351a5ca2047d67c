"""Kubernetes JSON as a stream: Lists of any size, arrays, and objects one after the other."""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Item
from gpuscaler.model.decoding.errors import InputError
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.kinds import Reader, reader_of
from gpuscaler.model.decoding.objects import Data, Decoded, decode_with, find_reader
from gpuscaler.model.decoding.text.windows import Window

#: Keys that show that a large object is not a List.
_OF_OBJECTS = (b'"spec"', b'"status"', b'"data"', b'"binaryData"', b'"stringData"')

#: Maximum depth of nested Lists, which no valid input reaches.
DEEPEST = 50


class _Envelope(Struct, gc=False):
    """The fields that distinguish a List from an object."""

    kind: str | None = None


class _List(Struct, gc=False, rename="camel"):
    """A List that is itself an item."""

    kind: str = ""
    api_version: str = ""
    items: list[msgspec.Raw] = []


_list = msgspec.json.Decoder(_List).decode
_envelope = msgspec.json.Decoder(_Envelope).decode
_string = msgspec.json.Decoder(str | None).decode


class JsonItems:
    """Reads all objects in ``window``. One item is in memory at a time; a nested List counts as one."""

    def __init__(self, window: Window, interner: Interner) -> None:
        self._window = window
        self._interner = interner
        self._last: Reader | None = None

    def __iter__(self) -> Iterator[Item | Skipped]:
        window, number = self._window, 0
        while first := window.peek():
            if first == b"[":
                window.take(b"[", "the top")
                yield from self._array("", "", "")
            elif first == b"{":
                yield from self._object(f"object {number}")
            else:
                raise InputError(window.file, window.place, repr(first.decode("latin-1")), "a Kubernetes object or List as JSON")
            number += 1

    def _object(self, path: str) -> Iterator[Item | Skipped]:
        window = self._window
        window.mark()
        data = window.short_value()
        if data is None or not _is_no_list(data):
            window.back()
            window.mark()
            is_list = self._is_list(path)
            window.back()
            if is_list:
                yield from self._streamed_list(path)
                return
            data = window.value(path)
        window.unmark()
        yield from self._flat(self._decode(data, "", ""), path)

    def _is_list(self, path: str) -> bool:
        """Whether the object here has ``items`` before any key that Lists do not have. Moves the window."""
        window = self._window
        try:
            window.take(b"{", path)
            while window.peek() == b'"':
                key = bytes(window.value(path)).strip()
                window.take(b":", path)
                if key in _OF_OBJECTS:
                    return False
                if key == b'"items"' and window.peek() == b"[":
                    return True
                window.value(path)
                if window.peek() == b",":
                    window.take(b",", path)
        except InputError:
            pass
        return False

    def _streamed_list(self, path: str) -> Iterator[Item | Skipped]:
        window = self._window
        names = {"kind": "", "apiVersion": ""}
        unnamed: list[bytes] = []
        window.take(b"{", path)
        while window.peek() != b"}":
            key = _string(window.value(path)) or ""
            window.take(b":", path)
            if key == "items" and window.peek() == b"[":
                window.take(b"[", path)
                yield from self._array(*_kind_of_items(names["kind"], names["apiVersion"]), "items", unnamed)
            else:
                value = window.value(f"{path}.{key}")
                if key in names:
                    names[key] = _string(value) or ""
            if window.peek() != b"}":
                window.take(b",}", path)
        window.take(b"}", path)
        kind, api_version = _kind_of_items(names["kind"], names["apiVersion"])
        for index, item in enumerate(unnamed):
            yield from self._flat(self._decode(item, kind, api_version), f"items[{index}]")

    def _array(self, kind: str, api_version: str, path: str, unnamed: list[bytes] | None = None) -> Iterator[Item | Skipped]:
        """Yield the elements of an array after its opening bracket.

        Elements without a kind go to ``unnamed`` while the List's kind is unknown, because it may follow later.
        """
        window, index = self._window, 0
        if window.peek() == b"]":
            window.take(b"]", path)
            return
        while True:
            data = window.value(f"{path}[{index}]")
            result = self._decode(data, kind, api_version)
            if unnamed is not None and not kind and isinstance(result, Skipped) and result.reason.startswith("kind: saw nothing"):
                unnamed.append(bytes(data))
            else:
                yield from self._flat(result, f"{path}[{index}]")
                if result is None:
                    yield from self._inner(data, f"{path}[{index}]")
            index += 1
            if window.take(b",]", f"{path}[{index}]") == b"]":
                return

    def _inner(self, data: Data, path: str, depth: int = 0) -> Iterator[Item | Skipped]:
        """Yield the items of a nested List, as from ``jq --slurp``; nothing if ``data`` is not a List."""
        try:
            decoded_list = _list(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return
        if not decoded_list.kind.endswith("List") or depth > DEEPEST:
            return
        kind, api_version = _kind_of_items(decoded_list.kind, decoded_list.api_version)
        for index, item in enumerate(decoded_list.items):
            place = f"{path}.items[{index}]"
            result = self._decode(item, kind, api_version)
            yield from self._flat(result, place)
            if result is None:
                yield from self._inner(item, place, depth + 1)

    def _decode(self, data: Data, kind: str, api_version: str) -> Decoded:
        """Decode an object, trying the kind of the previous one first: Lists are sorted by kind, which saves reading the header."""
        last = self._last
        if last is not None:
            try:
                wire = last.decode(data)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                wire = None
            if wire is not None and reader_of(wire.api_version or api_version, wire.kind or kind) is last:
                return decode_with(data, self._interner, last, kind=kind, api_version=api_version, wire=wire)
        reader = find_reader(data, kind, api_version)
        if isinstance(reader, Reader):
            self._last = reader
        return decode_with(data, self._interner, reader, kind=kind, api_version=api_version)

    def _flat(self, result: Decoded, path: str) -> Iterator[Item | Skipped]:
        if isinstance(result, Sequence):
            yield from result
        elif isinstance(result, Skipped):
            yield Skipped(f"{self._window.file} {path}", result.reason) if result.object == "object" else result
        elif result is not None:
            yield result


def _kind_of_items(list_kind: str, api_version: str) -> tuple[str, str]:
    """Return the kind and version of the items of a typed List; a plain List has none."""
    kind = list_kind.removesuffix("List")
    return (kind, api_version) if kind else ("", "")


def _is_no_list(data: Data) -> bool:
    """Whether ``data`` is well-formed and not a List by its kind."""
    try:
        kind = _envelope(data).kind
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return kind is not None and not kind.endswith("List")
