"""What happens to offerings, as the cloud's adapters tell it."""

from msgspec import Struct

#: Key of an offering: (pool, market, instance type, zone).
Key = tuple[str, str, str, str]

#: Why an offering is not asked.
CAPACITY, QUOTA, PRICE, CONFIGURATION, UNAUTHORISED, THROTTLED, UNKNOWN, FAILED, ABSENT, RECLAIMED, UNFAMILIAR = (
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
)


class Asked(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` was asked for."""

    offering: Key
    at: float


class Granted(Struct, frozen=True, gc=False, tag=True):
    """The cloud agreed to at least one machine. Of a partial grant the rest is a :class:`Refused` after it."""

    offering: Key
    at: float


class Refused(Struct, frozen=True, gc=False, tag=True):
    """The cloud refused machines of ``offering`` because of ``cause``, one of :data:`PERIODS`, ``price`` and ``configuration``.

    ``bucket`` are all instance types that the answer speaks of (a quota's), else the offering's own; ``every_zone`` says that it speaks of
    all zones; ``retry_after`` are seconds that the cloud asks to wait at least; ``filled`` says that other offerings of the same request
    gave what this one had not, so that nobody has waited for it in vain; ``partial`` that it gave some of what was asked itself.
    """

    offering: Key
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

    offering: Key
    at: float


class Registered(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` has become a node."""

    offering: Key
    at: float


class Failed(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` died or ran out of time before it became a node."""

    offering: Key
    at: float
    detail: str = ""


class Absent(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering`` never became a node: it ran on, or ended at once, which no notice or spot market explains.

    That is a :class:`Failed` too; ``tried`` is when it was asked for.

    What keeps machines from joining is mostly the pool's, whatever the offering: its image, its network, its permissions.
    """

    offering: Key
    tried: float
    at: float
    detail: str = ""


class Reclaimed(Struct, frozen=True, gc=False, tag=True):
    """The cloud takes, or took, a machine of ``offering`` away; others of its kind mostly follow within minutes."""

    offering: Key
    at: float


class Changed(Struct, frozen=True, gc=False, tag=True):
    """Settings, credentials or the pool's own configuration changed: what waited for that is asked again. "" is every pool."""

    at: float
    pool: str = ""


Event = Asked | Granted | Refused | Dropped | Registered | Failed | Absent | Reclaimed | Changed
