"""The kinds that are decoded, their API groups and their decoders."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gpuscaler.model.cluster import Item
from gpuscaler.model.decoding import devices, gangs, workloads
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.nodes import WireNode, read_node
from gpuscaler.model.decoding.pods import WirePod, read_pod
from gpuscaler.model.decoding.storage import storage


class Reader(NamedTuple):
    """The decoder of a kind: its JSON structure, and the conversion to the model."""

    kind: str
    groups: tuple[str, ...]
    decode: Callable[[Any], Any]
    read: Callable[[Any, Interner], Item | Sequence[Item]]


def _reader(kind: str, wire: type, read: Callable[[Any, Interner], Item | Sequence[Item]], *groups: str) -> Reader:
    return Reader(kind, groups, msgspec.json.Decoder(wire).decode, read)


_READERS = (
    _reader("Pod", WirePod, read_pod, ""),
    _reader("Node", WireNode, read_node, ""),
    _reader("PersistentVolume", storage.WireVolume, storage.read_volume, ""),
    _reader("PersistentVolumeClaim", storage.WireClaim, storage.read_claim, ""),
    _reader("StorageClass", storage.WireStorageClass, storage.read_storage_class, "storage.k8s.io"),
    _reader("CSINode", storage.WireCSINode, storage.read_csi_node, "storage.k8s.io"),
    _reader("CSIDriver", storage.WireCSIDriver, storage.read_csi_driver, "storage.k8s.io"),
    _reader("CSIStorageCapacity", storage.WireCSIStorageCapacity, storage.read_csi_storage_capacity, "storage.k8s.io"),
    _reader("VolumeAttachment", storage.WireAttachment, storage.read_attachment, "storage.k8s.io"),
    _reader("Deployment", workloads.WireController, workloads.read_deployment, "apps", "extensions"),
    _reader("ReplicaSet", workloads.WireController, workloads.read_replica_set, "apps", "extensions"),
    _reader("StatefulSet", workloads.WireController, workloads.read_stateful_set, "apps"),
    _reader("DaemonSet", workloads.WireController, workloads.read_daemon_set, "apps", "extensions"),
    _reader("Job", workloads.WireController, workloads.read_job, "batch"),
    _reader("PodDisruptionBudget", workloads.WireBudget, workloads.read_budget, "policy"),
    _reader("PriorityClass", workloads.WirePriorityClass, workloads.read_priority_class, "scheduling.k8s.io"),
    _reader("Namespace", workloads.WireNamespace, workloads.read_namespace, ""),
    _reader("RuntimeClass", workloads.WireRuntimeClass, workloads.read_runtime_class, "node.k8s.io"),
    _reader("PodGroup", gangs.WirePodGroup, gangs.read_coscheduling_group, "scheduling.x-k8s.io", "scheduling.sigs.k8s.io"),
    _reader(
        "PodGroup",
        gangs.WirePodGroup,
        gangs.read_volcano_group,
        "scheduling.volcano.sh",
        "scheduling.incubator.k8s.io",
    ),
    _reader("JobSet", gangs.WireJobSet, gangs.read_job_set, "jobset.x-k8s.io"),
    _reader("Workload", gangs.WireNativeWorkload, gangs.read_native_workload, "scheduling.k8s.io"),
    _reader("PodGroup", gangs.WireNativeGroup, gangs.read_native_group, "scheduling.k8s.io"),
    _reader("ResourceClaim", devices.WireResourceClaim, devices.read_resource_claim, "resource.k8s.io"),
    _reader("ResourceSlice", devices.WireResourceSlice, devices.read_resource_slice, "resource.k8s.io"),
    _reader("DeviceClass", devices.WireDeviceClass, devices.read_device_class, "resource.k8s.io"),
)
_BY_KIND: Mapping[tuple[str, str], Reader] = {(group, reader.kind): reader for reader in _READERS for group in reader.groups}
_DEFAULTS: Mapping[str, Reader] = {reader.kind: reader for reader in reversed(_READERS)}


def reader_of(api_version: str, kind: str) -> Reader | None:
    """Return the reader of ``kind`` in the group of ``api_version`` (any version), or None if the kind is not read."""
    if not api_version:
        return _DEFAULTS.get(kind)
    group, slash, _ = api_version.rpartition("/")
    return _BY_KIND.get((group if slash else "", kind))
