"""Reads files as documents with their objects. Documents that need no change are written again as they were.

The files may be anyone's: the reader bounds depth, size and aliases, and an unreadable document does not affect the others.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from gpuscaler.converting.kinds import not_an_object
from gpuscaler.converting.objects import Float, Integer, Json, text
from gpuscaler.doctor.manifests.reading import SourceFile, documents_of, is_harmless, tree_of
from gpuscaler.doctor.yaml_text import MOST_VALUES, size_of
from gpuscaler.model.reading.document import Entry

#: Octal numbers of YAML 1.1, which kubectl reads as such; common as modes of files.
_OCTAL: Final = re.compile(r"(?P<sign>[-+]?)0+o?(?P<digits>[0-7]+)")
_TEMPLATE: Final = "it is a template of Helm; convert what helm template prints"

Path = tuple[str | int, ...]


class ManifestError(ValueError):
    """A file that is not YAML with Kubernetes objects."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object of a document, which has it at ``prefix``."""

    entry: Entry
    data: Json
    prefix: Path = ()


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A document of a file, in its lines from ``first`` to ``last``.

    ``unreadable`` says why it cannot be read, ``other`` what it is instead of a Kubernetes object, with its ``value``; it has no objects
    then.
    """

    file: SourceFile
    first: int
    last: int
    objects: tuple[Found, ...] = ()
    unreadable: str = ""
    other: str = ""
    value: Any = None

    @property
    def text(self) -> str:
        return self.file.part(self.first, self.last)

    @property
    def is_list(self) -> bool:
        return any(item.prefix for item in self.objects)


def read_documents(name: str, source: str) -> list[SourceDocument]:
    """The documents of the file ``name``; Lists are expanded."""
    file = SourceFile.of(name, source)
    return [_read(file, first, last) for first, last in documents_of(file.lines)]


def read(source: str) -> list[Json]:
    """The objects in YAML or JSON, with Lists expanded. Raises :class:`ManifestError`."""
    objects: list[Json] = []
    for number, document in enumerate(read_documents("", source), 1):
        if document.unreadable:
            raise ManifestError(f"document {number}: saw invalid YAML, expected Kubernetes objects: {document.unreadable}")
        if document.other:
            raise ManifestError(f"document {number}: saw {document.other}, expected a Kubernetes object")
        objects += [item.data for item in document.objects]
    return objects


def _read(file: SourceFile, first: int, last: int) -> SourceDocument:
    source = file.part(first, last)
    if all(line.startswith(("%", "#")) or not line.strip() for line in source.splitlines()):
        # A directive, or comments before the first document.
        return SourceDocument(file, first, last)
    if "{{" in source and "templates" in file.name.split("/"):
        return SourceDocument(file, first, last, unreadable=_TEMPLATE)
    root, problems = tree_of(source, first)
    serious = [problem for problem in problems if not is_harmless(problem)]
    templates = [problem for problem in problems if "{{" in source and problem.message.startswith("saw the key a list")]
    if serious or templates:
        problem = (serious or templates)[0]
        message = problem.message.removeprefix("not YAML: ").partition("; expected")[0]
        reason = _TEMPLATE if "{{" in source else message
        at = f"line {problem.line}: " if problem.line and problem.line != first else ""
        return SourceDocument(file, first, last, unreadable=f"{at}{reason}")
    if root is None or root.value is None:
        return SourceDocument(file, first, last)
    if size_of(root) > MOST_VALUES:
        return SourceDocument(file, first, last, unreadable=f"its aliases expand to more than {MOST_VALUES:,} values")
    objects = _objects(root)
    for item in objects:
        if other := not_an_object(item.data, file.name):
            if item.prefix:
                return SourceDocument(file, first, last, unreadable=f"line {item.entry.line}: saw {other}, expected an object in the List")
            return SourceDocument(file, first, last, other=other, value=item.data)
    return SourceDocument(file, first, last, objects)


def _objects(root: Entry) -> tuple[Found, ...]:
    members = root.value if isinstance(root.value, dict) else {}
    kind, items = members.get("kind"), members.get("items")
    if kind is not None and text(kind.value).endswith("List") and items is not None and isinstance(items.value, list):
        return tuple(Found(item, data_of(item), ("items", index)) for index, item in enumerate(items.value))
    return (Found(root, data_of(root)),)


def data_of(entry: Entry) -> Any:
    """The value of ``entry`` as kubectl reads it. Numbers that are written unusually keep how they are written."""
    value = entry.value
    if isinstance(value, dict):
        return {key: data_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [data_of(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    number: Float | Integer
    if isinstance(value, float):
        if entry.raw == repr(value):
            return value
        number = Float(value)
    elif octal := _OCTAL.fullmatch(entry.raw):
        number = Integer(int(octal["sign"] + octal["digits"], 8))
    elif entry.raw == str(value):
        return value
    else:
        number = Integer(value)
    number.written = entry.raw
    return number


def is_json(source: str) -> bool:
    """Whether ``source`` is JSON, or several documents of JSON."""
    if not source.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(source)
    except (ValueError, RecursionError):
        return False
    return True
