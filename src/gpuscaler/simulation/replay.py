"""A replay: one calendar of events in virtual time, and a policy that is asked when something it could act on has changed."""

import heapq
from collections.abc import Callable
from typing import NamedTuple

from gpuscaler.clouds.delays import Delays
from gpuscaler.clouds.simulated import REGISTERED, SimulatedCloud
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.acting import carry_out, finish_drains
from gpuscaler.simulation.bound import lower_bound
from gpuscaler.simulation.meter import Result, gpu_hours_paid, machine_hours, unserved_reasons, wait_of
from gpuscaler.simulation.policies import POLICIES, Decide
from gpuscaler.simulation.queue import Task
from gpuscaler.simulation.scheduler import LEAST_ALLOCATED
from gpuscaler.simulation.traces import Trace
from gpuscaler.simulation.workload import Member, Shaping, members, with_gpu_milli
from gpuscaler.simulation.world import World

#: The moment that a trace's second 0 is: Monday 2024-01-01 00:00 UTC. Schedules of budgets need a calendar.
EPOCH = 1_704_067_200.0
#: Changes are collected this long before the policy is asked, as the controller does.
DEBOUNCE_SECONDS = 0.6
#: A policy that leaves something waiting is asked again after a minute, then ever more rarely while it finds nothing to do.
RESYNC_FIRST, RESYNC_LAST = 60.0, 6 * 3600.0

#: Kinds of events, in the order in which those of one moment are handled: room is freed before it is asked for.
END, CLOUD, ARRIVE, IDLE, WAKE = range(5)


class Event(NamedTuple):
    """Something that will happen. ``order`` makes the calendar's order total; the rest is what the kind needs."""

    at: float
    kind: int
    order: int
    task: Task | None = None
    member: Member | None = None
    attempt: int = 0
    node: str = ""
    since: float = 0.0


