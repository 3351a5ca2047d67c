"""Groups of machines in files, whichever program makes them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.manifests.reading import Machine, Manifest, Manifests, Path

#: GPUs of types that clouds do not offer any more, which the catalogue does not have.
_FORMER_GPUS: Mapping[str, int] = {
    "cg1.4xlarge": 2,
    "g2.2xlarge": 1,
    "g2.8xlarge": 4,
    "p2.xlarge": 1,
    "p2.8xlarge": 8,
    "p2.16xlarge": 16,
    "p3.2xlarge": 1,
    "p3.8xlarge": 4,
    "p3.16xlarge": 8,
    "Standard_NC6": 1,
    "Standard_NC12": 2,
    "Standard_NC24": 4,
    "Standard_NC24r": 4,
    "Standard_NV6": 1,
    "Standard_NV12": 2,
    "Standard_NV24": 4,
}


class Taint(NamedTuple):
    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Group:
    """A group at ``path`` of ``manifest``. ``maker`` is ``eksctl``, ``managed`` (eksctl's groups that EKS manages), ``kops`` or ``acs``.

    ``types`` are the paths and names of its instance types, ``tags`` and ``labels`` the paths of these.
    """

    manifest: Manifest
    path: Path
    maker: str
    name: str
    types: tuple[tuple[Path, str], ...]
    tags: Path
    labels: Path
    taints: tuple[Taint, ...]

    @property
    def document(self) -> Document:
        """The group as it was written."""
        at: Any = self.manifest.data
        for step in self.path:
            at = at[step]
        return Document(at if isinstance(at, dict) else {})

    def texts_at(self, path: Path) -> dict[str, str]:
        """The texts of a mapping: labels, or tags."""
        at: Any = self.manifest.data
        for step in path:
            at = at.get(step) if isinstance(at, dict) else at[step] if isinstance(at, list) and isinstance(step, int) else None
        return (
            {str(key): str(value).lower() if isinstance(value, bool) else str(value) for key, value in at.items()}
            if isinstance(at, dict)
            else {}
        )

    def gpus(self, machines: Mapping[str, Machine]) -> tuple[int | None, ...]:
        """The GPUs of each of its types; None for types that are not known."""
        return tuple(gpus_of(name, machines) for _, name in self.types)


def gpus_of(name: str, machines: Mapping[str, Machine]) -> int | None:
    """The GPUs of an instance type; None if it is not known."""
    machine = machines.get(name)
    return machine.gpus if machine is not None else _FORMER_GPUS.get(name)


def groups_of(manifests: Manifests) -> Iterator[Group]:
    """All groups of the files."""
    for manifest in manifests.items:
        version, kind = manifest.document.api_version, manifest.document.kind
        if kind == "ClusterConfig" and version.startswith("eksctl.io/"):
            yield from _of_eksctl(manifest)
        elif kind == "InstanceGroup" and "kops" in version:
            yield _of_kops(manifest)
        elif is_acs(manifest):
            yield from _of_acs(manifest)


def is_acs(manifest: Manifest) -> bool:
    """Whether this is an API model of acs-engine or aks-engine."""
    return not manifest.document.kind and manifest.document.has("properties", "agentPoolProfiles")


def _of_eksctl(manifest: Manifest) -> Iterator[Group]:
    for field, maker in (("nodeGroups", "eksctl"), ("managedNodeGroups", "managed")):
        listed = manifest.data.get(field)
        for index, data in enumerate(listed if isinstance(listed, list) else []):
            if not isinstance(data, dict):
                continue
            path: Path = (field, index)
            group = Document(data)
            lists: list[tuple[str, ...]] = [("instanceTypes",), ("instancesDistribution", "instanceTypes")]
            several = [((*path, *names, place), text) for names in lists for place, text in enumerate(group.texts(*names))]
            named = [((*path, "instanceType"), group.text("instanceType"))] if group.text("instanceType") not in ("", "mixed") else []
            yield Group(
                manifest,
                path,
                maker,
                group.text("name"),
                tuple(several or named),
                (*path, "tags"),
                (*path, "labels"),
                tuple(_eksctl_taints(group)),
            )


def _eksctl_taints(group: Document) -> Iterator[Taint]:
    """The taints, as a list or as a mapping to ``value:Effect``."""
    for item in group.parts("taints"):
        yield Taint(item.text("key"), item.text("value"), item.text("effect"))
    for key, text in group.pairs("taints").items():
        value, _, effect = text.rpartition(":")
        yield Taint(key, value, effect)


def _of_kops(manifest: Manifest) -> Group:
    document = manifest.document
    mixed: Path = ("spec", "mixedInstancesPolicy", "instances")
    several = tuple(((*mixed, index), name) for index, name in enumerate(document.texts(*(str(step) for step in mixed))))
    named = ((("spec", "machineType"), document.text("spec", "machineType")),)
    types = several or tuple((path, kind) for path, text in named for kind in text.split(",") if kind)
    taints = []
    for text in document.texts("spec", "taints"):
        rest, _, effect = text.rpartition(":")
        key, _, value = rest.partition("=")
        taints.append(Taint(key, value, effect))
    return Group(manifest, ("spec",), "kops", document.name, types, ("spec", "cloudLabels"), ("spec", "nodeLabels"), tuple(taints))


def _of_acs(manifest: Manifest) -> Iterator[Group]:
    for index, pool in enumerate(manifest.document.parts("properties", "agentPoolProfiles")):
        path: Path = ("properties", "agentPoolProfiles", index)
        types = (((*path, "vmSize"), pool.text("vmSize")),)
        yield Group(manifest, path, "acs", pool.text("name"), types, (*path, "tags"), (*path, "customNodeLabels"), ())


def sizes_of(group: Group) -> tuple[float, float]:
    """The least and the greatest number of machines."""
    document = group.document
    least = document.number("minSize")
    greatest = document.number("maxSize")
    desired = document.number("desiredCapacity") or 0
    return (desired if least is None else least), (max(desired, least or 0) if greatest is None else greatest)
