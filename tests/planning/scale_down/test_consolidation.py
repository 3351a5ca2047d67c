"""Consolidation by deletion: removes machines with pods that fit on machines that stay."""

from typing import Any

import pytest
from tests.planning.building import ARCH, DAEMON, HOST, JOB, NOW, TYPE, ZONE, near, node, offering, pool, selector, spec, spread
from tests.planning.scale_down.kit import BIG, big, blockers, detail, movable, removed, scale_down_of

from gpuscaler.model.pods import HostPort, Pod, PodSpec
from gpuscaler.model.pools import Budget, Spare
from gpuscaler.model.taints import Taint
from gpuscaler.model.workloads import PodDisruptionBudget
from gpuscaler.planning.plans import PlannedRemoval
from gpuscaler.planning.scale_down import ScaleDownResult
from gpuscaler.planning.state import State

#: Options of pods that fill most of a node and must not be moved.
ANCHOR = {"do_not_disrupt": True}


def only(result: ScaleDownResult) -> PlannedRemoval:
    (removal,) = result.removals
    return removal


def crowd(name: str, on: str, count: int, of: PodSpec | None = None, **fields: Any) -> list[Pod]:
    return [movable(f"{name}-{number}", on, of, **fields) for number in range(count)]


def test_a_machine_is_removed_if_its_pods_fit_elsewhere() -> None:
    result = scale_down_of([big("a"), big("b"), *crowd("x", "a", 2), *crowd("y", "b", 3)])
    removal = only(result)
    assert removal.node == "a"
    assert [(move.pod, move.to) for move in removal.moves] == [("default/x-0", "b"), ("default/x-1", "b")]
    assert removal.saving_per_hour == 1.0
    assert removal.reason == "its 2 pods fit on 1 other node, which saves $1.0000 per hour"
    assert removal.needs == ()


def test_without_consolidation_only_idle_machines_are_removed() -> None:
    idle = big("c")
    result = scale_down_of(
        [big("a"), big("b"), idle, *crowd("x", "a", 2), *crowd("y", "b", 3)],
        state=State(consolidating=False, idle_seconds={"c": 3600.0}),
    )
    assert removed(result) == ["c"]
    assert blockers(result) == {"a": "in-use", "b": "in-use"}
    assert detail(result, "a") == "pods run on it; whether they fit elsewhere was checked a short while ago"


def test_a_machine_whose_pods_fit_nowhere_else_is_reported_as_in_use() -> None:
    result = scale_down_of([big("a"), *crowd("x", "a", 2)])
    assert blockers(result) == {"a": "in-use"}
    assert detail(result, "a") == "pod default/x-0 fits on no other node: there is no other open node"


def test_the_blocker_names_a_pod_that_fits_nowhere_else_and_what_is_lacking() -> None:
    tainted = offering("m.odd", taints=(Taint("odd"),), gpus=0)
    others = [big("b"), *crowd("y", "b", 6, options=ANCHOR), node("c", tainted), *crowd("z", "c", 1, options=ANCHOR)]
    result = scale_down_of([big("a"), movable("x", "a", spec(cpu=3)), *others], pool(BIG, tainted))
    assert detail(result, "a") == "pod default/x fits on no other node: of 2 open nodes, 1 do not admit it, 1 have too little cpu"


def test_the_blocker_counts_pods_that_fit_elsewhere_singly_but_not_together() -> None:
    others = [big("b"), *crowd("y", "b", 6, options=ANCHOR)]
    result = scale_down_of([big("a"), *crowd("x", "a", 3), *others])
    assert detail(result, "a") == "its 3 pods do not all fit into the free room of other nodes"


def test_three_machines_with_little_use_are_consolidated_to_one() -> None:
    names = ("a", "b", "c")
    result = scale_down_of([*map(big, names), *(pod for name in names for pod in crowd(name, name, 2))])
    assert len(result.removals) == 2
    assert {move.to for removal in result.removals for move in removal.moves}.isdisjoint(removed(result))


