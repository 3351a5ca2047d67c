"""PromQL as tokens."""

import re
from typing import NamedTuple


class PromqlError(ValueError):
    """A query that is not PromQL, or not that part of it which is understood here."""


class Token(NamedTuple):
    """``kind`` is one of number, duration, word, string, mark and end."""

    kind: str
    text: str
    start: int


_TOKEN = re.compile(
    r"""[ \t\r\n]+|\#[^\n]*
    |(?P<duration>[0-9]+(?:ms|[smhdwy])(?:[0-9]+(?:ms|[smhdwy]))*(?![0-9A-Za-z_]))
    |(?P<number>(?:0[xX][0-9a-fA-F_]+|[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)(?![0-9A-Za-z_]))
    |(?P<word>(?:[A-Za-z_]|:(?=[A-Za-z_:]))[A-Za-z0-9_:]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)
    |(?P<mark>=~|!~|==|!=|<=|>=|[-+*/%^=<>(){}\[\],:@])""",
    re.VERBOSE | re.DOTALL,
)


def tokens(query: str) -> list[Token]:
    """The tokens of ``query``, the last of kind ``end``. Raises :class:`PromqlError`."""
    found: list[Token] = []
    place = 0
    while place < len(query):
        match = _TOKEN.match(query, place)
        if match is None:
            raise PromqlError(f"saw {query[place : place + 20]!r}, expected PromQL")
        if match.lastgroup:
            found.append(Token(match.lastgroup, match[0], place))
        place = match.end()
    found.append(Token("end", "", len(query)))
    return found
