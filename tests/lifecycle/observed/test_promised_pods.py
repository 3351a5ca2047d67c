"""Room of pods on a node, and machines whose room was taken by other pods."""

import pytest
from tests.planning.building import NOW, node, offering, pod, pool, spec

from gpuscaler.lifecycle.observed.promised_pods import crowded_machines, has_room
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine

KIND = offering(gpus=4)
POLICY = Policy((pool(KIND),))
GPU = "nvidia.com/gpu"
A = node("a", KIND)
LOW, HIGH = pod("low", spec(gpus=3)), pod("high", spec(gpus=2, priority=10))


@pytest.mark.parametrize(("gpus", "room"), [(1, True), (2, False)])
def test_free_capacity_is_what_the_bound_pods_leave(gpus: int, room: bool) -> None:
    cluster = Cluster.of([A, pod("there", spec(gpus=3), on="a")])

    assert has_room([pod("p", spec(gpus=gpus))], A, cluster) is room


def test_capacity_of_a_terminating_pod_counts_as_free_but_only_once() -> None:
    cluster = Cluster.of([A, pod("goes", spec(gpus=3), on="a", deleted=NOW)])

    assert has_room([LOW], A, cluster)
    assert not has_room([LOW, HIGH], A, cluster)


def test_a_missing_resource_or_a_reached_pod_limit_leaves_no_capacity() -> None:
    cluster = Cluster.of([A])
    full = node("full", KIND, allocatable={**KIND.allocatable, "pods": 0})

    assert not has_room([pod("p", spec(requests={"example.com/fpga": 1}))], A, cluster)
    assert not has_room([pod("p", spec(gpus=1))], full, Cluster.of([full]))


def coming(name: str = "n") -> Ledger:
    return Ledger(
        coming=(OrderedMachine("o-0", "o", (KIND.key,), 1.0, NOW, offering=KIND.key, instance="i-1", node=name, pods=("default/p",)),)
    )


@pytest.mark.parametrize(("theirs", "expected"), [(2, set()), (3, {"o-0"})])
def test_a_machine_is_crowded_if_other_pods_leave_too_little_for_the_promised_ones(theirs: int, expected: set[str]) -> None:
    # Its GPUs do not show yet.
    shown = {name: amount for name, amount in KIND.allocatable.items() if name != GPU}
    here = node("n", KIND, allocatable=shown)
    cluster = Cluster.of([here, pod("p", spec(gpus=2)), pod("t", spec(gpus=theirs), on="n")])

    assert crowded_machines(coming(), cluster, POLICY) == expected


@pytest.mark.parametrize(
    "items",
    [
        [node("n", KIND), pod("p", spec(gpus=4))],
        [node("n", KIND), pod("p", spec(gpus=4), on="n"), pod("t", spec(gpus=4), on="n")],
        [node("n", KIND), pod("t", spec(gpus=4), on="n")],
        [pod("p", spec(gpus=4)), pod("t", spec(gpus=4), on="n")],
    ],
    ids=["no other pods", "they are bound", "they are gone", "no node yet"],
)
def test_a_machine_without_other_pods_or_pending_pods_is_not_crowded(items: list[Item]) -> None:
    assert crowded_machines(coming(), Cluster.of(items), POLICY) == set()
    assert crowded_machines(coming(""), Cluster.of(items), POLICY) == set()
