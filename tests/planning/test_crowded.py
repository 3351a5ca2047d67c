"""Whose machine others came to first."""

import pytest
from tests.planning.building import NOW, node, offering, pod, pool, spec

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.pools import Policy
from gpuscaler.planning.crowded import crowded
from gpuscaler.planning.state.ledger import Coming, Ledger

KIND = offering(gpus=4)
POLICY = Policy((pool(KIND),))
GPU = "nvidia.com/gpu"


def coming(name: str = "n") -> Ledger:
    return Ledger(coming=(Coming("o-0", "o", (KIND.key,), 1.0, NOW, offering=KIND.key, instance="i-1", node=name, pods=("default/p",)),))


@pytest.mark.parametrize(("theirs", "found"), [(2, set()), (3, {"o-0"})])
def test_a_machine_is_crowded_when_others_left_no_room_for_its_pods(theirs: int, found: set[str]) -> None:
    # Its GPUs do not show yet.
    shown = {name: amount for name, amount in KIND.allocatable.items() if name != GPU}
    here = node("n", KIND, allocatable=shown)
    cluster = Cluster.of([here, pod("p", spec(gpus=2)), pod("t", spec(gpus=theirs), on="n")])

    assert crowded(coming(), cluster, POLICY) == found


@pytest.mark.parametrize(
    "items",
    [
        [node("n", KIND), pod("p", spec(gpus=4))],
        [node("n", KIND), pod("p", spec(gpus=4), on="n"), pod("t", spec(gpus=4), on="n")],
        [node("n", KIND), pod("t", spec(gpus=4), on="n")],
        [pod("p", spec(gpus=4)), pod("t", spec(gpus=4), on="n")],
    ],
    ids=["nobody came", "they have come", "they are gone", "no node yet"],
)
def test_it_is_not_where_nobody_came_or_nobody_waits(items: list[Item]) -> None:
    assert crowded(coming(), Cluster.of(items), POLICY) == set()
    assert crowded(coming(""), Cluster.of(items), POLICY) == set()
