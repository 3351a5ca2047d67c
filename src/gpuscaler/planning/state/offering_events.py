"""What happens to offerings, as the cloud's adapters tell it."""

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey

#: Why an offering is not asked.
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
    """A machine of ``offering`` was asked for; ``resources`` are what its pods ask for beside GPUs, where that matters."""

    offering: OfferingKey
    at: float
    resources: frozenset[str] = frozenset()


class Granted(Struct, frozen=True, gc=False, tag=True):
    """The cloud agreed to at least one machine. Of a partial grant the rest is a :class:`Refused` after it."""

    offering: OfferingKey
    at: float


class Refused(Struct, frozen=True, gc=False, tag=True):
    """The cloud refused machines of ``offering`` because of ``cause``, one of :data:`PERIODS`, ``price`` and ``configuration``.

    ``bucket`` are all instance types that the answer speaks of (a quota's), else the offering's own; ``every_zone`` says that it speaks of
    all zones; ``retry_after`` are seconds that the cloud asks to wait at least; ``filled`` says that other offerings of the same request
    gave what this one had not, so that nobody has waited for it in vain; ``partial`` that it gave some of what was asked itself.
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


class Dropped(Struct, frozen=True, gc=False, tag=True):
    """A request for ``offering`` was given up without an answer: a probe that it was has proved nothing, and the next may ask."""

    offering: OfferingKey
    at: float


class Registered(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` has become a node."""

    offering: OfferingKey
    at: float


class Ready(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` is a node that shows all that is awaited of it: resources of the names in ``shows``."""

    offering: OfferingKey
    at: float
    shows: frozenset[str] = frozenset()


class Failed(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` died, or ran out of time before its node was ready."""

    offering: OfferingKey
    at: float
    detail: str = ""


class Absent(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` never became a node: it ran on, or ended at once, which no notice or spot market explains.

    That is a :class:`Failed` too; ``tried`` is when it was asked for.

    What keeps machines from joining is mostly the pool's, whatever the offering: its image, its network, its permissions.
    """

    offering: OfferingKey
    tried: float
    at: float
    detail: str = ""


class Lacking(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` was a node for long enough and never showed ``resource``, which it was promised with."""

    offering: OfferingKey
    at: float
    resource: str
    detail: str = ""


class Fruitless(Struct, frozen=True, gc=False, tag=True):
    """Machine after machine of what ``offering`` is one of was bought for the same pods, and none of them was bound."""

    offering: OfferingKey
    at: float
    detail: str = ""


class Served(Struct, frozen=True, gc=False, tag=True):
    """A pod runs on the machine of ``offering`` that was bought for it."""

    offering: OfferingKey
    at: float


class Reclaimed(Struct, frozen=True, gc=False, tag=True):
    """The cloud takes, or took, a machine of ``offering`` away; others of its kind mostly follow within minutes."""

    offering: OfferingKey
    at: float


class Changed(Struct, frozen=True, gc=False, tag=True):
    """Settings, credentials or the pool's own configuration changed: what waited for that is asked again. "" is every pool."""

    at: float
    pool: str = ""


Event = Asked | Granted | Refused | Dropped | Registered | Ready | Failed | Lacking | Absent | Fruitless | Served | Reclaimed | Changed
