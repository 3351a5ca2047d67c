"""Pools that keep their machines for large pods (``min_gpus_per_pod``)."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.planning.building import (
    DAEMON,
    GPU,
    HOST,
    JOB,
    NOW,
    TYPE,
    ZONE,
    bought,
    near,
    node,
    offering,
    placed,
    planned,
    pod,
    pods,
    pool,
    reasons,
    spec,
    spread,
    term,
    unplaced,
    zones,
)
from tests.planning.drawing import cases
from tests.planning.replaying import Case, assert_comes_true, offerings_of, planned_nodes
from tests.soaking import examples

from gpuscaler.model.accelerators import GPU_MILLI, count_accelerators, is_device
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod, PodSpec
from gpuscaler.model.pools import Limits, Offering, Policy, Pool, Spare
from gpuscaler.model.taints import Taint
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.planner import Planner
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State, Upcoming

CLOSED = Taint("gpuscaler.io/arriving")
ONE = offering("s.1", 1.0, pool="small", gpus=1, cpu=8)
EIGHT = offering("b.8", 6.0, pool="big", gpus=8, cpu=64, memory=256)
SMALL, BIG = pool(ONE), pool(EIGHT, min_gpus_per_pod=4)


def big(name: str, **more: Any) -> Node:
    """A machine of the pool BIG as it is in a cluster with a controller: closed."""
    return node(name, EIGHT, **{"taints": (CLOSED,), **more})


def test_a_small_pod_gets_a_new_machine_and_no_place_on_a_kept_one() -> None:
    made = planned([big("b"), pod("small"), pod("none", spec(cpu=1))], SMALL, BIG)

    assert placed(made) == {}
    assert bought(made) == {"s.1": 1}


def test_a_large_pod_is_placed_on_a_closed_kept_machine() -> None:
    made = planned([big("b"), pod("large", spec(gpus=4))], SMALL, BIG)

    assert placed(made) == {"large": "b"}
    assert bought(made) == {}


def test_a_partly_used_kept_machine_takes_large_pods_that_fit() -> None:
    made = planned([big("b"), pod("runs", spec(gpus=4), on="b", owner=JOB), *pods("large", 2, spec(gpus=4))], SMALL, BIG)

    assert list(placed(made).values()) == ["b"]
    assert bought(made) == {"b.8": 1}


def test_a_large_pod_must_tolerate_other_taints_of_a_kept_machine() -> None:
    made = planned([big("b", taints=(CLOSED, Taint("team", "ml"))), pod("large", spec(gpus=8))], SMALL, BIG)

    assert placed(made) == {}


def test_closed_machines_of_other_pools_take_no_pods() -> None:
    made = planned([node("s", ONE, taints=(CLOSED,)), pod("one")], SMALL, BIG)

    assert placed(made) == {}


def test_a_small_pod_is_not_placed_on_a_machine_bought_for_a_large_one() -> None:
    made = planned([pod("large", spec(gpus=7)), pod("small")], SMALL, BIG)

    assert bought(made) == {"b.8": 1, "s.1": 1}
    assert {machine.instance_type: machine.pods for machine in made.machines} == {"b.8": ("default/large",), "s.1": ("default/small",)}


def test_an_ordered_kept_machine_takes_only_large_pods() -> None:
    coming = Upcoming("m", "big", "b.8", "on-demand", "z1")

    made = planned([pod("large", spec(gpus=4)), pod("small")], SMALL, BIG, state=State(upcoming=(coming,)))

    assert placed(made) == {"large": "m"}
    assert bought(made) == {"s.1": 1}


def test_a_registered_kept_machine_in_the_ledger_takes_only_large_pods() -> None:
    coming = Upcoming("m", "big", "b.8", "on-demand", "z1", node="b")

    made = planned([big("b"), pod("large", spec(gpus=4)), pod("small")], SMALL, BIG, state=State(upcoming=(coming,)))

    assert placed(made) == {"large": "m"}
    assert bought(made) == {"s.1": 1}


def test_a_node_without_a_pool_label_is_assigned_to_a_kept_pool_by_its_type() -> None:
    unlabelled = big("b", labels={TYPE: "b.8"})
    unlabelled = msgspec.structs.replace(
        unlabelled, labels={key: value for key, value in unlabelled.labels.items() if key != "gpuscaler.io/pool"}
    )

    assert placed(planned([unlabelled, pod("small"), pod("large", spec(gpus=8))], SMALL, BIG)) == {"large": "b"}


@pytest.mark.parametrize("amount", [400, 1000, 3999])
def test_min_gpus_per_pod_counts_fractions_of_gpus_as_whole_ones(amount: int) -> None:
    shared = msgspec.structs.replace(EIGHT, allocatable={**EIGHT.allocatable, GPU: 0, GPU_MILLI: 8000})
    sold_out = msgspec.structs.replace(shared, pool="small")
    want = {"cpu": 1000, "memory": 2**30}

    made = planned(
        [pod("part", spec(requests={**want, GPU_MILLI: amount})), pod("large", spec(requests={**want, GPU_MILLI: 4000}))],
        pool(sold_out),
        pool(shared, min_gpus_per_pod=4),
        state=State(blocked_offerings=frozenset({sold_out.key})),
    )

    assert unplaced(made) == ["part"]


def test_the_reason_of_a_pod_below_min_gpus_per_pod_says_so() -> None:
    made = planned([pod("small"), pod("none", spec(cpu=1))], BIG, SMALL, state=State(blocked_offerings=frozenset({ONE.key})))

    assert [(reason.pool, reason.excluded_by) for reason in reasons(made, "small")] == [("big", "taint"), ("small", "market")]
    assert reasons(made, "small")[0].detail == "b.8 in z1 takes only pods with at least 4 GPUs (min_gpus_per_pod), the pod requests 1"
    assert reasons(made, "none")[0].detail == "b.8 in z1 takes only pods with at least 4 GPUs (min_gpus_per_pod), the pod requests none"


def test_the_reason_of_a_large_pod_names_the_resource_that_a_kept_machine_lacks() -> None:
    made = planned([pod("huge", spec(gpus=16))], BIG)

    assert reasons(made, "huge")[0].excluded_by == "resource"


def test_pods_that_spread_over_zones_use_only_pools_that_admit_their_size() -> None:
    kept = pool(*zones("b.8", 6.0, names=("z1", "z2"), pool="big", gpus=8, cpu=64, memory=256), min_gpus_per_pod=8)
    app = {"app": "a"}
    rule = (spread(ZONE, app="a"),)
    waiting = [*pods("large", 2, spec(gpus=8, spread=rule), labels=app), *pods("small", 2, spec(gpus=1, spread=rule), labels=app)]

    made = planned(waiting, pool(*zones("s.1", 1.0, names=("z1", "z2"), pool="small")), kept)

    assert unplaced(made) == []
    assert bought(made) == {"b.8": 2, "s.1": 2}


def test_large_pods_get_their_preferred_nodes_among_kept_ones() -> None:
    wish = spec(gpus=8, preferred_nodes=((10, term((ZONE, "In", "z2"))),))
    kept = pool(*zones("b.8", 6.0, names=("z1", "z2"), pool="big", gpus=8, cpu=64, memory=256), min_gpus_per_pod=8)

    for preferences in ("ignore", "respect"):
        made = planned([pod("large", wish)], kept, preferences=preferences)
        assert [machine.zone for machine in made.machines] == ["z2"]


def test_an_idle_kept_machine_is_removed_after_its_idle_time() -> None:
    made = planned([big("b")], SMALL, BIG, state=State(idle_seconds={"b": 700.0}))

    assert [removal.node for removal in made.removals] == ["b"]


def test_large_pods_move_to_a_kept_machine_and_small_ones_do_not() -> None:
    dear = offering("d.8", 12.0, pool="dear", gpus=8, cpu=64, memory=256)
    staying = pod("stays", spec(gpus=4), on="b", options={"do_not_disrupt": True})

    def moves(gpus: int) -> dict[str, str]:
        made = planned([big("b"), staying, node("d", dear), pod("moves", spec(gpus=gpus), on="d")], pool(dear), BIG)
        return {move.pod: move.to for removal in made.removals for move in removal.moves}

    assert moves(4) == {"default/moves": "b"}
    assert moves(3) == {}


def test_no_kept_machine_is_bought_to_replace_machines_of_small_pods() -> None:
    machines = [node(f"s{number}", ONE) for number in range(8)]
    running = [pod(f"p{number}", spec(gpus=1), on=f"s{number}") for number in range(8)]

    assert planned([*machines, *running], SMALL, pool(EIGHT)).removals != ()
    assert planned([*machines, *running], SMALL, BIG).removals == ()


def test_small_pods_that_already_run_on_a_kept_machine_stay() -> None:
    agent = pod("agent", spec(cpu=1), on="b", owner=DAEMON)
    made = planned([big("b"), pod("small", on="b", owner=JOB), agent, Workload("DaemonSet", "default", "agent", template=agent.spec)], BIG)

    assert made.removals == ()
    assert [entry.blocker for entry in made.blocked_nodes] == ["job"]


def test_small_spreading_pods_are_placed_on_ordered_machines_and_not_on_kept_ones() -> None:
    coming = Upcoming("m", "small", "s.1", "on-demand", "z1")
    waiting = pods("small", 2, spec(gpus=1, spread=(spread(ZONE, skew=5, app="a"),)), labels={"app": "a"})

    for taints in ((CLOSED,), ()):
        made = planned([big("b", taints=taints), *waiting], SMALL, BIG, state=State(upcoming=(coming,)))
        assert list(placed(made).values()) == ["m"]
        assert bought(made) == {"s.1": 1}


def test_a_large_pod_with_affinity_to_a_pod_on_a_new_machine_uses_a_kept_machine() -> None:
    beside = spec(gpus=4, affinity=(near(ZONE, app="small"),))

    made = planned([big("b"), pod("small", labels={"app": "small"}), pod("large", beside)], SMALL, BIG)

    assert placed(made) == {"large": "b"}
    assert bought(made) == {"s.1": 1}


def test_a_small_pod_with_affinity_to_a_large_one_is_not_placed_on_its_kept_machine() -> None:
    beside = spec(gpus=1, affinity=(near(HOST, app="large"),))

    made = planned([pod("large", spec(gpus=4), labels={"app": "large"}), pod("small", beside)], SMALL, BIG)

    assert [machine.pods for machine in made.machines] == [("default/large",)]
    assert unplaced(made) == ["small"]


def test_a_closed_kept_machine_counts_as_headroom() -> None:
    ready = msgspec.structs.replace(BIG, spare=Spare(machines=1))

    made = planned([big("b"), big("c")], ready, state=State(idle_seconds={"b": 700.0, "c": 700.0}))

    assert [removal.node for removal in made.removals] == ["c"]
    assert [(entry.node, entry.blocker) for entry in made.blocked_nodes] == [("b", "spare")]


def test_capacity_of_a_kept_machine_is_reserved_for_large_pods_that_are_moving() -> None:
    leaving = big("old", taints=(CLOSED, Taint("gpuscaler.io/leaving")))

    made = planned([leaving, pod("moves", spec(gpus=8), on="old"), big("b")], BIG, state=State(idle_seconds={"b": 700.0}))

    assert made.removals == ()
    assert {entry.node: entry.blocker for entry in made.blocked_nodes} == {"old": "disrupting", "b": "needed"}


def test_kept_machines_that_are_not_ready_count_towards_the_limit_of_unhealthy_nodes() -> None:
    lost = [big(f"b{number}", ready=False) for number in range(4)]

    made = planned([*lost, node("s", ONE)], SMALL, BIG, state=State(idle_seconds={"s": 700.0}))

    assert {entry.blocker for entry in made.blocked_nodes} == {"unhealthy"}


def test_a_planner_follows_an_ordered_machine_to_another_pool() -> None:
    small = msgspec.structs.replace(EIGHT, pool="small", labels={})
    policy = Policy((pool(small), pool(msgspec.structs.replace(EIGHT, labels={}), min_gpus_per_pod=4)))
    planner, cluster = Planner(policy), Cluster.of([pod("small")])

    for name, places in (("small", {"small": "m"}), ("big", {}), ("small", {"small": "m"})):
        state = State(upcoming=(Upcoming("m", name, "b.8", "on-demand", "z1"),))
        assert placed(planner.plan(cluster, state, NOW)) == places


# Pods that no pool takes by its minimum.

FOUR = pool(offering("m.4", 3.0, pool="middle", gpus=4, cpu=32, memory=128), min_gpus_per_pod=2)
WHOLE = pool(EIGHT, min_gpus_per_pod=8)


@pytest.mark.parametrize(("gpus", "machine"), [(1, "s.1"), (2, "m.4"), (4, "m.4"), (5, "b.8"), (7, "b.8"), (8, "b.8")])
def test_a_pod_too_small_for_the_only_pool_that_holds_it_is_placed_there(gpus: int, machine: str) -> None:
    made = planned([pod("p", spec(gpus=gpus))], SMALL, FOUR, WHOLE)

    assert bought(made) == {machine: 1}


def test_a_pod_without_a_pool_for_its_size_is_placed_on_the_smallest_machine_and_not_on_an_idle_larger_one() -> None:
    made = planned([big("b"), *pods("p", 2, spec(gpus=1))], FOUR, WHOLE)

    assert bought(made) == {"m.4": 1}


def test_a_pod_without_a_pool_for_its_size_uses_an_idle_kept_machine_of_the_pool_that_takes_it() -> None:
    made = planned([big("b"), pod("p", spec(gpus=6)), pod("small")], SMALL, FOUR, WHOLE)

    assert placed(made) == {"p": "b"}
    assert bought(made) == {"s.1": 1}


@pytest.mark.parametrize(
    "only_there",
    [{"node_selector": ((TYPE, "b.8"),)}, {"memory": 200}, {"cpu": 40}],
    ids=["selector", "memory", "cpu"],
)
def test_a_small_pod_that_only_large_machines_can_hold_is_placed_there(only_there: Any) -> None:
    made = planned([pod("p", spec(gpus=1, **only_there))], SMALL, FOUR, WHOLE)

    assert bought(made) == {"b.8": 1}


def test_daemon_sets_count_where_a_pod_has_a_pool_for_its_size() -> None:
    """A pod that needs a whole small machine has no place beside a DaemonSet there."""
    agent = Workload("DaemonSet", "default", "agent", template=spec(cpu=1, gpus=0))

    assert bought(planned([pod("p", spec(gpus=1, cpu=8))], SMALL, WHOLE)) == {"s.1": 1}
    assert bought(planned([pod("p", spec(gpus=1, cpu=8)), agent], SMALL, WHOLE)) == {"b.8": 1}


def test_a_pod_whose_pool_has_no_capacity_waits_and_takes_no_kept_machine() -> None:
    made = planned([big("b"), pod("p")], SMALL, WHOLE, state=State(blocked_offerings=frozenset({ONE.key})))

    assert unplaced(made) == ["p"]
    assert placed(made) == {}


def test_a_pod_whose_own_pool_may_have_no_machines_is_placed_on_a_larger_one() -> None:
    assert bought(planned([pod("p")], msgspec.structs.replace(SMALL, max=0), WHOLE)) == {"b.8": 1}


def test_a_pod_without_gpus_gets_no_kept_machine_even_if_no_other_holds_it() -> None:
    made = planned([big("b"), pod("p", spec(cpu=40))], SMALL, WHOLE)

    assert unplaced(made) == ["p"]


def test_an_arm_pool_is_no_pool_for_a_pod_that_does_not_select_arm() -> None:
    arm = pool(msgspec.structs.replace(ONE, labels={**ONE.labels, "kubernetes.io/arch": "arm64"}))

    assert bought(planned([pod("p")], arm, WHOLE)) == {"b.8": 1}


def test_pods_of_one_family_keep_to_the_pools_of_their_own_size() -> None:
    """Each fits small machines. A pod with the larger request of both would fit only a large one."""
    rule = (spread(ZONE, app="a"),)
    waiting = [
        pod("cpu", spec(gpus=1, cpu=8, memory=1, spread=rule), labels={"app": "a"}),
        pod("memory", spec(gpus=1, cpu=1, memory=32, spread=rule), labels={"app": "a"}),
    ]
    small = pool(
        offering("c.1", 1.0, pool="small", gpus=1, cpu=8, memory=8), offering("m.1", 1.0, pool="small", gpus=1, cpu=2, memory=64, zone="z2")
    )

    made = planned(waiting, small, WHOLE)

    assert unplaced(made) == []
    assert bought(made) == {"c.1": 1, "m.1": 1}


def test_the_plan_warns_of_sizes_that_no_pool_is_for() -> None:
    (warning,) = planned([], SMALL, FOUR, WHOLE).warnings

    assert warning == (
        "pool big: saw min_gpus_per_pod: 8, but no pool is for pods with 5 to 7 GPUs; they go to this pool, whose machines are the "
        "smallest that hold them; set min_gpus_per_pod: 5 there, or add a pool for them"
    )
    assert planned([], SMALL, FOUR, BIG).warnings == ()
    assert (
        planned([], SMALL, pool(EIGHT, min_gpus_per_pod=10**12))
        .warnings[0]
        .startswith("pool big: saw min_gpus_per_pod: 1000000000000, but no pool is for pods with 2 to 8 GPUs")
    )
    assert [warning.split(";")[0] for warning in planned([], FOUR, WHOLE).warnings] == [
        "pool middle: saw min_gpus_per_pod: 2, but no pool is for pods with 1 GPU",
        "pool big: saw min_gpus_per_pod: 8, but no pool is for pods with 5 to 7 GPUs",
    ]


# Pools that are closed: the sizes of their machines make the minimums.

SIZES = (
    offering("s.1", 1.0, pool="gpu", gpus=1, cpu=8),
    offering("m.4", 3.0, pool="gpu", gpus=4, cpu=32, memory=128),
    offering("b.8", 6.0, pool="gpu", gpus=8, cpu=64, memory=256),
)
CLOSED_POOL = pool(*SIZES, closed=True)


@pytest.mark.parametrize(("gpus", "machine"), [(1, "s.1"), (2, "m.4"), (4, "m.4"), (5, "b.8"), (8, "b.8")])
def test_in_a_closed_pool_a_pod_goes_to_the_smallest_size_that_holds_it(gpus: int, machine: str) -> None:
    idle = [node(f"idle-{offering_.instance_type}", offering_, taints=(CLOSED,)) for offering_ in SIZES]
    waiting = pod("p", spec(gpus=gpus))

    assert bought(planned([waiting], CLOSED_POOL)) == {machine: 1}
    assert placed(planned([waiting, *idle], CLOSED_POOL)) == {"p": f"idle-{machine}"}
    assert placed(planned([waiting, *(each for each in idle if each.name != f"idle-{machine}")], CLOSED_POOL)) == {}


def test_in_a_closed_pool_many_small_pods_get_small_machines_even_if_large_ones_cost_less_for_each_gpu() -> None:
    assert bought(planned(pods("p", 8, spec(gpus=1)), CLOSED_POOL)) == {"s.1": 8}


@pytest.mark.parametrize("only_there", [{"node_selector": ((TYPE, "b.8"),)}, {"memory": 200}, {"cpu": 40}])
def test_in_a_closed_pool_a_small_pod_that_only_large_machines_can_hold_is_placed_there(only_there: Any) -> None:
    assert bought(planned([pod("p", spec(gpus=1, **only_there))], CLOSED_POOL)) == {"b.8": 1}


WIDE = (
    offering("w.8", 1.0, pool="gpu", gpus=1, cpu=8),
    offering("w.16", 1.4, pool="gpu", gpus=1, cpu=16),
    offering("w.32", 2.2, pool="gpu", gpus=1, cpu=32),
)


@pytest.mark.parametrize(("cpu", "taking"), [(4, {"w.8", "w.16"}), (12, {"w.16"}), (20, {"w.32"})])
def test_in_a_closed_pool_a_pod_uses_no_machine_that_costs_much_more_than_the_smallest_that_holds_it(cpu: int, taking: set[str]) -> None:
    """The number of GPUs alone does not make the size: one small pod would hold a machine with many cores for as long as it runs."""
    waiting, closed = pod("p", spec(gpus=1, cpu=cpu)), pool(*WIDE, closed=True)

    def takes(idle: Offering) -> bool:
        return placed(planned([waiting, node("idle", idle, taints=(CLOSED,))], closed)) == {"p": "idle"}

    assert {each.instance_type for each in WIDE if takes(each)} == taking


def test_the_size_of_a_machine_of_a_closed_pool_does_not_depend_on_its_market_or_on_what_can_be_bought_now() -> None:
    spot = [msgspec.structs.replace(each, market="spot", price=each.price / 4) for each in WIDE]
    idle = node("idle", WIDE[0], taints=(CLOSED,))

    for state in (State(), State(blocked_offerings=frozenset(each.key for each in spot))):
        assert placed(planned([pod("p", spec(gpus=1)), idle], pool(*WIDE, *spot, closed=True), state=state)) == {"p": "idle"}


@pytest.mark.parametrize(("gpus", "machine"), [(1, "s.1"), (6, "b.8")])
def test_in_a_closed_pool_machines_that_are_paid_already_count_by_their_gpus(gpus: int, machine: str) -> None:
    """A small pod does not hold a large reserved machine only because it costs nothing."""
    paid = msgspec.structs.replace(SIZES[2], market="reserved", price=0.0)

    for paid_pool in (pool(*SIZES[:2], paid, closed=True), pool(*SIZES, paid, closed=True)):
        idle = node("b.8", paid, taints=(CLOSED,))
        assert bought(planned([pod("p", spec(gpus=gpus))], paid_pool)) == {machine: 1}
        assert placed(planned([pod("p", spec(gpus=gpus)), idle], paid_pool)) == ({"p": "b.8"} if machine == "b.8" else {})


# Pods that wait for a machine of the ledger.


def coming(*waiting: str, machine: str = "m") -> Upcoming:
    return Upcoming(machine, "gpu", "s.1", "on-demand", "z1", pods=tuple(f"default/{name}" for name in waiting))


def test_a_pod_that_waits_for_its_machine_takes_the_room_that_becomes_free_on_an_open_one_of_its_size() -> None:
    made = planned([pod("p"), node("s", SIZES[0], taints=(CLOSED,))], CLOSED_POOL, state=State(upcoming=(coming("p"),)))

    assert (placed(made), bought(made)) == ({"p": "s"}, {})


def test_the_oldest_waiting_pod_takes_the_room_and_a_new_pod_gets_the_machine_on_its_way() -> None:
    waiting = [pod("young", created=NOW - 10), pod("old", created=NOW - 90), pod("new", created=NOW - 1)]
    state = State(upcoming=(coming("young", machine="m1"), coming("old", machine="m2")))

    made = planned([*waiting, node("s", SIZES[0], taints=(CLOSED,))], CLOSED_POOL, state=state)

    assert (placed(made), bought(made)) == ({"old": "s", "young": "m1", "new": "m2"}, {})


@pytest.mark.parametrize(
    "elsewhere",
    [node("b", SIZES[2], taints=(CLOSED,)), node("s", SIZES[0], taints=(CLOSED,), ready=False)],
    ids=["larger", "not ready"],
)
def test_a_pod_that_waits_for_its_machine_keeps_it_while_no_open_one_is_for_it(elsewhere: Node) -> None:
    assert placed(planned([pod("p"), elsewhere], CLOSED_POOL, state=State(upcoming=(coming("p"),)))) == {"p": "m"}


@pytest.mark.parametrize(
    "others",
    [[pod("new", spec(gpus=1, priority=10))], pods("g", 2, spec(gpus=1), options={"gang": "g", "gang_size": 2})],
    ids=["of higher priority", "of a gang"],
)
def test_a_waiting_pod_leaves_the_room_to_pods_that_come_first_and_have_no_machine(others: list[Pod]) -> None:
    made = planned([pod("p"), *others, node("s", SIZES[0], taints=(CLOSED,))], CLOSED_POOL, state=State(upcoming=(coming("p"),)))

    assert placed(made)["p"] == "m"
    assert placed(made)[others[0].name] == "s"


def test_a_pod_with_rules_keeps_the_machine_that_was_bought_for_it() -> None:
    of = spec(gpus=1, spread=(spread(ZONE, app="p"),))
    waiting = pod("p", of, labels={"app": "p"})

    made = planned([waiting, node("s", SIZES[0], taints=(CLOSED,))], CLOSED_POOL, state=State(upcoming=(coming("p"),)))

    assert placed(made) == {"p": "m"}


def test_a_pod_of_an_interrupted_machine_keeps_a_larger_machine_that_was_bought_for_it() -> None:
    leaving = node("leaves", SIZES[0], taints=(CLOSED,))
    state = State(upcoming=(msgspec.structs.replace(coming("moves"), instance_type="b.8"),), vanishing=frozenset({"leaves"}))

    made = planned([leaving, pod("moves", spec(gpus=1), on="leaves")], CLOSED_POOL, state=state)

    assert (bought(made), placed(made)) == ({}, {"moves": "m"})


def test_a_pod_does_not_take_room_on_a_node_that_did_not_take_such_pods() -> None:
    waiting = pod("p")
    refusing = {waiting.spec.digest: frozenset({"s"})}

    made = planned([waiting, node("s", SIZES[0], taints=(CLOSED,))], CLOSED_POOL, state=State(upcoming=(coming("p"),), refusing=refusing))

    assert placed(made) == {"p": "m"}


def test_in_a_closed_pool_pods_without_gpus_use_machines_without_gpus_if_there_are_any() -> None:
    without = pool(*SIZES, offering("c.8", 0.5, pool="gpu", gpus=0, cpu=8), closed=True)
    idle = [node(f"idle-{offering_.instance_type}", offering_, taints=(CLOSED,)) for offering_ in SIZES]

    assert bought(planned([pod("p", spec(gpus=0, cpu=1)), *idle], without)) == {"c.8": 1}
    assert placed(planned([pod("p", spec(gpus=0, cpu=1)), *idle], CLOSED_POOL)) == {"p": "idle-s.1"}


def test_an_explicit_minimum_of_a_closed_pool_replaces_the_minimums_by_size() -> None:
    assert bought(planned(pods("p", 8, spec(gpus=1)), pool(*SIZES[1:], closed=True, min_gpus_per_pod=1))) == {"b.8": 1}


def test_a_machine_of_an_unknown_type_in_a_closed_pool_has_the_minimum_of_its_number_of_gpus() -> None:
    unknown = msgspec.structs.replace(SIZES[2], instance_type="other.8", labels={**SIZES[2].labels, TYPE: "other.8"})
    other = node("other", unknown, taints=(CLOSED,))

    assert placed(planned([pod("small"), pod("large", spec(gpus=6)), other], CLOSED_POOL)) == {"large": "other"}


def test_in_a_closed_pool_a_pod_whose_size_cannot_be_bought_goes_to_the_next_larger_machine_that_can() -> None:
    sold_out = State(blocked_offerings=frozenset({SIZES[0].key}))
    middle, big = (node(each.instance_type, each, taints=(CLOSED,)) for each in SIZES[1:])

    assert bought(planned([pod("small")], CLOSED_POOL, state=sold_out)) == {"m.4": 1}
    assert placed(planned([pod("small"), middle, big], CLOSED_POOL, state=sold_out)) == {"small": "m.4"}
    assert bought(planned([pod("small"), big], CLOSED_POOL, state=sold_out)) == {"m.4": 1}


def test_in_a_closed_pool_a_pod_for_which_nothing_can_be_bought_goes_to_any_machine() -> None:
    sold_out = State(blocked_offerings=frozenset(each.key for each in SIZES))
    idle = node("b", SIZES[2], taints=(CLOSED,))

    assert placed(planned([pod("small"), idle], CLOSED_POOL, state=sold_out)) == {"small": "b"}
    assert placed(planned([pod("small"), idle], CLOSED_POOL, limits=Limits(machines=1))) == {"small": "b"}


@pytest.mark.parametrize(
    ("of", "options"),
    [
        (spec(gpus=1, affinity=(near(HOST, app="large"),)), {}),
        (spec(gpus=1, node_selector=((HOST, "b"),)), {}),
        (spec(gpus=1), {"market": ("spot",)}),
        (spec(gpus=0, cpu=16), {}),
    ],
    ids=["beside a pod on a large machine", "on one node", "on spot", "many cores without GPUs"],
)
def test_in_a_closed_pool_no_rule_of_a_pod_keeps_it_from_the_only_machine_that_admits_it(of: PodSpec, options: Any) -> None:
    sizes = (*SIZES, offering("c.8", 0.5, pool="gpu", gpus=0, cpu=8), offering("b.8", 2.0, pool="gpu", gpus=8, cpu=64, market="spot"))
    large = pod("large", spec(gpus=6), on="b", labels={"app": "large"}, owner=JOB)
    waiting = pod("p", of, options=options)

    made = planned([waiting, large, node("b", SIZES[2], taints=(CLOSED,))], pool(*sizes, closed=True))

    assert unplaced(made) == []


def test_a_gang_whose_sizes_cannot_be_bought_goes_to_larger_machines() -> None:
    members = pods("g", 2, spec(gpus=1), options={"gang": "g", "gang_size": 2})

    assert bought(planned(members, CLOSED_POOL, state=State(blocked_offerings=frozenset({SIZES[0].key})))) == {"m.4": 1}


@pytest.mark.parametrize("pool_", [CLOSED_POOL, pool(*SIZES[1:], min_gpus_per_pod=4)], ids=["closed", "minimum"])
def test_a_pod_keeps_the_kept_machine_that_was_bought_for_it_whatever_its_size(pool_: Pool) -> None:
    """It was bought as a fallback, or when the pod's own size could not be had, or under other settings."""
    coming = Upcoming("m", pool_.name, "m.4", "on-demand", "z1", pods=("default/p",))

    for node_name in ("", "n"):
        items = [node(node_name, SIZES[1], taints=(CLOSED,))] if node_name else []
        state = State(upcoming=(msgspec.structs.replace(coming, node=node_name),))
        made = planned([pod("p"), *items], pool_, SMALL, state=state)
        assert (placed(made), bought(made)) == ({"p": "m"}, {})


