"""Promised room: room that is promised to the pods of one machine is not promised to others, neither in one plan nor in the next."""

from typing import Any

from tests.planning.building import HOST, NOW, REPLICAS, near, node, offering, pod, pool, spec

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.pods import Owner, Pod
from gpuscaler.model.pools import Policy
from gpuscaler.model.selectors import LabelSelector
from gpuscaler.model.taints import Taint
from gpuscaler.model.workloads import PodDisruptionBudget
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import State

KIND = offering("g.8", 8.0, gpus=8, cpu=32)
POLICY = Policy((pool(KIND),))
CHEAP = {"restart_cost": 1.0}
STAYS = {"do_not_disrupt": True}
SET = Owner("StatefulSet", "db", "u9")
LEAVING = (Taint("gpuscaler.io/leaving"),)


def runs(name: str, on: str, gpus: int = 4, **more: Any) -> Pod:
    return pod(name, spec(gpus=gpus), on=on, uid=name, **{"options": CHEAP, "created": NOW - 7200.0, **more})


#: A machine that stays has four free GPUs.
FREE = (node("free", KIND), runs("keeps", "free", options=STAYS))


def removed(*items: Item, going: str = "", live: bool = True) -> list[str]:
    state = State(disrupting=frozenset({going}) if going else frozenset())
    return sorted(removal.node for removal in plan(Cluster.of((*FREE, *items)), state, POLICY, NOW, live=live).removals)


def test_a_plan_removes_one_of_two_machines_if_the_pods_of_only_one_fit_elsewhere() -> None:
    both = removed(node("a", KIND), runs("x", "a"), node("b", KIND), runs("y", "b"))

    assert len(both) == 1


def test_capacity_for_the_pods_of_a_leaving_node_is_not_used_for_another_removal() -> None:
    other = node("b", KIND), runs("y", "b")

    assert removed(*other) == ["b"]
    assert removed(node("a", KIND, taints=LEAVING), runs("x", "a"), *other, going="a") == []


def test_capacity_for_a_terminating_statefulset_pod_is_not_used_for_another_removal() -> None:
    other = node("b", KIND), runs("y", "b")
    leaving = node("a", KIND, taints=LEAVING)

    assert removed(leaving, runs("db-0", "a", owner=SET, deleted=NOW + 20.0), *other, going="a") == []
    # Other owners have already created the next pod, which has the room or is pending.
    assert removed(leaving, runs("x", "a", deleted=NOW + 20.0), *other, going="a") == ["b"]


def test_capacity_for_a_recreated_pod_is_reserved_until_the_scheduler_has_tried_it() -> None:
    other = node("b", KIND), runs("y", "b")
    back = pod("x-again", spec(gpus=4), owner=REPLICAS)

    assert removed(node("a", KIND, taints=LEAVING), back, *other, going="a") == []
    assert removed(node("a", KIND, taints=LEAVING), *other, going="a") == ["b"]


def test_no_move_relies_on_affinity_to_a_pending_pod() -> None:
    def beside(key: str) -> list[str]:
        seeker = pod("x", spec(gpus=1, affinity=(near(HOST, app=key),)), on="b", uid="x", options=CHEAP, created=NOW - 7200.0)
        waiting = pod("web-new", spec(gpus=1), labels={"app": "web"}, unschedulable=True)
        pods = runs("web-old", "b", gpus=1, labels={"app": "web"}), runs("db", "free", gpus=1, labels={"app": "db"}, options=STAYS)
        return removed(node("b", KIND), seeker, waiting, *pods)

    assert beside("db") == ["b"]
    assert beside("web") == []


def test_planned_evictions_are_subtracted_from_the_allowance_of_a_budget() -> None:
    budget = PodDisruptionBudget("default", "web", LabelSelector(()), disruptions_allowed=1)
    leaving, more = node("a", KIND, taints=LEAVING), node("empty", KIND, created=NOW - 60.0)
    other = node("b", KIND), runs("y", "b")

    assert removed(budget, *other) == ["b"]
    assert removed(budget, leaving, runs("x", "a", gpus=1), more, *other, going="a") == []
    ending = runs("x", "a", gpus=1, deleted=NOW + 20.0)
    assert removed(budget, leaving, ending, more, *other, going="a") == ["b"]
