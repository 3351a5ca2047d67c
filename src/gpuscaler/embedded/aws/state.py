"""The contents of an account, as data: launch templates, instances, groups, activities and hooks. Times are seconds since the epoch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpuscaler.embedded.aws.wire.errors import AwsError
from gpuscaler.simulation.cloud.machines import CloudEvent, CloudMachine

#: Lifecycle states in which an instance counts towards the capacity of its group.
COUNTED: Final = frozenset({"Pending", "Pending:Wait", "Pending:Proceed", "InService"})
LAUNCHING: Final = "autoscaling:EC2_INSTANCE_LAUNCHING"
TERMINATING: Final = "autoscaling:EC2_INSTANCE_TERMINATING"


@dataclass(slots=True)
class Template:
    """A launch template; ``versions`` begin with 1. Their data is LaunchTemplateData in requests and replies."""

    id: str
    name: str
    created_at: float
    versions: list[dict[str, Any]]
    default: int = 1
    tags: list[dict[str, str]] = field(default_factory=list)

    def version(self, wanted: str) -> int:
        """The number behind ``$Latest``, ``$Default`` or a number."""
        number = {"$Latest": len(self.versions), "$Default": self.default}.get(wanted)
        if number is None:
            number = int(wanted) if wanted.isdigit() else 0
        if not 1 <= number <= len(self.versions):
            raise AwsError("InvalidLaunchTemplateId.VersionNotFound", f"Could not find launch template version {wanted} of {self.id}")
        return number


@dataclass(slots=True)
class Activity:
    """A scaling activity; visible from ``visible_at`` on. ``zone`` is where it launches."""

    id: str
    description: str
    cause: str
    started_at: float
    visible_at: float
    status: str
    message: str = ""
    ended_at: float | None = None
    zone: str = ""


@dataclass(slots=True)
class Hook:
    """A lifecycle hook, with the fields that are shown unchanged."""

    name: str
    transition: str
    timeout: float
    default: str
    settings: dict[str, Any]


@dataclass(slots=True)
class Volume:
    """An EBS volume, created with an instance as ``device``; ``instance`` is the attached one, "" once that is gone.

    ``settings`` are the field Ebs of requests, with all relevant values filled in.
    """

    id: str
    zone: str
    created_at: float
    device: str
    settings: dict[str, Any]
    tags: dict[str, str]
    instance: str

    @property
    def deleted(self) -> bool:
        """Whether it is deleted with its instance."""
        return bool(self.settings["DeleteOnTermination"])

    @property
    def state(self) -> str:
        return "in-use" if self.instance else "available"


@dataclass(slots=True)
class Instance:
    """An instance, of ``group`` unless that is "". ``lifecycle`` is its state there, ``weight`` its share of the capacity.

    ``state`` is EC2's. ``doomed`` is why it will end by itself before it is a node. A ``risky`` one is to be replaced before it ends,
    because of ``why``. One that ``evens`` out zones exceeds the desired capacity until its group has ended another for it. ``token`` and
    ``hook`` belong to the lifecycle action that it waits for, ``activity`` is the one that launched or ends it. ``held`` are the kubelet's
    events while it was prepared in a warm pool. ``launch`` is the data of the launch template or configuration that it was created
    from.
    """

    machine: CloudMachine
    group: str
    template: dict[str, str]
    image: str
    tags: dict[str, str]
    launched_at: float
    launch: Mapping[str, Any] = field(default_factory=dict)
    volumes: list[Volume] = field(default_factory=list)
    weight: int = 1
    lifecycle: str = "Pending"
    state: str = "pending"
    protected: bool = False
    health: str = "Healthy"
    doomed: str = ""
    risky: bool = False
    why: str = ""
    evens: bool = False
    held: list[CloudEvent] = field(default_factory=list)
    hook: str = ""
    token: str = ""
    waits_until: float = 0.0
    activity: Activity | None = None
    ended_at: float | None = None
    reason: str = ""

    @property
    def id(self) -> str:
        return self.machine.id

    @property
    def counted(self) -> bool:
        """Whether it counts towards the capacity of its group."""
        return self.lifecycle in COUNTED


@dataclass(slots=True)
class Group:
    """An Auto Scaling group. ``settings`` are the fields that are shown unchanged, ``cause`` is the reason for its desired capacity.

    It is reconciled again at ``wakes_at``, and launches nothing before ``retry_at``. ``history`` are its earlier descriptions, with times,
    kept if reads lag. ``policies`` and ``scheduled`` are scaling policies and scheduled actions by name; they are stored only.
    """

    name: str
    arn: str
    created_at: float
    zones: tuple[str, ...]
    settings: dict[str, Any]
    min: int
    max: int
    desired: int
    tags: dict[str, dict[str, Any]] = field(default_factory=dict)
    suspended: dict[str, str] = field(default_factory=dict)
    hooks: dict[str, Hook] = field(default_factory=dict)
    members: dict[str, Instance] = field(default_factory=dict)
    activities: list[Activity] = field(default_factory=list)
    refreshes: list[Any] = field(default_factory=list)
    updates: list[Any] = field(default_factory=list)
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)
    scheduled: dict[str, dict[str, Any]] = field(default_factory=dict)
    warm: dict[str, Instance] = field(default_factory=dict)
    cause: str = ""
    wakes_at: float | None = None
    retry_at: float = 0.0
    history: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    @property
    def has(self) -> int:
        """Capacity of the instances that count."""
        return sum(instance.weight for instance in self.members.values() if instance.counted)
