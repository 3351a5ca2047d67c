"""Decoding of storage objects."""

from collections.abc import Mapping

from msgspec import field

from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.pods import controller
from gpuscaler.model.decoding.selecting import WireLabelSelector, WireNodeSelector, label_selector
from gpuscaler.model.decoding.storage.volumes import InTreeSources
from gpuscaler.model.quantities import QuantityError, parse, shorten_value, whole
from gpuscaler.model.selectors import NodeSelectorTerm, Requirement
from gpuscaler.model.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from gpuscaler.model.wire import Int64, Metadata, UnreadableError, Wire, WireObject, parse_timestamp, require_name


class StorageAnnotations(Wire):
    """The annotations of all storage kinds."""

    old_class: str | None = field(default=None, name="volume.beta.kubernetes.io/storage-class")
    migrated_to: str | None = field(default=None, name="pv.kubernetes.io/migrated-to")
    bind_completed: str | None = field(default=None, name="pv.kubernetes.io/bind-completed")
    selected_node: str | None = field(default=None, name="volume.kubernetes.io/selected-node")
    default_class: str | None = field(default=None, name="storageclass.kubernetes.io/is-default-class")
    old_default_class: str | None = field(default=None, name="storageclass.beta.kubernetes.io/is-default-class")
    migrated_plugins: str | None = field(default=None, name="storage.alpha.kubernetes.io/migrated-plugins")


NO_ANNOTATIONS = StorageAnnotations()


class StorageMetadata(Metadata):
    annotations: StorageAnnotations | None = None


class ObjectReference(Wire):
    namespace: str | None = None
    name: str | None = None
    uid: str | None = None


class CSISource(Wire):
    driver: str | None = None
    volume_handle: str | None = None


class VolumeNodeAffinity(Wire):
    required: WireNodeSelector | None = None


class VolumeSpec(InTreeSources):
    capacity: dict[str, str | int | float | None] | None = None
    access_modes: list[str] | None = None
    volume_mode: str | None = None
    storage_class_name: str | None = None
    volume_attributes_class_name: str | None = None
    claim_ref: ObjectReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSISource | None = None


class Phase(Wire):
    phase: str | None = None


class WireVolume(WireObject):
    metadata: StorageMetadata | None = None
    spec: VolumeSpec | None = None
    status: Phase | None = None


def read_volume(wire: WireVolume, interner: Interner) -> PersistentVolume:
    name, metadata = require_name(wire.metadata)
    annotations = metadata.annotations or NO_ANNOTATIONS
    spec = wire.spec or VolumeSpec()
    driver, handle = _source(spec)
    claim = spec.claim_ref
    return PersistentVolume(
        name=name,
        node_affinity=spec.node_affinity.required.read() if spec.node_affinity and spec.node_affinity.required else None,
        labels=tuple(sorted((interner.text(key), interner.text(value or "")) for key, value in (metadata.labels or {}).items())),
        driver=interner.text(driver),
        handle=handle,
        storage_class=interner.text(_class_name(spec.storage_class_name, annotations) or ""),
        claim=f"{claim.namespace or ''}/{claim.name or ''}" if claim else "",
        phase=interner.text((wire.status.phase if wire.status else None) or ""),
        capacity=_storage_bytes(spec.capacity, "spec.capacity"),
        access_modes=tuple(spec.access_modes or ()),
        volume_mode=interner.text(spec.volume_mode or "Filesystem"),
        migrated=bool(annotations.migrated_to),
        claim_uid=(claim.uid if claim else None) or "",
        attributes_class=interner.text(spec.volume_attributes_class_name or ""),
        deleted=parse_timestamp(metadata.deletion_timestamp, "metadata.deletionTimestamp"),
    )


def _source(spec: VolumeSpec) -> tuple[str, str]:
    """Return the CSI driver and its handle, or the in-tree plug-in's field name and its disk identifier."""
    if spec.csi is not None:
        return spec.csi.driver or "", spec.csi.volume_handle or ""
    return (spec.plugin, spec.disk.handle) if spec.disk is not None else ("", "")


class ClaimResources(Wire):
    requests: dict[str, str | int | float | None] | None = None


class ClaimSpec(Wire):
    volume_name: str | None = None
    storage_class_name: str | None = None
    volume_attributes_class_name: str | None = None
    access_modes: list[str] | None = None
    volume_mode: str | None = None
    resources: ClaimResources | None = None
    selector: WireLabelSelector | None = None


class WireClaim(WireObject):
    metadata: StorageMetadata | None = None
    spec: ClaimSpec | None = None
    status: Phase | None = None


def read_claim(wire: WireClaim, interner: Interner) -> PersistentVolumeClaim:
    name, metadata = require_name(wire.metadata)
    annotations = metadata.annotations or NO_ANNOTATIONS
    spec = wire.spec or ClaimSpec()
    storage_class = _class_name(spec.storage_class_name, annotations)
    return PersistentVolumeClaim(
        namespace=interner.text(metadata.namespace or "default"),
        name=name,
        volume=spec.volume_name or "",
        bound=annotations.bind_completed is not None,
        phase=interner.text((wire.status.phase if wire.status else None) or ""),
        storage_class=None if storage_class is None else interner.text(storage_class),
        access_modes=tuple(spec.access_modes or ()),
        volume_mode=interner.text(spec.volume_mode or "Filesystem"),
        request=_storage_bytes(spec.resources.requests if spec.resources else None, "spec.resources.requests"),
        selector=label_selector(spec.selector),
        selected_node=interner.text(annotations.selected_node or ""),
        deleted=parse_timestamp(metadata.deletion_timestamp, "metadata.deletionTimestamp"),
        owner_uid=controller(metadata.owner_references, metadata.uid, interner).uid,
        uid=metadata.uid or "",
        attributes_class=interner.text(spec.volume_attributes_class_name or ""),
    )


