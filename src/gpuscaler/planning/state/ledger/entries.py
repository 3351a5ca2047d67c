"""Entries of the ledger: orders, their machines, promises to pods, and removals. Times are seconds since the epoch."""

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey

#: States of an order: saved and perhaps sent; sent but its answer was lost; answered.
INTENDED, DOUBTFUL, ACCEPTED = "intended", "doubtful", "accepted"

#: Steps of a promise: the machine is closed and its pods are bound or nominated; it is open and waits for its pods; it is closed again.
NOMINATING, OPEN, CLOSING = "nominating", "open", "closing"

#: Steps of a removal: closing the node, waiting for its replacement, evicting its pods, waiting until their volumes are detached, ending
#: the machine, deleting its Node if nothing else does; or opening the node again.
MARKING, WAITING, DRAINING, DETACHING = "marking", "waiting", "draining", "detaching"
ENDING, CLEARING, REOPENING = "ending", "clearing", "reopening"

#: The clocks of the cloud and of the controller differ by less than this, in seconds.
SKEW_SECONDS = 30.0


class Order(Struct, frozen=True, gc=False):
    """A purchase of ``count`` machines of any of ``offerings``; ``token`` identifies it at the cloud, ``since`` is when ``state`` began."""

    token: str
    pool: str
    offerings: tuple[OfferingKey, ...]
    count: int
    at: float
    since: float
    state: str = INTENDED


class OrderedMachine(Struct, frozen=True, gc=False):
    """One machine of an order that is not open yet.

    ``offerings`` are all that it may be: the first ``meant`` of them were chosen by the plan, the others are fallbacks; ``offering`` is the
    actual one, once known. ``price`` is the planned price in dollars per hour. ``after`` was an order between machines; it is read but not
    used. Times of events that have not happened yet are 0.
    ``granted`` is when its id became known; time-outs count from there. ``launched`` is when the cloud started it, if that was earlier: a
    controller that was down learns of machines late. ``order`` is empty for a machine that this controller did not order. ``gang`` is the
    ``namespace/name`` of the one gang that it was bought for, empty for none or several. ``pods`` are those that the newest plan has for
    it, ``bought_for`` those that it was ordered for.
    """

    id: str
    order: str
    offerings: tuple[OfferingKey, ...]
    price: float
    asked: float
    meant: int = 1
    purpose: str = "demand"
    pods: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    offering: OfferingKey | None = None
    instance: str = ""
    granted: float = 0.0
    node: str = ""
    registered: float = 0.0
    ready: float = 0.0
    launched: float = 0.0
    gang: str = ""
    bought_for: tuple[str, ...] = ()

    @property
    def key(self) -> OfferingKey:
        """The actual offering, or the preferred one while it is unknown."""
        return self.offering or self.offerings[0]

    @property
    def began(self) -> float:
        """The known start of its boot; 0 before it was granted."""
        return self.launched or self.granted


class Promise(Struct, frozen=True, gc=False):
    """Pods that ``node``, a machine of ``offering``, was opened for, and the current ``step``, which began at ``since``.

    ``sent`` are the pods whose bindings were sent. ``nominated`` is when bindings or nominations were last written, ``stood`` when all pods
    to be bound were there, ``lifted`` when our taint was last removed. ``closes`` says that the node is closed again once its pods are
    there. ``called`` is when one of its pods was given up, or when it had no pods: it takes no new pods, and opens.
    """

    node: str
    offering: OfferingKey
    pods: tuple[str, ...]
    since: float
    step: str = NOMINATING
    nominated: float = 0.0
    lifted: float = 0.0
    closes: bool = False
    called: float = 0.0
    stood: float = 0.0
    sent: tuple[str, ...] = ()


class Eviction(Struct, frozen=True, gc=False):
    """The progress of the eviction of a pod, identified by its uid. It was tried ``tries`` times; the next attempt is at ``again``.

    ``why`` is the reason of the last refusal, ``budget`` says that it was a PodDisruptionBudget. ``signalled`` is when the pod was asked to
    save its work. Times of events that have not happened yet are 0.
    """

    pod: str
    uid: str
    tries: int = 0
    again: float = 0.0
    why: str = ""
    budget: bool = False
    signalled: float = 0.0


class Removal(Struct, frozen=True, gc=False):
    """A removal in progress. ``pods`` are those that the decision moves, ``needs`` ids of machines that must open first.

    ``bereft`` says that one of those machines failed. ``tried`` is when the step was last tried, ``evictions`` the progress of evictions
    that have begun, ``detail`` what delays the step, in words. ``forced`` says that the machine ends at ``ends`` in any case. ``unready``
    says that it is removed because its node is not Ready, and is kept if that changes. ``to`` are the target nodes of ``pods``, empty for
    a pod that goes to a machine which was bought for it. ``held`` is the time in seconds for which the cloud keeps the machine per call
    while it is emptied, and ``extended`` when the cloud was last asked for that.
    """

    node: str
    instance: str
    offering: OfferingKey
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
    ends: float = 0.0
    evictions: tuple[Eviction, ...] = ()
    to: tuple[str, ...] = ()
    unready: bool = False
    held: float = 0.0
    extended: float = 0.0


class Withdrawal(Struct, frozen=True, gc=False):
    """The withdrawal of the rest of an order. ``tried`` is when the cloud was last asked for it, ``times`` the number of attempts.

    ``missing`` machines of ``order`` had not come then. ``order`` is None if another version wrote this.
    """

    token: str
    tried: float = 0.0
    times: int = 0
    order: Order | None = None
    missing: int = 0
