"""Settings as one table: what a key of a file is called, what it may be, where its value goes, and what it means.

A mapping of the file is a :class:`Group`, and each of its keys an attribute with a :class:`Kind` and a :class:`Field`::

    class LogSettings(Group, frozen=True, gc=False):
        level: Annotated[str, choice(LEVELS), Field("what is not logged is what is below it")] = "info"

:func:`read` and :func:`schema` follow from that, and so do the tables of the reference (``tools/reference_tables.py``). An attribute
without a :class:`Field` is no key of the file.
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
from gpuscaler.settings.cursor import Cursor

Schema = dict[str, Any]
Fields = dict[str, Cursor]


class Given(NamedTuple):
    """What values are read against: names of pools and their offerings, and the folder that paths start from."""

    policy: Policy
    folder: Path


#: For values that say all themselves.
NOTHING = Given(Policy(pools=()), Path())


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value may be.

    ``words`` are the type in the reference. ``read`` returns the value, or None for a wrong one, which it reported. ``show`` makes a value
    what it is in a file; kinds without it have ``default`` in words.
    """

    words: str
    schema: Schema
    read: Callable[[Cursor, Given], Any]
    show: Callable[[Any], Any] | None = None
    default: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """What a key means, in Markdown.

    ``type`` and ``default`` are in the reference in place of the kind's words and of the attribute's default. ``required`` is what the
    message expects where the key is missing. A key that is not called like its attribute has a name in ``key``; ``into`` are the
    attributes for a kind that reads several values.
    """

    meaning: str
    type: str = ""
    default: str = ""
    required: str = ""
    key: str = ""
    into: tuple[str, ...] = ()


class Group(Struct, frozen=True, gc=False):
    """Settings that stand in one mapping of the file. All keys have defaults."""

    def check(self, at: Cursor) -> None:
        """Report what is wrong between the keys of the mapping ``at``."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a group; ``default`` as a file has it, None where the reference says it in ``default_words``."""

    into: tuple[str, ...]
    kind: Kind
    field: Field
    default: Any
    default_words: str

    def schema(self) -> Schema:
        """With what the key means, in plain text, and its default."""
        value = self.kind.schema if self.default is None else {**self.kind.schema, "default": self.default}
        meaning = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", self.field.meaning).replace("`", "")
        return {**(value if self.field.required else optional(value)), "description": meaning}


G = TypeVar("G", bound=Group)


@cache
def keys_of(group: type[Group]) -> Mapping[str, Key]:
    """The table of a group, in its order."""
    defaults = {info.name: info.default for info in attributes_of(group)}
    keys = {}
    for name, annotated in ((info.name, info.type) for info in attributes_of(group)):
        stated = getattr(annotated, "__metadata__", ())
        for field in (one for one in stated if isinstance(one, Field)):
            kind = next((one for one in stated if isinstance(one, Kind)), None) or _kind_of(get_args(annotated)[0])
            words = "required" if field.required else field.default or kind.default
            shown = kind.show if not words else None
            default = tuple(defaults[one] for one in field.into) or defaults[name]
            keys[field.key or name] = Key(field.into or (name,), kind, field, shown(default) if shown else None, words)
    return keys


def _kind_of(annotated: Any) -> Kind:
    """Of a group, or of a tuple of groups."""
    if get_origin(annotated) is tuple:
        group: type[Group] = get_args(annotated)[0]
        items = {"type": "array", "items": schema(group)}
        return Kind("list", items, lambda at, given: tuple(read(group, item, given) for item in at.items()), default="nothing")
    return Kind("mapping", schema(annotated), lambda at, given: read(annotated, at, given), default="all defaults")


def read(group: type[G], at: Cursor, given: Given) -> G:
    """The settings of the mapping ``at``."""
    return group(**stated(group, at, given))


def stated(group: type[Group], at: Cursor, given: Given, *, only: Collection[str] | None = None) -> dict[str, Any]:
    """Attributes by what the mapping ``at`` says, of the keys in ``only`` where that is given; what is left out, or wrong, is not in it."""
    keys = _some_of(group, only)
    fields = at.mapping(keys)
    if isinstance(at.entry.value, dict):
        for name, key in keys.items():
            if key.field.required and name not in fields:
                at.say(f"saw no {name}, expected {key.field.required}")
    found = values(group, fields, given)
    group(**found).check(at)
    return found


def values(group: type[Group], fields: Fields, given: Given) -> dict[str, Any]:
    """Attributes by what is right in ``fields``; what is left out, or wrong, is not in it."""
    found: dict[str, Any] = {}
    for name, key in keys_of(group).items():
        value = key.kind.read(fields[name], given) if name in fields else None
        if value is not None:
            found |= zip(key.into, value, strict=True) if key.field.into else {key.into[0]: value}
    return found


def schema(group: type[Group], *, only: Collection[str] | None = None) -> Schema:
    """The JSON Schema of the mapping, with the keys in ``only`` where that is given."""
    keys = _some_of(group, only)
    return mapping({name: key.schema() for name, key in keys.items()}, required=[name for name, key in keys.items() if key.field.required])


def _some_of(group: type[Group], only: Collection[str] | None) -> Mapping[str, Key]:
    return {name: key for name, key in keys_of(group).items() if only is None or name in only}


def mapping(properties: Schema, *, required: list[str] | None = None) -> Schema:
    """A mapping of ``properties`` and no others."""
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required or []}


def optional(schema: Schema) -> Schema:
    """A key without a value counts as left out."""
    return {"anyOf": [schema, {"type": "null"}]}


def filled_in(*keys: str) -> Schema:
    """All of ``keys`` are there, with a value."""
    return {"required": list(keys), "properties": {key: {"not": {"type": "null"}} for key in keys}}
