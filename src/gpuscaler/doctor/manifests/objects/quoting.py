"""Booleans and numbers where Kubernetes wants text: labels, annotations, selectors, variables, arguments."""

from collections.abc import Iterable, Iterator
from typing import Any

from gpuscaler.doctor.documents import TEMPLATES
from gpuscaler.doctor.findings import CRITICAL, Finding
from gpuscaler.doctor.manifests.credentials import is_credential_name
from gpuscaler.doctor.manifests.editing import changed
from gpuscaler.doctor.manifests.fields.shapes import text_paths
from gpuscaler.doctor.manifests.groups.eksctl_fields import TYPES
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.objects.flags import kubeadm_values
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path
from gpuscaler.model.reading.document import Entry

_UNQUOTED = Mistake("L5", CRITICAL, "the API server refuses the object")
_EKSCTL = Mistake("L5", CRITICAL, "eksctl refuses the file")
_KOPS = Mistake("L5", CRITICAL, "kops refuses the object")
#: Fields of a pod's spec that hold texts by name.
_POD_MAPS = (("nodeSelector",),)
_CONTAINERS = ("containers", "initContainers")


def find_unquoted(manifests: Manifests) -> Iterable[Finding]:
    """L5: values that need quotes."""
    for manifest in manifests.items:
        document = manifest.document
        if not document.kind or not document.api_version:
            continue
        mistake = _EKSCTL if document.api_version.startswith("eksctl.io/") else _KOPS if "kops" in document.api_version else _UNQUOTED
        for path in dict.fromkeys((*_text_paths(manifest), *text_paths(manifest), *kubeadm_values(manifest))):
            entry = manifest.entry(path)
            if entry is not None and isinstance(entry.value, bool | int | float):
                yield _finding(mistake, manifest, path, entry)


def _finding(mistake: Mistake, manifest: Manifest, path: Path, entry: Entry) -> Finding:
    kind = "boolean" if isinstance(entry.value, bool) else "number"
    if (manifest.document.kind == "Secret" and path[0] in ("data", "stringData")) or is_credential_name(_name_of(manifest, path)):
        # No credential is shown, and so no patch.
        return mistake.at(manifest, path, seen=f"a {kind}", expected="the value in quotes", advice="put it in quotes")
    quoted = f'"{entry.raw}"'
    return mistake.at(
        manifest,
        path,
        seen=f"{entry.raw}, which is a {kind}",
        expected=f"{quoted}, in quotes",
        new=changed(manifest.data, path, entry.raw),
        advice=f"write {quoted}",
    )


def _name_of(manifest: Manifest, path: Path) -> str:
    """The name of the value at ``path``: its key, its variable, or the flag before it."""
    data: Any = manifest.data
    for step in path[:-1]:
        data = data[step]
    last = path[-1]
    if isinstance(data, list) and isinstance(last, int):
        return str(data[last - 1]) if last else ""
    return str(data.get("name") or data.get("key") or last) if last == "value" else str(last)


def _text_paths(manifest: Manifest) -> Iterator[Path]:
    """The paths that hold text."""
    data, kind = manifest.data, manifest.document.kind
    if kind == "ClusterConfig":
        yield from _of_eksctl(data)
        return
    yield from _of_metadata(data, ())
    if kind in ("ConfigMap", "Secret"):
        for name in ("data", "stringData"):
            yield from _of_map(data.get(name), (name,))
    if kind == "InstanceGroup":
        for name in ("nodeLabels", "cloudLabels"):
            yield from _of_map(_get(data, "spec", name), ("spec", name))
    if kind == "Service":
        yield from _of_map(_get(data, "spec", "selector"), ("spec", "selector"))
    if kind == "Node":
        yield from _of_objects(_get(data, "spec", "taints"), ("spec", "taints"), ("key", "value"))
    template = TEMPLATES.get(kind)
    if template is not None:
        if template:
            yield from _of_map(_get(data, "spec", "selector", "matchLabels"), ("spec", "selector", "matchLabels"))
            yield from _of_metadata(_get(data, *template), template)
        yield from _of_pod(_get(data, *template, "spec"), (*template, "spec"))


def _of_metadata(data: Any, path: Path) -> Iterator[Path]:
    for name in ("labels", "annotations"):
        yield from _of_map(_get(data, "metadata", name), (*path, "metadata", name))
    yield from ((*path, "metadata", name) for name in ("name", "namespace"))


def _of_pod(spec: Any, path: Path) -> Iterator[Path]:
    for names in _POD_MAPS:
        yield from _of_map(_get(spec, *names), (*path, *names))
    yield from _of_objects(_get(spec, "tolerations"), (*path, "tolerations"), ("key", "value"))
    for kind in _CONTAINERS:
        for index, container in enumerate(_list(_get(spec, kind))):
            at = (*path, kind, index)
            yield from _of_objects(_get(container, "env"), (*at, "env"), ("name", "value"))
            for name in ("command", "args"):
                yield from ((*at, name, number) for number, _ in enumerate(_list(_get(container, name))))
    terms = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    for number, term in enumerate(_list(_get(spec, *terms))):
        for index, expression in enumerate(_list(_get(term, "matchExpressions"))):
            at = (*path, *terms, number, "matchExpressions", index, "values")
            yield from ((*at, place) for place, _ in enumerate(_list(_get(expression, "values"))))


def _of_eksctl(data: Any) -> Iterator[Path]:
    yield from (("metadata", name) for name in ("name", "region", "version"))
    yield from _of_map(_get(data, "metadata", "tags"), ("metadata", "tags"))
    for groups in ("nodeGroups", "managedNodeGroups"):
        for index, group in enumerate(_list(_get(data, groups))):
            at: Path = (groups, index)
            yield from _of_map(_get(group, "labels"), (*at, "labels"))
            yield from _of_map(_get(group, "tags"), (*at, "tags"))
            if isinstance(_get(group, "taints"), dict):
                yield from _of_map(_get(group, "taints"), (*at, "taints"))
            yield from _of_objects(_get(group, "taints"), (*at, "taints"), tuple(TYPES["NodeGroupTaint"]))


def _of_map(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, dict):
        yield from ((*path, key) for key in value)


def _of_objects(value: Any, path: Path, names: tuple[str, ...]) -> Iterator[Path]:
    for index, item in enumerate(_list(value)):
        if isinstance(item, dict):
            yield from ((*path, index, name) for name in names if name in item)


def _get(value: Any, *path: str) -> Any:
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


LINTS = (Lint("L5", "values without quotes", find_unquoted),)
