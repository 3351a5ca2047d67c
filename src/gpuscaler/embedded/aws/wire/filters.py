"""Filters of Describe calls, with their wildcards."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from gpuscaler.embedded.aws.wire.errors import AwsError


def matches(filters: Iterable[Mapping[str, Any]], fields: Mapping[str, Callable[[], Sequence[str]]]) -> bool:
    """Whether an object passes; ``fields`` are its values by filter name. ``tag:NAME`` compares with ``NAME=value`` in the field ``tag``.

    A filter with another name is refused, as by the services.
    """
    return all(_passes(item["Name"], item.get("Values", []), fields) for item in filters)


def _passes(name: str, values: Sequence[str], fields: Mapping[str, Callable[[], Sequence[str]]]) -> bool:
    prefix = ""
    if name.startswith("tag:"):
        name, prefix = "tag", f"{name.removeprefix('tag:')}="
    if name not in fields:
        raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
    actual = fields[name]()
    return any(fnmatchcase(text, prefix + value) for text in actual for value in values)
