"""What a cloud says and has: machines and their states, answers to purchases, and what happens by itself."""

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import Resources
from gpuscaler.model.pools import Offering

#: A machine's life, in order. ``registered`` is a Ready node without its GPUs, ``visible`` one whose GPUs are allocatable. A machine ends
#: as ``terminated`` (given back) or ``lost``.
BOOTING, REGISTERED, VISIBLE, TERMINATED, LOST = "booting", "registered", "visible", "terminated", "lost"
#: Events that are not states of a machine: an answer to a purchase, a notice that a machine will be reclaimed.
ANSWERED, NOTICE = "answered", "notice"

#: Why a purchase was refused: the offering does not exist, the pool is at its maximum, the offering has no more machines, or a quota of
#: the account is used up.
UNKNOWN_OFFERING, POOL_LIMIT, NO_CAPACITY, QUOTA_FULL = "unknown-offering", "pool-limit", "no-capacity", "quota-full"

#: Why a machine was lost: its spot market ran dry, or it broke.
RECLAIMED, FAILED = "reclaimed", "failed"

#: What the cloud says of a machine that fails its status check, in EC2's words.
IMPAIRED = "Instance reachability check failed"

#: What the kubelet counts by itself; all else only appears once a device plugin has registered.
KUBELET_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods")
_COUNTED_BY_KUBELETS = ("hugepages-", "attachable-volumes-")


class CloudMachine(Struct, gc=False):
    """One machine. ``registered_at`` and ``visible_at`` are plans until the state says so, infinite where that never comes.

    ``fault`` is what the cloud says is wrong with it.
    """

    id: str
    offering: Offering
    purchase: str
    state: str
    bought_at: float
    registered_at: float
    visible_at: float
    ended_at: float | None = None
    fault: str = ""

    @property
    def arrives(self) -> bool:
        """Whether it is on its way and will show all it has."""
        return self.state in {BOOTING, REGISTERED} and self.visible_at < float("inf")

    @property
    def accelerators(self) -> int:
        """Whole accelerators that may fail, at least 1."""
        return max(1, self.offering.allocatable.get("nvidia.com/gpu", 0))


class Refusal(Struct, frozen=True, gc=False):
    """Why ``missing`` machines were not granted from ``offering``; ``kind`` is one of the refusals above.

    ``bucket`` are the instance types that a quota is about, in all zones.
    """

    kind: str
    offering: OfferingKey
    missing: int
    detail: str
    bucket: tuple[str, ...] = ()


class Answer(Struct, frozen=True, gc=False):
    """The answer to a purchase, or to the unfilled part of a standing one: the machines that were granted, and why not all.

    ``missing`` machines were granted by none of the offerings.
    """

    purchase: str
    machines: tuple[CloudMachine, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    missing: int = 0


class CloudEvent(Struct, frozen=True, gc=False):
    """What happened at ``at``: a machine entered the state ``kind``, its end at ``gone_at`` was announced, or a purchase was answered.

    ``why`` tells why a machine was lost.
    """

    at: float
    kind: str
    machine: CloudMachine | None = None
    answer: Answer | None = None
    gone_at: float = 0.0
    why: str = ""


def before_device_plugin(allocatable: Resources) -> dict[str, int]:
    """What a registered node offers while its device plugin has not registered yet."""
    return {name: amount for name, amount in allocatable.items() if not is_device(name)}


def is_device(resource: str) -> bool:
    """Whether a resource is there only while its device plugin runs."""
    return resource not in KUBELET_RESOURCES and not resource.startswith(_COUNTED_BY_KUBELETS)
