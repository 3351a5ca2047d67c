"""I11: a pod is moved only into room that no other pod has a claim on."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.building import NOW, node, offering, planned, pod, pool, spec
from tests.planning.claims import overfull_machines
from tests.planning.test_properties import SEARCH

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.planning.planner import Planner, plan
from gpuscaler.planning.plans import Move, Placement, Plan, PlannedRemoval
from gpuscaler.planning.state import State, Upcoming

CARD = offering("g.1", 1.0, gpus=1)
FOUR = offering("g.4", 3.6, gpus=4, cpu=32, memory=128)
#: Allows disruption of pods that may be the only replica.
MOVABLE = {"disruption": "allow"}
POLICY = Policy((pool(CARD, FOUR),))


def two_nodes(**waiting: Any) -> list[Item]:
    """One replica runs on a machine with one GPU; another such machine is empty, and a second replica is pending."""
    return [node("old", CARD), node("free", CARD), pod("runs", on="old", options=MOVABLE), pod("waits", **waiting)]


def test_capacity_reserved_for_a_nominated_pod_is_not_given_to_a_running_pod() -> None:
    made = planned(two_nodes(nominated_node="free"), pool(CARD))

    assert made.removals == ()
    assert {blocked.node: blocked.blocker for blocked in made.blocked_nodes} == {"old": "in-use", "free": "needed"}


def test_capacity_that_nominated_pods_do_not_need_is_available_to_others() -> None:
    """Two of four GPUs are promised, and one is free for the pod that runs alone on a machine."""
    items: list[Item] = [node("old", CARD), node("big", FOUR), pod("runs", on="old", options=MOVABLE), pod("here", on="big")]
    items += [pod(f"waits-{number}", nominated_node="big") for number in range(2)]

    made = planned(items, pool(CARD, FOUR))

    assert [(removal.node, removal.moves) for removal in made.removals] == [("old", (Move("default/runs", "big"),))]


def test_no_pod_moves_into_capacity_that_untried_pending_pods_may_take() -> None:
    """The plan has no place for the pending pods, because kube-scheduler has not tried them yet and may put them on the last free GPU."""
    items: list[Item] = [
        node("old", CARD),
        node("big", FOUR),
        pod("runs", on="old", options=MOVABLE),
        *(pod(f"here-{n}", on="big") for n in range(3)),
    ]
    planner = Planner(POLICY)

    alone = planner.plan(Cluster.of(items), State(), NOW, live=True)
    untried = planner.plan(Cluster.of([*items, pod("waits")]), State(), NOW, live=True)

    assert ([removal.node for removal in alone.removals], [removal.node for removal in untried.removals]) == (["old"], [])


@pytest.mark.parametrize("claim", [pod("other", on="free"), pod("other", nominated_node="free")], ids=["running", "nominated"])
def test_the_plan_check_detects_capacity_that_is_used_twice(claim: Item) -> None:
    cluster = Cluster.of([*two_nodes()[:3], claim])
    made = Plan(removals=(PlannedRemoval("old", "", (Move("default/runs", "free"),)),))

    assert overfull_machines(cluster, State(), POLICY, made)[0].startswith("I11: free offers 1 nvidia.com/gpu and 2 are wanted there")


def test_the_plan_check_counts_pods_placed_on_nodes_and_ordered_machines() -> None:
    machine = Upcoming("m-0", "main", "g.1", "on-demand", "z1")
    items = [*two_nodes()[:3], pod("a"), pod("b")]
    twice = (Placement("default/a", "m-0"), Placement("default/b", "m-0"))
    both = Plan(placements=(Placement("default/a", "free"),), removals=(PlannedRemoval("old", "", (Move("default/runs", "free"),)),))

    assert overfull_machines(Cluster.of(items), State((machine,)), POLICY, Plan(placements=twice))
    assert overfull_machines(Cluster.of(items), State(), POLICY, both)
    assert not overfull_machines(Cluster.of(items), State((machine,)), POLICY, Plan(placements=twice[:1]))


@st.composite
def bursts(draw: st.DrawFn) -> tuple[list[Item], State]:
    """A fleet with loosely packed replicas, and pending replicas, some of them nominated to machines that have just arrived."""
    kinds: Mapping[str, Offering] = {"one": CARD, "four": FOUR}
    items: list[Item] = []
    nodes = draw(st.integers(2, 7))
    room = {}
    for number in range(nodes):
        of = kinds[draw(st.sampled_from(("one", "one", "four")))]
        name = f"n{number}"
        items.append(node(name, of))
        gpus = of.allocatable["nvidia.com/gpu"]
        busy = draw(st.integers(0, gpus))
        items += [
            pod(f"runs-{number}-{place}", spec(gpus=1, cpu=draw(st.sampled_from((1, 3)))), on=name, options=MOVABLE)
            for place in range(busy)
        ]
        room[name] = gpus - busy
    for number in range(draw(st.integers(0, 12))):
        free = [name for name, left in room.items() if left]
        where = draw(st.sampled_from(["", *free]))
        room.update({where: room[where] - 1} if where else {})
        items.append(pod(f"waits-{number}", nominated_node=where))
    idle = {f"n{number}": draw(st.sampled_from((0.0, 3600.0))) for number in range(nodes)}
    return items, State(idle_seconds=idle)


@SEARCH
@given(bursts())
def test_no_capacity_is_used_twice_in_random_bursts(burst: tuple[list[Item], State]) -> None:
    items, state = burst
    cluster = Cluster.of(items)

    made = plan(cluster, state, POLICY, NOW)

    assert overfull_machines(cluster, state, POLICY, made) == []
