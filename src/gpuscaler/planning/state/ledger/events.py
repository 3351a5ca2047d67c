"""Events of the ledger: each, folded in by :func:`~gpuscaler.planning.state.ledger.ledger.step`, changes what is under way."""

from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.ledger.entries import Coming, Leaving, Order, Promise


class Intended(Struct, frozen=True, gc=False, tag=True):
    """A purchase was decided; it is sent once this is written down."""

    order: Order
    machines: tuple[Coming, ...]


class Answered(Struct, frozen=True, gc=False, tag=True):
    """The cloud granted ``granted`` (id and offering of each), accepted ``pending`` more without a name, and refused the rest.

    ``launched`` is when machines were, by id, as far as the cloud says.
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
    """The cloud lists a machine that ``machine`` of the ledger must be, ``launched`` then, or 0 where that says nothing."""

    machine: str
    instance: str
    offering: OfferingKey
    at: float
    launched: float = 0.0


class Recognised(Struct, frozen=True, gc=False, tag=True):
    """A machine of the ledger that was granted under another key is of ``offering``, as the cloud lists it."""

    machine: str
    offering: OfferingKey


class Settled(Struct, frozen=True, gc=False, tag=True):
    """No more machines are wanted of an order than those that are known by now: the rest is to be withdrawn."""

    token: str


class Withdrawing(Struct, frozen=True, gc=False, tag=True):
    """The cloud is being told that the rest of an order is wanted no more."""

    token: str
    at: float


class Withdrawn(Struct, frozen=True, gc=False, tag=True):
    """The cloud has confirmed that nothing more will come of an order."""

    token: str


class Noticed(Struct, frozen=True, gc=False, tag=True):
    """Machines of ours that nobody knows, by id, and when each was first seen: those of now, and no others."""

    strangers: Mapping[str, float]


class Owing(Struct, frozen=True, gc=False, tag=True):
    """Groups lack machines that nobody here ordered: since when, by their pools; those of now, and no others."""

    pools: Mapping[str, float]


class Adopted(Struct, frozen=True, gc=False, tag=True):
    """A machine that nobody knew is on its way to become a node, or to be given up."""

    machine: Coming


class Registered(Struct, frozen=True, gc=False, tag=True):
    """A machine has become the node ``node``."""

    machine: str
    node: str
    at: float


class Ready(Struct, frozen=True, gc=False, tag=True):
    """A machine's node shows all that its offering promises, and nothing but our own taint keeps pods away."""

    machine: str
    at: float


class Opened(Struct, frozen=True, gc=False, tag=True):
    """A machine is open to the scheduler, and a node like others."""

    machine: str


class Lost(Struct, frozen=True, gc=False, tag=True):
    """A machine ended, or is given up, before it opened."""

    machine: str


class Planned(Struct, frozen=True, gc=False, tag=True):
    """The newest plan's pods for machines of the ledger, by machine."""

    pods: Mapping[str, tuple[str, ...]]


class Unfit(Struct, frozen=True, gc=False, tag=True):
    """``machine`` turned out not to be what ``pods`` select by: they are planned again, and it is there for others."""

    machine: str
    pods: tuple[str, ...]


class Exchanged(Struct, frozen=True, gc=False, tag=True):
    """``machine`` takes, of each of ``pairs``, the second pod in the place of the first, which waits for what the second waited for."""

    machine: str
    pairs: tuple[tuple[str, str], ...]


class Promised(Struct, frozen=True, gc=False, tag=True):
    """A promise was made, or has gone on to what ``promise`` says."""

    promise: Promise


class Redeemed(Struct, frozen=True, gc=False, tag=True):
    """A node owes nobody anything any more."""

    node: str


class Broken(Struct, frozen=True, gc=False, tag=True):
    """A node was opened for a pod and did not take it."""

    pod: str
    node: str


class Mended(Struct, frozen=True, gc=False, tag=True):
    """A pod's broken promise is of no consequence any more."""

    pod: str


class Left(Struct, frozen=True, gc=False, tag=True):
    """A removal was decided, or has gone on to what ``leaving`` says."""

    leaving: Leaving


class Finished(Struct, frozen=True, gc=False, tag=True):
    """A removal has ended, by the machine's end or by opening it again."""

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
