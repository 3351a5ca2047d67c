"""The ledger: what was asked of a cloud and is not open yet, promises being kept, and removals under way.

It is written down before the cloud is called, so that a restart at any moment neither buys twice nor forgets (I2), and each machine in it
is counted once until it is open (I3). Everything here is plain data folded from events; times are seconds since the epoch.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.planning.state import Upcoming
from gpuscaler.planning.state.events import Key

#: What is known of an order: written down and perhaps sent, sent and its answer lost, answered.
INTENDED, DOUBTFUL, ACCEPTED = "intended", "doubtful", "accepted"

#: Steps of a promise: nominations are being written, the machine is open and its pods are awaited, the machine is being closed again.
NOMINATING, OPEN, CLOSING = "nominating", "open", "closing"

#: Steps of a removal: closing the node, waiting for what replaces it, evicting its pods, ending the machine, opening the node again.
MARKING, WAITING, DRAINING, ENDING, REOPENING = "marking", "waiting", "draining", "ending", "reopening"


class Order(Struct, frozen=True, gc=False):
    """A purchase of ``count`` machines of any of ``offerings``; ``token`` names it to the cloud, ``since`` is when ``state`` began."""

    token: str
    pool: str
    offerings: tuple[Key, ...]
    count: int
    at: float
    since: float
    state: str = INTENDED
    why: str = ""


class Coming(Struct, frozen=True, gc=False):
    """One machine of an order that is not open yet.

    ``offerings`` are all that it may be, the first ``meant`` of them those that the plan chose, the others would do as well; ``offering``
    is what it is, once known. ``price`` is dollars per hour as planned, ``after`` ids of machines that open first. Moments to come are 0.
    """

    id: str
    order: str
    offerings: tuple[Key, ...]
    price: float
    asked: float
    meant: int = 1
    purpose: str = "demand"
    pods: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    offering: Key | None = None
    instance: str = ""
    granted: float = 0.0
    node: str = ""
    registered: float = 0.0
    ready: float = 0.0

    @property
    def key(self) -> Key:
        """The offering that it is, or most wanted to be."""
        return self.offering or self.offerings[0]


class Promise(Struct, frozen=True, gc=False):
    """Pods that ``node``, a machine of ``offering``, was opened for, and where that stands; ``since`` is when ``step`` began.

    ``nominated`` is when nominations were last written, ``lifted`` when our taint was last taken off. ``closes`` says that the node is
    closed again once its pods have come.
    """

    node: str
    offering: Key
    pods: tuple[str, ...]
    since: float
    step: str = NOMINATING
    nominated: float = 0.0
    lifted: float = 0.0
    closes: bool = False


class Leaving(Struct, frozen=True, gc=False):
    """A removal under way. ``pods`` are those that the decision meant to move, ``needs`` ids of machines that must open first.

    ``bereft`` says that one of those will not come. ``tried`` is when the step was last tried, ``detail`` what evictions were refused by.
    ``forced`` says that the machine goes whatever stands against it.
    """

    node: str
    instance: str
    offering: Key
    reason: str
    at: float
    since: float
    step: str = MARKING
    pods: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    bereft: bool = False
    tried: float = 0.0
    detail: str = ""
    forced: bool = False


class Ledger(Struct, frozen=True, gc=False):
    """Everything under way.

    ``serial`` numbers orders over all restarts, ``bought`` are the moments of the last minute's purchases and how many machines each was
    for. ``past`` are machines that left the ledger while an order still waited for machines without a name: they are none of its.
    ``broken`` are pods, and nodes that were opened for them and did not take them, while the nomination stands.
    """

    orders: tuple[Order, ...] = ()
    coming: tuple[Coming, ...] = ()
    promises: tuple[Promise, ...] = ()
    leaving: tuple[Leaving, ...] = ()
    serial: int = 0
    bought: tuple[tuple[float, int], ...] = ()
    past: frozenset[str] = frozenset()
    broken: tuple[tuple[str, str], ...] = ()


class Intended(Struct, frozen=True, gc=False, tag=True):
    """A purchase was decided; it is sent once this is written down."""

    order: Order
    machines: tuple[Coming, ...]


class Answered(Struct, frozen=True, gc=False, tag=True):
    """The cloud granted ``granted`` (id and offering of each), accepted ``pending`` more without a name, and refused the rest."""

    token: str
    at: float
    granted: tuple[tuple[str, Key], ...] = ()
    pending: int = 0


class Doubted(Struct, frozen=True, gc=False, tag=True):
    """The answer to an order was lost."""

    token: str
    at: float


class Found(Struct, frozen=True, gc=False, tag=True):
    """The cloud lists a machine that ``machine`` of the ledger must be."""

    machine: str
    instance: str
    offering: Key
    at: float


class Settled(Struct, frozen=True, gc=False, tag=True):
    """No more machines will come of an order than those that are known by now."""

    token: str


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
    | Settled
    | Registered
    | Ready
    | Opened
    | Lost
    | Planned
    | Exchanged
    | Promised
    | Redeemed
    | Broken
    | Mended
    | Left
    | Finished
)


def step(ledger: Ledger, event: Event) -> Ledger:
    """The ledger after ``event``; an event about something that it does not hold changes nothing."""
    match event:
        case Promised(promise=promise):
            return replace(ledger, promises=(*(one for one in ledger.promises if one.node != promise.node), promise))
        case Redeemed(node=node):
            return replace(ledger, promises=tuple(one for one in ledger.promises if one.node != node))
        case Left(leaving=leaving):
            return replace(ledger, leaving=(*(one for one in ledger.leaving if one.node != leaving.node), leaving))
        case Finished(node=node):
            return replace(ledger, leaving=tuple(one for one in ledger.leaving if one.node != node))
        case Broken(pod=pod, node=node):
            return replace(ledger, broken=(*(one for one in ledger.broken if one[0] != pod), (pod, node)))
        case Mended(pod=pod):
            return replace(ledger, broken=tuple(one for one in ledger.broken if one[0] != pod))
        case Intended() | Answered() | Doubted() | Settled():
            return _of_order(ledger, event)
        case _:
            return _of_machine(ledger, event)


def _of_order(ledger: Ledger, event: Intended | Answered | Doubted | Settled) -> Ledger:
    match event:
        case Intended(order=order, machines=machines):
            return replace(
                ledger,
                orders=(*ledger.orders, order),
                coming=(*ledger.coming, *machines),
                serial=ledger.serial + 1,
                bought=(*(one for one in ledger.bought if one[0] > order.at - 60.0), (order.at, len(machines))),
            )
        case Answered():
            return _answered(ledger, event)
        case Doubted(token=token, at=at):
            return _order(ledger, token, lambda one: replace(one, state=DOUBTFUL, since=at))
        case Settled(token=token):
            return _without(ledger, {one.id for one in ledger.coming if one.order == token and not one.instance})


def _of_machine(ledger: Ledger, event: Found | Registered | Ready | Opened | Lost | Planned | Exchanged) -> Ledger:
    match event:
        case Found(machine=machine, instance=instance, offering=offering, at=at):
            return _tidied(_machine(ledger, machine, lambda one: replace(one, instance=instance, offering=offering, granted=at)))
        case Registered(machine=machine, node=node, at=at):
            return _machine(ledger, machine, lambda one: replace(one, node=node, registered=at))
        case Ready(machine=machine, at=at):
            return _machine(ledger, machine, lambda one: replace(one, ready=at))
        case Lost(machine=machine):
            return _without(ledger, {machine})
        case Opened(machine=machine):
            leaving = tuple(replace(one, needs=tuple(needed for needed in one.needs if needed != machine)) for one in ledger.leaving)
            return _without(replace(ledger, leaving=leaving), {machine})
        case Planned(pods=pods):
            coming = tuple(one if (to := pods.get(one.id, ())) == one.pods else replace(one, pods=to) for one in ledger.coming)
            return ledger if coming == ledger.coming else replace(ledger, coming=coming)
        case Exchanged(machine=machine, pairs=pairs):
            come, back = dict(pairs), {new: old for old, new in pairs}
            swaps = (come if one.id == machine else back for one in ledger.coming)
            changed = (tuple(swap.get(pod, pod) for pod in one.pods) for one, swap in zip(ledger.coming, swaps, strict=True))
            return replace(ledger, coming=tuple(replace(one, pods=to) for one, to in zip(ledger.coming, changed, strict=True)))


def folded(ledger: Ledger, events: Iterable[Event]) -> Ledger:
    """The ledger after ``events``, in their order."""
    for event in events:
        ledger = step(ledger, event)
    return ledger


def _answered(ledger: Ledger, event: Answered) -> Ledger:
    """The granted machines get their names; of those that the cloud neither granted nor accepted, the last are struck."""
    known = {one.instance for one in ledger.coming if one.instance} | ledger.past
    # The cloud repeats its answer to a repeated order.
    grants = [grant for grant in event.granted if grant[0] not in known]
    coming, pending, refused = [], event.pending, set[str]()
    for one in ledger.coming:
        if one.order != event.token or one.instance:
            coming.append(one)
        elif grants:
            instance, offering = _best(grants, one)
            grants.remove((instance, offering))
            coming.append(replace(one, instance=instance, offering=offering, granted=event.at))
        elif pending:
            pending -= 1
            coming.append(one)
        else:
            refused.add(one.id)
    ledger = _without(replace(ledger, coming=tuple(coming)), refused)
    return _tidied(_order(ledger, event.token, lambda one: replace(one, state=ACCEPTED, since=event.at)))


def _best(grants: list[tuple[str, Key]], one: Coming) -> tuple[str, Key]:
    """The granted machine that ``one`` wants most."""
    return min(grants, key=lambda grant: one.offerings.index(grant[1]) if grant[1] in one.offerings else len(one.offerings))


def _order(ledger: Ledger, token: str, change: Callable[[Order], Order]) -> Ledger:
    return replace(ledger, orders=tuple(change(one) if one.token == token else one for one in ledger.orders))


def _machine(ledger: Ledger, machine: str, change: Callable[[Coming], Coming]) -> Ledger:
    return replace(ledger, coming=tuple(change(one) if one.id == machine else one for one in ledger.coming))


def _without(ledger: Ledger, machines: set[str]) -> Ledger:
    """Without ``machines``; a removal that still needs one of them will not get it."""
    gone = {one.instance for one in ledger.coming if one.id in machines and one.instance}
    return _tidied(
        replace(
            ledger,
            coming=tuple(one for one in ledger.coming if one.id not in machines),
            leaving=tuple(one if machines.isdisjoint(one.needs) else replace(one, bereft=True) for one in ledger.leaving),
            past=ledger.past | gone,
        )
    )


def _tidied(ledger: Ledger) -> Ledger:
    """Without orders of which no machine is awaited without a name."""
    awaited = {one.order for one in ledger.coming if not one.instance}
    orders = tuple(one for one in ledger.orders if one.token in awaited)
    return replace(ledger, orders=orders, past=ledger.past if orders else frozenset())


def upcoming(ledger: Ledger) -> tuple[Upcoming, ...]:
    """What :class:`~gpuscaler.planning.state.State` takes: every machine that is not open yet, once."""
    return tuple(
        Upcoming(
            id=one.id,
            pool=one.key[0],
            instance_type=one.key[2],
            market=one.key[1],
            zone=one.key[3],
            node=one.node,
            since=one.asked,
            choices=tuple((kind, market, zone) for _, market, kind, zone in one.offerings[: one.meant]) if one.offering is None else (),
            behind=tuple((kind, market, zone) for _, market, kind, zone in one.offerings[one.meant :]) if one.offering is None else (),
            pods=one.pods,
        )
        for one in ledger.coming
    )
