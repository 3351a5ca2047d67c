"""A window that moves over a stream of JSON and always contains at least the current value."""

import re
from typing import BinaryIO

import msgspec

from gpuscaler.model.decoding.errors import InputError

CHUNK = 1 << 20

_skip = msgspec.json.Decoder(msgspec.Raw).decode
_TRUNCATED = "Input data was truncated"
_TRAILING = "JSON is malformed: trailing characters (byte "
#: Last bytes of values that cannot continue.
_CLOSED = frozenset((b"}", b"]", b'"', b" ", b"\t", b"\r", b"\n"))
_SPACE = re.compile(rb"[ \t\r\n]*")
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)


class Window:
    """The part of ``stream`` that is in memory.

    The end of a value is found by letting msgspec skip over it (about 1 GB/s) and report an error about the text after it. If the error is
    a different one, brackets are counted instead, which also works for values that are malformed inside.
    """

    def __init__(self, stream: BinaryIO, file: str, chunk: int = CHUNK) -> None:
        self._stream = stream
        self._chunk = chunk
        self._data = b""
        self._position = 0
        self._before = 0
        self._mark: int | None = None
        self.file = file
        self.ended = False

    @property
    def place(self) -> str:
        return f"byte {self._before + self._position}"

    @property
    def held(self) -> int:
        """The number of bytes in memory from here on."""
        return len(self._data) - self._position

    def mark(self) -> None:
        """Mark this place for :meth:`back`. Everything from here on stays in memory until :meth:`back` or :meth:`unmark`."""
        self._mark = self._position

    def unmark(self) -> None:
        self._mark = None

    def back(self) -> None:
        assert self._mark is not None
        self._position, self._mark = self._mark, None

    def more(self) -> bool:
        """Read more; False at the end of the stream. Reads double in size, so that a huge value takes linear time."""
        if self.ended:
            return False
        keep = self._position if self._mark is None else self._mark
        new = self._stream.read(max(self._chunk, self.held))
        self.ended = not new
        self._data = self._data[keep:] + new
        self._before += keep
        self._position -= keep
        if self._mark is not None:
            self._mark = 0
        return not self.ended

    def peek(self) -> bytes:
        """Return the next byte that is not white space, b"" at the end."""
        byte = self._data[self._position : self._position + 1]
        if byte > b" ":
            return byte
        while True:
            space = _SPACE.match(self._data, self._position)
            self._position = space.end() if space else self._position
            if self._position < len(self._data):
                return self._data[self._position : self._position + 1]
            if not self.more():
                return b""

    def take(self, expected: bytes, path: str) -> bytes:
        """Consume the next byte, which must be one of ``expected``."""
        next_byte = self.peek()
        if not next_byte or next_byte not in expected:
            seen = repr(next_byte.decode("latin-1")) if next_byte else "the end of the input"
            choices = " or ".join(repr(chr(byte)) for byte in expected)
            raise InputError(self.file, path, f"{seen} at {self.place}", choices)
        self._position += 1
        return next_byte

    def value(self, path: str) -> memoryview:
        """Return the JSON value here, including white space after it, and move past it. The view is valid until the next move."""
        while (end := self._end()) is None:
            if self.ended:
                raise InputError(self.file, path, f"the end of the input at byte {self._before + len(self._data)}", "the rest of the value")
            self.more()
        start, self._position = self._position, self._position + end
        return memoryview(self._data)[start : start + end]

    def short_value(self) -> memoryview | None:
        """Return the value here and move past it if it is complete within about one chunk; else None."""
        while (end := self._end()) is None:
            if self.held >= self._chunk or self.ended:
                return None
            self.more()
        start, self._position = self._position, self._position + end
        return memoryview(self._data)[start : start + end]

    def _end(self) -> int | None:
        """Return the length of the value here, None if it is incomplete."""
        view = memoryview(self._data)[self._position :]
        try:
            _skip(view)
        except msgspec.DecodeError as error:
            message = str(error)
            if message.startswith(_TRAILING):
                return int(message[len(_TRAILING) : -1]) - 1  # it counts from 1
            return None if message == _TRUNCATED else _end_of_brackets(view)
        except RecursionError:
            return _end_of_brackets(view)
        # A number or word at the end of the view may continue.
        return len(view) if self.ended or bytes(view[-1:]) in _CLOSED else None


def _end_of_brackets(view: memoryview) -> int | None:
    """Return the position after the closing bracket of the first opened one, None if it is not closed."""
    depth = 0
    for token in _TOKEN.finditer(view):
        match token.group():
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
            case b'"':
                return None
        if depth <= 0:
            return token.end()
    return None
