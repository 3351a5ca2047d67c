"""Storage objects that decide where a pod may run. Access modes and binding modes are Kubernetes' own words."""

from msgspec import Struct

from gpuscaler.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm


class PersistentVolume(Struct, frozen=True, gc=False):
    """``claim`` is the claim reference as ``namespace/name``, ``claim_uid`` its uid; ``labels`` are all the volume's labels.

    ``driver`` and ``handle`` are those of a CSI volume. A volume of an in-tree plug-in has the plug-in's field name as its driver
    (awsElasticBlockStore, gcePersistentDisk, azureDisk, cinder, …) and what names the disk there as its handle, as in ``VolumeUse``.
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
    """``volume`` is the bound volume's name; ``selected_node`` the annotation ``volume.kubernetes.io/selected-node``.

    ``bound`` is True when the annotation ``pv.kubernetes.io/bind-completed`` says so.
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
    """``limits``: (driver, volumes that may be attached, or None for no limit). ``migrated`` names in-tree plug-ins served by CSI.

    ``topology_keys`` are the labels of the node by which its drivers tell where it is.
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
