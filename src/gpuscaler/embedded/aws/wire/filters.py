"""Filters of Describe calls, with their wildcards."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from gpuscaler.embedded.aws.wire.errors import AwsError


def matches(filters: Iterable[Mapping[str, Any]], fields: Mapping[str, Callable[[], Sequence[str]]]) -> bool:
    """Whether an object passes; ``fields`` say what it has, by the filter's name. ``tag:NAME`` asks for the field ``tag``'s ``NAME=value``.

    A filter of another name is refused, as the services do.
    """
    return all(_passes(one["Name"], one.get("Values", []), fields) for one in filters)


def _passes(name: str, values: Sequence[str], fields: Mapping[str, Callable[[], Sequence[str]]]) -> bool:
    prefix = ""
    if name.startswith("tag:"):
        name, prefix = "tag", f"{name.removeprefix('tag:')}="
    if name not in fields:
        raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
    has = fields[name]()
    return any(fnmatchcase(one, prefix + value) for one in has for value in values)
