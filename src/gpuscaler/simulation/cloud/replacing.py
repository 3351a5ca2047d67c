"""Replacements that simulated pools launch by themselves for machines that are gone, as Auto Scaling groups do."""

from dataclasses import dataclass

#: An event of the simulated cloud: a pool tries to launch a replacement that it owes.
REPLACE = "replace"
#: Seconds until a pool retries after it could not launch a machine, as in Auto Scaling.
RETRY_SECONDS = 60.0


@dataclass(slots=True)
class Replacement:
    """A machine that ``pool`` owes from ``since`` until ``launched``; ``failed`` is the time of the last failed launch."""

    pool: str
    since: float
    launched: float = float("inf")
    failed: float = float("inf")


class Replacements:
    """The replacement owed for each lost machine, by its id. A cloud restored from a file knows only those that are being retried."""

    def __init__(self) -> None:
        self.all: dict[str, Replacement] = {}

    def add(self, machine: str, pool: str, now: float) -> None:
        self.all[machine] = Replacement(pool, now)

    def record_launch(self, machine: str, now: float) -> None:
        if machine in self.all:
            self.all[machine].launched = now

    def record_failure(self, machine: str, now: float) -> None:
        if machine in self.all:
            self.all[machine].failed = now

    def missing(self, pool: str, at: float) -> int:
        """Return how many machines ``pool`` owed at a moment."""
        return sum(replacement.since <= at < replacement.launched for replacement in self.all.values() if replacement.pool == pool)

    def failing(self, pool: str, at: float) -> bool:
        """Whether a machine that ``pool`` owed at a moment had failed to launch by then."""
        return any(
            replacement.since <= at < replacement.launched and replacement.failed <= at
            for replacement in self.all.values()
            if replacement.pool == pool
        )