def test_the_same_free_capacity_is_never_used_for_two_removals() -> None:
    room: list[Any] = [big("keep"), *crowd("k", "keep", 5, options=ANCHOR)]
    halves: list[Any] = [
        big("a"),
        big("b"),
        *crowd("a", "a", 3, spec(cpu=1, memory=1)),
        *crowd("b", "b", 3, spec(cpu=1, memory=1)),
    ]
    fixed: list[Any] = [big("full"), *crowd("f", "full", 8, options=ANCHOR)]
    result = scale_down_of([*room, *halves, *fixed])
    taken = sum(len(removal.moves) for removal in result.removals)
    assert taken == 3
    assert len(result.removals) == 1


def test_the_most_expensive_of_equally_used_machines_is_removed() -> None:
    dear = offering("m.dear", 1.2, gpus=0)
    result = scale_down_of([big("a"), node("b", dear), *crowd("x", "a", 2), *crowd("y", "b", 2)], pool(BIG, dear))
    assert removed(result) == ["b"]


def test_expendable_pods_need_no_new_node_in_a_consolidation() -> None:
    low = spec(cpu=6, priority=-20)
    full: list[Any] = [big("full"), *crowd("f", "full", 8, options=ANCHOR)]
    removal = only(scale_down_of([big("a"), movable("batch", "a", low), *full]))
    assert removal.node == "a"
    assert removal.moves == ()
    assert removal.reason == "runs only pods below the priority cut-off, which saves $1.0000 per hour"


def test_pods_are_not_moved_to_an_idle_machine_that_will_be_removed() -> None:
    result = scale_down_of([big("a"), big("b"), movable("x", "a")], state=State(idle_seconds={"b": 60.0}))
    assert blockers(result) == {"a": "in-use", "b": "idle-clock"}


def test_pods_are_moved_to_an_idle_machine_that_stays() -> None:
    result = scale_down_of([big("a"), big("b", do_not_disrupt=True), movable("x", "a")])
    assert removed(result) == ["a"]


@pytest.mark.parametrize("fields", [{"ready": False}, {"unschedulable": True}, {"deleted": NOW}])
def test_pods_never_move_to_a_machine_that_is_closed(fields: dict[str, Any]) -> None:
    result = scale_down_of([big("a"), big("b", do_not_disrupt=True, **fields), movable("x", "a")])
    assert removed(result) == []


def test_capacity_reserved_for_pods_of_leaving_machines_is_not_used_again() -> None:
    items = [big("a"), *crowd("x", "a", 3), big("b"), *crowd("y", "b", 5, options=ANCHOR), big("c"), *crowd("z", "c", 3)]
    assert len(removed(scale_down_of(items))) == 1
    under_way = State(disrupting=frozenset(["a"]))
    result = scale_down_of(items, state=under_way)
    assert removed(result) == []
    assert blockers(result)["a"] == "disrupting"


def test_a_machine_whose_promised_pods_are_not_bound_yet_is_not_idle() -> None:
    items = [big("a"), *crowd("x", "a", 3), big("new", created=NOW - 60)]
    result = scale_down_of(items, pool(BIG, idle_after=0), state=State(disrupting=frozenset(["a"])))
    assert blockers(result) == {"a": "disrupting", "new": "needed"}
    alone = [big("a"), *crowd("x", "a", 3, owner=DAEMON), big("new", created=NOW - 60)]
    assert removed(scale_down_of(alone, pool(BIG, idle_after=0), state=State(disrupting=frozenset(["a"])))) == ["new"]


def test_spare_machines_take_no_pods() -> None:
    result = scale_down_of([big("a"), big("b"), movable("x", "a")], pool(BIG, spare=Spare(machines=1)))
    assert blockers(result) == {"a": "in-use", "b": "spare"}


def test_a_saving_below_the_minimum_keeps_the_machine() -> None:
    items: list[Any] = [big("a"), big("b"), movable("x", "a"), *crowd("y", "b", 2)]
    assert removed(scale_down_of(items, min_saving=1.0)) == ["a"]
    result = scale_down_of(items, min_saving=1.01)
    assert blockers(result) == {"a": "no-saving", "b": "no-saving"}
    assert detail(result, "a") == "the machine costs $1.0000 per hour; a removal must save $1.0100"


def test_a_machine_without_a_known_price_is_only_removed_when_idle() -> None:
    lost = big("a", labels={TYPE: "retired"})
    assert blockers(scale_down_of([lost, movable("x", "a"), big("b"), *crowd("y", "b", 2)]))["a"] == "unknown-offering"


