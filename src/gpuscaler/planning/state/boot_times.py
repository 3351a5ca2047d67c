"""Observed boot times per pool and instance type, and forecasts for the next machine."""

from collections.abc import Iterable
from statistics import median, quantiles

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.offerings import OfferingKey

#: The number of newest machines of a kind that a forecast uses: images and clouds change.
REMEMBERED = 32
#: The forecast until a machine of the kind has been seen, in seconds: typical, and p95. Cluster Autoscaler's frequently asked questions
#: give 3 to 5 minutes from request to usable GPU.
TYPICAL_SECONDS, LATE_SECONDS = 240.0, 300.0
#: With fewer machines of a kind than this, p95 is a weak estimate.
FEW = 5


class Arrived(Struct, frozen=True, gc=False):
    """A machine of ``offering`` took ``boot`` seconds from its grant to its Node, and ``plugin`` more until all its resources showed."""

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
    """The observed boot times of every kind."""

    kinds: tuple[BootTimes, ...] = ()


class Forecast(Struct, frozen=True, gc=False):
    """Seconds from a machine's grant until pods can use it, and the ``basis`` of the forecast, in words, if it is weak.

    ``seen`` is the number of observed machines of its kind; 0 if the forecast comes from other machines or is assumed.
    """

    typical: float = TYPICAL_SECONDS
    late: float = LATE_SECONDS
    seen: int = 0
    basis: str = "assumed; none of its kind observed yet"


def step(boots: Boots, event: Arrived) -> Boots:
    """The boot times after ``event``."""
    pool, _, instance_type, _ = event.offering
    boot_times = next(
        (boot_times for boot_times in boots.kinds if (boot_times.pool, boot_times.instance_type) == (pool, instance_type)),
        BootTimes(pool, instance_type),
    )
    grown = replace(
        boot_times,
        boots=(*boot_times.boots, round(max(0.0, event.boot), 1))[-REMEMBERED:],
        plugins=(*boot_times.plugins, round(max(0.0, event.plugin), 1))[-REMEMBERED:],
    )
    return Boots((*(entry for entry in boots.kinds if entry is not boot_times), grown))


def forecast(boots: Boots, offering: OfferingKey, assumed: Forecast | None = None) -> Forecast:
    """The forecast for the next machine of ``offering``.

    It comes from machines of its kind; without these from machines of its pool, of its type in other pools, or of any kind, in this order.
    Without any it is ``assumed``, for example from the cloud's settings.
    """
    pool, _, instance_type, _ = offering
    own = [boot_times for boot_times in boots.kinds if (boot_times.pool, boot_times.instance_type) == (pool, instance_type)]
    if own:
        took = _took(own)
        note = f"only {len(took)} of its kind observed" if len(took) < FEW else ""
        return _of(took, seen=len(took), basis=note)
    for kin, words in (
        ([boot_times for boot_times in boots.kinds if boot_times.pool == pool], "of other types of its pool"),
        ([boot_times for boot_times in boots.kinds if boot_times.instance_type == instance_type], "of its type in other pools"),
        (boots.kinds, "of other types"),
    ):
        if took := _took(kin):
            return _of(took, seen=0, basis=f"from {len(took)} machine{'s' if len(took) > 1 else ''} {words}; none of its kind observed yet")
    return assumed or Forecast()


def _took(kinds: Iterable[BootTimes]) -> list[float]:
    return [boot + plugin for boot_times in kinds for boot, plugin in zip(boot_times.boots, boot_times.plugins, strict=True)]


def _of(took: list[float], *, seen: int, basis: str) -> Forecast:
    late = quantiles(took, n=20, method="inclusive")[-1] if len(took) > 1 else took[0]
    return Forecast(typical=median(took), late=late, seen=seen, basis=basis)
