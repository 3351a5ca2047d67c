"""What the ledger holds: orders, the machines that come of them, promises to pods, and removals. Times are seconds since the epoch."""

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey

#: What is known of an order: written down and perhaps sent, sent and its answer lost, answered.
INTENDED, DOUBTFUL, ACCEPTED = "intended", "doubtful", "accepted"

#: Steps of a promise: the machine is closed and its pods are bound or nominated, it is open and its pods are awaited, it is closed again.
NOMINATING, OPEN, CLOSING = "nominating", "open", "closing"

#: Steps of a removal: closing the node, waiting for what replaces it, evicting its pods, waiting for their volumes to be detached, ending
#: the machine, clearing its Node away where nobody else does; or opening the node again.
MARKING, WAITING, DRAINING, DETACHING = "marking", "waiting", "draining", "detaching"
ENDING, CLEARING, REOPENING = "ending", "clearing", "reopening"

#: A cloud's clock and ours differ by less than this, in seconds.
SKEW_SECONDS = 30.0


class Order(Struct, frozen=True, gc=False):
    """A purchase of ``count`` machines of any of ``offerings``; ``token`` names it to the cloud, ``since`` is when ``state`` began."""

    token: str
    pool: str
    offerings: tuple[OfferingKey, ...]
    count: int
    at: float
    since: float
    state: str = INTENDED


class Coming(Struct, frozen=True, gc=False):
    """One machine of an order that is not open yet.

    ``offerings`` are all that it may be, the first ``meant`` of them those that the plan chose, the others would do as well; ``offering``
    is what it is, once known. ``price`` is dollars per hour as planned. ``after`` was an order between machines: it is read and not used.
    Moments to come are 0.
    ``granted`` is when its name was learned, which time-outs count from, ``launched`` when the cloud started it, where that was earlier:
    a controller that was away learns of machines late. ``order`` is empty for a machine that nobody here asked for. ``gang`` is the
    ``namespace/name`` of the one gang that it was bought for, empty where that is none, or several. ``pods`` are those that the newest plan
    has for it, ``bought_for`` those that it was ordered for.
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
        """The offering that it is, or most wanted to be."""
        return self.offering or self.offerings[0]

    @property
    def began(self) -> float:
        """From when on it has been booting, as far as is known; 0 before it was granted."""
        return self.launched or self.granted


class Promise(Struct, frozen=True, gc=False):
    """Pods that ``node``, a machine of ``offering``, was opened for, and where that stands; ``since`` is when ``step`` began.

    ``sent`` are the pods whose bindings were sent, ``nominated`` is when bindings or nominations were last written, ``stood`` when all that
    are to be bound had come, ``lifted`` when our taint was last taken off. ``closes`` says that the node is closed again once its pods have
    come. ``called`` is when one of its pods was given up, or nobody was meant for it: it takes no new ones, and opens.
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
    """How far the eviction of a pod is, named by its uid. It was asked for ``tries`` times, and is again at ``again``.

    ``why`` is what it was refused by last, ``budget`` says that this was a PodDisruptionBudget. ``signalled`` is when the pod was asked to
    save its work. Moments that were not yet are 0.
    """

    pod: str
    uid: str
    tries: int = 0
    again: float = 0.0
    why: str = ""
    budget: bool = False
    signalled: float = 0.0


class Leaving(Struct, frozen=True, gc=False):
    """A removal under way. ``pods`` are those that the decision meant to move, ``needs`` ids of machines that must open first.

    ``bereft`` says that one of those will not come. ``tried`` is when the step was last tried, ``evictions`` how far those are that have
    begun, ``detail`` what holds the step up, in words. ``forced`` says that the machine goes whatever stands against it, at ``ends``.
    ``unready`` says that it goes since its node is not Ready, and stays where that changes. ``to`` are the nodes that the decision meant
    each of ``pods`` for, empty for one that goes to a machine which was bought for it. ``held`` is for how many seconds at a time its cloud
    holds it while it is emptied, and ``extended`` when the cloud was last asked to.
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
    """The rest of an order that is wanted no more. ``tried`` is when the cloud was last told so, and ``times`` how often in vain.

    ``missing`` machines of ``order`` had not come then; None where another version wrote this.
    """

    token: str
    tried: float = 0.0
    times: int = 0
    order: Order | None = None
    missing: int = 0
