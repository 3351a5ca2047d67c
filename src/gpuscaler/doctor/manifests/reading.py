"""Reads files of YAML and JSON as objects whose fields have lines. A file that cannot be read in part loses only that part."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.findings import Unchecked
from gpuscaler.doctor.manifests.credentials import has_secret, is_guarded, may_be_in_secret
from gpuscaler.doctor.yaml_text import MOST_VALUES, data_of, size_of
from gpuscaler.model.reading.document import DUPLICATE, Entry, read_document
from gpuscaler.model.reading.errors import Problem

_STEP = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")
_SPACE = re.compile(r"\s*")
_MARK = "\ufeff"
#: The name of what is read from no file: no patch can name it.
STANDARD_INPUT = "standard input"
#: Problems that Kubernetes does not mind: keys that are no text are read as text, and tags belong to other programs.
_HARMLESS = ("saw the tag", "saw the key")

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file: ``name`` is that by which a patch finds it. ``lines`` have no line ends.

    ``ends`` says whether the last line ends with a line end, ``guarded`` whether there may be credentials in the file. ``secrets`` are
    the first and last lines of documents with a Secret. ``mark`` is the byte order mark before the first line, if there is one.
    """

    name: str
    lines: tuple[str, ...]
    ends: bool
    guarded: bool
    secrets: tuple[tuple[int, int], ...]
    mark: str = ""

    @classmethod
    def of(cls, name: str, text: str) -> "SourceFile":
        """The file ``name`` with ``text``. Lines are those that patch counts: a carriage return belongs to its line."""
        mark = _MARK if text.startswith(_MARK) else ""
        text = text.removeprefix(mark)
        lines = tuple(text.removesuffix("\n").split("\n")) if text else ()
        secrets = ((first, last) for first, last in documents_of(lines) if has_secret("\n".join(lines[first - 1 : last])))
        return cls(name, lines, text.endswith("\n"), is_guarded(text), tuple(secrets) if has_secret(text) else (), mark)

    @property
    def text(self) -> str:
        return self.mark + "\n".join(self.lines) + ("\n" if self.ends else "")

    def in_secret(self, line: int) -> bool:
        """Whether ``line``, which counts from 1, may have values of a Secret."""
        return any(first <= line <= last for first, last in self.secrets) and may_be_in_secret(self.part(line, line))

    def part(self, first: int, last: int) -> str:
        """The lines from ``first`` to ``last``, which count from 1."""
        return "\n".join(self.lines[first - 1 : last]) + "\n"


@dataclass(frozen=True, slots=True)
class Manifest:
    """An object of a file. The YAML document with it takes the lines from ``first`` to ``last``, and has it at ``prefix``."""

    file: SourceFile
    root: Entry
    document: Document
    first: int
    last: int
    prefix: Path = ()

    @property
    def title(self) -> str:
        """``Kind namespace/name``; the file of what has no kind."""
        return self.document.title if self.document.kind else f"file {self.file.name.rpartition('/')[2]}"

    @property
    def data(self) -> Mapping[str, Any]:
        return self.document.data

    def entry(self, path: Path) -> Entry | None:
        """The entry at ``path``; None if there is none."""
        entry: Entry | None = self.root
        for step in path:
            entry = _child(entry, step) if entry is not None else None
        return entry

    def line(self, path: Path) -> int:
        """The line of ``path``, or of the closest field around it that exists."""
        entry = self.root
        for step in path:
            child = _child(entry, step)
            if child is None:
                break
            entry = child
        return entry.line

    def path_of(self, text: str) -> Path:
        """The longest existing path that ``text`` names: ``spec.containers[0].env[KEY]``."""
        entry, path = self.root, []
        for index, name in _STEP.findall(text):
            step, child = _step(entry, index or name)
            if child is None:
                break
            entry = child
            path.append(step)
        return tuple(path)


def _child(entry: Entry, step: str | int) -> Entry | None:
    if isinstance(entry.value, dict) and isinstance(step, str):
        found: Entry | None = entry.value.get(step)
        return found
    if isinstance(entry.value, list) and isinstance(step, int) and step < len(entry.value):
        item: Entry = entry.value[step]
        return item
    return None


