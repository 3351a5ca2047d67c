"""A replay: one calendar of events in virtual time, and an autoscaler that is called at the times it asks for."""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.delays import Delays, Faults
from gpuscaler.simulation.cloud.machines import ANSWERED, LOST, NOTICE, REGISTERED, CloudEvent
from gpuscaler.simulation.cloud.markets import Markets
from gpuscaler.simulation.measures.bound import lower_bound, serves
from gpuscaler.simulation.measures.fleet import machines_over_time
from gpuscaler.simulation.measures.last_quarter import last_quarter
from gpuscaler.simulation.measures.waits import by_class, curve_of, wait_of
from gpuscaler.simulation.policies.policies import autoscaler_of
from gpuscaler.simulation.services import LoadFile, Services, services_of
from gpuscaler.simulation.traces.traces import Trace
from gpuscaler.simulation.traces.workload import Member, Shaping, members, with_gpu_milli
from gpuscaler.simulation.world.acting import carry_out, finish_drains
from gpuscaler.simulation.world.autoscaler import Autoscaler, InterruptionNotice, Moment
from gpuscaler.simulation.world.meter import Result, failover_of, gpu_hours_paid, machine_hours, unserved_reasons
from gpuscaler.simulation.world.queue import Task
from gpuscaler.simulation.world.scheduler import LEAST_ALLOCATED
from gpuscaler.simulation.world.view import WorldView
from gpuscaler.simulation.world.world import World

#: The moment of a trace's second 0: Monday 2024-01-01 00:00 UTC. Schedules of budgets need a calendar.
EPOCH = 1_704_067_200.0
#: Once nothing runs, arrives or boots, a replay continues while the autoscaler has something to do, at most a day.
LINGER_SECONDS = 86_400.0
#: An autoscaler that decides this often at one moment would never let time pass.
MOST_DECISIONS = 1000
#: Default interval at which pods save their work: once an hour.
CHECKPOINT_SECONDS = 3600.0


class ScheduledEnd(NamedTuple):
    """The scheduled end of a pod's work, unless it is evicted before. ``order`` makes the calendar's order total."""

    at: float
    order: int
    task: Task
    attempt: int


