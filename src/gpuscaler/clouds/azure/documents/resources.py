"""Azure's resources as discovery, buying and the list of machines use them: clusters, agent pools, scale sets, machines. Pure.

Words such as ``Spot`` or ``Succeeded`` are compared without case, because Azure's services spell them differently; ids keep Azure's
spelling and are compared by :func:`gpuscaler.model.azure_names.fold_id`.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

SPOT, ON_DEMAND, RESERVED = "spot", "on-demand", "reserved"
UNIFORM, FLEXIBLE = "Uniform", "Flexible"
#: Kinds of agent pools (``properties.type``).
SCALE_SETS, MACHINES, AVAILABILITY_SET = "VirtualMachineScaleSets", "VirtualMachines", "AvailabilitySet"
#: The part of a zone's name for machines without a zone: AKS labels their nodes with zone "0".
NO_ZONE: Final = "0"


class ScaleSet(Struct, frozen=True):
    """A scale set. ``capacity`` is the number of machines that it is set to; ``etag`` changes with every write.

    ``zones`` are numbers as text ("1"). ``max_price`` is the limit of a spot machine in dollars per hour, None for the on-demand price.
    ``eviction`` is Delete or Deallocate for spot machines. ``sizes`` are those of its SKU profile if Azure chooses among several, and
    ``mix`` is (machines that are on demand, percentage of the rest that is on demand) if Azure divides it between markets. ``revision``
    changes with the model of its machines. ``kept`` names disks, interfaces and addresses that outlive their machine.
    """

    id: str
    subscription: str
    group: str
    name: str
    location: str
    size: str
    capacity: int
    zones: tuple[str, ...] = ()
    etag: str = ""
    mode: str = UNIFORM
    market: str = ON_DEMAND
    eviction: str = ""
    max_price: float | None = None
    tags: Mapping[str, str] = {}
    state: str = ""
    overprovision: bool | None = None
    single_placement: bool = False
    windows: bool = False
    disk_gib: int = 0
    reservation_group: str = ""
    sizes: tuple[str, ...] = ()
    strategy: str = ""
    mix: tuple[int, int] | None = None
    sku_migration: bool = False
    zone_rebalancing: bool = False
    chooses_zones: bool = False
    spot_restore: bool = False
    replaces_failed: bool = False
    repairs: bool = False
    upgrades: str = ""
    kept: tuple[str, ...] = ()
    revision: str = ""

    @property
    def is_flexible(self) -> bool:
        """Whether its machines are virtual machines of the resource group, with their own names."""
        return self.mode == FLEXIBLE


class Profile(Struct, frozen=True, gc=False):
    """One size of a pool of virtual machines, and how many machines of it there are to be."""

    size: str
    count: int


class AgentPool(Struct, frozen=True):
    """A node pool of AKS. ``count`` is the number of machines that it is set to, over all ``profiles`` if it has any.

    ``kind`` is VirtualMachineScaleSets, VirtualMachines or AvailabilitySet. ``present`` are the machines by size as AKS counts them, for
    pools of virtual machines. ``max_price`` is as for scale sets. ``max_pods`` and ``disk_gib`` are 0 if unknown.
    """

    id: str
    subscription: str
    group: str
    cluster: str
    name: str
    kind: str
    size: str
    count: int
    mode: str = "User"
    market: str = ON_DEMAND
    zones: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    taints: tuple[str, ...] = ()
    initialization_taints: tuple[str, ...] = ()
    tags: Mapping[str, str] = {}
    autoscaling: bool = False
    scale_down_mode: str = "Delete"
    eviction: str = ""
    max_price: float | None = None
    state: str = ""
    power: str = ""
    profiles: tuple[Profile, ...] = ()
    present: tuple[Profile, ...] = ()
    etag: str = ""
    reservation_group: str = ""
    host_group: str = ""
    gpu_instance_profile: str = ""
    gpu_driver: str = ""
    windows: bool = False
    max_pods: int = 0
    disk_gib: int = 0
    node_resource_group: str = ""
    location: str = ""
    revision: str = ""


class Cluster(Struct, frozen=True):
    """An AKS cluster. ``locked`` means that only AKS may write in its node resource group; ``provisions_nodes`` that NAP is on."""

    id: str
    subscription: str
    group: str
    name: str
    location: str
    node_resource_group: str
    locked: bool = False
    provisions_nodes: bool = False
    state: str = ""
    power: str = ""


class VirtualMachine(Struct, frozen=True, gc=False):
    """A machine of a scale set of either mode, or of a pool of virtual machines.

    ``instance_id`` is the number of a machine of a Uniform set, the name of any other. ``zone`` is a number as text, empty without a
    zone. ``state`` is its provisioning state, ``power`` the word behind ``PowerState/``, empty if it was never allocated. ``fault_code``
    and ``fault`` are the code and text of the error that its instance view reports, ``extensions_text`` the messages of its failed
    extensions. ``created`` is in seconds since the epoch, 0 if unknown.
    """

    id: str
    instance_id: str
    name: str
    size: str = ""
    zone: str = ""
    state: str = ""
    power: str = ""
    market: str = ""
    created: float = 0.0
    extensions_text: str = ""
    fault_code: str = ""
    fault: str = ""
    computer_name: str = ""
    protected: bool = False
    scale_set_id: str = ""
    availability_set_id: str = ""
    tags: Mapping[str, str] = {}


def is_word(word: str | None, other: str) -> bool:
    """Whether ``word`` of a document is ``other``, in any case."""
    return (word or "").lower() == other.lower()


def zone_key(location: str, zone: str) -> str:
    """The zone of an offering: ``eastus-1``, or ``eastus-0`` for machines without a zone. The first is also the node's zone label."""
    return f"{location.lower()}-{zone or NO_ZONE}"


def zone_label(location: str, zone: str) -> str:
    """The zone label of a node: ``eastus-1``, or ``0`` for machines without a zone."""
    return zone_key(location, zone) if zone and zone != NO_ZONE else NO_ZONE
