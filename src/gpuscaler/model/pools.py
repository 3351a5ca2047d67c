"""Pools, offerings, limits and the policy for plans. Prices are in US dollars per hour, durations in seconds."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.accelerators import is_device, node_accelerators
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec, Resources
from gpuscaler.model.taints import Taint, untolerated

#: Origin of a price that no region has: a guess from the type's size. Running pods are not moved for savings based on it.
BY_SIZE = "size"
#: How pods get to the machines promised to them: gpuscaler binds them, nominates them, or leaves them to their scheduler.
BIND, NOMINATE, OFF = "bind", "nominate", "off"
STEERINGS = (BIND, NOMINATE, OFF)
#: How long a machine's node may be not Ready before the machine is ended, in seconds. EKS repairs nodes after 30 minutes.
UNREADY_AFTER = 2700.0


class Offering(Struct, frozen=True, dict=True):
    """A way to buy in a pool: (market, instance type, zone) at a price.

    ``allocatable`` are the resources of a new node for pods, with kubelet reservations subtracted and DaemonSets not. ``labels`` and
    ``taints`` are those of the open node (without startup taints), including well-known labels, except ``kubernetes.io/hostname``.
    ``count`` is the maximum number of machines, None if unknown (capacity reservations have one). ``ends`` is when the cloud reclaims its
    machines regardless of what runs on them, in seconds since the epoch, or 0. ``product`` is the GPU model, for clouds that report it
    although no node label does. ``accelerators`` is the number of whole accelerators that its type is sold with, regardless of how nodes
    divide or share them, 0 if only ``allocatable`` and labels show it. ``price_from`` is empty for a known price; for a guess it is the
    region of that price, or :data:`BY_SIZE` if no region has one.
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
        """Whether it is no longer sold, although machines of it may exist. A fully used reservation is not retired."""
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
        """The number of physical accelerators of a machine."""
        return self.accelerators or node_accelerators(self.allocatable, self.labels)


class Spare(Struct, frozen=True, gc=False):
    """Headroom of a pool: whole empty machines, or unused GPUs."""

    machines: int = 0
    gpus: int = 0


class Budget(Struct, frozen=True, gc=False):
    """The number of machines of a pool that may be disrupted at once, like Karpenter's disruption budgets.

    ``nodes`` is a count ("5") or a percentage ("10%"); ``reasons`` empty means every reason (idle, consolidation); ``schedule`` is a cron
    line in UTC that opens the budget for ``duration`` seconds; None means always.
    """

    nodes: str
    reasons: tuple[str, ...] = ()
    schedule: str | None = None
    duration: float | None = None


class Pool(Struct, frozen=True, gc=False):
    """A group of machines that a cloud can grow.

    ``chooser`` is what chooses among the offerings: "buyer" (gpuscaler) or "cloud". With ``names_zone``, a purchase names the zone, and the
    cloud chooses among the offerings of that zone only. In plans from files, a node without ``gpuscaler.io/pool`` belongs to the pool if
    it has the ``match_labels`` and one of the instance types.

    Machines of a ``closed`` pool take only pods that a plan places there, and a plan places pods only on machines of about the smallest
    size, by price, of the pool's machines that hold them. With ``min_gpus_per_pod`` they are closed, too, and take only pods that request
    at least that many GPUs; 0 means no such rule. ``revision`` identifies the configuration of new machines, such as the version of a
    launch template, if the cloud reports it: a new revision may fix the cause of an earlier failure. A machine with a node that is not
    Ready for ``unready_after`` is ended; 0 means never. Without ``buys_without_gpus``, no machine is bought for pods without accelerators,
    but they may run on existing ones. With ``balances``, its group ends machines by itself to balance zones, except protected ones. With
    ``divides``, its group divides machines between markets: capacity that one market lacks is not requested from the other. ``steering`` is
    how pods get to its machines, empty to use the policy's. ``configured_labels`` are the keys of labels that a person has set on its
    machines: in the run file, in tags, or in the group's settings. The other labels of its offerings are derived.
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
    closed: bool = False
    min_gpus_per_pod: int = 0
    revision: str = ""
    names_zone: bool = False
    unready_after: float = UNREADY_AFTER
    buys_without_gpus: bool = True
    balances: bool = False
    divides: bool = False
    steering: str = ""
    configured_labels: tuple[str, ...] = ()

    @property
    def keeps_closed(self) -> bool:
        """Whether the pool's machines take only pods that a plan places there."""
        return self.closed or self.min_gpus_per_pod > 0

    def min_gpus_on(self, gpus: int) -> int:
        """The number of GPUs that a pod must request at least on a machine of the pool that has ``gpus`` GPUs."""
        if self.min_gpus_per_pod or not self.closed:
            return self.min_gpus_per_pod
        return max((1 + offering.gpus for offering in sold_offerings(self) if offering.gpus < gpus), default=0)


def sold_offerings(pool: Pool) -> tuple[Offering, ...]:
    """Return the offerings of ``pool`` that are sold, or all of them if none is."""
    return tuple(offering for offering in pool.offerings if not offering.retired) or pool.offerings


