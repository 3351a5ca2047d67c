"""Room that the pods of one machine were promised is promised to no other's: not in one plan, nor in the next, as far as they may be."""

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


#: Four GPUs are free on one machine that stays, and two others have pods that take four.
FREE = (node("free", KIND), runs("keeps", "free", options=STAYS))


def removed(*items: Item, going: str = "", live: bool = True) -> list[str]:
    state = State(disrupting=frozenset({going}) if going else frozenset())
    return sorted(one.node for one in plan(Cluster.of((*FREE, *items)), state, POLICY, NOW, live=live).removals)


def test_in_one_plan_only_one_of_two_machines_goes_for_which_there_is_room() -> None:
    both = removed(node("a", KIND), runs("x", "a"), node("b", KIND), runs("y", "b"))

    assert len(both) == 1


def test_as_long_as_the_pods_of_one_run_nothing_else_is_emptied_into_their_room() -> None:
    other = node("b", KIND), runs("y", "b")

    assert removed(*other) == ["b"]
    assert removed(node("a", KIND, taints=LEAVING), runs("x", "a"), *other, going="a") == []


def test_nor_while_a_pod_ends_that_comes_back_only_after_that() -> None:
    other = node("b", KIND), runs("y", "b")
    leaving = node("a", KIND, taints=LEAVING)

    assert removed(leaving, runs("db-0", "a", owner=SET, deleted=NOW + 20.0), *other, going="a") == []
    # Of the pods of others there is another one already, which has the room or waits for it.
    assert removed(leaving, runs("x", "a", deleted=NOW + 20.0), *other, going="a") == ["b"]


def test_nor_while_the_scheduler_has_not_tried_the_pod_that_came_back() -> None:
    other = node("b", KIND), runs("y", "b")
    back = pod("x-again", spec(gpus=4), owner=REPLICAS)

    assert removed(node("a", KIND, taints=LEAVING), back, *other, going="a") == []
    assert removed(node("a", KIND, taints=LEAVING), *other, going="a") == ["b"]


def test_no_pod_is_moved_to_be_near_one_that_still_waits() -> None:
    def beside(key: str) -> list[str]:
        seeker = pod("x", spec(gpus=1, affinity=(near(HOST, app=key),)), on="b", uid="x", options=CHEAP, created=NOW - 7200.0)
        waiting = pod("web-new", spec(gpus=1), labels={"app": "web"}, unschedulable=True)
        found = runs("web-old", "b", gpus=1, labels={"app": "web"}), runs("db", "free", gpus=1, labels={"app": "db"}, options=STAYS)
        return removed(node("b", KIND), seeker, waiting, *found)

    assert beside("db") == ["b"]
    assert beside("web") == []


def test_evictions_that_are_still_to_come_are_taken_off_what_a_budget_allows() -> None:
    budget = PodDisruptionBudget("default", "web", LabelSelector(()), disruptions_allowed=1)
    leaving, more = node("a", KIND, taints=LEAVING), node("empty", KIND, created=NOW - 60.0)
    other = node("b", KIND), runs("y", "b")

    assert removed(budget, *other) == ["b"]
    assert removed(budget, leaving, runs("x", "a", gpus=1), more, *other, going="a") == []
    ending = runs("x", "a", gpus=1, deleted=NOW + 20.0)
    assert removed(budget, leaving, ending, more, *other, going="a") == ["b"]