def _step(entry: Entry, name: str) -> tuple[str | int, Entry | None]:
    """The child of ``entry`` that ``name`` means: an index, or the name of an item."""
    if isinstance(entry.value, list):
        for index, item in enumerate(entry.value):
            value = item.value.get("name") if isinstance(item.value, dict) else item
            text = str(value.value) if value is not None else ""
            if str(index) == name or text == name or (text.startswith(name) and name.startswith("--")):
                return index, item
        return name, None
    return name, _child(entry, name)


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known about an instance type."""

    gpus: int
    cpus: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Manifests:
    """All objects of all files at ``now``, in seconds since the epoch.

    ``machines`` are the known instance types. ``read_rules`` finds problems in rules of prometheus-adapter. Problems of files as YAML are
    in ``problems``; ``unread`` says what could not be looked at.
    """

    now: float
    items: tuple[Manifest, ...] = ()
    problems: tuple[tuple[SourceFile, Problem], ...] = ()
    unread: tuple[Unchecked, ...] = ()
    machines: Mapping[str, Machine] = field(default_factory=dict)
    read_rules: Callable[[str], Iterable[Problem]] = lambda _: ()
    files: tuple[SourceFile, ...] = ()

    def of(self, *kinds: str) -> Iterator[Manifest]:
        """The objects of ``kinds``."""
        return (item for item in self.items if item.document.kind in kinds)


def read_manifests(
    files: Iterable[tuple[str, str]],
    *,
    now: float,
    machines: Mapping[str, Machine] | None = None,
    read_rules: Callable[[str], Iterable[Problem]] = lambda _: (),
) -> Manifests:
    """The objects of ``files``, pairs of name and text."""
    reader = _Reader()
    sources = tuple(SourceFile.of(name, text) for name, text in files)
    for file in sources:
        reader.read(file)
    return Manifests(now, tuple(reader.items), tuple(reader.problems), tuple(reader.unread), machines or {}, read_rules, sources)


def tree_of(text: str, first: int = 1) -> tuple[Entry | None, list[Problem]]:
    """The entries of one document, which begins at line ``first`` of its file."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:  # JSON allows tabs, YAML does not.
            text = text.replace("\t", " ")
    return read_document(text, expected="YAML", needs="it is not read", numbers=True, first=first)


class _Reader:
    def __init__(self) -> None:
        self.items: list[Manifest] = []
        self.problems: list[tuple[SourceFile, Problem]] = []
        self.unread: list[Unchecked] = []

    def read(self, file: SourceFile) -> None:
        for first, last in documents_of(file.lines):
            text = file.part(first, last)
            root, problems = tree_of(text, first)
            # Braces of a template that are not quoted are a mapping as the key of a mapping.
            if problems and "{{" in text and (root is None or any(item.message.startswith("saw the key a list") for item in problems)):
                reason = "it is a template of Helm; look at what helm template prints"
                self.unread.append(Unchecked("L1", f"{file.name}:{first}", reason))
                continue
            if any("nested more than" in problem.message for problem in problems):
                self.unread.append(Unchecked("L1", f"{file.name}:{first}", problems[-1].message))
                continue
            self.problems += [(file, problem) for problem in problems if not is_harmless(problem)]
            if root is None:
                continue
            if size_of(root) > MOST_VALUES:
                self.unread.append(Unchecked("L1", f"{file.name}:{first}", f"its aliases expand to more than {MOST_VALUES} values"))
                continue
            self._add(file, root, (first, last), ())

    def _add(self, file: SourceFile, entry: Entry, lines: tuple[int, int], prefix: Path) -> None:
        if isinstance(entry.value, list):
            for index, item in enumerate(entry.value):
                self._add(file, item, lines, (*prefix, index))
            return
        if not isinstance(entry.value, dict):
            return
        kind, items = entry.value.get("kind"), entry.value.get("items")
        if kind is not None and str(kind.value).endswith("List") and items is not None and isinstance(items.value, list):
            self._add(file, items, lines, (*prefix, "items"))
            return
        document = Document(data_of(entry), f"{file.name}:{entry.line}")
        self.items.append(Manifest(file, entry, document, *lines, prefix))


def is_harmless(problem: Problem) -> bool:
    """Whether Kubernetes does not mind a problem of YAML."""
    return problem.message.startswith(_HARMLESS) and not problem.message.startswith(DUPLICATE)


def documents_of(lines: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """The first and last lines of each document of a file."""
    if next((line for line in lines if line.strip()), "").startswith("{") and (documents := list(_json_documents(lines))):
        yield from documents
        return
    first = 1
    for number, line in enumerate(lines, 1):
        if line.startswith("---") and not line[3:4].strip() and number > first:
            yield first, number - 1
            first = number
    if lines:
        yield first, len(lines)


def _json_documents(lines: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """The same of JSON, whose objects may follow each other without anything in between. Nothing if the first is YAML in braces."""
    decoder, text, line = json.JSONDecoder(), "\n".join(lines), 1
    begin = end = 0
    while (begin := _SPACE.match(text, end).end()) < len(text):  # type: ignore[union-attr]  # it matches everywhere
        line += text.count("\n", end, begin)
        try:
            _, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            if end:
                yield line, len(lines)
            return
        first, line = line, line + text.count("\n", begin, end)
        yield first, line
