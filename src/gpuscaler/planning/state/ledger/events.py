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
    """The cloud granted ``granted`` (id and offering of each), accepted ``pending`` more without a name, and refused the rest.

    ``launched`` has the launch times of machines by id, as far as the cloud reports them.
    """

    token: str
    at: float
    granted: tuple[tuple[str, OfferingKey], ...] = ()
    pending: int = 0
    launched: Mapping[str, float] = {}


class Doubted(Struct, frozen=True, gc=False, tag=True):
    """The answer to an order was lost."""

    token: str
    at: float


class Found(Struct, frozen=True, gc=False, tag=True):
    """The cloud lists a machine that must be ``machine`` of the ledger; ``launched`` is its launch time, 0 if it does not count."""

    machine: str
    instance: str
    offering: OfferingKey
    at: float
    launched: float = 0.0


class Recognised(Struct, frozen=True, gc=False, tag=True):
    """A machine of the ledger that was granted under another key is a machine of ``offering``, according to the cloud's list."""

    machine: str
    offering: OfferingKey


class Settled(Struct, frozen=True, gc=False, tag=True):
    """Only the machines of an order that are known by now are wanted: the rest is to be withdrawn."""

    token: str


class Withdrawing(Struct, frozen=True, gc=False, tag=True):
    """The cloud is asked to withdraw the rest of an order."""

    token: str
    at: float


class Withdrawn(Struct, frozen=True, gc=False, tag=True):
    """The cloud has confirmed that an order will bring no more machines."""

    token: str


class Noticed(Struct, frozen=True, gc=False, tag=True):
    """The current machines of this cluster that are neither nodes nor in the ledger, by id, with the time each was first seen."""

    strangers: Mapping[str, float]


class Owing(Struct, frozen=True, gc=False, tag=True):
    """The current groups that lack machines which this controller did not order, by pool, with the time since when."""

    pools: Mapping[str, float]


class Adopted(Struct, frozen=True, gc=False, tag=True):
    """An unknown machine was added to the ledger: it becomes a node, or is given up."""

    machine: OrderedMachine


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
    """The newest plan's pods for machines of the ledger, by machine."""

    pods: Mapping[str, tuple[str, ...]]


class Unfit(Struct, frozen=True, gc=False, tag=True):
    """``machine`` lacks the labels that ``pods`` select by: these are planned again, and the machine is available to others."""

    machine: str
    pods: tuple[str, ...]


class Exchanged(Struct, frozen=True, gc=False, tag=True):
    """In each of ``pairs``, ``machine`` takes the second pod instead of the first, and the first gets the second one's promise."""

    machine: str
    pairs: tuple[tuple[str, str], ...]


class Promised(Struct, frozen=True, gc=False, tag=True):
    """A promise was made, or has changed to ``promise``."""

    promise: Promise


class Redeemed(Struct, frozen=True, gc=False, tag=True):
    """A node has no open promises any more."""

    node: str


class Broken(Struct, frozen=True, gc=False, tag=True):
    """A node was opened for a pod and did not take it."""

    pod: str
    node: str


class Mended(Struct, frozen=True, gc=False, tag=True):
    """A pod's broken promise no longer counts."""

    pod: str


class Left(Struct, frozen=True, gc=False, tag=True):
    """A removal was decided, or has changed to ``leaving``."""

    leaving: Removal


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
    | Owing
    | Adopted
    | Registered
    | Ready
    | Opened
    | Lost
    | Planned
    | Unfit
    | Exchanged
    | Promised
    | Redeemed
    | Broken
    | Mended
    | Left
    | Finished
)
