"""Pods that count each other by topology spread: a plan holds in any order of binding."""

from itertools import permutations
from typing import Any

import pytest
from tests.planning.building import HOST, ZONE, node, offering, placed, pod, pods, pool, spec, spread, zones, zones_of
from tests.planning.replaying import Case, assert_comes_true, bind, existing_room, planned_nodes, rooms

from gpuscaler.model.cluster import Item
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state import State, Upcoming

RACK = "example.com/rack"
G = {"group": "g"}
SMALL = pool(*zones("g.1", labels={RACK: "r1"}))


def assert_any_order(items: list[Item], *groups: list[Pod]) -> dict[str, str]:
    """Assert that the plan's placements are admitted in every order of ``groups``, and return them."""
    case = Case((*items, *(pod for group in groups for pod in group)), Policy((SMALL,)))
    made = case.plan()
    where = planned_nodes(case, made)
    for room in [*rooms(case, made), *([existing_room(case)] if not made.machines else [])]:
        for order in permutations(groups):
            assert bind(room.copy(), [pod for group in order for pod in group if pod.key in where], where) == []
    return where


def test_purchases_for_pods_whose_spreads_count_each_other_hold_in_any_scheduling_order() -> None:
    """Pods that stay in one zone may bind there at any time, so the others must not rely on binding first."""
    stay = pods("stay", 3, spec(gpus=1, node_selector=((ZONE, "z1"),), spread=(spread(RACK, group="g"),)), labels=G)
    even = pods("even", 4, spec(gpus=1, spread=(spread(ZONE, group="g"),)), labels=G)
    assert len(assert_any_order([], even, stay)) == 7


def test_placements_of_pods_whose_spreads_count_each_other_hold_in_any_scheduling_order() -> None:
    nodes: list[Item] = [node(f"n-{of.zone}", of) for of in zones("g.8", gpus=8, labels={RACK: "r1"})]
    stay = pods("stay", 3, spec(gpus=1, node_selector=((ZONE, "z1"),), spread=(spread(RACK, group="g"),)), labels=G)
    even = pods("even", 4, spec(gpus=1, spread=(spread(ZONE, group="g"),)), labels=G)
    where = assert_any_order(nodes, even, stay)
    assert sorted(where.values()).count("n-z1") == 3


def test_pods_without_a_zone_rule_go_where_spreads_of_other_pods_count_the_fewest() -> None:
    """Otherwise all these pods would go to the cheapest zone, and the pods that spread could use no other zone."""
    left = pods("left", 6, spec(gpus=1, spread=(spread(ZONE, app="right"),)), labels={"app": "left"})
    right = pods("right", 6, spec(gpus=1, spread=(spread(ZONE, app="left"),)), labels={"app": "right"})
    case = Case((*left, *right), Policy((SMALL,)))
    made = case.plan()
    assert zones_of(made) == {"z1": 4, "z2": 4, "z3": 4}
    assert_any_order([], left, right)


@pytest.mark.parametrize("gpus", [1, 8])
def test_existing_machines_are_filled_before_pods_are_spread_evenly(gpus: int) -> None:
    left = pods("left", 3, spec(gpus=1, spread=(spread(ZONE, app="right", skew=3),)), labels={"app": "left"})
    counting = pod("right", spec(gpus=1, spread=(spread(ZONE, app="left", skew=9),)), labels={"app": "right"})
    made = Case((node("n", offering("g.8", gpus=gpus)), *left, counting), Policy((SMALL,))).plan()
    assert len(placed(made)) == min(gpus, 4)


def test_a_promised_pod_is_moved_if_pods_that_its_spread_counts_bind_in_the_zone_first() -> None:
    """The pod was promised a machine in z1, but three pods that its spread counts bind to the node in z1 first."""
    nodes: list[Item] = [node(f"n-{of.zone}", of) for of in zones("g.4", gpus=4, names=("z1", "z2"))]
    first = pods("first", 3, spec(gpus=1, node_selector=((ZONE, "z1"),)), labels=G)
    even = pod("even", spec(gpus=1, spread=(spread(ZONE, group="g"),)), labels=G)
    coming = Upcoming("m-1", "main", "g.1", "on-demand", "z1", pods=(even.key,))
    case = Case((*nodes, *first, even), Policy((SMALL,)), State(upcoming=(coming,)))
    made = case.plan()
    assert placed(made)["even"] == "n-z2"
    assert made.machines == ()


