"""Fields that an object of Kubernetes does not have, and fields beside the empty object that they belong into."""

from collections.abc import Iterable, Iterator

from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding
from gpuscaler.doctor.manifests.editing import renamed
from gpuscaler.doctor.manifests.fields.programs import FORMER
from gpuscaler.doctor.manifests.fields.shapes import SHAPES, Part, parts_of
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.objects.levels import find_below, moved_below
from gpuscaler.doctor.manifests.reading import Manifests
from gpuscaler.model.similar import nearest

_LOST = "kubectl refuses the object, and programs that do not look leave the field out"
_UNKNOWN = Mistake("L24", CRITICAL, _LOST)
_NEW = Mistake("L24", WARNING, f"{_LOST}, unless Kubernetes is newer than this table of fields")
_LEVEL = Mistake("L2", CRITICAL, "the API server refuses the object, or leaves the fields out")
#: Another rule looks for fields beside these.
_ELSEWHERE = frozenset({"metadata", "spec", "template"})


def find_wrong_levels(manifests: Manifests) -> Iterable[Finding]:
    """L2: fields beside the empty object that they belong into, in pods and autoscalers."""
    for manifest in manifests.items:
        for part in parts_of(manifest):
            for parent, names in _misplaced(part).items():
                if part.shape.closed and parent not in _ELSEWHERE:
                    yield moved_below(_LEVEL, manifest, part.path, parent, names)


def _misplaced(part: Part) -> dict[str, tuple[str, ...]]:
    fields = part.shape.fields
    inside = {name: SHAPES[field.holds].fields for name, field in fields.items() if field.holds in SHAPES and not field.several}
    inside["metadata"] = SHAPES["Metadata"].fields
    return find_below(part.data, inside, known=fields)


def find_unknown_fields(manifests: Manifests) -> Iterable[Finding]:
    """L24: fields that do not exist."""
    for manifest in manifests.items:
        for part in parts_of(manifest):
            if part.shape.closed:
                misplaced = {name for names in _misplaced(part).values() for name in names}
                for name in part.data:
                    if name not in part.shape.fields and name not in misplaced and not str(name).startswith("$"):
                        yield from _unknown(part, str(name))


def _unknown(part: Part, name: str) -> Iterator[Finding]:
    fields, path = part.shape.fields, (*part.path, name)
    former = FORMER.get((part.name, name), "")
    by_letters = {field.lower(): field for field in fields}
    near = former or by_letters.get(name.lower()) or nearest(name, fields, cutoff=0.8)
    if near in part.data or (near and " " in near):
        yield _UNKNOWN.at(part.manifest, path, seen=name, expected=near, advice=f"write {near} instead of it")
    elif near:
        new = renamed(part.manifest.data, path, near)
        yield _UNKNOWN.at(part.manifest, path, seen=name, expected=f"{near} (did you mean that?)", new=new, advice=f"write {near}")
    else:
        expected = "a field of Kubernetes, by its description of November 2026"
        yield _NEW.at(part.manifest, path, seen=name, expected=expected, advice="remove it, or correct its name or its level")


LINTS = (
    Lint("L2", "fields at a wrong level in pods", find_wrong_levels),
    Lint("L24", "fields that Kubernetes does not know", find_unknown_fields),
)