def all_have_gpus(offerings: Iterable[Offering]) -> bool:
    """Whether all ``offerings`` have accelerators. By default such a pool buys nothing for pods without accelerators."""
    have_gpus = [any(amount > 0 and is_device(name) for name, amount in offering.allocatable.items()) for offering in offerings]
    return bool(have_gpus) and all(have_gpus)


def is_scattered(pool: Pool) -> bool:
    """Whether the cloud chooses among several zones for a machine of ``pool``."""
    return pool.chooser == "cloud" and not pool.names_zone and len({offering.zone for offering in pool.offerings}) > 1


class Limits(Struct, frozen=True, gc=False):
    """Limits over all pools; None means no limit. Existing and upcoming machines count.

    ``fruitless_per_hour`` is how many machines of a pool may be fruitless within an hour before nothing more is bought there.
    ``assumed`` limits are defaults that no user set.
    """

    gpus: int | None = None
    machines: int | None = None
    dollars_per_hour: float | None = None
    machines_per_minute: int | None = None
    fruitless_per_hour: int = 10
    assumed: bool = False


#: Default limit of `gpuscaler run` in dollars per hour, if neither limits nor the maximum of each pool are set.
DEFAULT_DOLLARS = 100.0


class Policy(Struct, frozen=True, dict=True):
    """All decisions of the user. ``preferences`` is "ignore" (break ties only) or "respect".

    ``max_grace`` is the longest time, in seconds, that any pod gets to save its work. ``steering`` is one of :data:`STEERINGS`; only
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


def guessed_offerings(policy: Policy) -> frozenset[OfferingKey]:
    """Return the offerings with a price guessed from their size, because no region has one. Running pods are not moved for it."""
    return frozenset(offering.key for offering in policy.offerings.values() if offering.price_from == BY_SIZE)


def is_boundless(policy: Policy) -> bool:
    """Whether purchases under ``policy`` are unlimited: there is no limit, and some pool has no maximum."""
    limits = (policy.limits.gpus, policy.limits.machines, policy.limits.dollars_per_hour)
    return all(limit is None for limit in limits) and any(pool.max is None for pool in policy.pools)


def with_default_limit(policy: Policy) -> Policy:
    """Return ``policy``, with the default limit if its purchases are unlimited."""
    if not is_boundless(policy):
        return policy
    return replace(policy, limits=replace(policy.limits, dollars_per_hour=DEFAULT_DOLLARS, assumed=True))


def boundless_warning(policy: Policy) -> str:
    """Return a warning about the default limit; empty if it does not apply."""
    if not policy.limits.assumed:
        return ""
    return (
        f"limits: saw no limits, and pools without a max, expected either; machines are bought for at most "
        f"${DEFAULT_DOLLARS:g} an hour in total; set limits, or limits: none for no limit"
    )


def min_gpus_warnings(policy: Policy) -> tuple[str, ...]:
    """Return a sentence for each range of numbers of GPUs that no pool is for by its ``min_gpus_per_pod``, although machines hold them."""
    pools = [pool for pool in policy.pools if pool.max != 0 and any(not offering.retired for offering in pool.offerings)]
    # Within two of these numbers, the same machines hold the pods, and the same pools are for them.
    changes = {1} | {pool.min_gpus_per_pod for pool in pools} | {1 + offering.gpus for pool in pools for offering in pool.offerings}
    # The first and the last number of GPUs, and the pool with the smallest machine that holds them.
    ranges: list[tuple[int, int, Pool]] = []
    for first, after in pairwise(sorted(changes - {0})):
        sizes = [(size, pool.min_gpus_per_pod, pool.name, pool) for pool in pools if (size := _size_for(pool, first))]
        if not sizes or any(pool.min_gpus_per_pod <= first for *_, pool in sizes):
            continue
        pool = min(sizes)[-1]
        joins = bool(ranges) and ranges[-1][1:] == (first - 1, pool)
        ranges.append((ranges.pop()[0] if joins else first, after - 1, pool))
    return tuple(
        f"pool {pool.name}: saw min_gpus_per_pod: {pool.min_gpus_per_pod}, but no pool is for pods with {_range(first, last)}; they go to "
        f"this pool, whose machines are the smallest that hold them; set min_gpus_per_pod: {first} there, or add a pool for them"
        for first, last, pool in ranges
    )


def _size_for(pool: Pool, gpus: int) -> tuple[int, float] | None:
    """The GPUs and the price of the smallest machine of ``pool`` that holds a pod with ``gpus`` GPUs; None if there is none.

    Where the cloud chooses among the types of a pool, all of them must hold the pod.
    """
    sizes = [(offering.gpus, offering.price) for offering in pool.offerings if not offering.retired]
    if pool.chooser == "cloud":
        return max(sizes) if min(sizes)[0] >= gpus else None
    return min((size for size in sizes if size[0] >= gpus), default=None)


def _range(first: int, last: int) -> str:
    if first == last:
        return f"{first} GPU{'s' if first != 1 else ''}"
    return f"{first} to {last} GPUs"
