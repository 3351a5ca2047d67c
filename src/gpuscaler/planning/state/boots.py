"""Boot times as they were seen, per pool and instance type, and what they let us expect of the next machine."""

from statistics import median, quantiles

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.planning.state.events import Key

#: Only the newest machines of a kind speak for the next: images and clouds change.
REMEMBERED = 32
#: What is expected of a machine until one of its kind has been seen, in seconds: typical, and in 19 of 20 cases at most. Cluster
#: Autoscaler's frequently asked questions give 3 to 5 minutes from request to usable GPU.
TYPICAL_SECONDS, LATE_SECONDS = 240.0, 300.0


class Arrived(Struct, frozen=True, gc=False):
    """A machine of ``offering`` took ``boot`` seconds from its grant to a Node, and ``plugin`` more until all its resources showed."""

    offering: Key
    boot: float
    plugin: float


class Kind(Struct, frozen=True, gc=False):
    """The newest machines of an instance type in a pool: ``boots`` and ``plugins`` in seconds, the oldest first."""

    pool: str
    instance_type: str
    boots: tuple[float, ...] = ()
    plugins: tuple[float, ...] = ()


class Boots(Struct, frozen=True, gc=False):
    """What was seen of every kind."""

    kinds: tuple[Kind, ...] = ()


class Forecast(Struct, frozen=True, gc=False):
    """Seconds from a machine's grant until pods can use it; ``seen`` machines of its kind say so, 0 when it is only assumed."""

    typical: float = TYPICAL_SECONDS
    late: float = LATE_SECONDS
    seen: int = 0


def step(boots: Boots, event: Arrived) -> Boots:
    """What is known after ``event``."""
    pool, _, instance_type, _ = event.offering
    known = next((one for one in boots.kinds if (one.pool, one.instance_type) == (pool, instance_type)), Kind(pool, instance_type))
    grown = replace(
        known,
        boots=(*known.boots, round(max(0.0, event.boot), 1))[-REMEMBERED:],
        plugins=(*known.plugins, round(max(0.0, event.plugin), 1))[-REMEMBERED:],
    )
    return Boots((*(one for one in boots.kinds if one is not known), grown))


def forecast(boots: Boots, offering: Key) -> Forecast:
    """What to expect of the next machine of ``offering``."""
    pool, _, instance_type, _ = offering
    known = next((one for one in boots.kinds if (one.pool, one.instance_type) == (pool, instance_type)), None)
    if known is None:
        return Forecast()
    took = [boot + plugin for boot, plugin in zip(known.boots, known.plugins, strict=True)]
    late = quantiles(took, n=20, method="inclusive")[-1] if len(took) > 1 else took[0]
    return Forecast(typical=median(took), late=late, seen=len(took))
