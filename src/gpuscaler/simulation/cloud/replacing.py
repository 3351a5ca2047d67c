"""What simulated pools launch by themselves in place of machines that are gone, as Auto Scaling groups do."""

from dataclasses import dataclass

#: An event of the simulated cloud: a pool tries to launch what it owes.
REPLACE = "replace"
#: A pool that could not launch a machine tries again so much later, in seconds, as Auto Scaling does.
RETRY_SECONDS = 60.0


@dataclass(slots=True)
class Replacement:
    """A machine that ``pool`` owes from ``since`` until ``launched``; ``failed`` is when it last could not be launched."""

    pool: str
    since: float
    launched: float = float("inf")
    failed: float = float("inf")


class Replacements:
    """What is owed in place of each machine, by its id. A cloud that is read from a file knows of those that are tried again."""

    def __init__(self) -> None:
        self.all: dict[str, Replacement] = {}

    def owe(self, machine: str, pool: str, now: float) -> None:
        self.all[machine] = Replacement(pool, now)

    def launched(self, machine: str, now: float) -> None:
        if machine in self.all:
            self.all[machine].launched = now

    def failed(self, machine: str, now: float) -> None:
        if machine in self.all:
            self.all[machine].failed = now

    def missing(self, pool: str, at: float) -> int:
        """How many machines ``pool`` owed at a moment."""
        return sum(one.since <= at < one.launched for one in self.all.values() if one.pool == pool)

    def failing(self, pool: str, at: float) -> bool:
        """Whether a machine that ``pool`` owed at a moment could not be launched by then."""
        return any(one.since <= at < one.launched and one.failed <= at for one in self.all.values() if one.pool == pool)
