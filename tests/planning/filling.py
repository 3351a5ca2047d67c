"""Values with every field filled, generated from a type."""

import types
from collections.abc import Mapping, Set
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec


def filled_value(kind: Any) -> Any:
    """A value of ``kind`` (a Struct, or a type of a Struct's field) with no field at its default and no empty collection."""
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return kind(**{name: filled_value(hints[name]) for name in kind.__struct_fields__})
    if isinstance(kind, type) and issubclass(kind, tuple) and (fields := getattr(kind, "_fields", ())):
        return kind(*(filled_value(get_type_hints(kind)[name]) for name in fields))
    if origin in (Union, types.UnionType):
        return filled_value(next(part for part in parts if part is not types.NoneType))
    if origin is tuple:
        return tuple(filled_value(part) for part in parts if part is not ...)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {filled_value(parts[0]): filled_value(parts[1])}
    if isinstance(origin, type) and issubclass(origin, Set):
        return frozenset([filled_value(parts[0])])
    simple: dict[Any, Any] = {str: "text", int: 3, float: 2.5, bool: True}
    return simple[kind]
