"""Peers that move pods do not know how long the pods will run: other run times change no decision before they have an effect."""

import random

import pytest
from msgspec.structs import replace
from tests.simulation.policies.peers.recording import QUICK, pools_of
from tests.simulation.pools import GIB

from gpuscaler.simulation.cloud.delays import NO_FAULTS
from gpuscaler.simulation.policies.policies import autoscaler_of
from gpuscaler.simulation.replay import EPOCH, run
from gpuscaler.simulation.traces.traces import Job, Trace
from gpuscaler.simulation.traces.workload import Shaping
from gpuscaler.simulation.world.meter import Result

POLICY = pools_of(["g5.xlarge", "g5.12xlarge", "g5.48xlarge"])
UNTIL = 6000.0
POLICIES = (
    "karpenter",
    "karpenter(consolidation_policy=Balanced,consolidate_after=60.0)",
    "cluster-autoscaler(scale_down_gpu_utilization_threshold=1.0,scale_down_unneeded_time=120.0,scale_down_delay_after_add=10.0)",
)


def drawn(seed: int) -> list[Job]:
    draw = random.Random(seed)
    at, jobs = 0.0, []
    for number in range(80):
        at += draw.expovariate(1 / 70.0)
        gpus = draw.choice([1, 1, 1, 2, 4])
        pods = draw.choice([1, 1, 1, 1, 2])
        duration = draw.choice([300.0, 900.0, 20000.0]) * draw.uniform(0.7, 1.3)
        jobs.append(Job(f"j{number}", at, duration, pods=pods, gpus=gpus, cpu_milli=1000, memory=GIB))
    return jobs


def replayed(jobs: list[Job], name: str) -> Result:
    autoscaler = autoscaler_of(name, POLICY, ())
    return run(
        Trace("drawn", tuple(jobs)), POLICY, autoscaler=autoscaler, shaping=Shaping(restart_cost=60.0), delays=QUICK, faults=NO_FAULTS
    )


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", [0, 2])
def test_no_move_depends_on_the_remaining_time_of_pods(name: str, seed: int) -> None:
    jobs = drawn(seed)
    draw = random.Random(seed)
    # Pods that cannot have ended by then, wherever they ran, may end at any time after it.
    others = [
        replace(job, duration=UNTIL - job.submit + draw.uniform(0.0, 30000.0)) if job.submit + job.duration > UNTIL else job for job in jobs
    ]
    first, other = replayed(jobs, name), replayed(others, name)
    before = [[decision for decision in result.decisions if decision.at < EPOCH + UNTIL] for result in (first, other)]
    assert before[0] == before[1]
    assert any(decision.why.startswith(("its pods fit", "underutilized")) for decision in before[0])
    assert first.decisions != other.decisions
