"""Fields at a wrong level: beside the empty object that they belong into, because they lack spaces."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from gpuscaler.doctor.findings import CRITICAL, Finding, Fix
from gpuscaler.doctor.manifests.editing import patch_of_lines
from gpuscaler.doctor.manifests.linting import Lint, Mistake, path_text
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path

_WRONG = Mistake("L2", CRITICAL, "the API server refuses the object")
_METADATA: Final = ("name", "generateName", "namespace", "labels", "annotations", "finalizers", "ownerReferences")
#: Fields of the objects that people write most, by the field that holds them.
_INSIDE: Final[Mapping[str, Collection[str]]] = {
    "metadata": _METADATA,
    "spec": (
        *("replicas", "selector", "template", "strategy", "updateStrategy", "containers", "initContainers", "volumes", "restartPolicy"),
        *("nodeSelector", "tolerations", "affinity", "serviceAccountName", "backoffLimit", "completions", "parallelism", "schedule"),
        *("jobTemplate", "minAvailable", "maxUnavailable", "scaleTargetRef", "minReplicas", "maxReplicas", "metrics", "ports", "role"),
        *("machineType", "minSize", "maxSize", "nodeLabels", "cloudLabels", "subnets", "taints"),
    ),
    "template": ("metadata", "spec"),
}
_KNOWN: Final = ("apiVersion", "kind", "metadata", "spec", "status", "data", "stringData", "type")


def find_below(data: Mapping[str, Any], inside: Mapping[str, Collection[str]], *, known: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The fields after each field without a value that belong into it and not beside it: they lack spaces."""
    found: dict[str, tuple[str, ...]] = {}
    parent, names = "", []
    for name, value in (*data.items(), ("", "")):
        if parent and name not in known and name in inside[parent]:
            names.append(name)
            continue
        if names:
            found[parent] = tuple(names)
        parent, names = (name, []) if value is None and name in inside else ("", [])
    return found


def moved_below(mistake: Mistake, manifest: Manifest, path: Path, parent: str, names: tuple[str, ...]) -> Finding:
    """The finding that ``names`` are beside ``parent`` and not in it, with the patch that puts spaces before them."""
    finding = mistake.at(
        manifest,
        (*path, names[0]),
        seen=f"{', '.join(names)} beside {parent}, which is empty",
        expected=f"{', '.join(names)} inside {path_text((*path, parent))}, two spaces further to the right",
        advice=f"put two spaces before {', '.join(names)} and what belongs to them",
    )
    patch = _indented(manifest, path, names)
    return Finding(**{**_fields(finding), "fix": Fix(advice="" if patch else finding.fix.advice, patch=patch)})


def _fields(finding: Finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in Finding.__struct_fields__}


def _indented(manifest: Manifest, path: Path, names: tuple[str, ...]) -> str:
    """The patch that puts two spaces before the lines of ``names``, if these lines hold nothing else."""
    entry = manifest.entry(path)
    if entry is None:
        return ""
    first, last = entry.value[names[0]].line, entry.value[names[-1]].line
    lines = manifest.file.lines
    column = len(lines[first - 1]) - len(lines[first - 1].lstrip(" "))
    for number in range(last, manifest.last):
        line = lines[number]
        indent = len(line) - len(line.lstrip(" "))
        if (
            line.strip()
            and not line.lstrip().startswith("#")
            and (indent < column or (indent == column and not line.lstrip().startswith("- ")))
        ):
            break
        last = number + 1 if line.strip() and not line.lstrip().startswith("#") else last
    others = {item.line for key, item in entry.value.items() if key not in names}
    if others & set(range(first, last + 1)):
        return ""
    moved = {number: (f"  {lines[number - 1]}" if lines[number - 1].strip() else "",) for number in range(first, last + 1)}
    return patch_of_lines(manifest.file, moved)


def _mappings(data: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The mappings of an object of Kubernetes that may hold metadata, spec and template."""
    if isinstance(data, dict):
        yield path, data
        for name in ("spec", "template", "jobTemplate"):
            yield from _mappings(data.get(name), (*path, name))


def find_wrong_levels(manifests: Manifests) -> Iterable[Finding]:
    """L2: fields of metadata, spec and template beside these."""
    for manifest in manifests.items:
        if not manifest.document.kind or manifest.document.api_version.startswith("eksctl.io/"):
            continue
        for path, data in _mappings(manifest.data):
            known = _KNOWN if "template" not in data or data["template"] is not None else ("apiVersion", "kind")
            for parent, names in find_below(data, _INSIDE, known=known).items():
                yield moved_below(_WRONG, manifest, path, parent, names)


LINTS = (Lint("L2", "fields at a wrong level", find_wrong_levels),)
