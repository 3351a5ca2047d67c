"""Spot markets: capacity and prices as step functions of time."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate

from msgspec.structs import replace

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Offering

#: Times are rounded by less than this many seconds: a change that is not later by more is the one just seen.
TICK = 0.001


class Steps:
    """A step function of time that repeats: ``values[i]`` holds from ``times[i]`` to the next; after ``period`` seconds it repeats.

    ``times`` begin with 0 and rise; ``shift`` is the offset of second 0 of the run within the series. With ``period`` 0 the function does
    not repeat and stays constant after the last step.
    """

    def __init__(self, times: Iterable[float], values: Iterable[float], *, period: float = 0.0, shift: float = 0.0) -> None:
        steps = _merged(zip(times, values, strict=True))
        self._times = [at for at, _ in steps]
        self.values = [value for _, value in steps]
        if not steps or self._times[0] != 0.0 or any(a >= b for a, b in zip(self._times, self._times[1:], strict=False)):
            raise ValueError("steps must begin at 0 and rise")
        if period and period <= self._times[-1]:
            raise ValueError(f"the period of {period:g} s must be longer than the last step at {self._times[-1]:g} s")
        self._period = period
        self._shift = shift % period if period else shift
        ends = [*self._times[1:], period or self._times[-1]]
        lengths = (end - at for at, end in zip(self._times, ends, strict=True))
        self._sums = [0.0, *accumulate(value * length for value, length in zip(self.values, lengths, strict=True))]

    def at(self, when: float) -> float:
        """The value ``when`` seconds into the run."""
        return self.values[bisect_right(self._times, self._inside(when)[1]) - 1]

    def next_change(self, when: float) -> float | None:
        """Return the first moment after ``when`` at which the value may differ; None for a constant."""
        if len(self._times) == 1:
            return None
        rounds, inside = self._inside(when)
        step = bisect_right(self._times, inside)
        if step == len(self._times) and not self._period:
            return None
        start = rounds * self._period - self._shift
        return start + (self._times[step] if step < len(self._times) else self._period)

    def integral(self, begin: float, end: float) -> float:
        """The area under the function."""
        return self._area(end) - self._area(begin)

    def _inside(self, when: float) -> tuple[float, float]:
        """Return the number of whole periods passed, and the position of ``when`` in the series."""
        along = max(0.0, when + self._shift)
        if not self._period:
            return 0.0, along
        rounds, inside = divmod(along, self._period)
        return rounds, inside

    def _area(self, when: float) -> float:
        rounds, inside = self._inside(when)
        step = bisect_right(self._times, inside) - 1
        return rounds * self._sums[-1] + self._sums[step] + self.values[step] * (inside - self._times[step])


def _merged(steps: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge steps with equal values."""
    merged: list[tuple[float, float]] = []
    for at, value in steps:
        if not merged or merged[-1][1] != value:
            merged.append((at, value))
    return merged


class Markets:
    """The markets of a run. Offerings without a series always have capacity, at their list price.

    ``capacity`` maps an offering's key to its number of machines, infinity if no bound is known; ``prices`` maps it to the price of one in
    US dollars per hour. ``began`` is the time of second 0 of every series, in seconds since the epoch.
    """

    def __init__(
        self, capacity: Mapping[OfferingKey, Steps] | None = None, prices: Mapping[OfferingKey, Steps] | None = None, *, began: float = 0.0
    ) -> None:
        self._capacity = capacity or {}
        self._prices = prices or {}
        self._began = began

    def capacity(self, key: OfferingKey, now: float) -> float:
        """Return the number of machines an offering has."""
        steps = self._capacity.get(key)
        # A tick is added so that the new value holds at the moment of a change, which is rounded.
        return float("inf") if steps is None else steps.at(now - self._began + TICK / 2)

    def next_change(self, key: OfferingKey, now: float) -> float | None:
        """Return the time of the next change of an offering's capacity."""
        steps = self._capacity.get(key)
        change = None if steps is None else steps.next_change(now - self._began + TICK)
        return None if change is None else change + self._began

    def price(self, offering: Offering, now: float) -> float:
        """US dollars per hour at ``now``."""
        steps = self._prices.get(offering.key)
        return offering.price if steps is None else steps.at(now - self._began)

    def cheapest(self, offering: Offering) -> Offering:
        """Return the offering at the lowest price that it ever has."""
        steps = self._prices.get(offering.key)
        return offering if steps is None else replace(offering, price=min(steps.values))

    def cost(self, offering: Offering, begin: float, end: float) -> float:
        """US dollars for one machine from ``begin`` to ``end``."""
        steps = self._prices.get(offering.key)
        if steps is None:
            return offering.price * (end - begin) / 3600.0
        return steps.integral(begin - self._began, end - self._began) / 3600.0
