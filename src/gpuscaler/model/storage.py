"""Storage objects that restrict where a pod may run. Access modes and binding modes are Kubernetes' values."""

from msgspec import Struct

from gpuscaler.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm


class PersistentVolume(Struct, frozen=True, gc=False):
    """A PersistentVolume. ``claim`` is the claim reference as ``namespace/name``, ``claim_uid`` its uid; ``labels`` are all labels.

    ``driver`` and ``handle`` are those of a CSI volume. For a volume of an in-tree plug-in they are the plug-in's field name
    (awsElasticBlockStore, gcePersistentDisk, azureDisk, cinder, …) and its disk identifier, as in ``VolumeUse``.
    """

    name: str
    node_affinity: NodeSelector | None = None
    labels: tuple[tuple[str, str], ...] = ()
    driver: str = ""
    handle: str = ""
    storage_class: str = ""
    claim: str = ""
    phase: str = ""
    capacity: int = 0
    access_modes: tuple[str, ...] = ()
    volume_mode: str = "Filesystem"
    migrated: bool = False
    claim_uid: str = ""
    attributes_class: str = ""
    deleted: float = 0.0


class PersistentVolumeClaim(Struct, frozen=True, gc=False):
    """A claim. ``volume`` is the bound volume's name; ``selected_node`` the annotation ``volume.kubernetes.io/selected-node``.

    ``bound`` is True if the annotation ``pv.kubernetes.io/bind-completed`` is set.
    """

    namespace: str
    name: str
    volume: str = ""
    bound: bool = False
    phase: str = ""
    storage_class: str | None = None
    access_modes: tuple[str, ...] = ()
    volume_mode: str = "Filesystem"
    request: int = 0
    selector: LabelSelector | None = None
    selected_node: str = ""
    deleted: float = 0.0
    owner_uid: str = ""
    uid: str = ""
    attributes_class: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class StorageClass(Struct, frozen=True, gc=False):
    name: str
    provisioner: str = ""
    wait_for_first_consumer: bool = False
    allowed_topologies: tuple[NodeSelectorTerm, ...] = ()
    default: bool = False


class CSINode(Struct, frozen=True, gc=False):
    """A CSINode. ``limits``: (driver, maximum attached volumes or None). ``migrated`` lists in-tree plug-ins served by CSI.

    ``topology_keys`` are the node labels that its drivers use for topology.
    """

    name: str
    limits: tuple[tuple[str, int | None], ...] = ()
    migrated: tuple[str, ...] = ()
    topology_keys: tuple[str, ...] = ()


class CSIDriver(Struct, frozen=True, gc=False):
    name: str
    storage_capacity: bool = False


class CSIStorageCapacity(Struct, frozen=True, gc=False):
    namespace: str
    name: str
    storage_class: str = ""
    node_topology: LabelSelector | None = None
    capacity: int | None = None
    maximum_volume_size: int | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class VolumeAttachment(Struct, frozen=True, gc=False):
    name: str
    attacher: str = ""
    node_name: str = ""
    volume: str = ""
    attached: bool = False
