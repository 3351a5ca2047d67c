"""No policy sees how long a running job will run: shuffling the remaining times changes no decision before they have an effect."""

import random

import pytest
from msgspec.structs import replace
from tests.simulation.policies.peers.recording import QUICK, pools_of
from tests.simulation.pools import GIB

from gpuscaler.simulation.cloud.delays import NO_FAULTS
from gpuscaler.simulation.policies.policies import autoscaler_of
from gpuscaler.simulation.replay import EPOCH, run
from gpuscaler.simulation.traces.traces import Job, Trace
from gpuscaler.simulation.world.meter import Decision, Result

POLICY = pools_of(["g5.xlarge", "g5.12xlarge", "g5.48xlarge"], markets=["spot", "on-demand"])
#: Static knows the trace's peak, and the bound in hindsight the whole trace: they document it and are no autoscalers.
AUTOSCALERS = ("gpuscaler", "karpenter", "cluster-autoscaler")
#: When remaining times are shuffled, in seconds: every seed has decisions soon after, before the first of those jobs ends.
MOMENT = 2100.0


def replayed(jobs: list[Job], name: str) -> Result:
    trace = Trace("drawn", tuple(jobs))
    return run(trace, POLICY, autoscaler=autoscaler_of(name, POLICY, ()), delays=QUICK, faults=NO_FAULTS)


def drawn(seed: int) -> list[Job]:
    draw = random.Random(seed)
    at, jobs = 0.0, []
    for number in range(60):
        at += draw.expovariate(1 / 60.0)
        gpus = draw.choice([0, 1, 1, 1, 2, 4, 8])
        pods = draw.choice([1, 1, 1, 1, 2]) if gpus else 1
        jobs.append(Job(f"j{number}", at, draw.uniform(60.0, 6000.0), pods=pods, gpus=gpus, cpu_milli=1000, memory=GIB))
    return jobs


def with_shuffled_durations(jobs: list[Job], result: Result, moment: float, seed: int) -> tuple[list[Job], float]:
    """The jobs with the remaining durations of those running at ``moment`` permuted, and until when the two cannot be distinguished."""
    began = {wait.pod: wait.seconds for wait in result.waits}
    start = {job.id: job.submit + max(began[f"trace/{name}"] for name in names(job)) for job in jobs}
    # Jobs that end soon keep their time, so that there is a while for decisions.
    running = [job for job in jobs if start[job.id] <= moment and start[job.id] + job.duration >= moment + 900.0]
    left = [start[job.id] + job.duration - moment for job in running]
    random.Random(seed).shuffle(left)
    changed = {job.id: replace(job, duration=moment - start[job.id] + more) for job, more in zip(running, left, strict=True)}
    assert len(running) >= 5
    assert any(changed[job.id].duration != job.duration for job in running)
    return [changed.get(job.id, job) for job in jobs], moment + min(left)


def names(job: Job) -> list[str]:
    return [job.id] if job.pods == 1 else [f"{job.id}#{number}" for number in range(job.pods)]


@pytest.mark.parametrize("name", AUTOSCALERS)
@pytest.mark.parametrize("seed", range(4))
def test_no_decision_depends_on_the_remaining_time_of_running_jobs(name: str, seed: int) -> None:
    jobs = drawn(seed)
    result = replayed(jobs, name)
    other_jobs, until = with_shuffled_durations(jobs, result, MOMENT, seed)
    other = replayed(other_jobs, name)

    def before(result: Result) -> list[Decision]:
        return [decision for decision in result.decisions if decision.at < EPOCH + until]

    assert before(result) == before(other)
    assert any(decision.at > EPOCH + MOMENT for decision in before(result))
    assert result.decisions != other.decisions
