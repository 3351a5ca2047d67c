"""Pools, offerings, limits and the policy a plan obeys. Prices are US dollars per hour, durations seconds."""

from collections.abc import Iterable, Mapping
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.accelerators import gpus_of, is_device
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec, Resources
from gpuscaler.model.taints import Taint, untolerated

#: Where a price is from that no region has: a guess from the type's size. Nothing that runs is moved for what it would save.
BY_SIZE = "size"
#: How pods come to the machines that they are promised: we bind them, nominate them for their scheduler, or leave them to it.
BIND, NOMINATE, OFF = "bind", "nominate", "off"
STEERINGS = (BIND, NOMINATE, OFF)
#: How long the node of a machine may be not Ready before the machine is ended, in seconds. EKS repairs nodes after 30 minutes.
UNREADY_AFTER = 2700.0


class Offering(Struct, frozen=True, dict=True):
    """One way to buy in a pool: (market, instance type, zone) at a price.

    ``allocatable`` is what a new node offers to pods, kubelet reservations taken off and DaemonSets not. ``labels`` and ``taints`` are
    those of the node once it is open (start-up taints gone), well-known labels included, ``kubernetes.io/hostname`` excepted.
    ``count`` is how many can be had, None when nobody knows a bound (a capacity reservation knows one). ``ends`` is when the cloud takes
    machines of it away, whatever runs on them, in seconds since the epoch; 0 where it does not. ``product`` is the model of its GPUs, for
    clouds that tell it though no label of their nodes does; ``accelerators`` is how many whole ones its type is sold with, however nodes
    divide or share them, 0 where only ``allocatable`` and labels say. ``price_from`` is empty for a price that is known; for a guess it is
    the region whose price that is, or :data:`BY_SIZE` where no region has one.
    """

    pool: str
    market: str
    instance_type: str
    zone: str
    price: float
    allocatable: Resources
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    count: int | None = None
    ends: float = 0.0
    product: str = ""
    price_from: str = ""
    accelerators: int = 0

    @cached_property
    def key(self) -> OfferingKey:
        return OfferingKey(self.pool, self.market, self.instance_type, self.zone)

    @property
    def retired(self) -> bool:
        """Whether it is not sold any more: machines of it may be there. A reservation all of which is in use is something else."""
        return self.count == 0 and self.market != "reserved"

    def admits(self, spec: PodSpec) -> bool:
        """Whether labels and taints of a new machine admit a pod of ``spec``."""
        if any(self.labels.get(key) != value for key, value in spec.node_selector):
            return False
        if spec.node_affinity is not None and not spec.node_affinity.matches(self.labels, ""):
            return False
        return untolerated(self.taints, spec.tolerations) is None

    @property
    def gpus(self) -> int:
        """Physical accelerators of one machine."""
        return self.accelerators or gpus_of(self.allocatable, self.labels)


class Spare(Struct, frozen=True, gc=False):
    """Headroom kept in a pool: whole empty machines, or unused GPUs."""

    machines: int = 0
    gpus: int = 0


class Budget(Struct, frozen=True, gc=False):
    """How many machines of a pool may be disrupted at once, as Karpenter's disruption budgets.

    ``nodes`` is a count ("5") or a percentage ("10%"); ``reasons`` empty means every reason (idle, consolidation); ``schedule`` is a cron
    line in UTC that opens the budget for ``duration`` seconds, None means always.
    """

    nodes: str
    reasons: tuple[str, ...] = ()
    schedule: str | None = None
    duration: float | None = None


class Pool(Struct, frozen=True, gc=False):
    """A group of machines that a cloud can grow.

    ``chooser`` says who picks among the offerings: "buyer" (we name one) or "cloud" (we name the set). With ``names_zone`` a purchase names
    the zone, and the cloud chooses among the offerings of that zone only. ``match_labels`` are the labels that, with the instance type,
    tell that a node without ``gpuscaler.io/pool`` belongs here.

    Machines of a pool with ``min_gpus_per_pod`` stay closed, and take only pods that ask for so many GPUs at least and that a plan places
    there; 0 is no such rule. ``revision`` tells apart what machines are made from, such as versions of a launch template, where the cloud
    says so: a new one may mend what an older one was refused for. A machine whose node has not been Ready for ``unready_after`` is ended;
    0 is never. Without ``buys_without_gpus`` no machine is bought for pods that ask for no accelerator; on machines that are there they may
    run all the same. ``balances`` says that its group ends machines by itself to even out zones, but for those that are protected.
    ``divides`` says that its group divides machines between markets: what one market has not, it does not ask of the other.
    ``steering`` is how pods come to its machines, empty where the policy's counts.
    """

    name: str
    offerings: tuple[Offering, ...]
    chooser: str = "buyer"
    min: int = 0
    max: int | None = None
    spare: Spare = Spare()
    idle_after: float = 600.0
    priority: int = 0
    arch: str | None = None
    match_labels: Mapping[str, str] = {}
    startup_taints: tuple[Taint, ...] = ()
    budgets: tuple[Budget, ...] = ()
    min_gpus_per_pod: int = 0
    revision: str = ""
    names_zone: bool = False
    unready_after: float = UNREADY_AFTER
    buys_without_gpus: bool = True
    balances: bool = False
    divides: bool = False
    steering: str = ""


