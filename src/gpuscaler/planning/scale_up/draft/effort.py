"""The work that a plan has done, counted in units that do not depend on the clock."""

#: A plan that has done so much work, in units of about a microsecond, makes no further attempt to do better.
MOST = 4_000_000
#: What it takes to place one group of pods once, and for each row besides.
PLACING, ROW = 300, 0.25


class Effort:
    """Work that a plan has done, counted where estimates may be wrong: rounds that are made again and again."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self.used = 0

    def spend(self, units: float) -> None:
        self.used += int(units)

    @property
    def left(self) -> bool:
        return self.used < self._most