def test_pods_on_larger_machines_of_a_closed_pool_stay() -> None:
    made = planned([node("b", SIZES[2], taints=(CLOSED,)), pod("small", on="b", owner=JOB)], CLOSED_POOL)

    assert made.removals == ()


# Properties of every plan.

SEARCH = settings(max_examples=examples(40), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def kept_cases(draw: st.DrawFn) -> Case:
    """Cases in which at least one pool is for large pods, by a minimum or by being closed."""
    case = draw(cases())
    first, *others = case.policy.pools
    floors = draw(st.tuples(st.sampled_from((0, 1, 2, 8)), st.sampled_from((0, 0, 4))))
    closed = draw(st.booleans())
    pools = tuple(
        msgspec.structs.replace(pool, min_gpus_per_pod=floor, closed=closed) for pool, floor in zip((first, *others), floors, strict=False)
    )
    return replace(case, policy=msgspec.structs.replace(case.policy, pools=pools))


def machines_of(case: Case, made: Plan) -> dict[str, tuple[Pool, float]]:
    """The pool and the price of the type of every node, upcoming machine and machine to buy.

    Of the machines that a cloud may choose, a machine to buy counts as the largest, and an ordered one as the smallest.
    """
    by_name = {pool.name: pool for pool in case.policy.pools}
    machines = {}
    for item in case.items:
        if isinstance(item, Node):
            pool = by_name[item.labels["gpuscaler.io/pool"]]
            machines[item.name] = (pool, lowest_price(pool, item.labels[TYPE]))
    for upcoming in case.state.upcoming:
        pool = by_name[upcoming.pool]
        prices = [lowest_price(pool, offering.instance_type) for offering in offerings_of(upcoming, case.policy)]
        machines[upcoming.node or upcoming.id] = (pool, min(prices))
    for bought_machine in made.machines:
        pool = by_name[bought_machine.pool]
        prices = [lowest_price(pool, offering.instance_type) for offering in offerings_of(bought_machine, case.policy)]
        machines[bought_machine.id] = (pool, max(prices))
    return machines


def lowest_price(pool: Pool, instance_type: str) -> float:
    """The lowest price of a type over markets and zones; all nodes of the cases have types of their pools, at a price."""
    return min(offering.price for offering in pool.offerings if offering.instance_type == instance_type)


def serves(case: Case, waiting: Pod, pool: Pool, dollars: float) -> bool:
    """Whether such a machine of ``pool`` is for pods of this size, or is the smallest that holds it if none is."""
    if waiting.key in {key for machine in case.state.upcoming for key in machine.pods}:
        return True
    if pool.closed and not pool.min_gpus_per_pod:
        fitting = sizes_for(case, pool, waiting)
        available = [price for _, price, can_be_bought in fitting if can_be_bought] or [price for _, price, _ in fitting]
        return dollars <= 1.5 * min(available, default=math.inf) + 1e-9
    requested = count_accelerators(waiting.spec.requests)
    if requested >= pool.min_gpus_per_pod:
        return True
    # From the smallest machine that holds the pod: its size, its price and its minimum.
    sizes = [
        (size, price, other.min_gpus_per_pod)
        for other in case.policy.pools
        if other.max != 0
        for size, price, _ in sizes_for(case, other, waiting)
    ]
    if not any(is_device(name) for name in waiting.spec.requests) or any(least <= requested for *_, least in sizes):
        return False
    return pool.min_gpus_per_pod <= min(sizes, default=(0, 0.0, 0))[-1]


def sizes_for(case: Case, pool: Pool, waiting: Pod) -> list[tuple[int, float, bool]]:
    """The GPUs and the price of each machine of ``pool`` that holds the pod, and whether it can be bought now."""

    def holds(offering: Offering) -> bool:
        free = {name: amount - case.daemons.get(name, 0) for name, amount in offering.allocatable.items()}
        selects_arch = any(key == "kubernetes.io/arch" for key, _ in waiting.spec.node_selector)
        return (
            offering.admits(waiting.spec)
            and all(free.get(name, 0) >= amount for name, amount in waiting.spec.requests.items())
            and (selects_arch or offering.labels["kubernetes.io/arch"] in ("amd64", pool.arch))
        )

    sets: dict[object, list[Offering]] = {}
    for sold in pool.offerings:
        place = sold.zone if pool.names_zone else ""
        sets.setdefault(place if pool.chooser == "cloud" else sold.key, []).append(sold)
    blocked = case.state.blocked_offerings
    return [
        (max(o.gpus for o in members), max(o.price for o in members), not all(o.key in blocked for o in members))
        for members in sets.values()
        if all(map(holds, members))
    ]


def node_by_pod(case: Case, made: Plan) -> Iterator[tuple[Pod, str]]:
    """Every pod that the plan places or moves, and its node."""
    for key, name in planned_nodes(case, made).items():
        yield case.cluster.pods[key], name
    for removal in made.removals:
        for move in removal.moves:
            yield case.cluster.pods[move.pod], move.to


def is_plain(case: Case, waiting: Pod) -> bool:
    """Whether nothing but its size and its labels decides where a pod may go, and any machine can be bought for it."""
    of, policy = waiting.spec, case.policy
    ruled = of.affinity or of.anti_affinity or of.spread or of.host_ports or of.volumes or waiting.options.gang or waiting.options.market
    limits = policy.limits
    limited = limits.gpus or limits.machines or limits.dollars_per_hour or any(pool.max is not None for pool in policy.pools)
    device = any(is_device(name) for name in of.requests)
    return not (ruled or limited or case.state.blocked_offerings or policy.preferences == "respect") and device and not waiting.node_name


@SEARCH
@given(kept_cases())
def test_no_plan_puts_a_small_pod_on_a_kept_machine(case: Case) -> None:
    made = case.plan()
    machines = machines_of(case, made)
    for pod_key, name in node_by_pod(case, made):
        pool, dollars = machines[name]
        # Pods that find no place by size may go to any machine of a closed pool.
        has_place = not (pool.closed and not pool.min_gpus_per_pod) or is_plain(case, pod_key)
        assert serves(case, pod_key, pool, dollars) or not has_place, f"{pod_key.key} on {name}"
    assert_comes_true(case, made)


@SEARCH
@given(kept_cases())
def test_no_plan_buys_a_machine_for_a_pod_that_fits_an_existing_one(case: Case) -> None:
    made = case.plan()
    machines, rooms = machines_of(case, made), assert_comes_true(case, made)
    left = {entry.pod for entry in made.unplaced} | {
        key for machine in made.machines if machine.purpose == "demand" for key in machine.pods
    }
    for unplaced_pod in (case.cluster.pods[key] for key in left):
        rules = unplaced_pod.spec.affinity or unplaced_pod.spec.anti_affinity or unplaced_pod.spec.spread or unplaced_pod.options.gang
        if rules or case.policy.preferences == "respect":
            continue
        fits = partial(serves, case, unplaced_pod)
        for room in rooms:
            names = [room.table.names[row] for row in np.flatnonzero(room.capacity(unplaced_pod.spec, unplaced_pod.labels))]
            there = [name for name in names if name in case.cluster.nodes and is_open(case, name) and fits(*machines[name])]
            assert not there, f"{unplaced_pod.key} fits {there}"


def is_open(case: Case, name: str) -> bool:
    node = case.cluster.nodes[name]
    return node.ready and not node.deleted and name not in case.state.disrupting


@SEARCH
@given(kept_cases())
def test_plans_are_the_same_whether_kept_machines_are_closed_or_open(case: Case) -> None:
    kept = {pool.name for pool in case.policy.pools if pool.min_gpus_per_pod or pool.closed}

    def closed(item: Item) -> Item:
        if not isinstance(item, Node) or item.labels["gpuscaler.io/pool"] not in kept:
            return item
        return msgspec.structs.replace(item, taints=(*item.taints, CLOSED))

    assert replace(case, items=tuple(map(closed, case.items))).plan() == case.plan()