def node_without_gpus_and_node() -> list[Item]:
    return [node("n-z1", offering("c.1", gpus=0, cpu=0.5)), node("n-z2", offering("g.4", gpus=4, zone="z2"))]


def test_a_gang_with_a_promised_machine_binds_when_the_machine_arrives() -> None:
    """One member would fit on the node in z2 now, but the other member is planned for z2 as well."""
    gang = pods("p", 2, spec(gpus=1, spread=(spread(ZONE, group="g"),)), labels=G, options={"gang": "g", "gang_topology": "any"})
    coming = Upcoming("m-1", "main", "g.1", "on-demand", "z2", pods=(gang[0].key,))
    case = Case((*node_without_gpus_and_node(), *gang), Policy((SMALL,)), State(upcoming=(coming,)))
    made = case.plan()
    assert_comes_true(case, made)
    assert placed(made) == {"p-0": "m-1"}
    assert zones_of(made) == {"z1": 1}


def test_a_gang_is_planned_again_if_a_pod_that_its_spread_counts_goes_to_a_node() -> None:
    even = spec(gpus=1, spread=(spread(ZONE, group="g"),))
    gang, other = pod("p", even, labels=G, options={"gang": "g", "gang_topology": "any"}), pod("q", even, labels=G)
    coming = Upcoming("m-1", "main", "g.1", "on-demand", "z2", pods=(gang.key,))
    case = Case((*node_without_gpus_and_node(), gang, other), Policy((SMALL,)), State(upcoming=(coming,)))
    made = case.plan()
    assert_comes_true(case, made)
    assert placed(made) == {"q": "n-z2"}
    assert zones_of(made) == {"z1": 1}


def test_high_priority_pods_keep_the_skew_if_a_machine_is_bought_for_low_priority_pods() -> None:
    """Each priority is planned for separately, and the second machine counts as empty for pods that spread over hosts."""
    first = pods("first", 2, spec(cpu=1, priority=10, spread=(spread(HOST, group="g"),)), labels=G)
    second = pods("second", 2, spec(gpus=1))
    coming = Upcoming("m-1", "main", "g.1", "on-demand", "z1")
    case = Case((*first, *second), Policy((SMALL,), preferences="respect"), State(upcoming=(coming,)))
    made = case.plan()
    assert_comes_true(case, made)
    assert sorted(placed(made)) == ["first-0", "second-0"]
    assert [len(machine.pods) for machine in made.machines] == [2]


def test_pods_keep_their_ordered_machine_if_another_pod_planned_there_goes_elsewhere() -> None:
    """The empty bought machine keeps a second pod that spreads over hosts off the ordered one, but not the pods that spread over zones."""
    by_host = pods("host", 2, spec(cpu=1, spread=(spread(HOST, group="g"),)), labels=G)
    by_zone = pods("zone", 2, spec(cpu=1, spread=(spread(ZONE, group="h"),)), labels={"group": "h"})
    large = pod("large", spec(gpus=1, cpu=7))
    kinds = pool(offering("g.1"), offering("g.1", 2.0, zone="z2"), offering("c.8", 3.0, gpus=0))
    coming = Upcoming("m-1", "main", "c.8", "on-demand", "z1")
    case = Case((*by_host, *by_zone, large), Policy((kinds,)), State(upcoming=(coming,)))
    made = case.plan()
    assert_comes_true(case, made)
    assert sorted(placed(made)) == ["host-0", "zone-0", "zone-1"]
    assert zones_of(made) == {"z1": 2}


