"""Events of the ledger, which :func:`~gpuscaler.planning.state.ledger.ledger.step` folds into it."""

from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.ledger.entries import Order, OrderedMachine, Promise, Removal


class Intended(Struct, frozen=True, gc=False, tag=True):
    """A purchase was decided; it is sent once this event is saved."""

    order: Order
    machines: tuple[OrderedMachine, ...]


class Answered(Struct, frozen=True, gc=False, tag=True):
    """The cloud granted machines, ``granted`` (id and offering of each), accepted ``pending`` more without ids, and refused the rest.

    ``launched`` has the launch times of machines by id, as far as the cloud reports them. ``operation`` is by what the cloud tells the
    progress of what is pending.
    """

    token: str
    at: float
    granted: tuple[tuple[str, OfferingKey], ...] = ()
    pending: int = 0
    launched: Mapping[str, float] = {}
    operation: str = ""


class Doubted(Struct, frozen=True, gc=False, tag=True):
    """The answer to an order was lost."""

    token: str
    at: float


class Found(Struct, frozen=True, gc=False, tag=True):
    """The cloud lists a machine that must be ``machine`` of the ledger; ``launched`` is its launch time, 0 if unknown or not to be used."""

    machine: str
    instance: str
    offering: OfferingKey
    at: float
    launched: float = 0.0


class Recognised(Struct, frozen=True, gc=False, tag=True):
    """According to the cloud's list, a machine of the ledger is of ``offering``, not of the one that it was granted as."""

    machine: str
    offering: OfferingKey


class Settled(Struct, frozen=True, gc=False, tag=True):
    """Only those machines of an order are still wanted that are known by now: the rest of the order is withdrawn."""

    token: str


class Withdrawing(Struct, frozen=True, gc=False, tag=True):
    """The cloud is asked to withdraw the rest of an order."""

    token: str
    at: float


class Withdrawn(Struct, frozen=True, gc=False, tag=True):
    """The cloud has confirmed that an order will bring no more machines."""

    token: str


class Noticed(Struct, frozen=True, gc=False, tag=True):
    """The machines of this cluster that are neither nodes nor in the ledger now, by id, with the time each was first seen."""

    unregistered: Mapping[str, float]


class LaunchesExpected(Struct, frozen=True, gc=False, tag="Owing"):
    """Groups, by pool, that are expected to launch machines which this controller did not order, with the time since when."""

    pools: Mapping[str, float]


class Adopted(Struct, frozen=True, gc=False, tag=True):
    """A machine that was not ordered here was added to the ledger: it becomes a node, or is given up."""

    machine: OrderedMachine


class Faulted(Struct, frozen=True, gc=False, tag=True):
    """The cloud's list has reported a fault of a machine without a node since ``since``; 0 if it reports none any more."""

    machine: str
    since: float


class Registered(Struct, frozen=True, gc=False, tag=True):
    """A machine has become the node ``node``."""

    machine: str
    node: str
    at: float


class Ready(Struct, frozen=True, gc=False, tag=True):
    """A machine's node shows all resources that its offering promises, and only our own taint keeps pods off."""

    machine: str
    at: float


class Opened(Struct, frozen=True, gc=False, tag=True):
    """A machine is open to the scheduler and is now an ordinary node."""

    machine: str


class Lost(Struct, frozen=True, gc=False, tag=True):
    """A machine ended, or was given up, before it opened."""

    machine: str


class Planned(Struct, frozen=True, gc=False, tag=True):
    """The pods that the newest plan puts on machines of the ledger, by machine."""

    pods: Mapping[str, tuple[str, ...]]


class Unfit(Struct, frozen=True, gc=False, tag=True):
    """``machine`` lacks the labels that ``pods`` select: these pods are planned again, and other pods may use the machine."""

    machine: str
    pods: tuple[str, ...]


class Exchanged(Struct, frozen=True, gc=False, tag=True):
    """Pods changed places: of each of ``pairs``, ``machine`` is now for the second pod, and the first pod gets the second pod's machine."""

    machine: str
    pairs: tuple[tuple[str, str], ...]


class Promised(Struct, frozen=True, gc=False, tag=True):
    """A promise was made, or has changed to ``promise``."""

    promise: Promise


class PromiseFulfilled(Struct, frozen=True, gc=False, tag="Redeemed"):
    """The promise of a node has ended: its pods are bound there, or no longer expected."""

    node: str


class Broken(Struct, frozen=True, gc=False, tag=True):
    """A node was opened for a pod, but the pod was not bound there."""

    pod: str
    node: str


class BrokenPromiseCleared(Struct, frozen=True, gc=False, tag="Mended"):
    """The broken promise to a pod no longer counts."""

    pod: str


class RemovalUpdated(Struct, frozen=True, gc=False, tag="Left"):
    """A removal was decided, or has changed to ``removal``."""

    removal: Removal


class Finished(Struct, frozen=True, gc=False, tag=True):
    """A removal has finished: the machine ended, or its node was opened again."""

    node: str


Event = (
    Intended
    | Answered
    | Doubted
    | Found
    | Recognised
    | Settled
    | Withdrawing
    | Withdrawn
    | Noticed
    | LaunchesExpected
    | Adopted
    | Faulted
    | Registered
    | Ready
    | Opened
    | Lost
    | Planned
    | Unfit
    | Exchanged
    | Promised
    | PromiseFulfilled
    | Broken
    | BrokenPromiseCleared
    | RemovalUpdated
    | Finished
)