def run(
    trace: Trace,
    policy: Policy,
    *,
    name: str = "gpuscaler",
    autoscaler: Autoscaler | None = None,
    shaping: Shaping | None = None,
    scoring: str = LEAST_ALLOCATED,
    seed: int = 0,
    delays: Delays | None = None,
    faults: Faults | None = None,
    markets: Markets | None = None,
    checkpoint: float = CHECKPOINT_SECONDS,
    steering: bool = True,
    load: LoadFile | None = None,
    start: Mapping[OfferingKey, int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Replay ``trace`` on the pools of ``policy`` and measure what it cost.

    ``autoscaler`` replaces the policy of that ``name``. Without ``steering``, gpuscaler's machines open to all pods at once. ``scoring`` is
    kube-scheduler's scoring strategy; a pod saves its work every ``checkpoint`` seconds (0: never); ``load`` drives services beside the
    trace, its second 0 being the trace's first submission; ``start`` are machines that exist when the run begins, by offering; ``progress``
    is called with the number of pods of the trace that have arrived. Raises
    :class:`~gpuscaler.simulation.traces.workload.UnmappedModelsError` if the GPU models' mapping is incomplete.
    """
    shaping = shaping or Shaping()
    if trace.fractional:
        policy = with_gpu_milli(policy)
    cloud = SimulatedCloud(policy.pools, seed=seed, delays=delays, faults=Faults() if faults is None else faults, markets=markets)
    pods = members(trace, shaping)
    autoscaler = autoscaler or autoscaler_of(name, policy, pods, steering=steering)
    world = World(
        policy, cloud, scoring=scoring, steers=autoscaler.steers, soft_taint_shares=autoscaler.soft_taint_shares, checkpoint=checkpoint
    )
    services_of_load = services_of(load, seed=seed)[0] if load is not None else ()
    began = float(math.ceil(EPOCH + pods[0].submit))
    services = Services(services_of_load, began=began, seed=seed, shaping=shaping, fractional=trace.fractional)
    replay = _Replay(pods, world, autoscaler, services, progress)
    replay.add_start_machines(start or {})
    replay.run_to_end()
    return replay.result(policy, seed)


class _Replay:
    def __init__(
        self,
        pods: tuple[Member, ...],
        world: World,
        autoscaler: Autoscaler,
        services: Services,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.world = world
        self._services = services
        self.began = EPOCH + pods[0].submit
        self.now = self.began
        self.ended = self.began
        self._pods = pods
        self._arrived = 0
        self._ends: list[ScheduledEnd] = []
        self._autoscaler = autoscaler
        self._view = WorldView(world, moves=services.next_at < math.inf or any(pod.movable for pod in pods))
        self._progress = progress
        self._order = 0
        #: When something was last under way: a pod running or to come, a machine or an answer on its way.
        self._alive_at = self.began

    def add_start_machines(self, start: Mapping[OfferingKey, int]) -> None:
        """Add the machines that exist at the beginning: those of ``start``, and those the autoscaler wants beyond them."""
        self.world.moment = Moment(self.began)
        machines = Counter(start) | Counter(dict(self._autoscaler.start()))
        for key, count in sorted(machines.items()):
            for _ in range(count):
                self.world.start(key, self.began)
        if machines:
            # Code that follows nodes by events must see these arrive too.
            moment = self.world.moment
            moment.registered += moment.idled
            moment.opened += moment.idled
            self._report()

    def run_to_end(self) -> None:
        """Run until nothing is left that could change anything."""
        while (at := self._next()) is not None:
            self.now = at
            self._step()

    def result(self, policy: Policy, seed: int) -> Result:
        world, meter = self.world, self.world.meter
        rows = machine_hours(world.cloud, self.ended)
        offerings = list(policy.offerings.values())
        never = [task for task in world.tasks.values() if task.first_start is None]
        waits = meter.all_waits(never, self.ended)
        cost, paid = sum(row.cost for row in rows), gpu_hours_paid(world.cloud, self.ended)
        cheapest = [world.cloud.markets.cheapest(offering) for offering in offerings]
        return Result(
            policy=self._autoscaler.name,
            seed=seed,
            cost=cost,
            lower_bound=lower_bound([(meter.specs[digest], hours) for digest, hours in sorted(meter.hours.items())], cheapest),
            gpu_hours_used=meter.used_hours,
            gpu_hours_paid=paid,
            wait=wait_of(waits),
            served=sum(pod_wait.ran for pod_wait in waits),
            unserved=len(never),
            unserved_reasons=unserved_reasons(
                never, world.refusals, world.ignored, serves=lambda spec: any(serves(offering, spec) for offering in offerings)
            ),
            evictions=meter.evictions,
            lost_gpu_hours=meter.lost_hours,
            machine_hours=rows,
            kept=meter.kept,
            broken=meter.broken,
            failover=failover_of(meter.failovers),
            reclaimed=meter.reclaimed,
            failed=meter.failed,
            capacity_errors=meter.capacity_errors,
            plans=meter.plans,
            began=self.began,
            ended=self.ended,
            services=self._services.results(),
            timeline=tuple(meter.timeline),
            decisions=tuple(meter.decisions),
            gpu_hours_held=meter.shares.gpu_hours,
            waits=waits,
            wait_by_class=by_class(waits),
            wait_curve=curve_of(waits),
            users=meter.shares.by_user(cost, paid),
            namespaces=meter.shares.by_namespace(cost, paid),
            classes=meter.shares.by_class(cost, paid),
            fleet=machines_over_time(world.cloud.history(), began=self.began, ended=self.ended),
            last_quarter=last_quarter(
                world.cloud, waits, began=self.began, last_submission=EPOCH + self._pods[-1].submit, ended=self.ended
            ),
        )

    def _next(self) -> float | None:
        """Return the time of the next event; None when the replay is over."""
        while self._ends and self._ends[0].task.attempt != self._ends[0].attempt:
            heapq.heappop(self._ends)
        arrival = EPOCH + self._pods[self._arrived].submit if self._arrived < len(self._pods) else None
        end = self._ends[0].at if self._ends else None
        cloud, asks = self.world.cloud.next_event(), self._autoscaler.decide_at
        service = self._services.next_at if self._services.next_at < math.inf else None
        at = min((time for time in (arrival, end, cloud, asks, service) if time is not None), default=None)
        if arrival is not None or end is not None or service is not None or self.world.cloud.busy:
            self._alive_at = self.now if at is None else at
        elif at is not None and (at > self._alive_at + LINGER_SECONDS or (asks is None and not self.world.waiting.has_servable_pods)):
            return None
        return at

    def _step(self) -> None:
        """Process all events of this moment, and then the decisions about them."""
        world, now = self.world, self.now
        world.moment = Moment(now)
        while self._ends and self._ends[0].at <= now:
            end = heapq.heappop(self._ends)
            if end.task.attempt == end.attempt and end.task.started is not None:
                world.finish(end.task, now)
        for event in world.cloud.advance(now):
            self._process_cloud_event(event)
        changes = self._services.advance(now)
        for key in changes.remove:
            world.finish(world.tasks[key], now)
        if world.moment.registered or world.moment.lost or any(entry.ready for entry in world.entries.values()):
            world.open_ready(now)
        new = [world.arrive(member, now) for member in changes.add]
        while self._arrived < len(self._pods) and EPOCH + self._pods[self._arrived].submit <= now:
            new.append(world.arrive(self._pods[self._arrived], now))
            self._arrived += 1
        self._bind(new)
        self._report()
        for _ in range(MOST_DECISIONS):
            asks = self._autoscaler.decide_at
            if asks is None or asks > now:
                break
            self._decide_and_act()
        else:
            raise RuntimeError(f"{self._autoscaler.name} keeps deciding at {now:.3f} and never lets time pass")
        if new and self._progress is not None:
            self._progress(self._arrived)

    def _process_cloud_event(self, event: CloudEvent) -> None:
        world = self.world
        if event.kind == ANSWERED and event.answer is not None:
            world.process_answer(event.answer, self.now)
        elif event.machine is None:
            raise AssertionError(f"{event.kind} names no machine")
        elif event.kind == REGISTERED:
            world.register_node(event.machine, self.now)
        elif event.kind == NOTICE:
            world.moment.notices.append(InterruptionNotice(event.machine, event.gone_at))
        elif event.kind == LOST:
            world.lose_machine(event.machine, event.why, self.now)
        else:
            world.mark_ready(event.machine)

    def _bind(self, new: list[Task]) -> None:
        """Let the scheduler react: consider all pending pods if room has come, otherwise only the new pods."""
        world, moment = self.world, self.world.moment
        if moment.opened:
            finish_drains(world, self.now)
            world.waiting.forget_refusals()
        if moment.finished or moment.opened or moment.evicted or moment.lost or (moment.registered and not world.steers):
            world.schedule(None, self.now)
        elif new:
            world.schedule(new, self.now)
        world.settle_promises()

    def _decide_and_act(self) -> None:
        """Ask the autoscaler, carry out its decisions, and report the consequences to it."""
        world = self.world
        world.meter.plans += 1
        world.moment = Moment(self.now)
        if carry_out(self._autoscaler.decide(self._view, self.now), world, self.now):
            world.open_ready(self.now)
            world.schedule(None, self.now)
        self._report(decided=True)

    def _report(self, *, decided: bool = False) -> None:
        """Report the events to the autoscaler, put what follows from them on the calendar, and measure."""
        world, moment = self.world, self.world.moment
        for key in moment.evicted:
            if self._services.owns(key):
                self._services.record_stop(key, self.now)
        for task in world.started:
            if task.started is None:
                continue
            if self._services.owns(task.key):
                self._services.record_start(task.key, task.working_from)
            else:
                self._order += 1
                heapq.heappush(self._ends, ScheduledEnd(task.ends_at, self._order, task, task.attempt))
        changed = any((moment.arrived, moment.finished, moment.evicted, moment.answers, moment.registered, moment.opened, moment.idled))
        changed |= any((moment.notices, moment.lost, moment.removed, moment.broken, world.started))
        world.started.clear()
        if changed or decided:
            self._autoscaler.observe(moment, self._view)
        if changed:
            self.ended = self.now
            world.meter.sample(self.now, world.cloud.dollars_per_hour(self.now))