def test_a_young_machine_is_kept() -> None:
    young = big("a", created=NOW - 300)
    result = scale_down_of([young, movable("x", "a"), big("b"), *crowd("y", "b", 2, options=ANCHOR)])
    assert blockers(result)["a"] == "young"
    assert removed(scale_down_of([young, movable("x", "a"), big("b"), *crowd("y", "b", 2, options=ANCHOR)], pool(BIG, idle_after=0))) == [
        "a"
    ]


def test_a_machine_of_unknown_age_is_kept() -> None:
    result = scale_down_of([big("a", created=0.0), movable("x", "a"), big("b"), *crowd("y", "b", 2, options=ANCHOR)])
    assert "of unknown age" in detail(result, "a")


def test_a_pod_disruption_budget_counts_over_the_whole_plan() -> None:
    names = ("a", "b", "c")
    items: list[Any] = [
        *map(big, names),
        *(movable(f"x-{name}", name) for name in names),
        big("keep"),
        *crowd("k", "keep", 3, options=ANCHOR, labels={}),
    ]
    for allowed, count in ((0, 0), (1, 1), (2, 2), (9, 3)):
        result = scale_down_of([*items, PodDisruptionBudget("default", "web", selector(app="web"), allowed)])
        assert len(result.removals) == count
        assert set(blockers(result).values()) <= {"pdb", "do-not-disrupt"}


def test_a_disruption_budget_for_consolidation_restricts_it() -> None:
    names = ("a", "b", "c")
    items: list[Any] = [
        *map(big, names),
        *(movable(f"x-{name}", name) for name in names),
        big("keep"),
        *crowd("k", "keep", 3, options=ANCHOR),
    ]
    result = scale_down_of(items, pool(BIG, budgets=(Budget("1", reasons=("consolidation",)),)))
    assert removed(result) == ["a"]
    assert blockers(result) == {"b": "budget", "c": "budget", "keep": "do-not-disrupt"}


def test_the_minimum_size_of_a_pool_covers_idle_and_consolidated_machines_together() -> None:
    items: list[Any] = [big("idle"), big("a"), movable("x", "a"), big("keep"), *crowd("k", "keep", 3, options=ANCHOR)]
    assert removed(scale_down_of(items, pool(BIG, min=1))) == ["a", "idle"]
    assert removed(scale_down_of(items, pool(BIG, min=2))) == ["idle"]


def test_a_job_moves_if_its_restart_cost_is_small_and_stays_if_it_is_large() -> None:
    others: list[Any] = [big("keep"), *crowd("k", "keep", 2, options=ANCHOR)]
    # The pod uses an eighth of a machine at $1 an hour: 8 hours of lost work cost as much as an hour without the machine saves.
    assert removed(scale_down_of([big("a"), movable("x", "a", owner=JOB, options={"restart_cost": 7 * 3600.0}), *others])) == ["a"]
    result = scale_down_of([big("a"), movable("x", "a", owner=JOB, options={"restart_cost": 8 * 3600.0}), *others])
    assert blockers(result)["a"] == "job"
    assert (
        detail(result, "a")
        == "restarting pod default/x and others like it loses $1.00 of work, and an hour without the machine saves $1.00"
    )


def test_no_removal_starts_if_waiting_for_its_pods_costs_more_than_it_saves() -> None:
    others: list[Any] = [big("keep"), *crowd("k", "keep", 2, options=ANCHOR)]
    assert removed(scale_down_of([big("a"), movable("x", "a", options={"grace": 1800.0}), *others])) == ["a"]
    result = scale_down_of([big("a"), movable("x", "a", options={"grace": 3600.0}), *others])
    assert blockers(result)["a"] == "job"
    assert detail(result, "a") == (
        "waiting while pod default/x and others like it save their work (grace) costs $1.00 for the machine, "
        "and an hour without it saves $1.00"
    )


def test_moving_one_gang_member_costs_the_work_of_all_members() -> None:
    others: list[Any] = [big("keep"), *crowd("k", "keep", 2, options=ANCHOR)]
    gang = {"gang": "g", "gang_size": 4, "restart_cost": 2 * 3600.0}
    assert blockers(scale_down_of([big("a"), movable("x", "a", options=gang), *others]))["a"] == "job"
    assert removed(scale_down_of([big("a"), movable("x", "a", options=gang | {"gang_size": 3}), *others])) == ["a"]


