"""Room for pods on vanishing machines is found before they have to leave, and only once."""

from typing import Any

import pytest
from tests.planning.building import DAEMON, NOW, node, offering, pod, pool

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import NO_OWNER, Pod
from gpuscaler.model.pools import Policy
from gpuscaler.model.taints import Taint
from gpuscaler.planning.planner import plan
from gpuscaler.planning.plans import Placement, Plan
from gpuscaler.planning.state import State, Upcoming

KIND = offering(gpus=1)
POLICY = Policy((pool(KIND),))
GOING = node("n", KIND, taints=(Taint("gpuscaler.io/leaving"),))


def planned(*items: Node | Pod, vanishing: bool = True, **more: Any) -> Plan:
    state = State(disrupting=frozenset({"n"}), vanishing=frozenset({"n"} if vanishing else ()), **more)
    return plan(Cluster.of((GOING, *items)), state, POLICY, NOW, live=True)


def test_a_machine_is_bought_for_a_running_pod_whose_machine_is_being_taken_away() -> None:
    assert [machine.pods for machine in planned(pod("p", on="n")).machines] == [("default/p",)]
    assert planned(pod("p", on="n"), vanishing=False).machines == ()


def test_nothing_is_bought_for_a_pod_of_a_vanishing_node_that_fits_elsewhere() -> None:
    made = planned(pod("p", on="n"), node("free", KIND))

    assert (made.machines, made.placements) == ((), ())
    assert {blocked.node: blocked.blocker for blocked in made.blocked_nodes}["free"] == "needed"


def test_pending_pods_are_placed_before_pods_of_vanishing_nodes() -> None:
    waits = pod("q", unschedulable=True)
    made = planned(pod("p", on="n"), waits, node("free", KIND))

    assert made.placements == (Placement("default/q", "free"),)
    assert [machine.pods for machine in made.machines] == [("default/p",)]


def test_no_second_replacement_is_bought_while_the_pod_runs_or_is_pending_again() -> None:
    coming = Upcoming("u", *(KIND.pool, KIND.instance_type, KIND.market, KIND.zone), pods=("default/p",))

    still = planned(pod("p", on="n"), upcoming=(coming,))
    assert (still.machines, still.placements) == ((), (Placement("default/p", "u"),))
    between = planned(pod("p", on="n", deleted=NOW + 9.0), upcoming=(coming,))
    assert (between.machines, between.placements) == ((), ())
    back = planned(pod("p-again", unschedulable=True), upcoming=(coming,))
    assert (back.machines, back.placements) == ((), (Placement("default/p-again", "u"),))


def test_a_running_pod_is_never_reported_as_unplaced() -> None:
    limited = Policy((pool(KIND, max=1),))
    state = State(disrupting=frozenset({"n"}), vanishing=frozenset({"n"}))

    assert plan(Cluster.of((GOING, pod("p", on="n"))), state, limited, NOW, live=True).unplaced == ()


@pytest.mark.parametrize(
    "more",
    [
        {"owner": NO_OWNER},
        {"owner": DAEMON},
        {"deleted": NOW + 9.0},
        {"options": {"mirror": True}},
        {"options": {"gang": "g", "gang_size": 1}},
        {"options": {"spot_wait": 60.0}},
        {"options": {"deadline": NOW + 9e5}},
    ],
    ids=["bare", "daemon", "ends", "static", "gang", "waits for spot", "has a deadline"],
)
def test_nothing_is_bought_for_running_pods_that_end_with_their_node_or_can_wait(more: dict[str, Any]) -> None:
    assert planned(pod("p", on="n", **more)).machines == ()
