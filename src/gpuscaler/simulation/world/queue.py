"""Pods of a run: pending, promised to an ordered machine, running, done."""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.simulation.cloud.machines import NO_CAPACITY, Refusal
from gpuscaler.simulation.traces.workload import Member
from gpuscaler.simulation.world.scheduler import Seat


class Task:
    """One pod during its life.

    ``since`` is when it was created, ``started`` when it was last bound, ``working_from`` when its image was there.
    """

    __slots__ = (
        "attempt",
        "done",
        "first_start",
        "member",
        "nominated",
        "promised",
        "refused",
        "seat",
        "since",
        "started",
        "waits_since",
        "working_from",
    )

    def __init__(self, member: Member, since: float) -> None:
        self.member = member
        self.since = since
        #: When it was created, or evicted last.
        self.waits_since = since
        self.seat: Seat | None = None
        self.started: float | None = None
        self.working_from = 0.0
        self.first_start: float | None = None
        #: Seconds of its work that are saved in a checkpoint.
        self.done = 0.0
        #: When the order of a machine for it was refused, and in which markets since.
        self.refused: tuple[float, frozenset[str]] | None = None
        #: The machine on its way for it, by its intent.
        self.promised = ""
        #: Whether its seat on an open node is held while the rest of its gang gets ready.
        self.nominated = False
        #: How often it was started, so that the end of an earlier attempt is not taken for the end of this one.
        self.attempt = 0

    @property
    def key(self) -> str:
        return self.member.key

    @property
    def gang(self) -> str:
        return self.member.options.gang

    @property
    def digest(self) -> str:
        return self.member.spec.digest

    @property
    def ends_at(self) -> float:
        """When its work will be done, if it is not interrupted."""
        return self.working_from + self.member.duration - self.done

    def worked(self, now: float) -> float:
        """Seconds of work of this attempt so far."""
        return max(0.0, now - self.working_from) if self.started is not None else 0.0

    def restore_checkpoint(self, now: float, checkpoint: float) -> float:
        """Go back to the last checkpoint, one of which is made every ``checkpoint`` seconds of work; return the seconds of lost work."""
        work = self.done + self.worked(now)
        saved = work // checkpoint * checkpoint if checkpoint else 0.0
        # Work that a service has done is not lost.
        self.done = work if self.member.duration == math.inf else max(self.done, saved)
        return work - self.done

    def record_refusals(self, refusals: Iterable[Refusal], now: float) -> None:
        """Record that the cloud had no machine for it in some markets: from now on it waits for another."""
        dry_markets = frozenset(refusal.offering.market for refusal in refusals if refusal.kind == NO_CAPACITY)
        if dry_markets:
            since, before = self.refused or (now, frozenset())
            self.refused = (since, before | dry_markets)

    def end_failover(self, offerings: Iterable[OfferingKey], now: float) -> list[float]:
        """A machine was asked for: the seconds since the first refusal, if it is in none of the markets that refused."""
        if self.refused is None or {market for _, market, _, _ in offerings} & self.refused[1]:
            return []
        seconds, self.refused = now - self.refused[0], None
        return [seconds]