class TopologyExpression(Wire):
    key: str | None = None
    values: list[str] | None = None


class TopologyTerm(Wire):
    match_label_expressions: list[TopologyExpression] | None = None


class WireStorageClass(WireObject):
    metadata: StorageMetadata | None = None
    provisioner: str | None = None
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologyTerm] | None = None


def read_storage_class(wire: WireStorageClass, interner: Interner) -> StorageClass:
    name, metadata = require_name(wire.metadata)
    annotations = metadata.annotations or NO_ANNOTATIONS
    return StorageClass(
        name=interner.text(name),
        provisioner=interner.text(wire.provisioner or ""),
        wait_for_first_consumer=wire.volume_binding_mode == "WaitForFirstConsumer",
        allowed_topologies=tuple(
            NodeSelectorTerm(
                tuple(Requirement(item.key or "", "In", tuple(item.values or ())) for item in term.match_label_expressions or ())
            )
            for term in wire.allowed_topologies or ()
        ),
        default="true" in (annotations.default_class, annotations.old_default_class),
    )


class DriverLimit(Wire):
    count: Int64 | None = None


class NodeDriver(Wire):
    name: str | None = None
    allocatable: DriverLimit | None = None
    topology_keys: list[str] | None = None


class CSINodeSpec(Wire):
    drivers: list[NodeDriver] | None = None


class WireCSINode(WireObject):
    metadata: StorageMetadata | None = None
    spec: CSINodeSpec | None = None


def read_csi_node(wire: WireCSINode, interner: Interner) -> CSINode:
    name, metadata = require_name(wire.metadata)
    migrated = (metadata.annotations or NO_ANNOTATIONS).migrated_plugins or ""
    drivers = (wire.spec.drivers if wire.spec else None) or ()
    return CSINode(
        name=interner.text(name),
        limits=tuple((interner.text(item.name or ""), item.allocatable.count if item.allocatable else None) for item in drivers),
        migrated=tuple(sorted({interner.text(plugin.strip()) for plugin in migrated.split(",")} - {""})),
        topology_keys=tuple(sorted({interner.text(key) for item in drivers for key in item.topology_keys or ()})),
    )


class CSIDriverSpec(Wire):
    storage_capacity: bool | None = None


class WireCSIDriver(WireObject):
    metadata: Metadata | None = None
    spec: CSIDriverSpec | None = None


def read_csi_driver(wire: WireCSIDriver, interner: Interner) -> CSIDriver:
    name, _ = require_name(wire.metadata)
    return CSIDriver(interner.text(name), bool(wire.spec and wire.spec.storage_capacity))


class WireCSIStorageCapacity(WireObject):
    metadata: Metadata | None = None
    storage_class_name: str | None = None
    node_topology: WireLabelSelector | None = None
    capacity: str | int | float | None = None
    maximum_volume_size: str | int | float | None = None


def read_csi_storage_capacity(wire: WireCSIStorageCapacity, interner: Interner) -> CSIStorageCapacity:
    name, metadata = require_name(wire.metadata)
    size = wire.maximum_volume_size
    return CSIStorageCapacity(
        namespace=interner.text(metadata.namespace or "default"),
        name=name,
        storage_class=interner.text(wire.storage_class_name or ""),
        node_topology=label_selector(wire.node_topology),
        capacity=None if wire.capacity is None else _parse_bytes(wire.capacity, "capacity"),
        maximum_volume_size=None if size is None else _parse_bytes(size, "maximumVolumeSize"),
    )


class AttachmentSource(Wire):
    persistent_volume_name: str | None = None


class AttachmentSpec(Wire):
    attacher: str | None = None
    node_name: str | None = None
    source: AttachmentSource | None = None


class AttachmentStatus(Wire):
    attached: bool | None = None


class WireAttachment(WireObject):
    metadata: Metadata | None = None
    spec: AttachmentSpec | None = None
    status: AttachmentStatus | None = None


def read_attachment(wire: WireAttachment, interner: Interner) -> VolumeAttachment:
    name, _ = require_name(wire.metadata)
    spec = wire.spec or AttachmentSpec()
    return VolumeAttachment(
        name=name,
        attacher=interner.text(spec.attacher or ""),
        node_name=interner.text(spec.node_name or ""),
        volume=(spec.source.persistent_volume_name if spec.source else None) or "",
        attached=bool(wire.status and wire.status.attached),
    )


def _class_name(name: str | None, annotations: StorageAnnotations) -> str | None:
    """Return the storage class; the old annotation takes precedence over the field, as in Kubernetes."""
    return annotations.old_class if annotations.old_class is not None else name


def _storage_bytes(quantities: Mapping[str, str | int | float | None] | None, path: str) -> int:
    quantity = (quantities or {}).get("storage")
    return 0 if quantity is None else _parse_bytes(quantity, f"{path}.storage")


def _parse_bytes(quantity: str | int | float, path: str) -> int:
    try:
        return whole(parse(quantity))
    except QuantityError as error:
        raise UnreadableError(path, shorten_value(error.seen), error.expected) from error
