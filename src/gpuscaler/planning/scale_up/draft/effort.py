"""The work of a plan, counted in units that do not depend on the clock."""

#: After this much work, in units of about a microsecond, a plan makes no further attempt to improve.
MOST = 4_000_000
#: The work of placing one group of pods once, and the additional work for each row.
PLACING, ROW = 300, 0.25


class Effort:
    """The work of a plan so far, counted where estimates may be wrong: in rounds that are repeated."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self.used = 0

    def spend(self, units: float) -> None:
        self.used += int(units)

    @property
    def left(self) -> bool:
        return self.used < self._most