@pytest.mark.parametrize("coming", [False, True])
def test_a_pod_that_a_zone_spread_counts_avoids_machines_of_undecided_zone(coming: bool) -> None:
    open_still = pool(*zones("g.1", 0.5, pool="open", names=("z1", "z2")), chooser="cloud")
    counted_pod = pod("one", spec(gpus=1), labels=G)
    even = pods("even", 3, spec(gpus=1, spread=(spread(ZONE, group="g"),)), labels=G)
    choices = tuple((of.instance_type, of.market, of.zone) for of in open_still.offerings)
    machines = (Upcoming("m-1", "open", "g.1", "on-demand", "z1", choices=choices),) if coming else ()
    case = Case((counted_pod, *even), Policy((pool(*zones("g.1", names=("z1", "z2"))), open_still)), State(upcoming=machines))
    made = case.plan()
    assert_comes_true(case, made)
    assert zones_of(made) == {"z1": 2, "z2": 2}


def test_a_pod_that_a_zone_spread_counts_gets_a_machine_of_undecided_zone_as_a_last_resort() -> None:
    open_still = pool(*zones("g.1", names=("z1", "z2")), chooser="cloud")
    counted_pod = pod("one", spec(gpus=1), labels=G)
    even = pod("even", spec(gpus=1, spread=(spread(ZONE, group="g"),)), labels=G)
    made = Case((counted_pod, even), Policy((open_still,))).plan()
    assert [machine.pods for machine in made.machines] == [(counted_pod.key,)]


def crowd(count: int) -> list[Pod]:
    """Pods with different requests, labels, and rules that select by labels; rules and labels are independent of each other."""
    rules: tuple[dict[str, Any], ...] = (
        {},
        *({"spread": (spread(ZONE, app=app),)} for app in "abc"),
        *({"spread": (spread(HOST, app=app),)} for app in "abc"),
    )
    return [
        pod(f"p-{number:04}", spec(gpus=1, cpu=1 + number / 1000, **rules[number % 7]), labels={"app": "abc"[number % 3]})
        for number in range(count)
    ]


def test_a_plan_for_many_pods_whose_spreads_count_each_other_holds_in_any_order() -> None:
    case = Case(tuple(crowd(450)), Policy((pool(*zones("g.8", 8.0, gpus=8, cpu=64)),)))
    made = case.plan()
    where = planned_nodes(case, made)
    assert len(where) == 450
    for room in rooms(case, made):
        waiting = [case.cluster.pods[key] for key in where]
        spreads = [pod for pod in waiting if pod.spec.spread]
        others = [pod for pod in waiting if not pod.spec.spread]
        assert bind(room, [*others, *spreads], where) == []


@pytest.mark.parametrize("first", range(5))
def test_spreading_pods_keep_their_promised_machines_in_two_zones_in_any_order(first: int) -> None:
    """While one pod runs in z1, other pods promised a machine there are admitted only after some pods are placed in z2."""
    sizes = {f"{name}-{gpus}": gpus for name, gpus in zip("edcba"[first:] + "edcba"[:first], (4, 8, 1, 5, 3), strict=True)}
    waiting = {gpus: pod(name, spec(gpus=gpus, spread=(spread(ZONE, group="g"),)), labels=G) for name, gpus in sizes.items()}
    runs = pod("runs", spec(gpus=2, spread=(spread(ZONE, group="g"),)), labels=G, on="n")
    kinds = [offering for gpus in (1, 4, 8) for offering in zones(f"g.{gpus}", float(gpus), gpus=gpus, cpu=64, names=("z1", "z2"))]
    homes_of = {"a": ("g.4", "z1", (4,)), "b": ("g.8", "z1", (8,)), "c": ("g.1", "z2", (1,)), "d": ("g.8", "z2", (5, 3))}
    coming = tuple(
        Upcoming(name, "main", kind, "on-demand", zone, pods=tuple(waiting[gpus].key for gpus in those))
        for name, (kind, zone, those) in homes_of.items()
    )
    items: list[Item] = [node("n", offering("g.4", gpus=4, zone="z1")), runs, *waiting.values()]

    made = Case(tuple(items), Policy((pool(*kinds),)), State(upcoming=coming)).plan()

    assert made.machines == ()
    assert placed(made) == {waiting[gpus].name: name for name, (_, _, those) in homes_of.items() for gpus in those}
