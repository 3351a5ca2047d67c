"""Data of the simulated cloud: machines and their states, answers to purchases, events."""

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import Resources
from gpuscaler.model.pools import Offering

#: A machine's life, in order. ``registered`` is a Ready node without its GPUs, ``visible`` one with allocatable GPUs. A machine ends
#: as ``terminated`` (by a call) or ``lost``.
BOOTING, REGISTERED, VISIBLE, TERMINATED, LOST = "booting", "registered", "visible", "terminated", "lost"
#: Events that are not states of a machine: an answer to a purchase, a notice that a machine will be reclaimed.
ANSWERED, NOTICE = "answered", "notice"

#: Reasons of a refused purchase: the offering does not exist, the pool is at its maximum, the offering has no more machines, or a quota of
#: the account is used up.
UNKNOWN_OFFERING, POOL_LIMIT, NO_CAPACITY, QUOTA_FULL = "unknown-offering", "pool-limit", "no-capacity", "quota-full"

#: Reasons of a lost machine: its spot market ran dry, or it broke.
RECLAIMED, FAILED = "reclaimed", "failed"

#: The cloud's message for a machine that fails its status check, in EC2's words.
IMPAIRED = "Instance reachability check failed"

#: Resources that the kubelet reports by itself; all others appear only once a device plugin has registered.
KUBELET_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods")
_COUNTED_BY_KUBELETS = ("hugepages-", "attachable-volumes-")


class CloudMachine(Struct, gc=False):
    """One machine. ``registered_at`` and ``visible_at`` are planned times until the state is reached, infinite if it never is.

    ``fault`` is the fault that the cloud reports.
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
        """Whether the machine is on its way and will show all its resources."""
        return self.state in {BOOTING, REGISTERED} and self.visible_at < float("inf")

    @property
    def accelerators(self) -> int:
        """The number of whole accelerators that may fail, at least 1."""
        return max(1, self.offering.allocatable.get("nvidia.com/gpu", 0))


class Refusal(Struct, frozen=True, gc=False):
    """Why ``missing`` machines were not granted from ``offering``; ``kind`` is one of the refusals above.

    ``bucket`` are the instance types that a quota covers, in all zones.
    """

    kind: str
    offering: OfferingKey
    missing: int
    detail: str
    bucket: tuple[str, ...] = ()


class PurchaseAnswer(Struct, frozen=True, gc=False):
    """The answer to a purchase, or to the unfilled part of a standing one: granted machines, and reasons for the missing ones.

    ``missing`` is the number of machines that no offering granted.
    """

    purchase: str
    machines: tuple[CloudMachine, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    missing: int = 0


class CloudEvent(Struct, frozen=True, gc=False):
    """An event at ``at``: a machine entered the state ``kind``, its end at ``gone_at`` was announced, or a purchase was answered.

    ``why`` is the reason that a machine was lost.
    """

    at: float
    kind: str
    machine: CloudMachine | None = None
    answer: PurchaseAnswer | None = None
    gone_at: float = 0.0
    why: str = ""


def before_device_plugin(allocatable: Resources) -> dict[str, int]:
    """The resources of a registered node before its device plugin has registered."""
    return {name: amount for name, amount in allocatable.items() if not is_device(name)}


def is_device(resource: str) -> bool:
    """Whether a resource exists only while its device plugin runs."""
    return resource not in KUBELET_RESOURCES and not resource.startswith(_COUNTED_BY_KUBELETS)
