"""Fields of eksctl's ClusterConfig that do not exist, or are at a wrong level."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding
from gpuscaler.doctor.manifests.editing import renamed
from gpuscaler.doctor.manifests.groups.eksctl_fields import DATE, TYPES, Field
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.objects.levels import find_below, moved_below
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path
from gpuscaler.model.similar import nearest

_UNKNOWN = Mistake("L3", CRITICAL, "eksctl refuses the file")
_NEW = Mistake("L3", WARNING, "eksctl refuses the file, unless it is newer than this table of fields")
_LEVEL = Mistake("L2", CRITICAL, "eksctl refuses the file")


def _configs(manifests: Manifests) -> Iterator[Manifest]:
    return (item for item in manifests.of("ClusterConfig") if item.document.api_version.startswith("eksctl.io/"))


def _objects(data: Any, kind: str, path: Path = ()) -> Iterator[tuple[Path, str, Mapping[str, Any]]]:
    """The objects in ``data``, which is a ``kind``, with their path and type."""
    if not isinstance(data, dict):
        return
    yield path, kind, data
    for name, field in TYPES[kind].items():
        value = data.get(name)
        if field.type and field.several and isinstance(value, dict):
            for key, item in value.items():
                yield from _objects(item, field.type, (*path, name, key))
        elif field.type and isinstance(value, list):
            for index, item in enumerate(value):
                yield from _objects(item, field.type, (*path, name, index))
        elif field.type:
            yield from _objects(value, field.type, (*path, name))


def find_wrong_levels(manifests: Manifests) -> Iterable[Finding]:
    """L2: fields beside the empty object that they belong into."""
    for manifest in _configs(manifests):
        for path, kind, data in _objects(manifest.data, "ClusterConfig"):
            for parent, names in _misplaced(kind, data).items():
                yield moved_below(_LEVEL, manifest, path, parent, names)


def _misplaced(kind: str, data: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The unknown fields after each field without a value, which are fields of what it should hold."""
    own = TYPES[kind]
    inside = {name: TYPES[field.type] for name, field in own.items() if field.type and not field.several}
    return find_below(data, inside, known=own)


def find_unknown_fields(manifests: Manifests) -> Iterable[Finding]:
    """L3: fields that eksctl does not know."""
    for manifest in _configs(manifests):
        for path, kind, data in _objects(manifest.data, "ClusterConfig"):
            misplaced = {name for names in _misplaced(kind, data).values() for name in names}
            for name in data:
                if name not in TYPES[kind] and name not in misplaced:
                    yield _unknown(manifest, (*path, str(name)), TYPES[kind], data)


def _unknown(manifest: Manifest, path: Path, fields: Mapping[str, Field], data: Mapping[str, Any]) -> Finding:
    name = str(path[-1])
    by_letters = {field.lower(): field for field in fields}
    close = by_letters.get(name.lower()) or nearest(name, fields, cutoff=0.8)
    if close and close not in data:
        new = renamed(manifest.data, path, close)
        return _UNKNOWN.at(manifest, path, seen=name, expected=f"{close} (did you mean that?)", new=new)
    place = _place_below(fields, name)
    if place:
        return _UNKNOWN.at(manifest, path, seen=f"{name} here", expected=f"{name} in {place}", advice=f"move it to {place}")
    if name in TYPES["ClusterConfig"]:
        return _UNKNOWN.at(manifest, path, seen=f"{name} here", expected=f"{name} at the root", advice="move it to the root of the file")
    mistake = _UNKNOWN if any(name in known for known in TYPES.values()) else _NEW
    return mistake.at(
        manifest, path, seen=name, expected=f"a field of eksctl's schema of {DATE}", advice="remove it, or correct its name or its level"
    )


def _place_below(fields: Mapping[str, Field], name: str) -> str:
    """The closest object below ``fields`` that has the field ``name``: ``iam.withAddonPolicies``; empty if there is none."""
    level = [(parent, field) for parent, field in fields.items() if field.type and not field.several]
    while level:
        found = next((place for place, field in level if name in TYPES[field.type]), "")
        if found:
            return found
        level = [
            (f"{place}.{parent}", below)
            for place, field in level
            for parent, below in TYPES[field.type].items()
            if below.type and not below.several
        ]
    return ""


LINTS = (
    Lint("L2", "fields at a wrong level", find_wrong_levels),
    Lint("L3", "fields that eksctl does not know", find_unknown_fields),
)
