"""The contents of an account, as data: resource groups, scale sets, machines, clusters, agent pools, operations.

Times are seconds since the epoch. Names of resources are kept as they were written first; keys are in lower case.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from gpuscaler.embedded.azure.wire.errors import Failure
from gpuscaler.simulation.cloud.machines import CloudMachine

CREATING, UPDATING, SUCCEEDED, FAILED, DELETING = "Creating", "Updating", "Succeeded", "Failed", "Deleting"
IN_PROGRESS, CANCELED = "InProgress", "Canceled"
UNIFORM, FLEXIBLE = "Uniform", "Flexible"
#: The mode of what is no scale set: the machines of one profile of an agent pool of type VirtualMachines.
VIRTUAL_MACHINES: Final = "VirtualMachines"
#: Provider namespaces in ids of operations.
COMPUTE, AKS = "Microsoft.Compute", "Microsoft.ContainerService"
PREEMPTED: Final = Failure("OperationPreempted", "Operation execution has been preempted by a more recent operation.")


@dataclass(slots=True)
class Operation:
    """An operation that a write began. ``waiting`` are the keys of machines that it waits for, ``failures`` theirs.

    ``then`` is called once when it has ended. ``location_status`` is the HTTP status of its Location once it succeeded.
    """

    id: str
    provider: str
    subscription: str
    location: str
    started_at: float
    status: str = IN_PROGRESS
    error: Failure | None = None
    ended_at: float | None = None
    waiting: set[str] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    then: Callable[["Operation"], None] | None = None
    location_status: int = 200

    @property
    def running(self) -> bool:
        return self.status == IN_PROGRESS


@dataclass(slots=True)
class Machine:
    """A virtual machine, in a scale set or by itself in an agent pool of type VirtualMachines.

    ``key`` is its instance id in a Uniform scale set, else its name. ``cloud`` is its hardware, None if none was allocated. ``power`` is
    the part behind ``PowerState/``, empty if it has none. ``reported`` is the error of its extension or operating system; ``doomed``
    is the one that it will report.
    ``ended_by`` is the operation that deletes it; with ``falls_later`` the capacity falls at the end of that. An ``unwanted`` one survived
    a deletion that was preempted.
    """

    key: str
    name: str
    computer: str
    size: str
    market: str
    zone: str
    created_at: float
    vm_id: str
    state: str = CREATING
    power: str = ""
    cloud: CloudMachine | None = None
    error: Failure | None = None
    reported: Failure | None = None
    protected: bool = False
    ended_by: Operation | None = None
    state_at: float = 0.0
    deallocated: bool = False
    reserved: bool = False
    doomed: Failure | None = None
    falls_later: bool = False
    unwanted: bool = False

    @property
    def counted(self) -> bool:
        """Whether it counts towards the capacity of its scale set."""
        return self.state != DELETING


@dataclass(slots=True)
class ScaleSet:
    """A scale set. ``model`` is its JSON without what is read-only; ``lists`` are earlier lists of its machines, with times.

    The machines of a profile of an agent pool of type VirtualMachines are kept like a scale set, in that mode, which no call shows.
    ``numbers`` numbers its machines then. One of AKS belongs to ``agent_pool`` of ``cluster``; with ``sync_due`` AKS is about to notice
    its capacity.
    """

    subscription: str
    group: str
    name: str
    location: str
    model: dict[str, Any]
    created_at: float
    unique_id: str
    capacity: int = 0
    machines: dict[str, Machine] = field(default_factory=dict)
    next_number: int = 0
    version: int = 1
    state: str = SUCCEEDED
    operation: Operation | None = None
    cluster: "Cluster | None" = None
    agent_pool: "AgentPool | None" = None
    sync_due: bool = False
    lists: list[tuple[float, list[Any]]] = field(default_factory=list)
    numbers: Callable[[], int] | None = None

    @property
    def id(self) -> str:
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.group}/providers/{COMPUTE}/virtualMachineScaleSets/{self.name}"

    @property
    def etag(self) -> str:
        return f'"{self.version}"'

    @property
    def mode(self) -> str:
        return str(self.model["properties"].get("orchestrationMode", UNIFORM))

    @property
    def size(self) -> str:
        return str(self.model["sku"]["name"])

    @property
    def profile(self) -> dict[str, Any]:
        """``virtualMachineProfile``."""
        found: dict[str, Any] = self.model["properties"].get("virtualMachineProfile") or {}
        return found

    @property
    def market(self) -> str:
        return "spot" if self.profile.get("priority") in {"Spot", "Low"} else "on-demand"

    @property
    def zones(self) -> tuple[str, ...]:
        """The numbers of its zones; ("0",) if it is not zonal."""
        return tuple(self.model.get("zones") or ()) or ("0",)

    @property
    def counted(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.counted]


@dataclass(slots=True)
class AgentPool:
    """An agent pool. ``settings`` are its properties as they are shown; ``count`` is what AKS believes.

    Of type VirtualMachines, it has ``profiles`` by size in lower case; else it has the scale set ``scale_set``.
    """

    name: str
    settings: dict[str, Any]
    count: int = 0
    scale_set: str = ""
    profiles: dict[str, ScaleSet] = field(default_factory=dict)
    next_number: int = 0
    version: int = 1
    state: str = SUCCEEDED
    operation: Operation | None = None

    @property
    def kind(self) -> str:
        return str(self.settings.get("type", "VirtualMachineScaleSets"))

    @property
    def etag(self) -> str:
        return f"{self.version:08x}-0000-4000-8000-000000000000"


@dataclass(slots=True)
class Cluster:
    """An AKS cluster. ``hash`` is the part of its machines' names, ``node_group`` the resource group of its machines."""

    subscription: str
    group: str
    name: str
    location: str
    node_group: str
    hash: str
    settings: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    pools: dict[str, AgentPool] = field(default_factory=dict)
    version: int = 1
    state: str = SUCCEEDED
    operation: Operation | None = None

    @property
    def id(self) -> str:
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.group}/providers/{AKS}/managedClusters/{self.name}"

    @property
    def etag(self) -> str:
        return f"{self.version:08x}-0000-4000-9000-000000000000"


@dataclass(slots=True)
class ReservationGroup:
    """A capacity reservation group; ``reservations`` are capacity reservations as JSON, by name in lower case."""

    subscription: str
    group: str
    name: str
    location: str
    zones: tuple[str, ...] = ()
    reservations: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.group}/providers/{COMPUTE}/capacityReservationGroups/{self.name}"


@dataclass(slots=True)
class ResourceGroup:
    """A resource group. ``locked`` refuses all writes; ``cluster`` is the id of the AKS cluster that it belongs to."""

    subscription: str
    name: str
    location: str
    tags: dict[str, str] = field(default_factory=dict)
    managed_by: str = ""
    locked: bool = False
    read_only_for_users: bool = False
    scale_sets: dict[str, ScaleSet] = field(default_factory=dict)
    clusters: dict[str, Cluster] = field(default_factory=dict)
    reservation_groups: dict[str, ReservationGroup] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.name}"


@dataclass(slots=True)
class ScheduledEvent:
    """An event of the Instance Metadata Service; ``resources`` are names of machines, ``at`` the time before which it does not begin."""

    id: str
    kind: str
    resources: tuple[str, ...]
    at: float
    status: str = "Scheduled"
    description: str = ""
    source: str = "Platform"
    seconds: int = -1
    act: Callable[[], None] | None = None
