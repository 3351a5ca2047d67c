"""The budget: work counted in units that do not depend on the clock, and the emergency brake."""

from collections.abc import Callable


class Meter:
    """Counts work against ``budget`` units (one is about a quarter of a microsecond) and calls ``should_stop`` between steps."""

    def __init__(self, budget: int, should_stop: Callable[[], bool] | None = None) -> None:
        self.budget = budget
        self.used = 0
        self.brake = False
        self._should_stop = should_stop

    def add(self, units: float) -> None:
        """Count ``units`` as done."""
        self.used += int(units)

    def part(self, share: float) -> "Meter":
        """A meter for ``share`` of the units that are left; :meth:`close` returns the unused rest."""
        return Meter(int(self.left() * share), self._should_stop)

    def close(self, part: "Meter") -> None:
        """Count what ``part`` used."""
        self.add(part.used)
        self.brake = self.brake or part.brake

    def left(self, share: float = 1.0) -> int:
        """Units left of ``share`` of the budget; 0 after ``should_stop`` has asked to stop."""
        if not self.brake and self._should_stop is not None:
            self.brake = bool(self._should_stop())
        return 0 if self.brake else max(int(self.budget * share) - self.used, 0)
