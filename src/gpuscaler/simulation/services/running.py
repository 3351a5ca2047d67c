"""One running service: its load, its replicas, and its autoscaler's next step."""

import heapq
import math
import random
from collections.abc import Iterable
from typing import NamedTuple

from gpuscaler.simulation.horizontal import History, Outcome, quiet_until, repeat_outcome, step
from gpuscaler.simulation.horizontal.specs import MetricAnswer, PodSamples, ReplicaPod, Sample, Scale, SeriesSamples
from gpuscaler.simulation.services.deriving import Service

#: Seconds between two steps of an autoscaler: kube-controller-manager's ``--horizontal-pod-autoscaler-sync-period``.
SYNC_SECONDS = 15.0
#: Seconds that a replica loads its model: minimum, maximum, mode. An assumption; it depends on the model and where its weights are stored.
LOADING_SECONDS = (30.0, 120.0, 60.0)


class ServiceResult(NamedTuple):
    """The result of a service. Loads are in its unit times hours: ``served`` of ``load`` found a ready replica with free capacity."""

    name: str
    load: float
    served: float
    replica_hours: float
    ready_hours: float
    most_replicas: int
    rescales: int
    steps: int


class Replica:
    """One replica: ``started`` is when its pod runs, None while it waits for a node; it serves from ``ready_at`` on."""

    __slots__ = ("created", "loading", "number", "ready_at", "started")

    def __init__(self, number: int, created: float, loading: float) -> None:
        self.number = number
        self.created = created
        self.loading = loading
        self.started: float | None = None
        self.ready_at = math.inf

    def runs(self, now: float) -> bool:
        return self.started is not None and self.started <= now


