"""Input and result of the optimiser. Money is US dollars per hour; resources are integers in base units."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuscaler.model.accelerators import GPU_MILLI


class MixError(ValueError):
    """A problem that contradicts itself: an index out of range, a negative amount, a key used twice."""


@dataclass(frozen=True, slots=True)
class Item:
    """A class of pods to place on new machines.

    ``allowed`` are the indices of the kinds that admit the pods apart from resources (None: all of them). ``per_machine`` is the most
    copies that one machine may hold, None for no cap. If limits bind, items with higher ``priority`` are served first. ``key`` is unique
    and stable: it breaks ties, never the position.
    """

    key: str
    count: int
    request: Mapping[str, int]
    allowed: tuple[int, ...] | None = None
    per_machine: int | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class MixKind:
    """A kind of machine that can be bought. ``capacity`` is what remains for pods besides DaemonSets.

    ``gpus`` is what one such machine counts against :attr:`Limits.gpus`; ``limit`` is how many are available, None if unknown.
    """

    key: str
    capacity: Mapping[str, int]
    price: float
    pool: str = ""
    limit: int | None = None
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Together:
    """At most ``cap`` pods of ``items`` (indices), counted together, on one machine."""

    items: tuple[int, ...]
    cap: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What may still be bought over all kinds, and per pool. None, or a missing pool, means no limit."""

    machines: int | None = None
    gpus: int | None = None
    dollars_per_hour: float | None = None
    pools: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Problem:
    """The input of :func:`~gpuscaler.planning.mix.solve.solve`.

    ``apart`` are pairs of items that may not share a machine; a pair of an item with itself means one copy per machine.
    """

    items: tuple[Item, ...]
    kinds: tuple[MixKind, ...]
    together: tuple[Together, ...] = ()
    apart: tuple[tuple[int, int], ...] = ()
    limits: Limits = Limits()
    device_resource: str = GPU_MILLI


@dataclass(frozen=True, slots=True)
class Pattern:
    """``times`` machines of one kind, each holding ``pods`` (copies by item index)."""

    kind: int
    pods: Mapping[int, int]
    times: int


@dataclass(frozen=True, slots=True)
class Duals:
    """A proof of the lower bound, in dollars per hour.

    ``items[i]`` is the value of one pod of item i, ``limits[name]`` the charge on one unit of a limit (for the names see
    :func:`gpuscaler.planning.mix.certificate.limit_charges`). If no machine can hold pods worth more than its price plus its charges, then
    ``sum(items * served) - sum(limits * amount)`` is a lower bound on the cost of the pods served.
    """

    items: tuple[float, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Solution:
    """The mix chosen.

    ``unmet`` counts, by item index, the pods that are left out because of limits or because no kind fits. ``lower_bound`` is a lower bound
    on the cost of serving all other pods; ``lower_bound_kind`` is "pattern-lp" if the linear programme over all patterns was solved to
    optimality, else "resource-lp" (or better). ``proven``: no cheaper mix serves the same pods (to a millionth), whatever the gap.
    ``work_used`` counts deterministic work; ``brake``: ``should_stop`` ended the search early.
    """

    machines: tuple[Pattern, ...] = ()
    unmet: Mapping[int, int] = field(default_factory=dict)
    cost: float = 0.0
    lower_bound: float = 0.0
    lower_bound_kind: str = "resource-lp"
    proven: bool = False
    duals: Duals = Duals()
    work_used: int = 0
    brake: bool = False
