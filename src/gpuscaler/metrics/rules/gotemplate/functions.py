"""The functions of templates, but ``and`` and ``or``, which may leave arguments unevaluated.

Source: the documentation of Go's package ``text/template``.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

from gpuscaler.metrics.rules.gotemplate.errors import TemplateError
from gpuscaler.metrics.rules.gotemplate.formatting import plain, sprintf
from gpuscaler.metrics.rules.gotemplate.nodes import Byte, Value

Call = Callable[[list[Value]], Value]


def truth(value: Value) -> bool:
    """Whether ``value`` is neither false, 0, nil, nor empty."""
    return bool(value) or not isinstance(value, bool | int | float | str | list | dict | None)


def _count(name: str, values: list[Value], least: int, most: int | None = None) -> None:
    if len(values) < least or (most is not None and len(values) > most):
        raise TemplateError(f"saw {name} with {len(values)} values, expected {least if most == least else f'at least {least}'}")


def _negation(values: list[Value]) -> Value:
    _count("not", values, 1, 1)
    return not truth(values[0])


def _length(values: list[Value]) -> Value:
    _count("len", values, 1, 1)
    value = values[0]
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, list | dict):
        return len(value)
    raise TemplateError(f"saw len of {plain(value)}, expected text, a list or a map")


def _index(values: list[Value]) -> Value:
    _count("index", values, 1)
    value = values[0]
    for key in values[1:]:
        value = _member(value, key)
    return value


def _member(value: Value, key: Value) -> Value:
    if isinstance(value, dict):
        if not isinstance(key, str):
            raise TemplateError(f"saw index {plain(key)} of a map, expected text")
        return value.get(key, "")
    if isinstance(value, list | str):
        if isinstance(key, bool) or not isinstance(key, int):
            raise TemplateError(f"saw index {plain(key)} of a list or text, expected a whole number")
        members: list[str] | bytes = value if isinstance(value, list) else value.encode()
        if not 0 <= key < len(members):
            raise TemplateError(f"saw index {key} of {len(members)}, expected one from 0 to {len(members) - 1}")
        member = members[key]
        return Byte(member) if isinstance(member, int) else member
    raise TemplateError(f"saw index of {plain(value)}, expected a list, map or text")


def _slice(values: list[Value]) -> Value:
    _count("slice", values, 1, 4)
    value, *bounds = values
    if not isinstance(value, list | str) or (isinstance(value, str) and len(bounds) > 2):
        raise TemplateError(f"saw slice of {plain(value)}, expected text or a list")
    members: list[str] | bytes = value if isinstance(value, list) else value.encode()
    least = 0
    for bound in bounds:
        if isinstance(bound, bool) or not isinstance(bound, int) or not least <= bound <= len(members):
            raise TemplateError(f"saw slice to {plain(bound)} of {len(members)}, expected {least} to {len(members)}")
        least = bound
    start = bounds[0] if bounds else 0
    end = bounds[1] if len(bounds) > 1 else len(members)
    assert isinstance(start, int)
    assert isinstance(end, int)
    part = members[start:end]
    return part.decode(errors="replace") if isinstance(part, bytes) else part


def _print(values: list[Value]) -> Value:
    """Spaces stand between values of which neither is text."""
    text = "".join(plain(left) + ("" if isinstance(left, str) or isinstance(right, str) else " ") for left, right in pairwise(values))
    return text + "".join(plain(one) for one in values[-1:])


def _println(values: list[Value]) -> Value:
    return " ".join(plain(one) for one in values) + "\n"


def _printf(values: list[Value]) -> Value:
    _count("printf", values, 1)
    template, *rest = values
    if not isinstance(template, str):
        raise TemplateError(f"saw printf of {plain(template)}, expected text")
    return sprintf(template, rest)


def _same(left: Value, right: Value) -> bool:
    if left is not None and right is not None:
        _comparable(left, right)
    return left == right


def _comparable(left: Value, right: Value, *, ordered: bool = False) -> None:
    kinds = [one for one in (bool, int, float, str) if _kind(left) is one and _kind(right) is one]
    if not kinds or (ordered and kinds == [bool]):
        raise TemplateError(f"saw a comparison of {plain(left)} and {plain(right)}, expected values of one kind")


def _kind(value: Value) -> type:
    return int if isinstance(value, Byte) else type(value)


def _equal(values: list[Value]) -> Value:
    """Whether the first is any of the others."""
    _count("eq", values, 2)
    return any(_same(values[0], one) for one in values[1:])


def _unequal(values: list[Value]) -> Value:
    _count("ne", values, 2, 2)
    return not _same(*values)


def _less(values: list[Value], *, swapped: bool = False) -> bool:
    _count("a comparison", values, 2, 2)
    left, right = reversed(values) if swapped else values
    _comparable(left, right, ordered=True)
    if isinstance(left, str) and isinstance(right, str):
        return left.encode() < right.encode()
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    return left < right


CALLS: Mapping[str, Call] = {
    "not": _negation,
    "len": _length,
    "index": _index,
    "slice": _slice,
    "print": _print,
    "println": _println,
    "printf": _printf,
    "eq": _equal,
    "ne": _unequal,
    "lt": _less,
    "le": lambda values: not _less(values, swapped=True),
    "gt": lambda values: _less(values, swapped=True),
    "ge": lambda values: not _less(values),
}
