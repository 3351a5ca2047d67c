"""Splits a template into tokens."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpuscaler.metrics.rules.gotemplate.errors import TemplateError

_SPACES = " \t\r\n"
#: Numbers with as many digits as always fit into Go's int.
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<number>[+-]?\.?[0-9][0-9A-Za-z_.]*)
    |(?P<field>\.[^\W\d]\w*)
    |(?P<dot>\.)
    |(?P<variable>\$\w*)
    |(?P<word>[^\W\d]\w*)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<raw>`[^`]*`)
    |(?P<char>'(?:[^'\\\n]|\\.)+')
    |(?P<declare>:=)
    |(?P<mark>[=|,()])""",
    re.VERBOSE | re.DOTALL,
)
#: Characters that may follow a word, field or variable without a space.
_TERMINATORS = frozenset(" \t\r\n.,|:)(")


class Token(NamedTuple):
    """A token. ``kind`` is text, end (of an action), or a group of the expression above; ``line`` counts from 1."""

    kind: str
    text: str
    line: int


def tokens(source: str) -> Iterator[Token]:
    """The tokens of ``source``: text, and the content of actions, each of which ends with a token of kind ``end``."""
    place, trim = 0, False
    while True:
        start = source.find("<<", place)
        text = source[place:] if start < 0 else source[place:start]
        if trim:
            text = text.lstrip(_SPACES)
        trims_before = start >= 0 and source[start + 2 : start + 3] == "-" and source[start + 3 : start + 4] in tuple(_SPACES)
        if trims_before:
            text = text.rstrip(_SPACES)
        if text:
            yield Token("text", text, _line(source, place))
        if start < 0:
            return
        place = start + (4 if trims_before else 2)
        if source.startswith("/*", place):
            place, trim = _comment(source, place)
        else:
            action = _Action(source, place, start)
            yield from action
            place, trim = action.place, action.trims


def _comment(source: str, place: int) -> tuple[int, bool]:
    closed = source.find("*/", place)
    if closed < 0:
        raise TemplateError(f"line {_line(source, place)}: saw a comment without its end, expected */>>")
    place = closed + 2
    closing = _closing(source, place)
    if closing is None:
        raise TemplateError(f"line {_line(source, place)}: saw other text after a comment's */, expected >>")
    return place + closing[0], closing[1]


def _closing(source: str, place: int) -> tuple[int, bool] | None:
    """Length of the end of an action at ``place``, and whether the text after it is trimmed; None if no action ends here."""
    if source.startswith(">>", place):
        return 2, False
    if source[place : place + 1] in tuple(_SPACES) and source.startswith("->>", place + 1):
        return 4, True
    return None


class _Action:
    """The tokens of one action. Afterwards ``place`` is the position after it, and ``trims`` is whether the text after it is trimmed."""

    def __init__(self, source: str, place: int, start: int) -> None:
        self.source, self.place, self.start, self.trims = source, place, start, False

    def __iter__(self) -> Iterator[Token]:
        while (closing := _closing(self.source, self.place)) is None:
            yield self._token()
        yield Token("end", ">>", _line(self.source, self.place))
        self.place += closing[0]
        self.trims = closing[1]

    def _token(self) -> Token:
        line = _line(self.source, self.place)
        match = _TOKEN.match(self.source, self.place)
        if match is None:
            if self.place >= len(self.source):
                raise TemplateError(f"line {_line(self.source, self.start)}: saw << without its end, expected >>")
            raise TemplateError(f"line {line}: saw {self.source[self.place : self.place + 10]!r} in an action, expected a value or >>")
        kind, text = match.lastgroup or "", match[0]
        if kind == "space":
            text = self._spaces(text)
        if kind == "number" and _NUMBER.fullmatch(text) is None:
            raise TemplateError(f"line {line}: saw {text}, expected a whole decimal number without a sign")
        self.place += len(text)
        if kind in ("field", "variable", "word", "dot") and not self._terminated(kind):
            raise TemplateError(f"line {line}: saw {self.source[self.place]!r} after {text}, expected a space or >>")
        return Token(kind, text, line)

    def _spaces(self, text: str) -> str:
        """``text`` without a space that belongs to a following ``->>``."""
        return text[:-1] if len(text) > 1 and self.source.startswith("->>", self.place + len(text)) else text

    def _terminated(self, kind: str) -> bool:
        following = self.source[self.place : self.place + 1]
        return kind == "dot" or not following or following in _TERMINATORS or self.source.startswith(">>", self.place)


def _line(source: str, place: int) -> int:
    return source.count("\n", 0, place) + 1
