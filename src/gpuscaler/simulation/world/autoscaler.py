"""What a replay asks of an autoscaler, ours or a peer's: what it is told, what it may see, and what it may answer.

A replay has no loop of its own for autoscalers. After each moment at which something happened it tells them (:meth:`Autoscaler.noticed`),
and it asks (:meth:`Autoscaler.decide`) when virtual time reaches :attr:`Autoscaler.ask_at`. A loop that runs every ten seconds therefore
costs nothing while it would find nothing to do: such an autoscaler sets ``ask_at`` to the next tick of its grid when something happened,
to the next of its own deadlines otherwise, and to None when only news can change its mind.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering
from gpuscaler.planning.plans import Ignored, Placement, Removal, Unplaced
from gpuscaler.planning.state import State
from gpuscaler.simulation.cloud.machines import Answer, CloudMachine
from gpuscaler.simulation.world.scheduler import Scheduler


class Intent(Struct, frozen=True, gc=False):
    """What one machine of a purchase is for.

    ``pods`` ("namespace/name") take their seats as it opens where the autoscaler steers, and are only shown as spoken for where it does
    not. ``opens_after`` names intents whose machines open first.
    """

    id: str
    pods: tuple[str, ...] = ()
    opens_after: tuple[str, ...] = ()


class Purchase(Struct, frozen=True, gc=False):
    """One or more machines to ask a cloud for.

    ``id`` is unique in the run. ``offerings`` are all that would do: the cloud grants from the first that has capacity and passes over
    those that are dry; more than one is a group or fleet of which the cloud chooses. The first ``meant`` of them are what was planned
    (all where that is 0), the rest stands behind. ``spread`` takes them in turn instead, as an
    Auto Scaling group spreads over its zones. A ``standing`` order is not given up when it is refused: the cloud fills what is missing
    when capacity comes back, as a group does whose desired capacity stays raised, until it is withdrawn.

    ``intents`` say what each machine is for; without them it is ``count`` machines for nobody, which are named ``id#1``, ``id#2``, … .
    ``why`` is told in the report.
    """

    id: str
    offerings: tuple[OfferingKey, ...]
    count: int = 1
    spread: bool = False
    standing: bool = False
    intents: tuple[Intent, ...] = ()
    why: str = ""
    meant: int = 0

    @property
    def machines(self) -> tuple[Intent, ...]:
        """One intent a machine."""
        return self.intents or tuple(Intent(f"{self.id}#{number}") for number in range(1, self.count + 1))


class Decisions(Struct, frozen=True, gc=False):
    """What to do now, in this order: withdraw orders, buy, place, remove.

    ``placements`` bind pods to open nodes (gangs, for who steers) or let them wait for a machine that is coming (by its intent's id). A
    ``removal`` names a node or a machine that never became one; it is drained (its pods are evicted and wait again) and given back once
    the machines that it ``needs`` (by their intents' ids) are open. ``withdrawals`` are purchases whose unfilled part is no longer wanted.
    ``marks`` are nodes that get (True) or lose a soft taint. ``unplaced`` and ``ignored`` explain why pods wait.
    """

    withdrawals: tuple[str, ...] = ()
    purchases: tuple[Purchase, ...] = ()
    placements: tuple[Placement, ...] = ()
    removals: tuple[Removal, ...] = ()
    marks: tuple[tuple[str, bool], ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    ignored: tuple[Ignored, ...] = ()


class Lost(Struct, frozen=True, gc=False):
    """A machine that is gone without anybody having given it back. ``why`` is "reclaimed" or "failed"."""

    machine: CloudMachine
    why: str


class Notice(Struct, frozen=True, gc=False):
    """The cloud will take a machine away at ``gone_at``."""

    machine: CloudMachine
    gone_at: float


class Moment(Struct, gc=False):
    """What happened at one moment of virtual time.

    ``arrived`` are pods that were created, ``finished`` says how many ended, ``evicted`` are pods that wait again. ``registered`` are
    nodes that are Ready without their GPUs, ``opened`` those that pods can use now, ``idled`` nodes whose last pod has left, ``given_back``
    nodes that were removed as it was decided, ``broken`` pods that did not find the room they were promised.
    """

    now: float
    arrived: list[str] = []
    finished: int = 0
    evicted: list[str] = []
    answers: list[Answer] = []
    registered: list[str] = []
    opened: list[str] = []
    idled: list[str] = []
    notices: list[Notice] = []
    lost: list[Lost] = []
    given_back: list[str] = []
    broken: list[str] = []


class Pending(Struct, frozen=True, gc=False):
    """Pods of one specification (and one gang, "" for none) that wait for a place, oldest first."""

    spec: PodSpec
    gang: str
    pods: tuple[str, ...]
    oldest: float
    newest: float


class Seen(Struct, frozen=True, gc=False):
    """A machine as an autoscaler may see it. Times are seconds since the epoch, None where they have not come.

    ``node`` is its name once it has registered. ``ready`` is when everything it has was allocatable, ``idle_since`` when its last pod
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
    """What an autoscaler may see. Nothing here tells how long a pod will run."""

    def picture(self, now: float) -> tuple[Cluster, State]:
        """The cluster as its watches would have it, and the ledger and idle clocks; breakers are the autoscaler's own."""
        ...

    def pending(self) -> list[Pending]:
        """Pods without a place, by specification and gang."""
        ...

    @property
    def hopeful(self) -> bool:
        """Whether a pod waits that some pool could serve, some day, as far as the last decisions told."""
        ...

    @property
    def promising(self) -> bool:
        """Whether a pod waits that nothing is coming for and that the last decisions did not refuse."""
        ...

    def seen(self) -> Iterable[Seen]:
        """Every machine that exists, oldest first."""
        ...

    def node(self, name: str) -> Seen | None:
        """One registered node by its name, None when it is gone."""
        ...

    def missing(self, name: str) -> bool:
        """Whether a machine that was granted exists and has not registered as a node."""
        ...

    def idle(self) -> Iterable[str]:
        """The names of nodes without pods."""
        ...

    def idle_since(self, name: str) -> float | None:
        """When the last pod of a node left it, or it opened; None while it has pods, or is gone."""
        ...

    def movable(self) -> Iterable[str]:
        """The names of open nodes with pods whose owners let every one of them be moved."""
        ...

    def offering_of(self, name: str) -> Offering:
        """What a machine was bought as, whether it still exists or not."""
        ...

    def room(self) -> Scheduler:
        """A copy of the scheduler's own books, to try placements on. Machines that are coming can be added to it."""
        ...


class Autoscaler(Protocol):
    """Something that buys machines and gives them back. One object serves one run."""

    @property
    def name(self) -> str: ...

    @property
    def steers(self) -> bool:
        """Whether its machines arrive closed, and open when the pods they were bought for have their seats.

        Otherwise they are open from the moment they register, and everybody's pods go wherever kube-scheduler's scores send them.
        """
        ...

    @property
    def discourages(self) -> tuple[float, ...]:
        """Shares of use at or below which a machine bears one more soft taint, see :mod:`gpuscaler.lifecycle.node_marks.soft_taints`.

        Empty for whoever sets none, or sets them by its decisions.
        """
        ...

    @property
    def ask_at(self) -> float | None:
        """When it wants to be asked next; None when only news can change its mind. Never before now."""
        ...

    def start(self) -> tuple[tuple[OfferingKey, int], ...]:
        """Machines that exist, open and empty, when the run begins."""
        ...

    def noticed(self, moment: Moment, view: View) -> None:
        """Something happened, or decisions were carried out. Called before :meth:`decide` where both are due."""
        ...

    def decide(self, view: View, now: float) -> Decisions:
        """What to do now. Called when ``ask_at`` has come; must move it."""
        ...
