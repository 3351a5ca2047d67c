"""Measurements of a run, and its result."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering
from gpuscaler.planning.plans import Ignored, Unplaced
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.machines import FAILED, NO_CAPACITY, RECLAIMED, CloudMachine, PurchaseAnswer
from gpuscaler.simulation.measures.fleet import Presence
from gpuscaler.simulation.measures.last_quarter import LastQuarter
from gpuscaler.simulation.measures.shares import Share, Shares
from gpuscaler.simulation.measures.waits import ClassWait, Curve, PodWait, Wait, class_of
from gpuscaler.simulation.services import ServiceResult
from gpuscaler.simulation.traces.workload import GPU
from gpuscaler.simulation.world.autoscaler import Purchase
from gpuscaler.simulation.world.queue import Task


class TimelineSample(Struct, frozen=True, gc=False):
    """From ``at`` on: GPUs that pods want, GPUs they run on, GPUs of machines that are paid, and dollars per hour."""

    at: float
    wanted: float
    used: float
    paid: float
    dollars_per_hour: float


class Decision(Struct, frozen=True, gc=False):
    """An action: ``kind`` is "buy", "remove", "refused" or "lost"; ``pods`` is the number of pods it was done for."""

    at: float
    kind: str
    what: str
    why: str
    pods: int = 0


class MachineHours(Struct, frozen=True, gc=False):
    pool: str
    instance_type: str
    market: str
    zone: str
    hours: float
    cost: float
    machines: int


class Failover(Struct, frozen=True, gc=False):
    """Seconds from the first capacity error of a market until another market was asked; None if there was no capacity error."""

    p50: float | None = None
    max: float | None = None


class UnservedReason(Struct, frozen=True, gc=False):
    """Why ``pods`` pods never ran, according to the last plan."""

    pods: int
    reason: str


class Result(Struct, frozen=True, gc=False):
    """The result of a run. Hours and dollars are totals, times seconds since the epoch of the run.

    ``gpu_hours_used`` is finished work, ``lost_gpu_hours`` work that evictions threw away. ``kept`` and ``broken`` count promises: pods
    that ran on the machine they were planned for, and others. ``reclaimed`` and ``failed`` count machines that went by themselves,
    ``capacity_errors`` refusals for lack of capacity. ``plans`` is how often the policy was asked.

    ``gpu_hours_held`` is how long pods held GPUs, lost work and image pulls included; None for a bound. ``waits`` has every pod, with
    summaries beside it. ``users``, ``namespaces`` and ``classes`` divide the cost; ``fleet`` is machines over time, ``last_quarter`` the
    end of the trace by itself.
    """

    policy: str
    seed: int
    cost: float
    lower_bound: float
    gpu_hours_used: float
    gpu_hours_paid: float
    wait: Wait
    served: int
    unserved: int
    unserved_reasons: tuple[UnservedReason, ...]
    evictions: int
    lost_gpu_hours: float
    machine_hours: tuple[MachineHours, ...]
    kept: int
    broken: int
    failover: Failover
    reclaimed: int
    failed: int
    capacity_errors: int
    plans: int
    began: float
    ended: float
    services: tuple[ServiceResult, ...]
    timeline: tuple[TimelineSample, ...]
    decisions: tuple[Decision, ...]
    gpu_hours_held: float | None = None
    waits: tuple[PodWait, ...] = ()
    wait_by_class: tuple[ClassWait, ...] = ()
    wait_curve: Curve = Curve()
    users: tuple[Share, ...] = ()
    namespaces: tuple[Share, ...] = ()
    classes: tuple[Share, ...] = ()
    fleet: tuple[Presence, ...] = ()
    last_quarter: LastQuarter | None = None


class Meter:
    """Collects the statistics of one simulation run."""

    def __init__(self) -> None:
        self.waits: list[PodWait] = []
        self.shares = Shares()
        self.hours: dict[str, float] = defaultdict(float)
        self.specs: dict[str, PodSpec] = {}
        self.used_hours = 0.0
        self.lost_hours = 0.0
        self.evictions = 0
        self.kept = 0
        self.broken = 0
        self.plans = 0
        self.reclaimed = 0
        self.failed = 0
        self.capacity_errors = 0
        self.failovers: list[float] = []
        self.decisions: list[Decision] = []
        self.timeline: list[TimelineSample] = []
        self._wanted = 0.0
        self._used = 0.0
        self._paid = 0.0
        #: Markets that refused purchases for no particular pods, and the time of the first refusal, until another market is asked.
        self._dry: set[str] = set()
        self._dry_since = 0.0

    def record_arrival(self, task: Task) -> None:
        self._wanted += task.member.gpus

    def record_start(self, task: Task) -> None:
        self._used += task.member.gpus
        if task.first_start is None:
            self._record_wait(task, task.working_from - task.since, ran=True)

    def record_end(self, task: Task, now: float) -> None:
        """Record that a pod has ended, running or not; counts all its work, however often it started."""
        self._wanted -= task.member.gpus
        if task.first_start is None:
            self._record_wait(task, now - task.since, ran=False)
        if task.started is None:
            return
        hours = (task.done + task.worked(now)) / 3600.0
        self._used -= task.member.gpus
        self.used_hours += hours * task.member.gpus
        digest = task.member.spec.digest
        self.hours[digest] += hours
        self.specs[digest] = task.member.spec

    def record_unbinding(self, task: Task, offering: Offering, *, cost: float, now: float) -> None:
        """Record that a pod leaves a machine of ``offering``, which cost ``cost`` dollars while the pod was bound to it."""
        if task.started is not None:
            self.shares.add(task.member, offering, hours=(now - task.started) / 3600.0, cost=cost)

    def all_waits(self, unserved: Iterable[Task], ended: float) -> tuple[PodWait, ...]:
        """The waits of all pods, including those that had not run when the run ended."""
        for task in unserved:
            self._record_wait(task, ended - task.since, ran=False)
        return tuple(self.waits)

    def _record_wait(self, task: Task, seconds: float, *, ran: bool) -> None:
        self.waits.append(PodWait(task.key, class_of(task.member.gpus, task.gang), seconds, ran, task.since))

    def record_eviction(self, task: Task, *, lost_seconds: float) -> None:
        """Record that a running pod was evicted and lost ``lost_seconds`` seconds of its work."""
        self._used -= task.member.gpus
        self.lost_hours += lost_seconds / 3600.0 * task.member.gpus
        self.evictions += 1

    def record_purchase(self, purchase: Purchase, now: float) -> None:
        """Record a purchase that names no pods. It ends the current failover if it tries a market that has not refused."""
        if any(intent.pods for intent in purchase.intents):
            return
        if self._dry and not {market for _, market, _, _ in purchase.offerings} & self._dry:
            self.failovers.append(now - self._dry_since)
            self._dry.clear()

    def record_refusals(self, answer: PurchaseAnswer, now: float) -> None:
        for refusal in answer.refusals:
            self.record_decision(now, "refused", f"{refusal.missing} x {'/'.join(refusal.offering)}", refusal.detail)
            if refusal.kind == NO_CAPACITY:
                self.capacity_errors += 1
                if not self._dry:
                    self._dry_since = now
                self._dry.add(refusal.offering.market)

    def record_grant(self, purchase: Purchase, machines: Sequence[CloudMachine], now: float) -> None:
        """Record machines granted to a purchase; a market that grants is not dry."""
        groups: dict[OfferingKey, int] = defaultdict(int)
        for machine in machines:
            groups[machine.offering.key] += 1
            self._paid += gpus_of(machine.offering)
            self._dry.discard(machine.offering.market)
        pods = sum(len(intent.pods) for intent in purchase.machines[: len(machines)])
        for key, count in groups.items():
            self.record_decision(now, "buy", f"{count} x {'/'.join(key)}", purchase.why, pods)

    def record_start_machine(self, machine: CloudMachine) -> None:
        """Record a machine that existed before the run."""
        self._paid += gpus_of(machine.offering)

    def record_loss(self, machine: CloudMachine, why: str, now: float) -> None:
        self.reclaimed += why == RECLAIMED
        self.failed += why == FAILED
        self.record_decision(
            now, "lost", f"{machine.id}, {machine.offering.instance_type} of {machine.offering.pool}", f"{why} by the cloud"
        )

    def record_machine_end(self, machine: CloudMachine) -> None:
        self._paid -= gpus_of(machine.offering)

    def record_decision(self, now: float, kind: str, what: str, why: str, pods: int = 0) -> None:
        self.decisions.append(Decision(now, kind, what, why, pods))

    def sample(self, now: float, dollars_per_hour: float) -> None:
        """Record the state after the events at ``now``."""
        # Sums of fractions drift by rounding; a millionth of a GPU is negligible.
        values = (round(self._wanted, 6), round(self._used, 6), self._paid, round(dollars_per_hour, 6))
        if self.timeline:
            last = self.timeline[-1]
            if (last.wanted, last.used, last.paid, last.dollars_per_hour) == values:
                return
        self.timeline.append(TimelineSample(now, *values))


def unserved_reasons(
    tasks: Iterable[Task], unplaced: Iterable[Unplaced], ignored: Iterable[Ignored], *, serves: Callable[[PodSpec], bool]
) -> tuple[UnservedReason, ...]:
    """The reasons of pods that never ran, according to the last plan, most frequent first.

    Not every policy gives reasons; ``serves`` says whether any machine could hold one pod of a specification.
    """
    reasons = {entry.pod: entry.reason for entry in ignored}
    for unplaced_pod in unplaced:
        lines = [f"pool {reason.pool}: {reason.excluded_by}: {reason.detail}" for reason in unplaced_pod.reasons]
        reasons[unplaced_pod.pod] = "; ".join(lines) or "there is no pool"
    counts: dict[str, int] = defaultdict(int)
    able: dict[str, bool] = {}
    for task in tasks:
        if task.key not in reasons and task.digest not in able:
            able[task.digest] = serves(task.member.spec)
        unsaid = "still waiting when the run ended" if able.get(task.digest) else "no machine of any pool could hold it"
        counts[reasons.get(task.key, unsaid)] += 1
    return tuple(UnservedReason(pods, reason) for reason, pods in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def gpus_of(offering: Offering) -> int:
    return offering.allocatable.get(GPU, 0)


def failover_of(seconds: list[float]) -> Failover:
    return Failover(float(np.percentile(seconds, 50)), max(seconds)) if seconds else Failover()


def machine_hours(cloud: SimulatedCloud, ended: float) -> tuple[MachineHours, ...]:
    """Billed hours and cost of every offering, most expensive first."""
    groups: Mapping[OfferingKey, list[CloudMachine]] = defaultdict(list)
    for machine in cloud.history():
        groups[machine.offering.key].append(machine)
    rows = [
        MachineHours(
            pool=pool,
            instance_type=instance_type,
            market=market,
            zone=zone,
            hours=sum(cloud.billed_seconds(machine, ended) for machine in group) / 3600.0,
            cost=sum(cloud.cost(machine, ended) for machine in group),
            machines=len(group),
        )
        for (pool, market, instance_type, zone), group in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.cost, row.pool, row.instance_type, row.market, row.zone)))


def gpu_hours_paid(cloud: SimulatedCloud, ended: float) -> float:
    return sum(gpus_of(machine.offering) * cloud.billed_seconds(machine, ended) for machine in cloud.history()) / 3600.0
