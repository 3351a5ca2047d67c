"""Input and result of the optimiser. Money is US dollars per hour; resources are integers in base units.

Proofs are saved as JSON with the encoded names of these fields (``msgspec.field(name=...)``).
"""

from collections.abc import Mapping

from msgspec import Struct, field

from gpuscaler.model.accelerators import GPU_MILLI


class MixError(ValueError):
    """A problem that contradicts itself: an index out of range, a negative amount, a key used twice."""


class Item(Struct, frozen=True):
    """A class of pods to place on new machines.

    ``allowed`` are the indices of the kinds that admit the pods if resources are ignored (None: all of them). ``per_machine`` is the most
    copies that one machine may hold, None for no cap. If limits bind, items with higher ``priority`` are served first. ``key`` is unique
    and stable: it breaks ties, never the position.
    """

    key: str
    count: int
    request: Mapping[str, int]
    allowed: tuple[int, ...] | None = None
    per_machine: int | None = None
    priority: int = 0


class MixKind(Struct, frozen=True):
    """A kind of machine that can be bought. ``capacity`` is what remains for pods besides DaemonSets.

    ``gpus_counted`` is what one such machine counts against :attr:`Limits.gpus`. ``available`` is how many can be bought, None if unknown.
    """

    key: str
    capacity: Mapping[str, int]
    price: float
    pool: str = ""
    available: int | None = field(name="limit", default=None)
    gpus_counted: int = field(name="gpus", default=0)


class SharedCap(Struct, frozen=True):
    """One machine may hold at most ``cap`` pods of the ``items`` (indices) in all."""

    items: tuple[int, ...]
    cap: int


class Limits(Struct, frozen=True):
    """What may still be bought over all kinds, and per pool. None, or a missing pool, means no limit."""

    machines: int | None = None
    gpus: int | None = None
    dollars_per_hour: float | None = None
    pools: Mapping[str, int] = field(default_factory=dict)


class Problem(Struct, frozen=True):
    """The input of :func:`~gpuscaler.planning.mix.solve.solve`.

    ``exclusive_pairs`` are pairs of items that may not share a machine; a pair of an item with itself means one copy per machine.
    ``device_resource`` counts thousandths of devices: a request of at most 1000 fits on one device, and any other request takes whole
    devices.
    """

    items: tuple[Item, ...]
    kinds: tuple[MixKind, ...]
    shared_caps: tuple[SharedCap, ...] = field(name="together", default=())
    exclusive_pairs: tuple[tuple[int, int], ...] = field(name="apart", default=())
    limits: Limits = Limits()
    device_resource: str = GPU_MILLI


class MachineGroup(Struct, frozen=True):
    """``times`` machines of one kind, each holding ``pods`` (copies by item index)."""

    kind: int
    pods: Mapping[int, int]
    times: int


class Duals(Struct, frozen=True):
    """A proof of the lower bound, in dollars per hour.

    ``items[i]`` is the value of one pod of item i, ``limits[name]`` the charge on one unit of a limit (for the names see
    :func:`gpuscaler.planning.mix.certificate.limit_charges`). If no machine can hold pods worth more than its price plus its charges, then
    ``sum(items * served) - sum(limits * amount)`` is a lower bound on the cost of the pods served.
    """

    items: tuple[float, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)


class Solution(Struct, frozen=True):
    """The mix chosen.

    ``unplaced`` counts, by item index, the pods that are left out because of limits or because no kind fits. ``lower_bound`` is a lower
    bound on the cost of serving all other pods. ``lower_bound_kind`` is "pattern-lp" if that is the optimum of the linear programme over
    all patterns (all ways to fill one machine). Otherwise it is "resource-lp": the bound is at least that of the linear programme over
    resources, and may come from a pattern programme that was not solved to optimality. ``proven`` says that no cheaper mix serves the same
    pods (to a millionth), whatever the gap. ``work_used`` counts deterministic work. ``stopped_early`` says that ``should_stop`` ended the
    search.
    """

    groups: tuple[MachineGroup, ...] = field(name="machines", default=())
    unplaced: Mapping[int, int] = field(name="unmet", default_factory=dict)
    cost: float = 0.0
    lower_bound: float = 0.0
    lower_bound_kind: str = "resource-lp"
    proven: bool = False
    duals: Duals = Duals()
    work_used: int = 0
    stopped_early: bool = field(name="brake", default=False)
