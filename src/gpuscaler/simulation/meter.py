"""What a run is measured by, and its result."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.clouds.simulated import CloudMachine
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering
from gpuscaler.planning.plans import Ignored, Unplaced
from gpuscaler.simulation.queue import Task
from gpuscaler.simulation.workload import GPU


class Sample(Struct, frozen=True, gc=False):
    """From ``at`` on: GPUs that pods want, GPUs they run on, GPUs of machines that are paid, and dollars per hour."""

    at: float
    wanted: float
    used: float
    paid: int
    dollars_per_hour: float


class Decision(Struct, frozen=True, gc=False):
    """Something the policy did: ``kind`` is "buy", "remove" or "refused"; ``pods`` is how many pods it was done for."""

    at: float
    kind: str
    what: str
    why: str
    pods: int = 0


class Wait(Struct, frozen=True, gc=False):
    """Seconds from submission to running, over the pods that ran; None where none did."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class MachineHours(Struct, frozen=True, gc=False):
    pool: str
    instance_type: str
    market: str
    zone: str
    hours: float
    cost: float
    machines: int


class UnservedReason(Struct, frozen=True, gc=False):
    """Why ``pods`` pods never ran, as the last plan tells it."""

    pods: int
    reason: str


class Result(Struct, frozen=True, gc=False):
    """What came out of a run. Hours and dollars are totals, times seconds since the epoch of the run.

    ``gpu_hours_used`` is work that was finished, ``lost_gpu_hours`` work that evictions threw away. ``kept`` and ``broken`` count
    promises: pods that ran on the machine they were planned for, and others. ``plans`` is how often the policy was asked.
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
    plans: int
    began: float
    ended: float
    timeline: tuple[Sample, ...]
    decisions: tuple[Decision, ...]


class Meter:
    """Counts while a run goes on."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.hours: dict[str, float] = defaultdict(float)
        self.specs: dict[str, PodSpec] = {}
        self.used_hours = 0.0
        self.lost_hours = 0.0
        self.evictions = 0
        self.kept = 0
        self.broken = 0
        self.plans = 0
        self.decisions: list[Decision] = []
        self.timeline: list[Sample] = []
        self._wanted = 0.0
        self._used = 0.0
        self._paid = 0
        self._rate = 0.0

    def arrived(self, task: Task) -> None:
        self._wanted += task.member.gpus

    def began(self, task: Task, now: float) -> None:
        self._used += task.member.gpus
        if task.first_start is None:
            self.waits.append(now - task.since)

    def finished(self, task: Task, hours: float) -> None:
        self._wanted -= task.member.gpus
        self._used -= task.member.gpus
        self.used_hours += hours * task.member.gpus
        digest = task.member.spec.digest
        self.hours[digest] += hours
        self.specs[digest] = task.member.spec

    def evicted(self, task: Task, hours: float) -> None:
        self._used -= task.member.gpus
        self.lost_hours += hours * task.member.gpus
        self.evictions += 1

    def bought(self, machine: CloudMachine) -> None:
        self._paid += gpus_of(machine.offering)
        self._rate += machine.offering.price

    def gave_back(self, machine: CloudMachine) -> None:
        self._paid -= gpus_of(machine.offering)
        self._rate -= machine.offering.price

    def decided(self, now: float, kind: str, what: str, why: str, pods: int = 0) -> None:
        self.decisions.append(Decision(now, kind, what, why, pods))

    def sample(self, now: float) -> None:
        """Note how things stand at the end of what happened at ``now``."""
        # Sums of fractions drift by rounding; a millionth of a GPU is nothing.
        sample = Sample(now, round(self._wanted, 6), round(self._used, 6), self._paid, round(self._rate, 6))
        if not self.timeline or replace(self.timeline[-1], at=now) != sample:
            self.timeline.append(sample)


def unserved_reasons(tasks: Iterable[Task], unplaced: Iterable[Unplaced], ignored: Iterable[Ignored]) -> tuple[UnservedReason, ...]:
    """The reasons of pods that never ran, as the last plan told them, most frequent first."""
    reasons = {one.pod: one.reason for one in ignored}
    for one in unplaced:
        told = [f"pool {reason.pool}: {reason.excluded_by}: {reason.detail}" for reason in one.reasons]
        reasons[one.pod] = "; ".join(told) or "there is no pool"
    counts: dict[str, int] = defaultdict(int)
    for task in tasks:
        counts[reasons.get(task.key, "not planned when the run ended")] += 1
    return tuple(UnservedReason(pods, reason) for reason, pods in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def gpus_of(offering: Offering) -> int:
    return offering.allocatable.get(GPU, 0)


def wait_of(waits: list[float]) -> Wait:
    """Mean and percentiles, the latter by linear interpolation."""
    if not waits:
        return Wait()
    p50, p95, p99 = np.percentile(waits, [50, 95, 99]).tolist()
    return Wait(float(np.mean(waits)), p50, p95, p99)


def machine_hours(machines: Iterable[CloudMachine], ended: float) -> tuple[MachineHours, ...]:
    """Billed hours and cost of every offering, dearest first."""
    groups: Mapping[tuple[str, str, str, str], list[CloudMachine]] = defaultdict(list)
    for machine in machines:
        groups[machine.offering.key].append(machine)
    rows = [
        MachineHours(
            pool=pool,
            instance_type=instance_type,
            market=market,
            zone=zone,
            hours=sum(machine.billed_seconds(ended) for machine in group) / 3600.0,
            cost=sum(machine.cost(ended) for machine in group),
            machines=len(group),
        )
        for (pool, market, instance_type, zone), group in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.cost, row.pool, row.instance_type, row.market, row.zone)))


def gpu_hours_paid(machines: Iterable[CloudMachine], ended: float) -> float:
    return sum(gpus_of(machine.offering) * machine.billed_seconds(ended) for machine in machines) / 3600.0
