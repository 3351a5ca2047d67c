"""Boot times as they were seen, per pool and instance type, and what they let us expect of the next machine."""

from collections.abc import Iterable
from statistics import median, quantiles

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.offerings import OfferingKey

#: Only the newest machines of a kind speak for the next: images and clouds change.
REMEMBERED = 32
#: What is expected of a machine until one of its kind has been seen, in seconds: typical, and in 19 of 20 cases at most. Cluster
#: Autoscaler's frequently asked questions give 3 to 5 minutes from request to usable GPU.
TYPICAL_SECONDS, LATE_SECONDS = 240.0, 300.0
#: Fewer machines of a kind than this say little about the slowest of the next twenty.
FEW = 5


class Arrived(Struct, frozen=True, gc=False):
    """A machine of ``offering`` took ``boot`` seconds from its grant to a Node, and ``plugin`` more until all its resources showed."""

    offering: OfferingKey
    boot: float
    plugin: float


class BootTimes(Struct, frozen=True, gc=False):
    """The newest machines of an instance type in a pool: ``boots`` and ``plugins`` in seconds, the oldest first."""

    pool: str
    instance_type: str
    boots: tuple[float, ...] = ()
    plugins: tuple[float, ...] = ()


class Boots(Struct, frozen=True, gc=False):
    """What was seen of every kind."""

    kinds: tuple[BootTimes, ...] = ()


class Forecast(Struct, frozen=True, gc=False):
    """Seconds from a machine's grant until pods can use it, and the ``basis`` for that, in words, where it is a weak one.

    ``seen`` machines of its kind say so, 0 when other machines do, or it is only assumed.
    """

    typical: float = TYPICAL_SECONDS
    late: float = LATE_SECONDS
    seen: int = 0
    basis: str = "assumed, none of its kind was seen yet"


def step(boots: Boots, event: Arrived) -> Boots:
    """What is known after ``event``."""
    pool, _, instance_type, _ = event.offering
    known = next((one for one in boots.kinds if (one.pool, one.instance_type) == (pool, instance_type)), BootTimes(pool, instance_type))
    grown = replace(
        known,
        boots=(*known.boots, round(max(0.0, event.boot), 1))[-REMEMBERED:],
        plugins=(*known.plugins, round(max(0.0, event.plugin), 1))[-REMEMBERED:],
    )
    return Boots((*(one for one in boots.kinds if one is not known), grown))


def forecast(boots: Boots, offering: OfferingKey, assumed: Forecast | None = None) -> Forecast:
    """What to expect of the next machine of ``offering``.

    Machines of its kind say it; else those of its pool, of its type in other pools, or of any kind, the first of these that were seen; else
    it is as ``assumed``, such as the cloud's settings say.
    """
    pool, _, instance_type, _ = offering
    own = [one for one in boots.kinds if (one.pool, one.instance_type) == (pool, instance_type)]
    if own:
        took = _took(own)
        few = f"{len(took)} of its kind seen so far" if len(took) < FEW else ""
        return _of(took, seen=len(took), basis=few)
    for kin, words in (
        ([one for one in boots.kinds if one.pool == pool], "of other types of its pool"),
        ([one for one in boots.kinds if one.instance_type == instance_type], "of its type in other pools"),
        (boots.kinds, "of other types"),
    ):
        if took := _took(kin):
            return _of(took, seen=0, basis=f"as {len(took)} {words} took; none of its kind was seen yet")
    return assumed or Forecast()


def _took(kinds: Iterable[BootTimes]) -> list[float]:
    return [boot + plugin for one in kinds for boot, plugin in zip(one.boots, one.plugins, strict=True)]


def _of(took: list[float], *, seen: int, basis: str) -> Forecast:
    late = quantiles(took, n=20, method="inclusive")[-1] if len(took) > 1 else took[0]
    return Forecast(typical=median(took), late=late, seen=seen, basis=basis)
