"""Karpenter's model against measurements of the real program, and in the corner cases that decide its cost."""

import itertools

import pytest
from tests.simulation.policies.peers.recording import Recording, dry, pools_of, replay
from tests.simulation.pools import trace

from gpuscaler.simulation.cloud.delays import Delay, Delays
from gpuscaler.simulation.policies.peers.karpenter import Karpenter
from gpuscaler.simulation.policies.peers.settings import KarpenterSettings
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.world.meter import Result

#: US dollars per hour of Karpenter 1.15 for pods of 1 GPU, 2 vCPU and 13 Gi over g5, c6i and m6i in us-east-1.
MEASURED = {2: 5.67, 8: 16.29, 64: 130.30, 1000: 2031.0}
TYPES = ["g5.xlarge", "g5.2xlarge", "g5.4xlarge", "g5.8xlarge", "g5.12xlarge", "g5.16xlarge", "g5.24xlarge", "g5.48xlarge", "m6i.large"]
POD = {"gpus": 1, "cpu_milli": 2000, "memory": 13 * 1024**3}


def jobs(number: int, *, submit: float = 0.0, duration: float = 3600.0, prefix: str = "p") -> list[Job]:
    return [Job(f"{prefix}{index}", submit, duration, **POD) for index in range(number)]  # type: ignore[arg-type]


def most_paid_per_hour(result: Result) -> float:
    return max(sample.dollars_per_hour for sample in result.timeline)


@pytest.mark.parametrize("number", [2, 8, 64])
def test_pods_in_one_batch_cost_the_same_as_with_the_real_karpenter(number: int) -> None:
    policy = pools_of(TYPES)
    result = replay(trace(*jobs(number)), policy, Karpenter(policy))
    assert most_paid_per_hour(result) == pytest.approx(MEASURED[number], abs=0.01)
    assert result.unserved == 0


def test_a_thousand_pods_in_two_batches_cost_the_same_as_with_the_real_karpenter() -> None:
    policy = pools_of(TYPES)
    halves = jobs(500) + jobs(500, submit=12.0, prefix="q")
    result = replay(trace(*halves), policy, Karpenter(policy))
    # Each half fills 62 machines of eight GPUs and leaves four pods, for which one of four GPUs is cheapest.
    assert most_paid_per_hour(result) == pytest.approx(MEASURED[1000], abs=0.1)


def test_karpenter_batches_pods_that_arrive_within_a_second_of_each_other_for_up_to_ten_seconds() -> None:
    policy = pools_of(TYPES)
    scaler = Recording(Karpenter(policy))
    steady = [Job(f"p{index}", 0.5 * index, 600.0, **POD) for index in range(40)]  # type: ignore[arg-type]
    replay(trace(*steady), policy, scaler)
    rounds = sorted({round(at, 3) for at, purchase in scaler.purchases})
    assert rounds[0] == pytest.approx(10.0)
    assert all(later - earlier >= 9.9 for earlier, later in itertools.pairwise(rounds))


def test_karpenter_does_not_try_an_offering_without_capacity_for_three_minutes() -> None:
    policy = pools_of(["g5.xlarge"], markets=["spot", "on-demand"], zones=["us-east-1a"])
    scaler = Recording(Karpenter(policy))
    again = [*jobs(1), *jobs(1, submit=100.0, prefix="q"), *jobs(1, submit=300.0, prefix="r")]
    result = replay(trace(*again), policy, scaler, markets=dry(policy, "spot"))
    requests = [(round(at), {offering[1] for offering in purchase.offerings}) for at, purchase in scaler.purchases]
    # Refused on spot, on demand in the next round; still left out at 100 s, asked again after 180 s.
    assert [markets for _, markets in requests] == [{"spot"}, {"on-demand"}, {"on-demand"}, {"spot"}, {"on-demand"}]
    assert requests[1][0] - requests[0][0] <= 15
    assert result.unserved == 0


def test_pods_stay_pending_and_are_retried_if_no_offering_has_capacity() -> None:
    policy = pools_of(["g5.xlarge"], markets=["spot"], zones=["us-east-1a"])
    scaler = Recording(Karpenter(policy))
    result = replay(trace(*jobs(1)), policy, scaler, markets=dry(policy, "spot", until=1000.0))
    assert result.unserved == 0
    times = [at for at, _ in scaler.purchases]
    assert all(181 <= later - earlier <= 184 for earlier, later in itertools.pairwise(times))
    assert times[-2] < 1000.0 < times[-1]


def test_karpenter_removes_empty_nodes_a_tenth_at_a_time_after_validation() -> None:
    policy = pools_of(["g5.xlarge"])
    scaler = Recording(Karpenter(policy))
    replay(trace(*jobs(20, duration=600.0)), policy, scaler)
    moments = sorted({at for at, _ in scaler.removals})
    counts = [sum(at == moment for at, _ in scaler.removals) for moment in moments]
    assert counts[0] == 2
    assert max(counts) == 2
    assert all(later - earlier >= 25.0 - 0.01 for earlier, later in itertools.pairwise(moments))


def test_karpenter_loses_no_work_of_pods_that_may_not_be_moved() -> None:
    policy = pools_of(["g5.xlarge", "g5.12xlarge"])
    mixed = [Job(f"p{index}", 40.0 * index, 200.0 + 77.0 * (index % 7), **POD) for index in range(40)]  # type: ignore[arg-type]
    result = replay(trace(*mixed), policy, Karpenter(policy))
    assert (result.evictions, result.lost_gpu_hours, result.unserved) == (0, 0.0, 0)


def test_karpenter_deletes_and_replaces_a_machine_that_never_registers() -> None:
    policy = pools_of(["g5.xlarge"])
    scaler = Recording(Karpenter(policy, KarpenterSettings(registration=900.0)))
    slow = Delays(boot=Delay(5000.0, 5000.0, 5000.0), device_plugin=Delay(0, 0, 0), answer=Delay(1, 1, 1), image_pull=Delay(0, 0, 0))
    replay(trace(*jobs(1)), policy, scaler, delays=slow, until=2000.0)
    assert scaler.removals[0][0] == pytest.approx(1.0 + 1.0 + 900.0, abs=1.0)
    assert len(scaler.purchases) >= 2


def test_karpenter_buys_no_gpu_machines_for_pods_without_gpu_requests() -> None:
    policy = pools_of(["g4dn.xlarge", "m6i.16xlarge"])
    result = replay(trace(Job("a", 0.0, 600.0, cpu_milli=1000, memory=1024**3)), policy, Karpenter(policy))
    assert [row.instance_type for row in result.machine_hours] == ["m6i.16xlarge"]
