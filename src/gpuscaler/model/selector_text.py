"""Label selectors as text: ``app=x,tier in (a,b),!old``.

Grammar and messages: ``k8s.io/apimachinery/pkg/labels`` (``Lexer``, ``Parser``), Kubernetes 1.35.
"""

import re

from msgspec import Struct

from gpuscaler.model.selectors import LabelSelector, Requirement

_TOKEN = re.compile(r"[ \t\r\n]*(==|!=|[=!(),<>]|[^ \t\r\n=!(),<>]+|$)")
#: Operators of a :class:`Requirement`, by their text.
OPERATORS = {"": "Exists", "!": "DoesNotExist", "=": "In", "==": "In", "!=": "NotIn", "in": "In", "notin": "NotIn", ">": "Gt", "<": "Lt"}
_SPECIAL = frozenset("= == != ! ( ) , < >".split()) | {""}


class SelectorError(ValueError):
    """A selector cannot be parsed; the text is the API server's message."""


class Term(Struct, frozen=True, gc=False):
    """A requirement with its operator as written: ``=``, ``==``, ``!=``, ``in``, ``notin``, ``>``, ``<``, ``!``, or empty."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    @property
    def requirement(self) -> Requirement:
        return Requirement(self.key, OPERATORS[self.operator], self.values)


def parse_selector(text: str) -> LabelSelector:
    """Parse ``text`` into requirements that must all hold; empty text has none. Raises :class:`SelectorError`."""
    return LabelSelector(tuple(term.requirement for term in parse_terms(text)))


def parse_terms(text: str) -> tuple[Term, ...]:
    """Return the requirements of ``text`` as written, in order. Raises :class:`SelectorError`."""
    return _Parser(text).terms()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [match[1] for match in _TOKEN.finditer(text)]
        self._place = 0

    def terms(self) -> tuple[Term, ...]:
        terms: list[Term] = []
        while True:
            if self._peek() == "" and not terms:
                return ()
            terms.append(self._term())
            mark = self._next()
            if mark == "":
                return tuple(terms)
            if mark != ",":
                raise SelectorError(f"found '{mark}', expected: ',' or 'end of string'")
            if self._peek() != "!" and self._peek() in _SPECIAL:
                raise SelectorError(f"found '{self._peek()}', expected: identifier after ','")

    def _term(self) -> Term:
        absent = self._peek() == "!"
        if absent:
            self._next()
        key = self._next()
        if key in _SPECIAL:
            raise _unparsed(f"found '{key}', expected: identifier")
        operator = "!" if absent else "" if self._peek() in ("", ",") else self._next()
        if operator not in OPERATORS or (operator == "!" and not absent):
            raise _unparsed(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
        term = Term(key, operator, self._values(operator))
        if not term.requirement.valid:
            raise _unparsed(f"saw '{key} {operator} {','.join(term.values)}', expected a label's key, and values that labels can have")
        return term

    def _values(self, operator: str) -> tuple[str, ...]:
        if operator in ("", "!"):
            return ()
        if operator in ("in", "notin"):
            return tuple(sorted(set(self._list())))
        if self._peek() in ("", ","):
            return ("",)
        value = self._next()
        if value in _SPECIAL:
            raise _unparsed(f"found '{value}', expected: identifier")
        return (value,)

    def _list(self) -> list[str]:
        """Parse ``(a,b)``; a value may be empty."""
        if (mark := self._next()) != "(":
            raise _unparsed(f"found '{mark}' expected: '('")
        values = [""]
        while (mark := self._next()) != ")":
            if mark == ",":
                values.append("")
            elif mark in _SPECIAL or values[-1]:
                raise _unparsed(f"found '{mark}', expected: ',', or identifier")
            else:
                values[-1] = mark
        return values

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._place += 1
        return token


def _unparsed(why: str) -> SelectorError:
    return SelectorError(f"unable to parse requirement: {why}")