def test_a_gang_member_moves_only_within_its_zone() -> None:
    other = offering("m.big", 1.0, zone="z2", gpus=0)
    gang = {"gang": "g", "restart_cost": 60.0}
    keep = crowd("k", "keep", 2, options=ANCHOR)
    assert removed(scale_down_of([big("a"), movable("x", "a", options=gang), node("keep", other), *keep], pool(BIG, other))) == []
    anywhere = gang | {"gang_topology": "any"}
    assert removed(scale_down_of([big("a"), movable("x", "a", options=anywhere), node("keep", other), *keep], pool(BIG, other))) == ["a"]


def test_a_pod_that_requires_on_demand_does_not_move_to_spot() -> None:
    spot = offering("m.big", 0.3, market="spot", gpus=0)
    keep: list[Any] = [node("keep", spot), *crowd("k", "keep", 2, options=ANCHOR)]
    assert removed(scale_down_of([big("a"), movable("x", "a", options={"market": ("on-demand",)}), *keep], pool(BIG, spot))) == []
    assert removed(scale_down_of([big("a"), movable("x", "a", options={"deadline": NOW + 9e5}), *keep], pool(BIG, spot))) == []
    assert removed(scale_down_of([big("a"), movable("x", "a"), *keep], pool(BIG, spot))) == ["a"]


def test_a_pod_does_not_move_to_another_architecture() -> None:
    arm = offering("a.big", 1.0, labels={ARCH: "arm64"}, gpus=0)
    keep: list[Any] = [node("keep", arm), *crowd("k", "keep", 2, options=ANCHOR)]
    assert removed(scale_down_of([big("a"), movable("x", "a"), *keep], pool(BIG, arm))) == []
    either = spec(node_selector=((ARCH, "arm64"),))
    assert removed(scale_down_of([big("a"), movable("x", "a", either), *keep], pool(BIG, arm))) == ["a"]


def test_consolidation_respects_anti_affinity_of_the_moved_pods() -> None:
    alone = spec(anti_affinity=(near(HOST, app="db"),))
    items: list[Any] = [big("a"), big("b"), movable("x", "a", alone, labels={"app": "db"}), movable("y", "b", alone, labels={"app": "db"})]
    result = scale_down_of(items)
    assert removed(result) == []
    assert detail(result, "a").endswith("of 1 open node, 1 have a pod that conflicts with it (anti-affinity)")
    assert len(scale_down_of([*items, big("c"), movable("z", "c", options=ANCHOR)]).removals) == 1


def test_consolidation_respects_anti_affinity_of_other_pods() -> None:
    shy = spec(anti_affinity=(near(HOST, app="loud"),))
    result = scale_down_of([big("a"), big("b"), movable("x", "a", labels={"app": "loud"}), movable("y", "b", shy, options=ANCHOR)])
    assert removed(result) == []


def test_consolidation_uses_a_host_port_only_once_per_node() -> None:
    ported = spec(host_ports=(HostPort(80),))
    keep: list[Any] = [big("keep"), *crowd("k", "keep", 2, options=ANCHOR)]
    result = scale_down_of([big("a"), big("b"), movable("x", "a", ported), movable("y", "b", ported), *keep])
    assert len(result.removals) == 1


def test_consolidation_respects_spread_over_zones() -> None:
    other = offering("m.big", 1.0, zone="z2", gpus=0)
    even = spec(spread=(spread(ZONE, app="web"),))
    items: list[Any] = [
        big("a"),
        node("b", other),
        movable("x", "a", even),
        movable("y", "b", even),
        big("keep"),
        *crowd("k", "keep", 2, options=ANCHOR, labels={}),
    ]
    result = scale_down_of(items, pool(BIG, other))
    assert removed(result) == ["a"]
    assert only(result).moves[0].to == "keep"


def test_a_pod_that_pending_pods_have_affinity_to_is_not_moved() -> None:
    follower = spec(affinity=(near(HOST, app="web"),))
    keep: list[Any] = [big("keep"), *crowd("k", "keep", 2, options=ANCHOR, labels={})]
    result = scale_down_of([big("a"), movable("x", "a"), *keep, movable("soon", of=follower, labels={"app": "friend"})])
    assert blockers(result)["a"] == "needed"
    assert detail(result, "a") == "pending pods have affinity or spread rules that select pod default/x"


