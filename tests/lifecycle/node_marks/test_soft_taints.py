"""Which machines have soft taints."""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from tests.planning.building import node, offering, pods, pool

from gpuscaler.lifecycle.node_marks.soft_taints import IDLE, LITTLE_USED, SOFT_TAINTS, shares_used, taints_due, update_soft_taints
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.model.taints import HARD_EFFECTS, Taint
from gpuscaler.model.well_known import ARRIVING_TAINT, LEAVING_TAINT

POLICY = Policy((pool(offering("g4", pool="gpu", gpus=4)),))
KEYS = (LITTLE_USED.key, IDLE.key)


def due(taken: dict[str, list[int]], whole: dict[str, list[int]]) -> list[int]:
    shares = shares_used(
        {name: np.array(amounts) for name, amounts in taken.items()}, {name: np.array(amounts) for name, amounts in whole.items()}
    )
    counts: list[int] = taints_due(shares).tolist()
    return counts


def test_idle_machines_get_both_soft_taints_and_half_used_machines_get_one() -> None:
    assert due({"nvidia.com/gpu": [0, 1, 4, 5, 8]}, {"nvidia.com/gpu": [8] * 5}) == [2, 1, 1, 0, 0]


def test_pods_without_gpus_do_not_count_as_use_of_a_gpu_machine() -> None:
    assert due({"nvidia.com/gpu": [0, 0], "cpu": [7000, 7000]}, {"nvidia.com/gpu": [8, 0], "cpu": [8000, 8000]}) == [2, 0]


def test_a_full_machine_whose_device_plugin_is_gone_does_not_count_as_little_used() -> None:
    assert due({"nvidia.com/gpu": [8, 0], "cpu": [100, 100]}, {"nvidia.com/gpu": [0, 8], "cpu": [1000, 1000]}) == [0, 2]


def test_fractions_of_gpus_count_as_use_if_no_whole_gpus_are_requested() -> None:
    whole = {"nvidia.com/gpu": [2, 2], "gpuscaler.io/gpu-milli": [2000, 2000]}
    assert due({"nvidia.com/gpu": [0, 0], "gpuscaler.io/gpu-milli": [1000, 1460]}, whole) == [1, 0]


def test_use_of_a_machine_without_devices_is_that_of_its_most_used_resource() -> None:
    whole = {"cpu": [8000, 8000], "memory": [100, 100]}
    assert due({"cpu": [1000, 1000], "memory": [60, 40]}, whole) == [0, 1]


def test_a_machine_without_resources_counts_as_idle() -> None:
    assert due({}, {"cpu": [0]}) == [2]


def test_the_soft_taints_exclude_no_pod() -> None:
    assert not {taint.effect for taint in SOFT_TAINTS} & set(HARD_EFFECTS)
    assert len({taint.key for taint in SOFT_TAINTS}) == len(SOFT_TAINTS)


def cluster(used: int, *, taints: Sequence[Taint] = (), of: str = "gpu") -> Cluster:
    """One machine of 4 GPUs of pool ``of`` with ``used`` pods of one GPU."""
    return Cluster.of((node("n", offering(pool=of, gpus=4), taints=tuple(taints)), *pods("p", used, on="n")))


def marks(of: Cluster, policy: Policy = POLICY) -> list[tuple[str, ...]]:
    return [act.taints for act in update_soft_taints(of, policy, frozenset())]


def test_a_machine_gets_missing_soft_taints_and_loses_outdated_ones() -> None:
    assert marks(cluster(0)) == [KEYS]
    assert marks(cluster(2)) == [KEYS[:1]]
    assert marks(cluster(2, taints=SOFT_TAINTS)) == [KEYS[:1]]
    assert marks(cluster(3, taints=SOFT_TAINTS)) == [()]


def test_a_machine_with_only_the_second_soft_taint_is_corrected() -> None:
    assert marks(cluster(0, taints=SOFT_TAINTS[1:])) == [KEYS]
    assert marks(cluster(2, taints=SOFT_TAINTS[1:])) == [KEYS[:1]]
    assert marks(cluster(4, taints=SOFT_TAINTS[1:])) == [()]


def test_a_cluster_without_machines_needs_no_soft_taints() -> None:
    assert marks(Cluster()) == []


def test_a_machine_with_the_right_soft_taints_is_not_changed() -> None:
    assert marks(cluster(0, taints=SOFT_TAINTS)) == []
    assert marks(cluster(4)) == []


def test_soft_taints_of_arriving_leaving_and_foreign_machines_are_not_changed() -> None:
    assert marks(cluster(0, taints=(Taint(ARRIVING_TAINT),))) == []
    assert marks(cluster(0, taints=(Taint(LEAVING_TAINT),))) == []
    assert marks(cluster(0, of="another")) == []


def test_kept_machines_get_no_soft_taints() -> None:
    assert marks(cluster(0), Policy((replace(POLICY.pools[0], min_gpus_per_pod=2),))) == []


def test_the_reason_for_a_soft_taint_contains_the_used_share() -> None:
    assert [act.reason for act in update_soft_taints(cluster(1), POLICY, frozenset())] == ["25% of it is used"]
