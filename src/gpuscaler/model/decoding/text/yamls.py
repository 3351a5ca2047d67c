"""Kubernetes YAML: one document after the other."""

import io
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar

import yaml

from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Item
from gpuscaler.model.decoding.errors import InputError
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.objects import decode_object
from gpuscaler.model.decoding.text.jsons import DEEPEST

#: Maximum number of values in a document after expanding aliases.
MOST_VALUES = 5_000_000
#: The depth of values in a document; and what begins a line that may be nested as deeply without brackets.
DEEPEST_VALUES = 200
_LONG_INDENT = re.compile(rf"^[ \t?:-]{{{DEEPEST_VALUES},}}", re.MULTILINE)
#: Names of types of YAML values in messages.
_WORDS = ((str, "text"), (bool, "a truth value"), (int | float, "a number"), (list, "a list"))

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _DuplicateKeyError(ValueError):
    """A mapping has a duplicate key."""


class _Loader(_BASE):  # type: ignore[misc]  # the C loader may be missing
    """YAML as read by Kubernetes: times, dates and 1:30 are strings, and keys must be unique."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, Any]]]] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in keys:
                    raise _DuplicateKeyError(f"the key {key.value!r} twice (line {key.start_mark.line + 1} of the document)")
                keys.add(key.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("bool", r"true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF", "tTfFyYnNoO"),
    ("int", r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+0123456789."),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})$"), list(_first))


def yaml_items(stream: BinaryIO, interner: Interner, file: str) -> Iterator[Item | Skipped]:
    """Yield the objects of a stream of YAML documents; ``v1 List`` documents are expanded into their items.

    Raises :class:`InputError` if all documents are empty: comments, or the ``null`` of a failed jq, are no empty cluster.
    """
    empty = True
    for document in _loaded_documents(stream, file):
        empty = False
        if isinstance(document, Skipped):
            yield document
            continue
        for path, raw, kind, api_version in _objects(*document):
            yield from _decoded(raw, interner, f"{file} {path}", kind, api_version)
    if empty:
        raise InputError(file, "", "no object", "Kubernetes objects; for an empty cluster kubectl prints a List without items")


def yaml_objects(stream: BinaryIO, file: str) -> Iterator[tuple[str, Any, str, str] | Skipped]:
    """Yield the objects of a stream of YAML documents as they are, with place, and kind and version from a typed List."""
    for document in _loaded_documents(stream, file):
        if isinstance(document, Skipped):
            yield document
        else:
            yield from _objects(*document)


def _loaded_documents(stream: BinaryIO, file: str) -> Iterator[tuple[Any, str] | Skipped]:
    """Yield the documents of a stream, except empty ones, each with its place."""
    for number, (line, text) in enumerate(_documents(stream, file)):
        place = f"document {number} (line {line})"
        try:
            _refuse_depth(text)
            loaded = yaml.load(text, Loader=_Loader)  # noqa: S506  # a safe loader's subclass
        except _DuplicateKeyError as error:
            yield Skipped(f"{file} {place}", f"saw {error}, expected each key once")
            continue
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise InputError(file, place, _describe_error(error, line), "a Kubernetes object as YAML") from error
        if loaded is None:
            continue
        if "&" in text and "*" in text and _size(loaded) > MOST_VALUES:
            yield Skipped(f"{file} {place}", f"saw aliases that expand to more than {MOST_VALUES} values, expected a Kubernetes object")
            continue
        yield loaded, place


def _refuse_depth(text: str) -> None:
    """Raise :class:`ValueError` for a document that is nested too deeply: libyaml's composer recurses until the process ends."""
    if text.count("[") + text.count("{") <= DEEPEST_VALUES and _LONG_INDENT.search(text) is None:
        return
    depth = 0
    for event in yaml.parse(text, Loader=_BASE):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST_VALUES:
                raise ValueError(f"values nested more than {DEEPEST_VALUES} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _describe_error(error: Exception, first: int) -> str:
    """Describe the error in a document that starts at line ``first`` of its file, with the line of the file."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    place = f" (line {first + mark.line})" if mark else ""
    return " ".join(str(part) for part in (error.context, error.problem) if part) + place


def _objects(loaded: Any, place: str, kind: str = "", api_version: str = "", depth: int = 0) -> Iterator[tuple[str, Any, str, str]]:
    """Yield the objects of a document, with place, and kind and version from a typed List. Lists may be nested."""
    if isinstance(loaded, list) and not depth:
        for index, raw in enumerate(loaded):
            yield from _objects(raw, f"{place}[{index}]", depth=1)
        return
    list_kind = loaded.get("kind") if isinstance(loaded, Mapping) else None
    if isinstance(list_kind, str) and list_kind.endswith("List") and isinstance(loaded.get("items"), list) and depth <= DEEPEST:
        version = loaded.get("apiVersion")
        of_items = list_kind.removesuffix("List")
        for index, raw in enumerate(loaded["items"]):
            items_version = version if of_items and isinstance(version, str) else ""
            yield from _objects(raw, f"{place} items[{index}]", of_items, items_version, depth + 1)
        return
    yield place, loaded, kind, api_version


def _describe_value(raw: Any) -> str:
    return next((word for kind, word in _WORDS if isinstance(raw, kind)), "nothing")


def _decoded(raw: Any, interner: Interner, place: str, kind: str, api_version: str) -> Iterator[Item | Skipped]:
    if not isinstance(raw, Mapping):
        yield Skipped(place, f"saw {_describe_value(raw)}, expected a Kubernetes object")
        return
    result = decode_object(raw, interner, kind=kind, api_version=api_version)
    if isinstance(result, Sequence):
        yield from result
    elif isinstance(result, Skipped):
        yield Skipped(place, result.reason) if result.object == "object" else result
    elif result is not None:
        yield result


def _documents(stream: BinaryIO, file: str) -> Iterator[tuple[int, str]]:
    """Yield the documents of a stream with their first lines. A line that starts with ``---`` is always a separator."""
    lines: list[str] = []
    first = 1
    reader = io.TextIOWrapper(stream, encoding="utf-8-sig", newline=None)
    try:
        for number, line in enumerate(reader, 1):
            if line.startswith("---") and (line[3:4].isspace() or len(line) == 3):
                yield first, "".join(lines)
                lines, first = [line], number
            else:
                lines.append(line)
    except UnicodeDecodeError as error:
        raise InputError(file, f"after line {first + len(lines) - 1}", f"a byte that is not UTF-8 ({error.reason})", "text") from error
    finally:
        reader.detach()
    yield first, "".join(lines)


def _size(loaded: Any) -> int:
    """Return the number of values in ``loaded`` after expanding aliases; infinite for recursive ones."""
    sizes: dict[int, float] = {}

    def measure(value: Any) -> float:
        if not isinstance(value, dict | list):
            return 1
        if id(value) not in sizes:
            sizes[id(value)] = float("inf")
            sizes[id(value)] = 1 + sum(map(measure, value.values() if isinstance(value, dict) else value))
        return sizes[id(value)]

    return int(min(measure(loaded), MOST_VALUES + 1))
