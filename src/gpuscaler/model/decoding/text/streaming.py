"""Files of Kubernetes objects: Lists and objects as JSON, documents as YAML, optionally compressed."""

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Item
from gpuscaler.model.decoding.errors import InputError
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.text.jsons import JsonItems
from gpuscaler.model.decoding.text.windows import Window
from gpuscaler.model.decoding.text.yamls import yaml_items

_BOM = b"\xef\xbb\xbf"


def read_items(stream: BinaryIO, interner: Interner, *, file: str = "") -> Iterator[Item | Skipped]:
    """Yield all objects that planning reads from ``stream``, as printed by ``kubectl get … -o json|yaml``, in bounded memory.

    JSON: a List of any size, typed Lists, arrays, objects one after the other. YAML: documents, also ``v1 List``. Gzip is decompressed.
    An object that cannot be parsed is yielded as a :class:`Skipped`. :class:`InputError` is raised if reading cannot continue, and for an
    empty input: kubectl prints a List even for no objects, and a failed kubectl leaves an empty file behind.
    ``file`` names the input in messages. The stream is not closed.
    """
    file = file or str(getattr(stream, "name", "") or "input")
    try:
        plain = _decompressed(stream)
        if plain.peek(3)[:3] == _BOM:
            plain.read(3)
        first = _first_byte(plain)
        if not first:
            raise InputError(file, "", "an empty input", "Kubernetes objects; for an empty cluster kubectl prints a List without items")
        if first in (b"{", b"["):
            yield from JsonItems(Window(cast(BinaryIO, plain), file), interner)
        else:
            yield from yaml_items(cast(BinaryIO, plain), interner, file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(file, "", f"broken compression ({error})", "a complete gzip file") from error


def _decompressed(stream: BinaryIO) -> io.BufferedReader:
    """Return ``stream``, decompressed if it is gzip, buffered for look-ahead."""
    buffered = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(_Unclosed(stream))
    if buffered.peek(2)[:2] == b"\x1f\x8b":
        return io.BufferedReader(_Unclosed(cast(BinaryIO, gzip.GzipFile(fileobj=buffered))), buffer_size=1 << 20)
    return buffered


class _Unclosed(io.RawIOBase):
    """A view of a stream that does not close the stream when it is discarded."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed's Buffer has no assignment
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _first_byte(stream: io.BufferedReader) -> bytes:
    """Return the first byte that is not white space, consuming only white space."""
    while ahead := stream.peek(1):
        rest = ahead.lstrip()
        if rest:
            stream.read(len(ahead) - len(rest))
            return rest[:1]
        stream.read(len(ahead))
    return b""
