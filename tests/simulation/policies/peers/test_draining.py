"""The nodes with pods that Cluster Autoscaler's model drains: the rules of its source as scenarios."""

import pytest
from tests.simulation.policies.peers.moving import DELAY, LONG, SHORT, leaving, machine, pool, recorded, wave
from tests.simulation.pools import GIB

from gpuscaler.simulation.policies.peers.cluster_autoscaler import ClusterAutoscaler
from gpuscaler.simulation.policies.peers.settings import ClusterAutoscalerSettings
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.traces.workload import Shaping

G8 = pool(machine("g8", 8, 8.0))


def drain_times(first: int, second: int, settings: ClusterAutoscalerSettings | None = None, **options: object) -> list[float]:
    """When a node was removed while pods ran on it, in seconds after the short jobs of its wave ended."""
    recording, result = recorded(leaving(first, second), G8, ClusterAutoscaler(G8, settings), **options)
    with_pods = [decision.at for decision in result.decisions if decision.kind == "remove" and decision.why.startswith("underutilized")]
    assert len(with_pods) == len([at for at, _ in recording.removals if SHORT < at < LONG])
    return [at - result.began - SHORT - DELAY for at in with_pods]


@pytest.mark.parametrize(
    ("first", "second", "goes"),
    [
        (3, 5, True),  # 3/8 of the GPUs are in use, and the other node has just room
        (3, 6, False),  # no room
        (4, 4, False),  # half is not below the threshold
        (2, 3, True),
    ],
)
def test_a_node_used_by_less_than_half_is_removed_if_its_pods_fit_elsewhere(first: int, second: int, goes: bool) -> None:
    moments = drain_times(first, second)
    assert len(moments) == goes
    # Unneeded for ten minutes, in a loop of ten seconds.
    assert all(600.0 <= at <= 625.0 for at in moments)


def test_the_utilization_thresholds_can_be_configured() -> None:
    higher = ClusterAutoscalerSettings(scale_down_gpu_utilization_threshold=0.51)
    lower = ClusterAutoscalerSettings(scale_down_gpu_utilization_threshold=0.01)
    assert len(drain_times(4, 4, higher)) == 1
    assert drain_times(3, 5, lower) == []


def test_cluster_autoscaler_does_not_move_pods_whose_owner_forbids_it() -> None:
    assert drain_times(3, 5, shaping=Shaping()) == []


def test_the_utilization_of_a_machine_with_gpus_considers_only_gpus() -> None:
    # Two pods keep 2 of 8 GPUs and two thirds of the CPUs of one node; the other has 5 GPUs in use and room for both.
    policy = pool(machine("g8", 8, 8.0, cpu=10600))
    jobs = wave("a", 0.0, long=2, of=3, cpu_milli=3500) + wave("b", 400.0, long=5, cpu_milli=600)
    _, result = recorded(jobs, policy, ClusterAutoscaler(policy))
    assert [decision.why[:13] for decision in result.decisions if decision.kind == "remove" and decision.at < result.began + LONG] == [
        "underutilized"
    ]
    assert result.evictions == 2


@pytest.mark.parametrize(("soft_taints", "left"), [(10, 2), (0, 3)])
def test_each_loop_drains_one_node_and_removes_up_to_ten_empty_ones(soft_taints: int, left: int) -> None:
    # Sixteen machines, of which four become empty and twelve keep one pod each.
    jobs = [job for number in range(16) for job in wave(f"w{number}-", 400.0 * number, long=int(number < 12), short=9000.0)]
    settings = ClusterAutoscalerSettings(max_bulk_soft_taint_count=soft_taints)
    recording, result = recorded(jobs, G8, ClusterAutoscaler(G8, settings))
    moments = [at for at, _ in recording.removals if at < LONG]
    first = moments[0]
    assert moments[:5] == [first] * 5
    assert moments[5:] == [pytest.approx(first + 10.0 * step) for step in range(1, len(moments) - 4)]
    # Without soft taints the scheduler spreads the twelve pods over the remaining nodes: with four each, three are half used and stay.
    assert len(moments) == 16 - left
    assert result.unserved == 0


def test_a_node_that_could_not_be_removed_is_tried_again_after_five_minutes() -> None:
    # Room appears a minute after the node was found to have none: ten minutes begin with the next trial.
    freed = wave("c", 400.0, long=0, of=1, short=SHORT + 60.0)
    first, second = wave("a", 0.0, long=3), wave("b", 400.0, long=5, of=7)
    _, result = recorded([*first, *second, *freed], G8, ClusterAutoscaler(G8))
    moments = [decision.at - result.began - SHORT - DELAY for decision in result.decisions if decision.why.startswith("underutilized")]
    assert len(moments) == 1
    assert 900.0 <= moments[0] <= 920.0


def test_moved_pods_lose_the_work_since_their_checkpoint_and_still_finish() -> None:
    _, result = recorded(leaving(3, 5), G8, ClusterAutoscaler(G8), checkpoint=0.0)
    assert (result.evictions, result.unserved) == (3, 0)
    assert result.lost_gpu_hours == pytest.approx(3 * (SHORT + 600.0) / 3600.0, rel=0.01)


def test_no_node_is_drained_for_ten_minutes_after_a_scale_up() -> None:
    large = Job("large", SHORT + 500.0, 9000.0, gpus=8, cpu_milli=1000, memory=GIB)
    recording, result = recorded([*leaving(3, 5), large], G8, ClusterAutoscaler(G8))
    bought = recording.purchases[-1][0]
    moments = [decision.at - result.began for decision in result.decisions if decision.why.startswith("underutilized")]
    assert bought > SHORT + 500.0
    assert moments == [pytest.approx(bought + 600.0, abs=10.0)]
