"""Events of offerings, as reported by the cloud adapters."""

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey

#: Causes that an offering is not requested.
CAPACITY, QUOTA, PRICE, CONFIGURATION, UNAUTHORISED, THROTTLED, UNKNOWN, FAILED, ABSENT, RECLAIMED, UNFAMILIAR, LACKING, FRUITLESS = (
    "capacity",
    "quota",
    "price",
    "configuration",
    "unauthorised",
    "throttled",
    "unknown",
    "failed",
    "absent",
    "reclaimed",
    "unfamiliar",
    "lacking",
    "fruitless",
)


class Asked(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` was requested; ``resources`` are those that its pods request besides GPUs, where that matters."""

    offering: OfferingKey
    at: float
    resources: frozenset[str] = frozenset()


class Granted(Struct, frozen=True, gc=False, tag=True):
    """The cloud granted at least one machine. For a partial grant, a :class:`Refused` for the rest follows."""

    offering: OfferingKey
    at: float


class Refused(Struct, frozen=True, gc=False, tag=True):
    """The cloud refused machines of ``offering`` because of ``cause``, one of :data:`PERIODS`, ``price`` and ``configuration``.

    ``bucket`` are all instance types that the answer applies to (those of a quota), empty for the offering's own. ``every_zone`` says that
    it applies to all zones. ``retry_after`` is the minimum time to wait that the cloud asks for, in seconds. ``filled`` says that other
    offerings of the same request granted the machines, so the refusal delayed no pod. ``partial`` says that this offering granted some of
    them. ``account_pools`` are the pools of the account that answered, if other accounts have pools in the region; empty for all pools.
    """

    offering: OfferingKey
    at: float
    cause: str = CAPACITY
    detail: str = ""
    bucket: tuple[str, ...] = ()
    every_zone: bool = False
    retry_after: float = 0.0
    filled: bool = False
    partial: bool = False
    account_pools: tuple[str, ...] = ()


class Dropped(Struct, frozen=True, gc=False, tag=True):
    """A request for ``offering`` was dropped without an answer: if it was a probe, it proved nothing, and another may be sent."""

    offering: OfferingKey
    at: float


class Registered(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` has become a node."""

    offering: OfferingKey
    at: float


class Ready(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` is a node that shows all expected resources, whose names are in ``shows``."""

    offering: OfferingKey
    at: float
    shows: frozenset[str] = frozenset()


class Failed(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` died, or ran out of time before its node was ready."""

    offering: OfferingKey
    at: float
    detail: str = ""


class Absent(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` never became a node: it kept running, or ended at once without a notice or a spot reclaim.

    It is reported as :class:`Failed`, too; ``tried`` is the time of its order.

    The cause is mostly a property of the pool, not of the offering: its image, its network, its permissions.
    """

    offering: OfferingKey
    tried: float
    at: float
    detail: str = ""


class Lacking(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` was a node for long enough and never showed the promised ``resource``."""

    offering: OfferingKey
    at: float
    resource: str
    detail: str = ""


class Fruitless(Struct, frozen=True, gc=False, tag=True):
    """Several machines in a row, the last one of ``offering``, were bought for the same pods, and none of these pods was bound."""

    offering: OfferingKey
    at: float
    detail: str = ""


class Served(Struct, frozen=True, gc=False, tag=True):
    """A pod runs on the machine of ``offering`` that was bought for it."""

    offering: OfferingKey
    at: float


class Reclaimed(Struct, frozen=True, gc=False, tag=True):
    """The cloud reclaims or reclaimed a machine of ``offering``; others of its kind mostly follow within minutes."""

    offering: OfferingKey
    at: float


class Changed(Struct, frozen=True, gc=False, tag=True):
    """Settings, credentials or the pool's own configuration changed: breakers that wait for that are dropped. "" is every pool."""

    at: float
    pool: str = ""


Event = Asked | Granted | Refused | Dropped | Registered | Ready | Failed | Lacking | Absent | Fruitless | Served | Reclaimed | Changed