class Waiting:
    """Pending pods by specification, so that reading the queue costs only as much as there are specifications.

    The result of the last plan is kept: ``unservable`` pods can never be served; ``stuck`` specifications can be once a limit lifts.
    """

    def __init__(self) -> None:
        self._by_spec: dict[str, dict[str, Task]] = {}
        #: Those pods for which no machine is on its way.
        self._unpromised: dict[str, dict[str, Task]] = {}
        self._gangs: dict[str, dict[str, Task]] = {}
        self._unservable: set[str] = set()
        self._stuck: set[str] = set()

    def __len__(self) -> int:
        return sum(map(len, self._by_spec.values())) + sum(map(len, self._gangs.values()))

    def __iter__(self) -> Iterator[Task]:
        for tasks in (*self._by_spec.values(), *self._gangs.values()):
            yield from tasks.values()

    @property
    def gangs(self) -> Mapping[str, Mapping[str, Task]]:
        """Pending members of gangs, by gang."""
        return self._gangs

    @property
    def has_servable_pods(self) -> bool:
        """Whether some pending pod without a machine on its way could ever be served by a pool."""
        count = sum(map(len, self._unpromised.values()))
        count += sum(not task.promised for tasks in self._gangs.values() for task in tasks.values())
        return count > len(self._unservable)

    @property
    def has_fresh_demand(self) -> bool:
        """Whether a policy may have an answer now that it did not have before.

        A pod of a specification that was refused because of a limit gets the same refusal until machines are removed; a gang may also be
        helped by room on open nodes, which only the policy assigns to gangs.
        """
        if any(not task.promised and task.key not in self._unservable for tasks in self._gangs.values() for task in tasks.values()):
            return True
        return any(digest not in self._stuck and next(iter(tasks)) not in self._unservable for digest, tasks in self._unpromised.items())

    def add(self, task: Task) -> None:
        """Add a pending pod without a machine on its way."""
        if task.gang:
            self._gangs.setdefault(task.gang, {})[task.key] = task
            return
        self._by_spec.setdefault(task.digest, {})[task.key] = task
        self._unpromised.setdefault(task.digest, {})[task.key] = task

    def remove(self, task: Task) -> None:
        """Remove a pod that is no longer pending."""
        self._unservable.discard(task.key)
        if task.gang:
            _discard(self._gangs, task.gang, task.key)
            return
        _discard(self._by_spec, task.digest, task.key)
        _discard(self._unpromised, task.digest, task.key)

    def promise(self, task: Task, machine: str) -> None:
        """Record that a machine is on its way for a pending pod."""
        task.promised = machine
        if not task.gang:
            _discard(self._unpromised, task.digest, task.key)

    def release(self, task: Task) -> None:
        """Record that no machine is on its way for a pod any more; if it is pending, it is demand again."""
        task.promised = ""
        if not task.gang and task.seat is None:
            self._unpromised.setdefault(task.digest, {})[task.key] = task

    def record_unplaced(self, *, unservable: set[str], refused: set[str]) -> None:
        """Record a plan's result: the pods that no pool can ever serve, and those that were refused for now."""
        self._unservable = {task.key for task in self if task.key in unservable} if unservable else set()
        self._stuck = {digest for digest, tasks in self._unpromised.items() if any(key in refused for key in tasks)} if refused else set()

    def forget_refusals(self) -> None:
        """Forget refusals, since limits may have lifted."""
        self._stuck.clear()

    def any_spec(self, test: Callable[[PodSpec], bool]) -> bool:
        """Whether a pod outside gangs, with or without a machine on its way, has a specification that passes ``test``."""
        return any(test(next(iter(tasks.values())).member.spec) for tasks in self._by_spec.values())

    def by_spec(self) -> Iterable[dict[str, Task]]:
        """The pods of each specification that belong to no gang."""
        return self._by_spec.values()

    def overtaken_pairs(self, promised: Iterable[Task]) -> list[tuple[Task, Task]]:
        """Pods of ``promised``, which wait for one machine, each with an older, interchangeable pod that does not wait for it."""
        outside_gangs = [task for task in promised if not task.gang]
        pairs: list[tuple[Task, Task]] = []
        for example in {(task.digest, task.member.options): task for task in outside_gangs}.values():
            waiting = [task for task in outside_gangs if task.digest == example.digest and task.member.options == example.member.options]
            alike = (task for task in self._by_spec[example.digest].values() if task.member.options == example.member.options)
            first = heapq.nsmallest(len(waiting), alike, key=lambda task: task.since)
            pairs += zip([task for task in waiting if task not in first], [task for task in first if task not in waiting], strict=True)
        return pairs

    def heads(self) -> list[Task]:
        """The first pod of every specification outside gangs, in the scheduler's order: priority, then time."""
        heads = [next(iter(tasks.values())) for tasks in self._by_spec.values()]
        return sorted(heads, key=lambda task: (-task.member.spec.priority, task.since, task.key))


def _discard(groups: dict[str, dict[str, Task]], group: str, key: str) -> None:
    tasks = groups.get(group)
    if tasks is not None and tasks.pop(key, None) is not None and not tasks:
        del groups[group]