def run(
    trace: Trace,
    policy: Policy,
    *,
    name: str = "gpuscaler",
    decide: Decide | None = None,
    shaping: Shaping | None = None,
    scoring: str = LEAST_ALLOCATED,
    seed: int = 0,
    delays: Delays | None = None,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Replay ``trace`` on the pools of ``policy`` and measure what it cost.

    ``decide`` stands in for the policy of that ``name``; ``scoring`` is how kube-scheduler is configured; ``progress`` is told how many
    pods have come so far. Raises :class:`~gpuscaler.simulation.workload.UnmappedModelsError` where the GPU models' mapping is incomplete.
    """
    shaping = shaping or Shaping()
    if trace.fractional:
        policy = with_gpu_milli(policy)
    cloud = SimulatedCloud(policy.pools, seed=seed, delays=delays)
    world = World(policy, cloud, scoring=scoring)
    replay = _Replay(members(trace, shaping), policy, world, decide or POLICIES[name](policy), progress)
    replay.go()
    return replay.result(name, seed)


class _Replay:
    def __init__(
        self, pods: tuple[Member, ...], policy: Policy, world: World, decide: Decide, progress: Callable[[int], None] | None
    ) -> None:
        self.world = world
        self.began = EPOCH + pods[0].submit
        self.now = self.began
        self.ended = self.began
        self._policy = policy
        self._decide = decide
        self._progress = progress
        self._idle_after = {pool.name: pool.idle_after for pool in policy.pools}
        # Already in order, and therefore a heap.
        self._calendar = [Event(EPOCH + pod.submit, ARRIVE, number, member=pod) for number, pod in enumerate(pods)]
        self._order = len(pods)
        #: Events in the calendar that change the world by themselves.
        self._alive = len(pods)
        self._arrived = 0
        self._plan_at: float | None = None
        self._resync = RESYNC_FIRST
        self._idle_seen: dict[str, float] = {}

    def go(self) -> None:
        """Until nothing is left that could change anything."""
        self._plan_by(self.began)
        while self._calendar:
            self.now = self._calendar[0].at
            self._step()

    def result(self, name: str, seed: int) -> Result:
        meter, machines = self.world.meter, self.world.cloud.history()
        rows = machine_hours(machines, self.ended)
        offerings = [offering for pool in self._policy.pools for offering in pool.offerings]
        return Result(
            policy=name,
            seed=seed,
            cost=sum(row.cost for row in rows),
            lower_bound=lower_bound([(meter.specs[digest], hours) for digest, hours in sorted(meter.hours.items())], offerings),
            gpu_hours_used=meter.used_hours,
            gpu_hours_paid=gpu_hours_paid(machines, self.ended),
            wait=wait_of(meter.waits),
            served=len(meter.waits),
            unserved=len(self.world.tasks),
            unserved_reasons=unserved_reasons(self.world.tasks.values(), self.world.refusals, self.world.ignored),
            evictions=meter.evictions,
            lost_gpu_hours=meter.lost_hours,
            machine_hours=rows,
            kept=meter.kept,
            broken=meter.broken,
            plans=meter.plans,
            began=self.began,
            ended=self.ended,
            timeline=tuple(meter.timeline),
            decisions=tuple(meter.decisions),
        )

    def _step(self) -> None:
        """Everything that happens at this moment."""
        world = self.world
        new: list[Task] = []
        freed = changed = False
        while self._calendar and self._calendar[0].at == self.now:
            event = heapq.heappop(self._calendar)
            self._alive -= event.kind <= ARRIVE
            if event.kind == ARRIVE and event.member is not None:
                new.append(world.arrive(event.member, self.now))
            elif event.kind == END and event.task is not None:
                freed |= self._end(event.task, event.attempt)
            elif event.kind == CLOUD:
                freed |= self._cloud()
                changed = True
            elif event.kind == IDLE and world.idle_since.get(event.node) == event.since:
                self._plan_by(self.now)
        if freed or new:
            changed = True
            world.schedule(None if freed else new, self.now)
            if world.waiting.promising:
                self._plan_by(self.now + DEBOUNCE_SECONDS)
        if self._plan_at is not None and self._plan_at <= self.now:
            changed |= self._ask()
        if changed:
            self._settle(len(new))

    def _settle(self, new: int) -> None:
        """Put on the calendar what follows from what happened, and measure."""
        world = self.world
        for task in world.started:
            if task.started is not None:
                self._put(Event(task.started + task.member.duration, END, 0, task=task, attempt=task.attempt))
        world.started.clear()
        for node, since in world.idle_since.items():
            if self._idle_seen.get(node) != since:
                self._idle_seen[node] = since
                idle_after = self._idle_after[world.cloud.machine(node).offering.pool]
                # A moment later: sums of times are rounded, and a node that is idle a microsecond too short would stay.
                self._put(Event(since + idle_after + 0.001, IDLE, 0, node=node, since=since))
        self.ended = self.now
        world.meter.sample(self.now)
        self._arrived += new
        if new and self._progress is not None:
            self._progress(self._arrived)

    def _end(self, task: Task, attempt: int) -> bool:
        """A pod has done its work, unless it was evicted since this end was put on the calendar."""
        if task.started is None or task.attempt != attempt:
            return False
        self.world.finish(task, self.now)
        return True

    def _cloud(self) -> bool:
        """Let the cloud come to now; returns whether machines opened."""
        world = self.world
        for event in world.cloud.advance(self.now):
            if event.state == REGISTERED:
                world.registered(event.machine)
            else:
                world.visible(event.machine)
        if not world.open_ready(self.now):
            return False
        finish_drains(world, self.now)
        world.waiting.forget()
        return True

    def _ask(self) -> bool:
        """Ask the policy and do what it says; returns whether it did anything."""
        world = self.world
        self._plan_at = None
        world.meter.plans += 1
        cluster, state = world.picture(self.now)
        known, broken, given_back = len(world.ledger), world.meter.broken, world.given_back
        acted = carry_out(self._decide(cluster, state, self.now), world, self.now, number=world.meter.plans)
        for entry in list(world.ledger.values())[known:]:
            for at in (entry.machine.registered_at, entry.machine.visible_at):
                self._put(Event(at, CLOUD, 0))
        if acted:
            self._resync = RESYNC_FIRST
            world.schedule(None, self.now)
        if world.given_back > given_back:
            world.waiting.forget()
        if world.meter.broken > broken or (world.given_back > given_back and world.waiting.promising):
            self._plan_by(self.now + DEBOUNCE_SECONDS)
        self._ask_again()
        return acted

    def _ask_again(self) -> None:
        """While something waits that time alone could help, ask again, ever more rarely; not for ever once all else is over."""
        if not self.world.waiting.hopeful and not self._overstaying():
            return
        if self._alive or self._resync < RESYNC_LAST:
            self._plan_by(self.now + self._resync)
            self._resync = min(2 * self._resync, RESYNC_LAST)

    def _overstaying(self) -> bool:
        """Whether a node is idle for longer than its pool allows."""
        world = self.world
        return any(since + self._idle_after[world.cloud.machine(node).offering.pool] < self.now for node, since in world.idle_since.items())

    def _plan_by(self, at: float) -> None:
        if self._plan_at is None or at < self._plan_at:
            self._plan_at = at
            if at > self.now:
                self._put(Event(at, WAKE, 0))

    def _put(self, event: Event) -> None:
        self._order += 1
        self._alive += event.kind <= ARRIVE
        heapq.heappush(self._calendar, event._replace(order=self._order))
