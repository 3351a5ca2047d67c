"""Pods of a run: waiting, promised to a machine that is coming, running, done."""

from collections.abc import Container, Iterator

from gpuscaler.simulation.scheduler import Seat
from gpuscaler.simulation.workload import Member


class Task:
    """One pod while it lives. ``since`` is when it was created, ``started`` when it last began to run."""

    __slots__ = ("attempt", "first_start", "member", "nominated", "promised", "seat", "since", "started")

    def __init__(self, member: Member, since: float) -> None:
        self.member = member
        self.since = since
        self.seat: Seat | None = None
        self.started: float | None = None
        self.first_start: float | None = None
        #: The machine that is coming for it.
        self.promised = ""
        #: Whether its seat on an open node is held while the rest of its gang gets ready.
        self.nominated = False
        #: How often it was started, so that the end of an earlier attempt is not taken for that of this one.
        self.attempt = 0

    @property
    def key(self) -> str:
        return self.member.key

    @property
    def gang(self) -> str:
        return self.member.options.gang


class Waiting:
    """Pods without a place or a promise, by specification, so that a look at the queue costs what its variety costs.

    What the last plan said is kept: ``hopeless`` pods can never be served; ``stuck`` specifications can be once a limit lifts.
    """

    def __init__(self) -> None:
        self._by_spec: dict[str, dict[str, Task]] = {}
        self._gangs: dict[str, Task] = {}
        self._hopeless: set[str] = set()
        self._stuck: set[str] = set()

    def __len__(self) -> int:
        return sum(len(tasks) for tasks in self._by_spec.values()) + len(self._gangs)

    def __iter__(self) -> Iterator[Task]:
        for tasks in self._by_spec.values():
            yield from tasks.values()
        yield from self._gangs.values()

    @property
    def hopeful(self) -> bool:
        """Whether any pod waits that a pool could serve, some day."""
        return len(self) > len(self._hopeless)

    @property
    def promising(self) -> bool:
        """Whether a policy may have an answer now that it did not have before.

        A pod of a specification that was refused for a limit gets the same refusal until machines go; a gang may also be helped by room
        on open nodes, which only the policy hands out to gangs.
        """
        if any(key not in self._hopeless for key in self._gangs):
            return True
        return any(digest not in self._stuck and next(iter(tasks)) not in self._hopeless for digest, tasks in self._by_spec.items())

    def add(self, task: Task) -> None:
        if task.gang:
            self._gangs[task.key] = task
        else:
            self._by_spec.setdefault(task.member.spec.digest, {})[task.key] = task

    def remove(self, task: Task) -> None:
        self._hopeless.discard(task.key)
        if task.gang:
            del self._gangs[task.key]
            return
        digest = task.member.spec.digest
        tasks = self._by_spec[digest]
        del tasks[task.key]
        if not tasks:
            del self._by_spec[digest]

    def judge(self, *, hopeless: Container[str], refused: Container[str]) -> None:
        """Note what a plan says: the pods that no pool can ever serve, and those that were refused for now."""
        self._hopeless = {task.key for task in self if task.key in hopeless}
        self._stuck = {digest for digest, tasks in self._by_spec.items() if any(key in refused for key in tasks)}

    def forget(self) -> None:
        """Limits may have lifted: who was refused may ask again."""
        self._stuck.clear()

    def heads(self) -> list[Task]:
        """The first pod of every specification that is no gang's, in the scheduler's order: priority, then time."""
        heads = [next(iter(tasks.values())) for tasks in self._by_spec.values()]
        return sorted(heads, key=lambda task: (-task.member.spec.priority, task.since, task.key))
