"""Files of Kubernetes objects: Lists and objects as JSON, documents as YAML, either of them compressed."""

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

from gpuscaler.model.aside import SetAside
from gpuscaler.model.cluster import Item
from gpuscaler.model.decoding.errors import InputError
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.text.jsons import JsonItems
from gpuscaler.model.decoding.text.windows import Window
from gpuscaler.model.decoding.text.yamls import yaml_items

_BOM = b"\xef\xbb\xbf"


def read_items(stream: BinaryIO, interner: Interner, *, file: str = "") -> Iterator[Item | SetAside]:
    """Everything planning reads in ``stream``, as ``kubectl get … -o json|yaml`` prints it, in bounded memory.

    JSON: a List of any size, typed Lists, arrays, objects one after the other. YAML: documents, ``v1 List`` among them. Gzip is undone.
    An object that cannot be understood comes as a :class:`SetAside`; :class:`InputError` is raised where reading cannot go on, and for an
    input without a single character: kubectl prints a List even of nothing, and a kubectl that failed leaves an empty file behind.
    ``file`` names the input in messages. The stream is not closed.
    """
    file = file or str(getattr(stream, "name", "") or "input")
    try:
        plain = _plain(stream)
        if plain.peek(3)[:3] == _BOM:
            plain.read(3)
        first = _first(plain)
        if not first:
            raise InputError(file, "", "nothing in it", "Kubernetes objects; of an empty cluster kubectl prints a List without items")
        if first in (b"{", b"["):
            yield from JsonItems(Window(cast(BinaryIO, plain), file), interner)
        else:
            yield from yaml_items(cast(BinaryIO, plain), interner, file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(file, "", f"broken compression ({error})", "a whole gzip file") from error


def _plain(stream: BinaryIO) -> io.BufferedReader:
    """``stream``, decompressed where it is gzip, with room to look ahead."""
    buffered = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(_Unclosed(stream))
    if buffered.peek(2)[:2] == b"\x1f\x8b":
        return io.BufferedReader(_Unclosed(cast(BinaryIO, gzip.GzipFile(fileobj=buffered))), buffer_size=1 << 20)
    return buffered


class _Unclosed(io.RawIOBase):
    """A view of a stream that does not close it when the view is thrown away."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed's Buffer has no assignment
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _first(stream: io.BufferedReader) -> bytes:
    """The first byte that is not white space, without consuming anything but white space."""
    while ahead := stream.peek(1):
        rest = ahead.lstrip()
        if rest:
            stream.read(len(ahead) - len(rest))
            return rest[:1]
        stream.read(len(ahead))
    return b""
