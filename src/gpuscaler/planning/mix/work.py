"""The budget: work counted in units that do not depend on the clock, and a stop requested by the caller."""

from collections.abc import Callable


class Meter:
    """Counts work against ``budget`` units (one is about a quarter of a microsecond) and calls ``should_stop`` between steps."""

    def __init__(self, budget: int, should_stop: Callable[[], bool] | None = None) -> None:
        self.budget = budget
        self.used = 0
        self.stopped_early = False
        self._should_stop = should_stop

    def add(self, units: float) -> None:
        """Count ``units`` as done."""
        self.used += int(units)

    def part(self, share: float) -> "Meter":
        """A sub-meter with ``share`` of the remaining units; pass it to :meth:`close` to charge what it used."""
        return Meter(int(self.left() * share), self._should_stop)

    def close(self, part: "Meter") -> None:
        """Charge what the sub-meter ``part`` used, and take over its request to stop."""
        self.add(part.used)
        self.stopped_early = self.stopped_early or part.stopped_early

    def left(self, share: float = 1.0) -> int:
        """Units left of ``share`` of the budget; 0 after ``should_stop`` has asked to stop."""
        if not self.stopped_early and self._should_stop is not None:
            self.stopped_early = bool(self._should_stop())
        return 0 if self.stopped_early else max(int(self.budget * share) - self.used, 0)