def test_a_pod_that_others_have_zone_affinity_to_moves_only_within_its_zone() -> None:
    other = offering("m.big", 1.0, zone="z2", gpus=0)
    follower = spec(affinity=(near(ZONE, app="web"),))
    keep = crowd("k", "keep", 2, options=ANCHOR, labels={})
    for waiting in (
        movable("soon", of=follower, labels={"app": "friend"}),
        movable("here", "keep", follower, options=ANCHOR, labels={"app": "friend"}),
    ):
        assert removed(scale_down_of([big("a"), movable("x", "a"), big("keep"), *keep, waiting])) == ["a"]
        away = [big("a"), movable("x", "a"), node("keep", other), *keep, waiting]
        assert removed(scale_down_of(away, pool(BIG, other))) == (["a"] if waiting.node_name else [])


def test_consolidation_does_not_depend_on_the_order_of_objects() -> None:
    pods = [pod for number in range(6) for pod in crowd(f"p{number}", f"n{number}", number % 3 + 1)]
    items: list[Any] = [*(big(f"n{number}") for number in range(6)), *pods]
    assert scale_down_of(items) == scale_down_of(items[::-1])


def test_pods_without_accelerators_are_not_moved_onto_a_gpu_machine() -> None:
    gpus = offering("g.big", 5.0, gpus=8, pods=20)
    busy = movable("train", "g", spec(gpus=8, cpu=1, memory=1), options=ANCHOR)
    result = scale_down_of([big("a"), node("g", gpus), *crowd("x", "a", 2), busy], pool(BIG, gpus))
    assert removed(result) == []
    assert blockers(result)["a"] == "in-use"


def test_pods_without_accelerators_leave_a_gpu_machine_for_another() -> None:
    gpus = offering("g.big", 5.0, gpus=8, pods=20)
    result = scale_down_of([big("g"), node("h", gpus), node("i", gpus), *crowd("x", "h", 1), *crowd("y", "i", 2)], pool(BIG, gpus))
    assert {"h", "i"} & set(removed(result))


#: Must be in a zone with a pod of the app "b".
NEAR_B = spec(affinity=(near(ZONE, app="b"),))
B = {"app": "b"}


def test_a_move_does_not_rely_on_affinity_to_a_pod_that_still_has_to_move() -> None:
    """b-1 needs a zone with b-0. While b-0 still runs in z2, b-1 has no other place in z1, although b-0 will move there."""
    there, here = offering("m.big", zone="z2", gpus=0), BIG
    pods = [movable("b-0", "leaving", NEAR_B, labels=B), movable("b-1", "n2", NEAR_B, labels=B)]
    nodes = [node("leaving", there, ready=False), node("n1", here), node("n2", here), *crowd("y", "n1", 1, options=ANCHOR)]
    state = State(disrupting=frozenset({"leaving"}), idle_seconds={})
    assert removed(scale_down_of([*nodes, *pods], pool(here, there), state=state)) == []
    assert removed(scale_down_of([*nodes, *pods[1:]], pool(here, there), state=state)) == ["n2"]


@pytest.mark.parametrize("alone", [False, True])
def test_a_move_does_not_rely_on_affinity_to_a_daemonset_pod_of_the_removed_machine(alone: bool) -> None:
    """Only a DaemonSet pod satisfies its affinity in the zone, and that pod is on the machine that is removed."""
    agents = [movable("agent-0", "n1", labels=B, owner=DAEMON)] + ([] if alone else [movable("agent-1", "n2", labels=B, owner=DAEMON)])
    result = scale_down_of([big("n1"), big("n2"), movable("x", "n1", NEAR_B), *crowd("y", "n2", 1, options=ANCHOR), *agents])
    assert removed(result) == ([] if alone else ["n1"])


def test_a_move_does_not_rely_on_affinity_to_an_expendable_pod_of_the_removed_machine() -> None:
    low = movable("b", "n1", spec(priority=-50), labels=B)
    result = scale_down_of([big("n1"), big("n2"), movable("x", "n1", NEAR_B), low, *crowd("y", "n2", 1, options=ANCHOR)])
    assert removed(result) == []