def sold(pool: Pool) -> tuple[Offering, ...]:
    """What may be bought in ``pool``; where nothing may, what its machines are."""
    return tuple(one for one in pool.offerings if not one.retired) or pool.offerings


def for_gpus(offerings: Iterable[Offering]) -> bool:
    """Whether all of ``offerings`` have accelerators: unless its settings say otherwise such a pool buys nothing for pods without any."""
    found = [any(amount > 0 and is_device(name) for name, amount in offering.allocatable.items()) for offering in offerings]
    return bool(found) and all(found)


def is_scattered(pool: Pool) -> bool:
    """Whether a machine of ``pool`` may come to any of several zones, as the cloud chooses."""
    return pool.chooser == "cloud" and not pool.names_zone and len({offering.zone for offering in pool.offerings}) > 1


class Limits(Struct, frozen=True, gc=False):
    """Limits over all pools; None is no limit. Existing and upcoming machines count.

    ``fruitless_per_hour`` is how many machines of a pool may come to nothing within an hour before nothing more is bought there.
    ``assumed`` limits were set by nobody.
    """

    gpus: int | None = None
    machines: int | None = None
    dollars_per_hour: float | None = None
    machines_per_minute: int | None = None
    fruitless_per_hour: int = 10
    assumed: bool = False


#: What `gpuscaler run` buys at most, in dollars per hour, where neither limits nor the size of each pool are set.
DEFAULT_DOLLARS = 100.0


class Policy(Struct, frozen=True, dict=True):
    """Everything a user decides. ``preferences`` is "ignore" (break ties only) or "respect".

    ``max_grace`` is the longest time, in seconds, that any pod is given to save its work. ``steering`` is one of :data:`STEERINGS`; only
    pods of ``bind_schedulers`` are bound.
    """

    pools: tuple[Pool, ...]
    limits: Limits = Limits()
    region: str = ""
    preferences: str = "ignore"
    schedulers: tuple[str, ...] = ("default-scheduler",)
    priority_cutoff: int = -10
    min_saving: float = 0.0
    work_budget: int = 1_000_000
    max_grace: float = 3600.0
    steering: str = BIND
    bind_schedulers: tuple[str, ...] = ("default-scheduler",)

    @cached_property
    def offerings(self) -> Mapping[OfferingKey, Offering]:
        """The offerings of all pools, by key."""
        return {offering.key: offering for pool in self.pools for offering in pool.offerings}

    @cached_property
    def sold(self) -> Mapping[OfferingKey, Offering]:
        """The offerings of all pools that are still sold, by key."""
        return {key: offering for key, offering in self.offerings.items() if not offering.retired}


def unpriced(policy: Policy) -> frozenset[OfferingKey]:
    """The offerings whose price is guessed from their size, since no region has one: nothing that runs is moved for it."""
    return frozenset(one.key for one in policy.offerings.values() if one.price_from == BY_SIZE)


def is_boundless(policy: Policy) -> bool:
    """Whether nothing bounds what ``policy`` buys: it has no limit, and some pool no size."""
    some = (policy.limits.gpus, policy.limits.machines, policy.limits.dollars_per_hour)
    return all(limit is None for limit in some) and any(pool.max is None for pool in policy.pools)


def bounded(policy: Policy) -> Policy:
    """``policy`` with a modest limit where nothing bounds what it buys."""
    if not is_boundless(policy):
        return policy
    return replace(policy, limits=replace(policy.limits, dollars_per_hour=DEFAULT_DOLLARS, assumed=True))


def boundless_warning(policy: Policy) -> str:
    """What a person should know of the limit that nobody set; empty where there is none."""
    if not policy.limits.assumed:
        return ""
    return (
        f"limits: saw none, and pools without a max, expected one of them; machines are bought for at most "
        f"${DEFAULT_DOLLARS:g} an hour in all; set limits, or limits: none for no limit"
    )
