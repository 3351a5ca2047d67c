"""Splits pieces of any size into lines."""


class LineSplitter:
    """Cuts a stream of bytes at its newlines.

    The standard ``readline()`` of a stream reader refuses lines longer than its buffer, and an object can have any size.
    """

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that ``piece`` completes, without their newlines; empty lines are left out."""
        lines = piece.split(b"\n")
        rest = lines.pop()
        if lines and self._begun:
            # Parts are joined once the line is complete: appending each piece to the previous ones would copy a long line many times.
            lines[0] = b"".join((*self._begun, lines[0]))
            self._begun.clear()
        if rest:
            self._begun.append(rest)
        return [line for line in lines if line and not line.isspace()]

    def rest(self) -> bytes:
        """The content after the last newline: the last line of a stream that ends without one."""
        content = b"".join(self._begun)
        self._begun.clear()
        return content
