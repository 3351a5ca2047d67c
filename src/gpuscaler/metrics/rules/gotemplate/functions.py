"""The functions of templates, except ``and`` and ``or``, which may leave arguments unevaluated.

Source: the documentation of Go's package ``text/template``.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import not_
from typing import NamedTuple, TypeGuard

from gpuscaler.metrics.rules.gotemplate.errors import TemplateError
from gpuscaler.metrics.rules.gotemplate.formatting import plain, sprintf
from gpuscaler.metrics.rules.gotemplate.syntax import Value


class _Signature(NamedTuple):
    call: Callable[..., Value]
    least: int
    #: None: any number of values.
    most: int | None


def call(name: str, values: Sequence[Value]) -> Value:
    """Call the function with ``values``. Raises :class:`~.errors.TemplateError`."""
    function = _FUNCTIONS[name]
    if len(values) < function.least or (function.most is not None and len(values) > function.most):
        expected = f"{function.least}" if function.least == function.most else f"at least {function.least}"
        raise TemplateError(f"saw {name} with {len(values)} values, expected {expected}")
    return function.call(*values)


def _length(value: Value) -> int:
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, list | dict):
        return len(value)
    raise TemplateError(f"saw len of {plain(value)}, expected text, a list or a map")


def _index(value: Value, key: Value) -> str:
    if isinstance(value, dict):
        if not isinstance(key, str):
            raise TemplateError(f"saw index {plain(key)} of a map, expected text")
        return value.get(key, "")
    if not isinstance(value, list):
        raise TemplateError(f"saw index of {plain(value)}, expected a list or a map")
    if not _is_within(key, 0, len(value) - 1):
        raise TemplateError(f"saw index {plain(key)} of a list of {len(value)}, expected a whole number below {len(value)}")
    return value[key]


def _slice(text: Value, start: Value, end: Value = None) -> str:
    """The bytes of a text from one position up to another, or to its end."""
    if not isinstance(text, str):
        raise TemplateError(f"saw slice of {plain(text)}, expected text")
    whole = text.encode()
    end = len(whole) if end is None else end
    if not _is_within(end, 0, len(whole)) or not _is_within(start, 0, end):
        raise TemplateError(f"saw slice from {plain(start)} to {plain(end)} of {len(whole)} bytes, expected positions within them")
    return whole[start:end].decode(errors="replace")


def _is_within(value: Value, minimum: int, maximum: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum


def _print(*values: Value) -> str:
    """Join values, with spaces between values of which neither is text."""
    text = "".join(plain(left) + ("" if isinstance(left, str) or isinstance(right, str) else " ") for left, right in pairwise(values))
    return text + "".join(plain(value) for value in values[-1:])


def _is_equal(left: Value, right: Value) -> bool:
    if left is not None and right is not None:
        _check_comparable(left, right, (bool, int, str))
    return left == right


def _is_less(left: Value, right: Value) -> bool:
    _check_comparable(left, right, (int, str))
    if isinstance(left, str) and isinstance(right, str):
        return left.encode() < right.encode()
    assert isinstance(left, int)
    assert isinstance(right, int)
    return left < right


def _check_comparable(left: Value, right: Value, kinds: tuple[type, ...]) -> None:
    if type(left) is not type(right) or type(left) not in kinds:
        raise TemplateError(f"saw a comparison of {plain(left)} and {plain(right)}, expected values of one kind")


_FUNCTIONS: Mapping[str, _Signature] = {
    "not": _Signature(not_, 1, 1),
    "len": _Signature(_length, 1, 1),
    "index": _Signature(_index, 2, 2),
    "slice": _Signature(_slice, 2, 3),
    "print": _Signature(_print, 0, None),
    "printf": _Signature(sprintf, 1, None),
    "eq": _Signature(lambda first, *others: any(_is_equal(first, other) for other in others), 2, None),
    "ne": _Signature(lambda left, right: not _is_equal(left, right), 2, 2),
    "lt": _Signature(_is_less, 2, 2),
    "le": _Signature(lambda left, right: not _is_less(right, left), 2, 2),
    "gt": _Signature(lambda left, right: _is_less(right, left), 2, 2),
    "ge": _Signature(lambda left, right: not _is_less(left, right), 2, 2),
}
#: The names of all functions.
NAMES = frozenset({"and", "or", *_FUNCTIONS})
