"""Converts the texts of files together. What needs no change is written byte for byte, comments included."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from gpuscaler.converting.autoscalers.carrying import Carried, carry_over
from gpuscaler.converting.autoscalers.chart_values import priorities_of, workload_of
from gpuscaler.converting.converter import convert
from gpuscaler.converting.kinds import is_kustomize, unknown_kind
from gpuscaler.converting.objects import Json, Note, name_of
from gpuscaler.converting.reading import Found, SourceDocument, data_of, is_json, read_documents
from gpuscaler.converting.writing import write, write_json
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.manifests.editing import edited
from gpuscaler.doctor.manifests.reading import Manifest, is_harmless, tree_of

_PRIORITIES = (
    "made of expanderPriorities, and written in the place of the values: apply it after helm uninstall, which deletes the one of the "
    "release"
)
_NO_PRIORITIES = "expanderPriorities is left out: the chart makes nothing of it, since expander in extraArgs does not name priority"
#: Numbers of YAML that are read as text here, and as numbers by kubectl.
_NUMBER: Final = re.compile(r"(?<=[:,\[\s-] )[-+]?0[xXbBo][0-9a-fA-F_]+(?=\s*$|\s*[,\]}]|\s+#)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Message:
    """What happened to an object of a file, or what to check.

    ``where`` is the object's kind and name. ``failed`` says that something was not converted, ``unreadable`` that it is not YAML.
    """

    file: str
    line: int
    text: str
    where: str = ""
    failed: bool = False
    unreadable: bool = False

    def __str__(self) -> str:
        return ": ".join(filter(None, (f"{self.file}:{self.line}", self.where, self.text)))


@dataclass(frozen=True, slots=True)
class ConvertedFile:
    """What becomes of a file: ``text`` takes its place, empty if nothing of it is left; ``parts`` are its documents that are objects."""

    name: str
    text: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversion:
    """The converted files. ``objects`` is the number of objects that were read; ``carried`` are autoscalers that became run files."""

    files: tuple[ConvertedFile, ...]
    messages: tuple[Message, ...]
    objects: int
    carried: tuple[Carried, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether something that is, or may be, an object of Kubernetes is lacking or was not converted."""
        return any(message.failed for message in self.messages)

    @property
    def stream(self) -> str:
        """All objects of all files as one text of YAML."""
        return join(part for file in self.files for part in map(_in_stream, file.parts) if part.strip())


def join(parts: Iterable[str]) -> str:
    """Documents of YAML as one text."""
    text = ""
    for part in parts:
        lines = part if part.endswith("\n") else f"{part}\n"
        text += lines if not text or lines.startswith("---") else f"---\n{lines}"
    return text


def _in_stream(part: str) -> str:
    """A document as YAML: JSON may have tabs, YAML may not; and a directive is only valid at the beginning of a text."""
    if "\t" in part and is_json(part):
        return part.replace("\t", " ")
    return "" if part.startswith("%") else part


def convert_files(sources: Iterable[tuple[str, str]], *, image: str, carry: bool = False, own_image: str = "") -> Conversion:
    """Convert the files ``sources``, pairs of name and text, together.

    ``image`` replaces that of prometheus-adapter. With ``carry``, autoscalers of nodes are left out, and become run files with
    ``own_image`` as gpuscaler's image, if it is stated.
    """
    texts = list(sources)
    read = [read_documents(name, text) for name, text in texts]
    places = [(document, item) for documents in read for document in documents for item in document.objects]
    # After the objects, so that these keep their places: values of the chart of an autoscaler, as the workload that the chart makes.
    charts = [(document, chart) for documents in read for document in documents if (chart := workload_of(document.value)) is not None]
    objects = [item.data for _, item in places]
    carried, notes = carry_over([*objects, *(chart for _, chart in charts)], image=own_image)
    if not carry:
        instead = "--output or --run-file writes the run file that does the same, and leaves it out"
        notes += [Note(one.title, f"it runs {one.program}: {instead}", one.index) for one in carried]
        carried = []
    gone = frozenset[int]().union(*(one.left_out for one in carried))
    kept = [index for index in range(len(objects)) if index not in gone]
    converted, more = convert((objects[index] for index in kept), image=image)
    results: dict[int, Json | None] = {id(places[index][1]): manifest for index, manifest in zip(kept, converted, strict=True)}
    notes += [note for one in carried for note in one.notes]
    # The ConfigMap of the priority expander is of the release, and gone with it: it takes the place of the values.
    made: dict[int, Json] = {}
    for index, (document, chart) in enumerate(charts, len(objects)):
        if index not in gone or not document.value.get("expanderPriorities"):
            continue
        if (priorities := priorities_of(document.value)) is not None:
            made[id(document)] = priorities
        notes.append(Note(name_of(priorities or chart), _NO_PRIORITIES if priorities is None else _PRIORITIES, index))
    notes += [replace(note, index=kept[note.index]) for note in more]
    where = [*((document, item.entry.line) for document, item in places), *((document, document.first) for document, _ in charts)]
    said: dict[int, list[Message]] = {}
    for note in notes:
        document, line = where[note.index]
        said.setdefault(id(document), []).append(Message(document.file.name, line, note.text, note.where, note.failed))
    left_out = {id(where[index][0]) for index in gone}
    files: list[ConvertedFile] = []
    messages: list[Message] = []
    for (name, text), documents in zip(texts, read, strict=True):
        parts = []
        for document in documents:
            part, remark = _render(document, [results.get(id(item)) for item in document.objects])
            part = write([made[id(document)]]) if id(document) in made else part
            parts.append(part)
            # Values of a chart that became a run file are not left out without a word.
            messages += [] if document.other and id(document) in left_out else _remarks(document)
            messages += said.get(id(document), [])
            messages += [Message(name, document.first, remark, failed=remark.startswith("not converted"))] if remark else []
        files.append(_file(name, text, documents, parts, with_objects=any(id(document) in made for document in documents)))
    return Conversion(tuple(files), tuple(messages), len(places) + sum(one.index >= len(places) for one in carried), tuple(carried))