class RunningService:
    """A service from ``began`` to the end of its load. Times are absolute.

    Its initial replicas stand for ones that ran before: as many as the first load needs, and ready as soon as they run.
    """

    def __init__(self, service: Service, *, began: float, seed: int) -> None:
        self.service = service
        self.replicas: dict[int, Replica] = {}
        self.end = began + service.load.end
        self._began = began
        self._seed = seed
        changes = service.load.changes
        self._times = [began + at for at, _ in changes]
        self._values = [value for _, value in changes]
        self._next_load = 0
        self._load = 0.0
        self._history = History()
        self._outcome: Outcome | None = None
        self._last_step = -math.inf
        self._numbers = 0
        #: When the autoscaler may see a change of replicas.
        self._disturbances: list[float] = []
        #: When replicas become ready, for the accounting; entries of stopped replicas are skipped.
        self._readying: list[tuple[float, int]] = []
        self._ready: set[int] = set()
        self._accounted_until = began
        self._sums = dict.fromkeys(("load", "served", "replica", "ready"), 0.0)
        self._most = self._rescales = self._steps = 0
        #: When the autoscaler decides next: a multiple of its period after the beginning, or the end.
        self.next_at = self._step_time(self._times[0])

    def advance(self, now: float) -> tuple[list[Replica], list[Replica]]:
        """Let the autoscaler decide; return the new replicas and the removed ones."""
        self._account(now)
        if now >= self.end:
            removed = list(self.replicas.values())
            self._remove(removed)
            self.next_at = math.inf
            return [], removed
        if self._last_step == -math.inf:
            count = self._initial_replicas()
            self._history = self._history.with_recommendation(count, now, replace_index=None)
            new = self._add(count, now, loading=0.0)
            self._last_step = now
            self.next_at = self._next_step(now + SYNC_SECONDS)
            return new, []
        current = len(self.replicas)
        desired = self._step_autoscaler(now, current)
        if desired < current:
            removed = heapq.nsmallest(current - desired, self.replicas.values(), key=_deletion_order)
            self._remove(removed)
            return [], removed
        return self._add(desired - current, now), []

    def record_start(self, number: int, at: float) -> None:
        """The pod of a replica runs."""
        replica = self.replicas[number]
        replica.started, replica.ready_at = at, at + replica.loading
        heapq.heappush(self._readying, (replica.ready_at, number))
        self._record_disturbance(at)
        self._record_disturbance(replica.ready_at)

    def record_stop(self, number: int, now: float) -> None:
        """The pod of a replica lost its node and waits again; it has to load its model again."""
        self._account(now)
        replica = self.replicas[number]
        replica.started, replica.ready_at = None, math.inf
        replica.loading = replica.loading or self._loading(number)
        self._ready.discard(number)
        self._record_disturbance(now)

    def result(self) -> ServiceResult:
        sums = {name: total / 3600 for name, total in self._sums.items()}
        return ServiceResult(
            self.service.name, sums["load"], sums["served"], sums["replica"], sums["ready"], self._most, self._rescales, self._steps
        )

    def _initial_replicas(self) -> int:
        autoscaler = self.service.autoscaler
        target = autoscaler.metrics[0].target.average_value or 0
        share = target / 1000 if self.service.by_requests else self.service.capacity * target / 100_000
        return min(max(math.ceil(self._load / share), autoscaler.min_replicas), autoscaler.max_replicas)

    def _step_autoscaler(self, now: float, current: int) -> int:
        """One step of the autoscaler, after all steps that would have repeated the last one."""
        if self._outcome is not None and now - SYNC_SECONDS > self._last_step:
            self._history = repeat_outcome(self._outcome, now - SYNC_SECONDS)
        outcome = step(
            self.service.autoscaler,
            Scale(current, current),
            metrics=(self._metric(now),),
            pods=() if self.service.by_requests else self._pods(now),
            history=self._history,
            now=now,
        )
        self._steps += 1
        self._rescales += outcome.desired != current
        self._history, self._outcome, self._last_step = outcome.history, outcome, now
        self.next_at = self._next_step(quiet_until(self.service.autoscaler, outcome, replicas=current))
        return outcome.desired

    def _metric(self, now: float) -> MetricAnswer:
        """The answer of the metrics API: all requests, or the duty cycle of each running pod; one that still loads its model is idle."""
        if self.service.by_requests:
            return SeriesSamples((int(1000 * self._load),))
        full = self._load / (self.service.capacity * len(self._ready)) if self._ready else 0.0
        busy = Sample(int(100_000 * min(1.0, full)), now)
        idle = Sample(0, now)
        running = (number for number, replica in self.replicas.items() if replica.runs(now))
        return PodSamples({str(number): busy if number in self._ready else idle for number in running})

    def _pods(self, now: float) -> list[ReplicaPod]:
        return [
            ReplicaPod(str(number), phase="Running" if replica.runs(now) else "Pending", started=replica.started)
            for number, replica in self.replicas.items()
        ]

    def _add(self, count: int, now: float, *, loading: float | None = None) -> list[Replica]:
        new = []
        for _ in range(count):
            self._numbers += 1
            new.append(Replica(self._numbers, now, self._loading(self._numbers) if loading is None else loading))
        self.replicas.update((replica.number, replica) for replica in new)
        self._most = max(self._most, len(self.replicas))
        return new

    def _remove(self, removed: Iterable[Replica]) -> None:
        for replica in removed:
            del self.replicas[replica.number]
            self._ready.discard(replica.number)

    def _loading(self, number: int) -> float:
        """Drawn for each replica by its number, so that a decision elsewhere changes nothing here."""
        least, most, usual = LOADING_SECONDS
        return random.Random(f"{self._seed}/loading/{self.service.name}/{number}").triangular(least, most, usual)

    def _account(self, until: float) -> None:
        """Add up the load asked for and served since the last time, from one change to the next."""
        while self._accounted_until < until:
            load_at = self._times[self._next_load] if self._next_load < len(self._times) else math.inf
            ready_at = self._readying[0][0] if self._readying else math.inf
            at = min(until, max(self._accounted_until, load_at), max(self._accounted_until, ready_at))
            hours = at - self._accounted_until
            self._sums["load"] += hours * self._load
            self._sums["served"] += hours * min(self._load, self.service.capacity * len(self._ready))
            self._sums["replica"] += hours * len(self.replicas)
            self._sums["ready"] += hours * len(self._ready)
            self._accounted_until = at
            self._apply_changes(at)
        self._apply_changes(until)

    def _apply_changes(self, at: float) -> None:
        """Apply the load and the replicas of this moment."""
        while self._next_load < len(self._times) and self._times[self._next_load] <= at:
            self._load = self._values[self._next_load]
            self._next_load += 1
        while self._readying and self._readying[0][0] <= at:
            ready_at, number = heapq.heappop(self._readying)
            replica = self.replicas.get(number)
            if replica is not None and replica.ready_at == ready_at:
                self._ready.add(number)

    def _record_disturbance(self, at: float) -> None:
        """Record an event that the autoscaler may see, if it observes pods."""
        if not self.service.by_requests:
            heapq.heappush(self._disturbances, at)
            if self._last_step > -math.inf:
                self.next_at = min(self.next_at, self._step_time(at))

    def _next_step(self, quiet: float) -> float:
        """When to decide next: at the end of a quiet time, when the load changes, or at an event of replicas."""
        while self._disturbances and self._disturbances[0] <= self._last_step:
            heapq.heappop(self._disturbances)
        times = [quiet, *self._disturbances[:1]]
        if self._next_load < len(self._times):
            times.append(self._times[self._next_load])
        return self._step_time(min(times))

    def _step_time(self, at: float) -> float:
        """The first step at or after ``at`` that has not been made yet, or the end if that is earlier."""
        if at == math.inf:
            return self.end
        at = max(at, self._last_step + SYNC_SECONDS, self._began)
        # Sums of large times are rounded: a step that is a millionth too late is not the next step.
        return min(self.end, self._began + math.ceil((at - self._began) / SYNC_SECONDS - 1e-6) * SYNC_SECONDS)


def _deletion_order(replica: Replica) -> tuple[bool, float, float, int]:
    """Sort key of the ReplicaSet controller's deletions: pods without a node first, then the last to get ready, then the youngest.

    Source: ``ActivePodsWithRanks`` of ``pkg/controller/controller_utils.go``, without properties that this simulation does not have.
    """
    return (replica.started is not None, -replica.ready_at, -replica.created, -replica.number)
