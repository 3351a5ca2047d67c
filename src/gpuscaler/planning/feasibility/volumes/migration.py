"""Translates disks of in-tree plug-ins to the CSI drivers that they are migrated to, as the scheduler does.

Source: ``k8s.io/csi-translation-lib`` and ``isCSIMigrationOn`` in ``plugins/nodevolumelimits``. Portworx counts as migrated if the
node's CSINode lists it, as with the gate CSIMigrationPortworx on (locked to on since 1.33).
"""

import re
from typing import NamedTuple

from msgspec.structs import replace

from gpuscaler.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from gpuscaler.model.storage import PersistentVolume

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
PORTWORX = "kubernetes.io/portworx-volume"


class InTree(NamedTuple):
    """An in-tree plug-in that is migrated to CSI.

    ``topology`` is the driver's zone label, empty if the affinity of volumes stays as it is.
    """

    plugin: str
    driver: str
    topology: str = ""


#: Migrated plug-ins by the field that names them in a volume.
KINDS = {
    "awsElasticBlockStore": InTree("kubernetes.io/aws-ebs", "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone"),
    "gcePersistentDisk": InTree("kubernetes.io/gce-pd", "pd.csi.storage.gke.io", "topology.gke.io/zone"),
    "azureDisk": InTree("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    "cinder": InTree("kubernetes.io/cinder", "cinder.csi.openstack.org", "topology.cinder.csi.openstack.org/zone"),
    "portworxVolume": InTree(PORTWORX, "pxd.portworx.com"),
}
#: In-tree plug-ins that the scheduler never counts: it knows their translation, but treats it as disabled.
UNCOUNTED = {
    "azureFile": "kubernetes.io/azure-file",
    "vsphereVolume": "kubernetes.io/vsphere-volume",
}
#: Fields of the in-tree plug-ins that have no translation.
UNTRANSLATED = frozenset(
    ("iscsi", "rbd", "nfs", "local", "hostPath", "fc", "cephfs", "glusterfs", "flexVolume", "flocker", "quobyte", "storageos", "scaleIO",
     "photonPersistentDisk")
)  # fmt: skip
PLUGINS = {kind.plugin: kind for kind in KINDS.values()}
_EBS_ID = re.compile(r"vol-[^/]*")
_GCE_DISK = "projects/UNSPECIFIED/{}/disks/{}"


class Attachment(NamedTuple):
    """A volume that counts against a driver's limit on a node. ``plugin`` is set for a volume of an in-tree plug-in."""

    driver: str
    handle: str
    plugin: str = ""


def attachment(kind: str, handle: str, zones: str = "") -> Attachment | None:
    """The attachment of an in-tree disk, or None if it has no translation. ``zones`` is the zone label of its volume."""
    in_tree = KINDS.get(kind)
    if in_tree is None:
        return None
    named: str | None = handle
    if kind == "awsElasticBlockStore":
        named = _ebs(handle)
    elif kind == "gcePersistentDisk":
        named = _gce(handle, zones.split("__"))
    return None if named is None else Attachment(in_tree.driver, named, in_tree.plugin)


def _ebs(handle: str) -> str | None:
    """The bare volume name from ``aws://zone/vol-1234`` or from the bare name."""
    if not handle.startswith("aws://"):
        return handle
    name = handle.removeprefix("aws://").partition("/")[2].strip("/")
    return name if _EBS_ID.fullmatch(name) else None


def _gce(name: str, zones: list[str]) -> str | None:
    """The driver's name of a disk in one zone, or in several of one region (``locale-region-zone``)."""
    if len(zones) == 1:
        return _GCE_DISK.format(f"zones/{zones[0] or 'UNSPECIFIED'}", name)
    regions = {zone.rpartition("-")[0] for zone in zones}
    if len(regions) != 1 or any(zone.count("-") != 2 for zone in zones):
        return None
    return _GCE_DISK.format(f"regions/{regions.pop()}", name)


def volume_attachment(volume: PersistentVolume) -> Attachment | None:
    """The attachment of the in-tree disk behind ``volume``, or None if it has no translation."""
    labels = dict(volume.labels)
    return attachment(volume.driver, volume.handle, labels.get(OLD_ZONE) or labels.get(ZONE, ""))


def is_csi(volume: PersistentVolume) -> bool:
    """Whether ``volume`` is a native CSI volume, not a migrated one."""
    return bool(volume.driver) and volume.driver not in KINDS and volume.driver not in UNCOUNTED and volume.driver not in UNTRANSLATED


def translated(volume: PersistentVolume) -> NodeSelector | None:
    """The node affinity of an in-tree volume on a node where its CSI driver serves it, with zones under the driver's own label."""
    kind = KINDS[volume.driver]
    if not kind.topology:
        return volume.node_affinity
    terms = volume.node_affinity.terms if volume.node_affinity is not None else ()
    labels = dict(volume.labels)
    zone, region = _topology_labels(terms, labels)
    if _lists_values(terms, zone):
        terms = _renamed(terms, zone, kind.topology)
    elif zones := tuple(sorted({z.strip() for z in labels.get(zone, "").split("__")} - {""})):
        added = Requirement(kind.topology, "In", zones)
        terms = tuple(replace(term, expressions=(*term.expressions, added)) for term in terms or (NodeSelectorTerm(),))
    if region == OLD_REGION and _lists_values(terms, OLD_REGION):
        terms = _renamed(terms, OLD_REGION, REGION)
    return NodeSelector(terms) if terms else None


def _lists_values(terms: tuple[NodeSelectorTerm, ...], key: str) -> bool:
    """Whether some requirement lists values of ``key``; if none does, the translation leaves all requirements on ``key`` unchanged."""
    return any(r.key == key and r.values for term in terms for r in term.expressions)


def _topology_labels(terms: tuple[NodeSelectorTerm, ...], labels: dict[str, str]) -> tuple[str, str]:
    used = {requirement.key for term in terms for requirement in term.expressions}
    if ZONE not in used and (OLD_ZONE in used or (ZONE not in labels and OLD_ZONE in labels)):
        return OLD_ZONE, OLD_REGION
    return ZONE, REGION


def _renamed(terms: tuple[NodeSelectorTerm, ...], old: str, new: str) -> tuple[NodeSelectorTerm, ...]:
    def rename(requirement: Requirement) -> Requirement:
        return replace(requirement, key=new) if requirement.key == old else requirement

    return tuple(replace(term, expressions=tuple(rename(r) for r in term.expressions)) for term in terms)