def _remarks(document: SourceDocument) -> Iterable[Message]:
    """What cannot be converted."""
    name = document.file.name
    if document.unreadable:
        yield Message(name, document.first, f"left out: {document.unreadable}", failed=True, unreadable=True)
    elif is_kustomize(document.other):
        yield Message(name, document.first, f"not converted: saw {document.other}; check what it names and patches")
    elif document.other:
        yield Message(name, document.first, f"left out: saw {document.other}, expected an object of Kubernetes")
    for item in document.objects:
        if remark := unknown_kind(item.data):
            yield Message(name, item.entry.line, remark, name_of(item.data))


def _file(name: str, text: str, documents: Sequence[SourceDocument], parts: Sequence[str], *, with_objects: bool) -> ConvertedFile:
    if any(is_kustomize(document.other) for document in documents):
        return ConvertedFile(name, text)
    if not with_objects and not any(document.objects for document in documents):
        return ConvertedFile(name, "")
    kept = tuple(filter(None, parts))
    if any(part != document.text for part, document in zip(parts, documents, strict=True)):
        text = "".join(kept) if name.endswith(".json") else join(kept)
    return ConvertedFile(name, text, kept)


def _render(document: SourceDocument, results: Sequence[Json | None]) -> tuple[str, str]:
    """The text of a document with ``results`` as its objects, None for those that are left out, and what to say about that."""
    kept = [manifest for manifest in results if manifest is not None]
    if document.unreadable or document.other or (results and not kept):
        return "", ""
    if all(manifest == item.data for manifest, item in zip(results, document.objects, strict=True)):
        return document.text, ""
    if not document.is_list and (text := _edited(document, document.objects[0], kept[0])):
        return text, ""
    if document.file.name.endswith(".json"):
        value = {"apiVersion": "v1", "kind": "List", "items": kept} if document.is_list else kept[0]
        return write_json(value), ""
    head, lost = _comments(document.text)
    text = head + write(kept)
    numbers = [number for number in _NUMBER.findall(document.text) if f"'{number}'" in text]
    if numbers:
        return document.text, f"not converted: saw {numbers[0]}, which would become text: write it as a decimal number"
    if [item.data for part in read_documents("", text) for item in part.objects] != kept:
        return document.text, "not converted: what would be written does not read as it should; correct it by hand"
    return text, "comments within it are lost: so much of it changed that it is written again" if lost else ""


def _edited(document: SourceDocument, item: Found, result: Json) -> str:
    """The document with its lines edited so that it is read as ``result``, with its comments; empty if that does not succeed."""
    manifest = Manifest(document.file, item.entry, Document(item.data), document.first, document.last)
    text = edited(manifest, result)
    if not text:
        return ""
    root, problems = tree_of(text)
    is_read = root is not None and all(map(is_harmless, problems)) and data_of(root) == result
    return text if is_read else ""


def _comments(text: str) -> tuple[str, bool]:
    """The comments at the beginning of a document, and whether there are comments elsewhere in it."""
    lines = text.splitlines(keepends=True)
    if lines and lines[0].startswith("---"):
        del lines[0]
    count = next((index for index, line in enumerate(lines) if line.strip() and not line.startswith("#")), len(lines))
    head = "".join(line for line in lines[:count] if line.strip())
    return head, any(line.lstrip().startswith("#") or " #" in line for line in lines[count:])
