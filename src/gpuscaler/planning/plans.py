"""Plans: actions, each with its reason. The field names are those of ``gpuscaler plan --json``."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from gpuscaler.model.aside import Skipped
from gpuscaler.model.offerings import OfferingKey

#: Reasons that exclude a pool from taking a pod, most static first.
EXCLUSIONS = (
    "selector",
    "affinity",
    "taint",
    "architecture",
    "resource",
    "topology",
    "volume",
    "port",
    "gang",
    "market",
    "price",
    "limit",
    "budget",
)
#: Exclusions that lie in the pod and in the machines of the pool: no time, capacity or limit lifts them.
PERMANENT_EXCLUSIONS = frozenset({"selector", "affinity", "taint", "architecture", "resource"})
#: What is said of an unplaced pod before its reasons.
NOT_NOW, NEVER = "no machine can be bought for it now", "no machine of any pool fits it"


class Choice(Struct, frozen=True, gc=False):
    """One member of the set that a cloud chooses from, or one fallback."""

    instance_type: str
    market: str
    zone: str
    price_per_hour: float


class PlannedMachine(Struct, frozen=True, gc=False):
    """One machine to buy. ``id`` is ``new-1``, ``new-2``, …; ``opens_after`` lists ids that must be open before this one opens.

    ``fallbacks`` are part of the same request, in order of preference, and are granted only if the intended offerings have no capacity.
    """

    id: str
    pool: str
    instance_type: str
    market: str
    zone: str
    price_per_hour: float
    purpose: str = "demand"
    pods: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    opens_after: tuple[str, ...] = ()
    fallbacks: tuple[Choice, ...] = ()

    @property
    def key(self) -> OfferingKey:
        return OfferingKey(self.pool, self.market, self.instance_type, self.zone)

    @property
    def keys(self) -> tuple[OfferingKey, ...]:
        """The offerings that it may be: one, or all that the cloud chooses from, cheapest first."""
        choices = sorted(self.choices, key=lambda choice: (choice.price_per_hour, choice.instance_type, choice.market, choice.zone))
        return self._keys_of(choices) or (self.key,)

    @property
    def requested(self) -> tuple[OfferingKey, ...]:
        """All offerings of one request, in its order: ``keys``, then ``fallbacks``."""
        return (*self.keys, *self._keys_of(self.fallbacks))

    def _keys_of(self, choices: Iterable[Choice]) -> tuple[OfferingKey, ...]:
        return tuple(OfferingKey(self.pool, choice.market, choice.instance_type, choice.zone) for choice in choices)


class Purchase(Struct, frozen=True, gc=False):
    """Machines to buy, counted by offering."""

    pool: str
    instance_type: str
    market: str
    zone: str
    count: int
    price_per_hour: float


class Placement(Struct, frozen=True, gc=False):
    """A pending pod and its place: an existing node, or an upcoming machine (by its id)."""

    pod: str
    node: str


class Move(Struct, frozen=True, gc=False):
    pod: str
    to: str


class PlannedRemoval(Struct, frozen=True, gc=False):
    """A node to remove. ``needs`` names machines of this plan that must be ready before ``moves`` begin."""

    node: str
    reason: str
    moves: tuple[Move, ...] = ()
    needs: tuple[str, ...] = ()
    saving_per_hour: float = 0.0


class Reason(Struct, frozen=True, gc=False):
    """Why a pool does not take a pod; ``excluded_by`` is one of :data:`EXCLUSIONS`."""

    pool: str
    excluded_by: str
    detail: str


def fits_no_pool(reasons: Sequence[Reason]) -> bool:
    """Whether no machine of any pool can ever hold a pod that is unplaced for ``reasons``, however long it waits."""
    return bool(reasons) and all(reason.excluded_by in PERMANENT_EXCLUSIONS for reason in reasons)


def unplaced_headline(reasons: Sequence[Reason]) -> str:
    """What is said of a pod before the ``reasons`` for which it is unplaced."""
    return NEVER if fits_no_pool(reasons) else NOT_NOW


class Unplaced(Struct, frozen=True, gc=False):
    pod: str
    reasons: tuple[Reason, ...] = ()


class Ignored(Struct, frozen=True, gc=False):
    """A pod that is not planned for: gated, of another scheduler, DRA, nominated, finished, expendable, …"""

    pod: str
    reason: str


class BlockedNode(Struct, frozen=True, gc=False):
    node: str
    blocker: str
    detail: str


class Cut(Struct, frozen=True, gc=False):
    """Machines of ``pool`` that the hard stop removed from a plan, and why: see :mod:`~gpuscaler.lifecycle.hard_stop`."""

    pool: str
    machines: int
    text: str


class Plan(Struct, frozen=True, gc=False):
    """The result of planning.

    ``cost_per_hour`` and ``lower_bound_per_hour`` cover machines with purpose "demand"; ``gap`` is cost/bound - 1 (0 when nothing is
    bought). ``brake`` is True when ``should_stop`` ended the search early; the plan is then valid but may depend on time.
    """

    machines: tuple[PlannedMachine, ...] = ()
    purchases: tuple[Purchase, ...] = ()
    placements: tuple[Placement, ...] = ()
    removals: tuple[PlannedRemoval, ...] = ()
    cost_per_hour: float = 0.0
    lower_bound_per_hour: float = 0.0
    lower_bound_kind: str = "resource-lp"
    gap: float = 0.0
    unplaced: tuple[Unplaced, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    blocked_nodes: tuple[BlockedNode, ...] = ()
    set_aside: tuple[Skipped, ...] = ()
    warnings: tuple[str, ...] = ()
    brake: bool = False
    solve_seconds: float | None = None
    cut: tuple[Cut, ...] = ()
