"""Go's regular expressions, and the expansion of ``$1``.

Source: the documentation of Go's package ``regexp`` (``Regexp.Expand``). Go's engine was modeled on RE2.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import re2

_ESCAPE = re.compile(r"\\.", re.DOTALL)
_LITERAL = re.compile(r"\\Q.*?(?:\\E|\Z)", re.DOTALL)


class PatternError(ValueError):
    """An invalid expression, which Go would not compile either."""


class Pattern:
    """A regular expression. It matches anywhere in a text unless it is anchored. Raises :class:`PatternError`."""

    def __init__(self, text: str) -> None:
        self.text = text
        if r"\C" in _ESCAPE.findall(_LITERAL.sub("", text)):
            raise PatternError(f'saw "{text}", expected no \\C: Go has no expression for a byte')
        options = re2.Options()
        options.log_errors = False
        try:
            self._compiled = re2.compile(text, options=options)
        except re2.error as error:
            why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error
            raise PatternError(f'saw "{text}", expected a regular expression as Go and RE2 read it: {why}') from None

    @property
    def groups(self) -> int:
        return int(self._compiled.groups)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._compiled.groupindex)

    def matches(self, text: str) -> bool:
        return self._compiled.search(text) is not None

    def first(self, text: str, group: str | int) -> str | None:
        """A group of the first match; empty if the group did not participate, None without a match."""
        match = self._compiled.search(text)
        return None if match is None else str(match.group(group) or "")

    def expand(self, template: str, text: str) -> str | None:
        """``template`` with ``$name`` and ``${name}`` replaced by groups of the first match in ``text``; None without a match.

        An unknown group is empty. The longest possible name is used: ``$1_x`` is the group named ``1_x``, never group 1.
        """
        match = self._compiled.search(text)
        if match is None:
            return None

        def value(name: str) -> str:
            number = _number(name)
            if number is not None:
                return str(match.group(number) or "") if number <= self.groups else ""
            return str(match.group(name) or "") if name in self.names else ""

        return _expanded(template, value)

    def unknown(self, template: str) -> Iterator[str]:
        """The names of unknown groups in ``template``, which expand to nothing."""
        for reference in _references(template):
            if reference.name:
                number = _number(reference.name)
                if (number is not None and number > self.groups) or (number is None and reference.name not in self.names):
                    yield reference.name


class _Reference(NamedTuple):
    """Text up to a ``$``, and the name after it. For ``$$`` or a ``$`` without a name, ``name`` is empty and ``text`` has the ``$``."""

    text: str
    name: str


def _references(template: str) -> Iterator[_Reference]:
    rest = template
    while rest:
        before, dollar, rest = rest.partition("$")
        if not dollar:
            yield _Reference(before, "")
        elif rest.startswith("$"):
            rest = rest[1:]
            yield _Reference(before + "$", "")
        else:
            name, length = _name(rest)
            rest = rest[length:]
            yield _Reference(before if name else before + "$", name)


def _name(text: str) -> tuple[str, int]:
    """The name at the start of ``text``, and its length there; empty and 0 if there is none."""
    start = int(text.startswith("{"))
    end = start
    # Go's letters and digits: superscripts and fractions are numbers in Python, too, but not digits.
    while end < len(text) and (text[end].isalpha() or text[end].isdecimal() or text[end] == "_"):
        end += 1
    if end == start or (start and text[end : end + 1] != "}"):
        return "", 0
    return text[start:end], end + start


def _number(name: str) -> int | None:
    """A name as a number. A number with a leading zero, or with more digits than Go accepts, is a name: None."""
    if not name.isascii() or not name.isdigit() or (name[0] == "0" and len(name) > 1) or len(name) > 9:
        return None
    return int(name)


def _expanded(template: str, value: Callable[[str], str]) -> str:
    return "".join(reference.text + (value(reference.name) if reference.name else "") for reference in _references(template))
