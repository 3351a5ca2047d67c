"""The interface between a replay and an autoscaler, ours or a peer's: events, the view of the cluster, decisions.

A replay has no separate loop for autoscalers. After each moment with events it reports them (:meth:`Autoscaler.observe`), and it calls
:meth:`Autoscaler.decide` when virtual time reaches :attr:`Autoscaler.decide_at`. A loop that runs every ten seconds therefore costs nothing
while it would find nothing to do: such an autoscaler sets ``decide_at`` to the next tick of its grid after an event, to the next of its own
deadlines otherwise, and to None if only an event can change its decision.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering
from gpuscaler.planning.plans import Ignored, Placement, PlannedRemoval, Unplaced
from gpuscaler.planning.state import State
from gpuscaler.simulation.cloud.machines import CloudMachine, PurchaseAnswer
from gpuscaler.simulation.world.scheduler import Scheduler


class Intent(Struct, frozen=True, gc=False):
    """The purpose of one machine of a purchase.

    ``pods`` ("namespace/name") get their seats as it opens if the autoscaler steers, and are otherwise only shown as accounted for.
    ``opens_after`` names the intents of machines that open first.
    """

    id: str
    pods: tuple[str, ...] = ()
    opens_after: tuple[str, ...] = ()


class Purchase(Struct, frozen=True, gc=False):
    """One or more machines to ask a cloud for.

    ``id`` is unique in the run. ``offerings`` are all acceptable ones: the cloud grants from the first that has capacity and skips those
    without; more than one is a group or fleet in which the cloud chooses. ``planned_offerings`` is the number of those planned, which come
    first (0: all), the rest are fallbacks. ``spread`` takes them in turn instead, as an Auto Scaling group spreads over its zones. A
    ``standing`` order stays open when it is refused: the cloud fills it when capacity comes back, like a group with a raised desired
    capacity, until it is withdrawn.

    ``intents`` give the purpose of each machine; without them it is ``count`` machines for no particular pods, which are named ``id#1``,
    ``id#2``, … . ``why`` appears in the report.
    """

    id: str
    offerings: tuple[OfferingKey, ...]
    count: int = 1
    spread: bool = False
    standing: bool = False
    intents: tuple[Intent, ...] = ()
    why: str = ""
    planned_offerings: int = 0

    @property
    def machines(self) -> tuple[Intent, ...]:
        """One intent per machine."""
        return self.intents or tuple(Intent(f"{self.id}#{number}") for number in range(1, self.count + 1))


class Decisions(Struct, frozen=True, gc=False):
    """What to do now, in this order: withdraw orders, buy, place, remove.

    ``placements`` bind pods to open nodes (gangs, if the autoscaler steers) or let them wait for an ordered machine (by its intent's id). A
    ``removal`` names a node or a machine that never became one; it is drained (its pods are evicted and wait again) and ended once the
    machines that it ``needs`` (by their intents' ids) are open. ``withdrawals`` name purchases to cancel as far as they are unfilled.
    ``marks`` are nodes that get (True) or lose a soft taint. ``unplaced`` and ``ignored`` explain why pods wait.
    """

    withdrawals: tuple[str, ...] = ()
    purchases: tuple[Purchase, ...] = ()
    placements: tuple[Placement, ...] = ()
    removals: tuple[PlannedRemoval, ...] = ()
    marks: tuple[tuple[str, bool], ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    ignored: tuple[Ignored, ...] = ()


class LostMachine(Struct, frozen=True, gc=False):
    """A machine that is gone without having been removed by the autoscaler. ``why`` is "reclaimed" or "failed"."""

    machine: CloudMachine
    why: str


class InterruptionNotice(Struct, frozen=True, gc=False):
    """The cloud will take a machine away at ``gone_at``."""

    machine: CloudMachine
    gone_at: float


class Moment(Struct, gc=False):
    """Events at one moment of virtual time.

    ``arrived`` are pods that were created, ``finished`` the number of pods that ended, ``evicted`` pods that wait again. ``registered`` are
    nodes that are Ready without their GPUs, ``opened`` those that pods can use now, ``idled`` nodes that have just lost their last pod,
    ``removed`` nodes that were removed as decided, ``broken`` pods that did not find the room they were promised. ``vacated``: a
    closed machine has room that it did not have before, and some pending pod fits there.
    """

    now: float
    arrived: list[str] = []
    finished: int = 0
    evicted: list[str] = []
    answers: list[PurchaseAnswer] = []
    registered: list[str] = []
    opened: list[str] = []
    idled: list[str] = []
    notices: list[InterruptionNotice] = []
    lost: list[LostMachine] = []
    removed: list[str] = []
    broken: list[str] = []
    vacated: bool = False


class Pending(Struct, frozen=True, gc=False):
    """Pending pods of one specification (and one gang, "" for none), oldest first."""

    spec: PodSpec
    gang: str
    pods: tuple[str, ...]
    oldest: float
    newest: float


class ObservedMachine(Struct, frozen=True, gc=False):
    """A machine as an autoscaler may see it. Times are seconds since the epoch, None if not reached.

    ``node`` is its name once it has registered. ``ready`` is when all its resources became allocatable, ``idle_since`` when its last pod
    left (or it opened). ``pods`` are those bound to it. ``closed`` nodes take no new pods.
    """

    machine: CloudMachine
    intent: str
    offering: Offering
    bought: float
    node: str = ""
    registered: float | None = None
    ready: float | None = None
    idle_since: float | None = None
    pods: Mapping[str, PodSpec] = {}
    closed: bool = False


class View(Protocol):
    """The information available to an autoscaler. It does not contain how long a pod will run."""

    def snapshot(self, now: float) -> tuple[Cluster, State]:
        """The cluster as its watches would show it, with the ledger and idle clocks; breakers are the autoscaler's own."""
        ...

    def pending(self) -> list[Pending]:
        """Pods without a place, by specification and gang."""
        ...

    @property
    def has_servable_pods(self) -> bool:
        """Whether some pending pod could ever be served by a pool, according to the last decisions."""
        ...

    @property
    def has_fresh_demand(self) -> bool:
        """Whether some pending pod has no machine on its way and was not refused by the last decisions."""
        ...

    def machines(self) -> Iterable[ObservedMachine]:
        """Every machine that exists, oldest first."""
        ...

    def node(self, name: str) -> ObservedMachine | None:
        """One registered node by its name, None if it is gone."""
        ...

    def is_unregistered(self, name: str) -> bool:
        """Whether a machine that was granted exists and has not registered as a node."""
        ...

    def idle(self) -> Iterable[str]:
        """The names of nodes without pods."""
        ...

    def idle_since(self, name: str) -> float | None:
        """When the last pod of a node left it, or it opened; None while it has pods, or is gone."""
        ...

    def movable(self) -> Iterable[str]:
        """The names of open nodes with pods that may all be moved."""
        ...

    def offering_of(self, name: str) -> Offering:
        """The offering that a machine was bought from, whether it still exists or not."""
        ...

    def room(self) -> Scheduler:
        """A copy of the scheduler's own state, to try placements on. Ordered machines can be added to it."""
        ...


class Autoscaler(Protocol):
    """Buys and removes machines. One object serves one run."""

    @property
    def name(self) -> str: ...

    @property
    def steers(self) -> bool:
        """Whether its machines arrive closed, and open when the pods they were bought for have their seats.

        Otherwise they are open from the moment they register, and all pods go wherever kube-scheduler's scores send them.
        """
        ...

    @property
    def soft_taint_shares(self) -> tuple[float, ...]:
        """Shares of use at or below which a machine has one more soft taint, see :mod:`gpuscaler.lifecycle.node_marks.soft_taints`.

        Empty for an autoscaler that sets none, or sets them by its decisions.
        """
        ...

    @property
    def decide_at(self) -> float | None:
        """When to call it next; None if only an event can change its decision. Never before now."""
        ...

    def start(self) -> tuple[tuple[OfferingKey, int], ...]:
        """Machines that exist, open and empty, when the run begins."""
        ...

    def observe(self, moment: Moment, view: View) -> None:
        """Called after events, or after decisions were carried out, and before :meth:`decide` if both are due."""
        ...

    def decide(self, view: View, now: float) -> Decisions:
        """Return what to do now. Called when ``decide_at`` has come; must move it."""
        ...
