"""What spot markets do: how many machines they have, and what these cost, as step functions of time."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate

from msgspec.structs import replace

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Offering

#: Seconds since the epoch are rounded to less than this: a change that is not later by it was the one that has just been seen.
TICK = 0.001


class Steps:
    """A step function of time that repeats: ``values[i]`` holds from ``times[i]`` until the next, ``period`` seconds later it begins anew.

    ``times`` begin with 0 and rise; ``shift`` is how far into the series second 0 of the run lies. ``period`` 0 is a constant after the
    last step, with no repetition.
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
        """The first moment after ``when`` at which the value may differ; None for a constant."""
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
        """How many whole periods have passed, and where in the series ``when`` is."""
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
    """Without the steps that change nothing."""
    kept: list[tuple[float, float]] = []
    for at, value in steps:
        if not kept or kept[-1][1] != value:
            kept.append((at, value))
    return kept


class Markets:
    """The markets of a run. Offerings without a series always have capacity, at their list price.

    ``capacity`` gives how many machines an offering has, by its key, infinity where nobody knows a bound; ``prices`` what one costs, in US
    dollars per hour. ``began`` is when second 0 of every series is, in seconds since the epoch.
    """

    def __init__(
        self, capacity: Mapping[OfferingKey, Steps] | None = None, prices: Mapping[OfferingKey, Steps] | None = None, *, began: float = 0.0
    ) -> None:
        self._capacity = capacity or {}
        self._prices = prices or {}
        self._began = began

    def capacity(self, key: OfferingKey, now: float) -> float:
        """How many machines of an offering there are."""
        steps = self._capacity.get(key)
        # A series looks back by less than a tick, so that at the moment of a change, which is rounded, the new value holds.
        return float("inf") if steps is None else steps.at(now - self._began + TICK / 2)

    def next_change(self, key: OfferingKey, now: float) -> float | None:
        """When the capacity of an offering changes next."""
        steps = self._capacity.get(key)
        change = None if steps is None else steps.next_change(now - self._began + TICK)
        return None if change is None else change + self._began

    def price(self, offering: Offering, now: float) -> float:
        """US dollars per hour at ``now``."""
        steps = self._prices.get(offering.key)
        return offering.price if steps is None else steps.at(now - self._began)

    def cheapest(self, offering: Offering) -> Offering:
        """The offering at the lowest price it ever has."""
        steps = self._prices.get(offering.key)
        return offering if steps is None else replace(offering, price=min(steps.values))

    def cost(self, offering: Offering, begin: float, end: float) -> float:
        """US dollars for one machine from ``begin`` to ``end``."""
        steps = self._prices.get(offering.key)
        if steps is None:
            return offering.price * (end - begin) / 3600.0
        return steps.integral(begin - self._began, end - self._began) / 3600.0
