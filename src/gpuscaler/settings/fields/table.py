"""Settings as a table: the name of each key of a file, its kind, its attribute, and its meaning.

A mapping of the file is a :class:`Group`, and each key is an attribute with a :class:`Kind` and a :class:`Field`::

    class LogSettings(Group, frozen=True, gc=False):
        level: Annotated[str, choice(LEVELS), Field("the lowest level that is logged")] = "info"

:func:`read`, :func:`schema` and the tables of the reference (``tools/reference_tables.py``) are derived from it. An attribute without a
:class:`Field` is not a key of the file.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

from msgspec import Struct
from msgspec.structs import fields as attributes_of

from gpuscaler.model.pools import Policy
from gpuscaler.model.reading.cursor import Cursor

Schema = dict[str, Any]
Fields = dict[str, Cursor]


class ReadContext(NamedTuple):
    """Context for reading values: names of pools and their offerings, and the folder for relative paths."""

    policy: Policy
    folder: Path


#: For values that need no context.
NO_CONTEXT = ReadContext(Policy(pools=()), Path())


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    ``words`` is the type in the reference. ``read`` returns the value, or None after it reported an invalid one. ``show`` converts a value
    to its form in a file; kinds without it have ``default`` as text.
    """

    words: str
    schema: Schema
    read: Callable[[Cursor, ReadContext], Any]
    show: Callable[[Any], Any] | None = None
    default: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """The meaning of a key, in Markdown.

    ``type`` and ``default`` replace the kind's words and the attribute's default in the reference. ``required`` is the expectation in the
    message if the key is missing. ``key`` is the name of the key if it differs from the attribute's; ``into`` are the attributes for a
    kind that reads several values.
    """

    meaning: str
    type: str = ""
    default: str = ""
    required: str = ""
    key: str = ""
    into: tuple[str, ...] = ()


class Group(Struct, frozen=True, gc=False):
    """Settings of a mapping of the file. All keys have defaults."""

    def check(self, at: Cursor) -> None:
        """Report contradictions between the keys of the mapping ``at``."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a group; ``default`` as in a file, None if the reference has it as text in ``default_words``."""

    into: tuple[str, ...]
    kind: Kind
    field: Field
    default: Any
    default_words: str

    def schema(self) -> Schema:
        """Return the schema with the key's meaning, in plain text, and its default."""
        value = self.kind.schema if self.default is None else {**self.kind.schema, "default": self.default}
        meaning = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", self.field.meaning).replace("`", "")
        return {**(value if self.field.required else nullable(value)), "description": meaning}


G = TypeVar("G", bound=Group)


@cache
def keys_of(group: type[Group]) -> Mapping[str, Key]:
    """Return the keys of a group, in order."""
    defaults = {info.name: info.default for info in attributes_of(group)}
    keys = {}
    for name, annotated in ((info.name, info.type) for info in attributes_of(group)):
        stated = getattr(annotated, "__metadata__", ())
        for field in (part for part in stated if isinstance(part, Field)):
            kind = next((part for part in stated if isinstance(part, Kind)), None) or _kind_of(get_args(annotated)[0])
            words = "required" if field.required else field.default or kind.default
            shown = kind.show if not words else None
            default = tuple(defaults[name_] for name_ in field.into) or defaults[name]
            keys[field.key or name] = Key(field.into or (name,), kind, field, shown(default) if shown else None, words)
    return keys


def _kind_of(annotated: Any) -> Kind:
    """Return the kind of a group, or of a tuple of groups."""
    if get_origin(annotated) is tuple:
        group: type[Group] = get_args(annotated)[0]
        items = {"type": "array", "items": schema(group)}
        return Kind("list", items, lambda at, context: tuple(read(group, item, context) for item in at.items()), default="nothing")
    return Kind("mapping", schema(annotated), lambda at, context: read(annotated, at, context), default="all defaults")


def read(group: type[G], at: Cursor, context: ReadContext) -> G:
    """Read the settings of the mapping ``at``."""
    return group(**read_attributes(group, at, context))


def read_attributes(group: type[Group], at: Cursor, context: ReadContext, *, only: Collection[str] | None = None) -> dict[str, Any]:
    """Return the attributes set by the mapping ``at``, restricted to the keys in ``only`` if given, without missing or invalid ones."""
    keys = _selected_keys(group, only)
    fields = at.mapping(keys)
    if isinstance(at.entry.value, dict):
        for name, key in keys.items():
            if key.field.required and name not in fields:
                at.add_problem(f"saw no {name}, expected {key.field.required}")
    fields_ = values(group, fields, context)
    group(**fields_).check(at)
    return fields_


def values(group: type[Group], fields: Fields, context: ReadContext) -> dict[str, Any]:
    """Return the attributes set by ``fields``, without missing or invalid ones."""
    result: dict[str, Any] = {}
    for name, key in keys_of(group).items():
        value = key.kind.read(fields[name], context) if name in fields else None
        if value is not None:
            result |= zip(key.into, value, strict=True) if key.field.into else {key.into[0]: value}
    return result


def schema(group: type[Group], *, only: Collection[str] | None = None) -> Schema:
    """Return the JSON Schema of the mapping, restricted to the keys in ``only`` if given."""
    keys = _selected_keys(group, only)
    return mapping({name: key.schema() for name, key in keys.items()}, required=[name for name, key in keys.items() if key.field.required])


def _selected_keys(group: type[Group], only: Collection[str] | None) -> Mapping[str, Key]:
    return {name: key for name, key in keys_of(group).items() if only is None or name in only}


def mapping(properties: Schema, *, required: list[str] | None = None) -> Schema:
    """Return the schema of a mapping of ``properties`` and no others."""
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required or []}


def nullable(schema: Schema) -> Schema:
    """Return ``schema`` that also accepts a key without a value, which counts as absent."""
    return {"anyOf": [schema, {"type": "null"}]}


def requires_values(*keys: str) -> Schema:
    """Return a schema that requires all ``keys`` with a value."""
    return {"required": list(keys), "properties": {key: {"not": {"type": "null"}} for key in keys}}
