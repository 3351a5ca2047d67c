"""Entries of the ledger: orders, their machines, promises to pods, and removals. Times are seconds since the epoch."""

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey

#: States of an order: saved and perhaps sent; sent but its answer was lost; answered.
INTENDED, DOUBTFUL, ACCEPTED = "intended", "doubtful", "accepted"

#: Steps of a promise: the machine is closed while its pods are bound or nominated; it is open and waits for its pods; it is being closed
#: again.
NOMINATING, OPEN, CLOSING = "nominating", "open", "closing"

#: Steps of a removal: taint the node; wait for its replacement; evict its pods; wait until their volumes are detached; end the machine;
#: delete its Node if nothing else does. Or, if the removal is given up: open the node again.
MARKING, WAITING, DRAINING, DETACHING = "marking", "waiting", "draining", "detaching"
ENDING, CLEARING, REOPENING = "ending", "clearing", "reopening"

#: The clocks of the cloud and of the controller differ by less than this, in seconds.
SKEW_SECONDS = 30.0


class Order(Struct, frozen=True, gc=False):
    """A purchase of ``count`` machines, each of any of ``offerings``; ``token`` identifies it to the cloud.

    ``at`` is when it was decided, ``since`` when its ``state`` began. ``operation`` is by what the cloud tells the order's progress, if it
    does: any process can go on with it.
    """

    token: str
    pool: str
    offerings: tuple[OfferingKey, ...]
    count: int
    at: float
    since: float
    state: str = INTENDED
    operation: str = ""


class OrderedMachine(Struct, frozen=True, gc=False):
    """One machine of an order that is not open yet.

    ``offerings`` are all that it may be: the first ``meant`` of them were chosen by the plan, the others are fallbacks; ``offering`` is the
    actual one, once known. ``price`` is the planned price in dollars per hour. ``after`` is read from older versions but not used. Times
    of events that have not happened yet are 0.

    ``granted`` is when its id became known; time-outs count from then. ``launched`` is when the cloud launched it, if a controller that was
    down learned of the machine later. ``faulted`` is since when the cloud's list reports a fault of the machine while it has no node.
    ``order`` is empty for a machine that this controller did not order. ``gang`` is the ``namespace/name`` of the gang that it was bought
    for, empty for none or several. ``pods`` are the pods that the newest plan puts on it, ``bought_for`` the pods that it was ordered for.
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
    faulted: float = 0.0

    @property
    def key(self) -> OfferingKey:
        """The actual offering; while that is unknown, the preferred one."""
        return self.offering or self.offerings[0]

    @property
    def began(self) -> float:
        """When the machine began to boot, as far as known; 0 before it was granted."""
        return self.launched or self.granted


#: The names under which fields of :class:`Promise` are stored, where they differ.
_STORED_NAMES = {"taint_removed_at": "lifted", "closes_again": "closes", "abandoned_at": "called", "pods_ready_at": "stood"}


class Promise(Struct, frozen=True, gc=False, rename=_STORED_NAMES):
    """The pods that ``node``, a machine of ``offering``, opens for, and the current ``step``, which began at ``since``.

    ``sent`` are the pods whose bindings were sent. ``nominated`` is when bindings or nominations were last written. At ``pods_ready_at``
    all pods to be bound were bound; our taint was last removed at ``taint_removed_at``. With ``closes_again`` the node is closed again once
    its pods are bound. ``abandoned_at`` is when the promise to one of its pods was given up, or 0; from then on the promise takes no other
    pods, and the node opens. It is also set at once for a machine without pods.
    """

    node: str
    offering: OfferingKey
    pods: tuple[str, ...]
    since: float
    step: str = NOMINATING
    nominated: float = 0.0
    taint_removed_at: float = 0.0
    closes_again: bool = False
    abandoned_at: float = 0.0
    pods_ready_at: float = 0.0
    sent: tuple[str, ...] = ()


class Eviction(Struct, frozen=True, gc=False):
    """The progress of the eviction of a pod, identified by its uid. It was tried ``tries`` times; the next attempt is at ``again``.

    ``why`` is the reason for the last refusal; with ``budget`` a PodDisruptionBudget refused. ``signalled`` is when the pod was asked to
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
    """A removal in progress. ``pods`` are the pods that its decision moves, ``needs`` the ids of machines that must open first.

    ``bereft`` means that one of the needed machines failed. ``tried`` is when the step was last tried, ``evictions`` the progress of
    evictions that have begun, ``detail`` what delays the step, as text. ``forced`` means that the machine ends at ``ends`` in any case.
    ``unready`` means that the machine is removed because its node is not Ready, and is kept if the node becomes Ready. ``to`` are the
    target nodes of ``pods``, empty for a pod that goes to a machine bought for it. ``held`` is how many seconds each call to the cloud
    delays the end of the machine while it is drained, and ``extended`` is when the cloud was last called for this. ``again`` is when the
    cloud takes the next call to end the machine, 0 if it has not asked to wait.
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
    again: float = 0.0


class Withdrawal(Struct, frozen=True, gc=False):
    """The withdrawal of what is missing of an order: ``tried`` is when the cloud was last asked for it, ``times`` how often.

    ``missing`` is how many machines of ``order`` had not come when it was withdrawn. ``order`` is None in entries of older versions.
    """

    token: str
    tried: float = 0.0
    times: int = 0
    order: Order | None = None
    missing: int = 0
