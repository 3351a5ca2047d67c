"""Pods that spread over each other: a plan holds whoever of them comes first."""

from itertools import permutations
from typing import Any

import pytest
from tests.planning.building import HOST, ZONE, node, offering, placed, pod, pods, pool, spec, spread, zones, zones_of
from tests.planning.replaying import Case, assert_comes_true, bind, homes, rooms, today

from gpuscaler.model.cluster import Item
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state import State, Upcoming

RACK = "example.com/rack"
G = {"group": "g"}
SMALL = pool(*zones("g.1", labels={RACK: "r1"}))


def assert_any_order(items: list[Item], *groups: list[Pod]) -> dict[str, str]:
    """The plan's homes, which admit the pods in every order of ``groups``."""
    case = Case((*items, *(one for group in groups for one in group)), Policy((SMALL,)))
    made = case.plan()
    where = homes(case, made)
    for room in [*rooms(case, made), *([today(case)] if not made.machines else [])]:
        for order in permutations(groups):
            assert bind(room.copy(), [one for group in order for one in group if one.key in where], where) == []
    return where


def test_pods_that_count_each_other_are_bought_for_in_an_order_that_nobody_needs() -> None:
    """Those that stay in one zone have room there at any time, so the others must not count on being there before."""
    stay = pods("stay", 3, spec(gpus=1, node_selector=((ZONE, "z1"),), spread=(spread(RACK, group="g"),)), labels=G)
    even = pods("even", 4, spec(gpus=1, spread=(spread(ZONE, group="g"),)), labels=G)
    assert len(assert_any_order([], even, stay)) == 7


def test_pods_that_count_each_other_go_to_nodes_in_an_order_that_nobody_needs() -> None:
    nodes: list[Item] = [node(f"n-{of.zone}", of) for of in zones("g.8", gpus=8, labels={RACK: "r1"})]
    stay = pods("stay", 3, spec(gpus=1, node_selector=((ZONE, "z1"),), spread=(spread(RACK, group="g"),)), labels=G)
    even = pods("even", 4, spec(gpus=1, spread=(spread(ZONE, group="g"),)), labels=G)
    where = assert_any_order(nodes, even, stay)
    assert sorted(where.values()).count("n-z1") == 3


def test_pods_whose_zone_nothing_decides_go_where_those_who_count_them_see_fewest() -> None:
    """All would go to the cheapest zone otherwise, and leave those who count them no other."""
    left = pods("left", 6, spec(gpus=1, spread=(spread(ZONE, app="right"),)), labels={"app": "left"})
    right = pods("right", 6, spec(gpus=1, spread=(spread(ZONE, app="left"),)), labels={"app": "right"})
    case = Case((*left, *right), Policy((SMALL,)))
    made = case.plan()
    assert zones_of(made) == {"z1": 4, "z2": 4, "z3": 4}
    assert_any_order([], left, right)


@pytest.mark.parametrize("gpus", [1, 8])
def test_machines_that_are_there_come_before_evenness(gpus: int) -> None:
    left = pods("left", 3, spec(gpus=1, spread=(spread(ZONE, app="right", skew=3),)), labels={"app": "left"})
    counting = pod("right", spec(gpus=1, spread=(spread(ZONE, app="left", skew=9),)), labels={"app": "right"})
    made = Case((node("n", offering("g.8", gpus=gpus)), *left, counting), Policy((SMALL,))).plan()
    assert len(placed(made)) == min(gpus, 4)


def test_a_promised_machine_is_left_when_others_are_there_first() -> None:
    """The pod was to go to z1, but three that it counts go to the node there at once."""
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


def test_a_gang_with_a_promised_member_binds_when_that_machine_is_there() -> None:
    """Today one member more would fit the node in z2, but the other is to be in z2, too."""
    gang = pods("p", 2, spec(gpus=1, spread=(spread(ZONE, group="g"),)), labels=G, options={"gang": "g", "gang_topology": "any"})
    coming = Upcoming("m-1", "main", "g.1", "on-demand", "z2", pods=(gang[0].key,))
    case = Case((*node_without_gpus_and_node(), *gang), Policy((SMALL,)), State(upcoming=(coming,)))
    made = case.plan()
    assert_comes_true(case, made)
    assert placed(made) == {"p-0": "m-1"}
    assert zones_of(made) == {"z1": 1}


def test_a_promised_gang_is_placed_anew_when_a_pod_that_it_counts_goes_to_a_node_today() -> None:
    even = spec(gpus=1, spread=(spread(ZONE, group="g"),))
    gang, other = pod("p", even, labels=G, options={"gang": "g", "gang_topology": "any"}), pod("q", even, labels=G)
    coming = Upcoming("m-1", "main", "g.1", "on-demand", "z2", pods=(gang.key,))
    case = Case((*node_without_gpus_and_node(), gang, other), Policy((SMALL,)), State(upcoming=(coming,)))
    made = case.plan()
    assert_comes_true(case, made)
    assert placed(made) == {"q": "n-z2"}
    assert zones_of(made) == {"z1": 1}


def test_pods_of_higher_priority_do_not_crowd_a_machine_to_come_when_those_of_lower_priority_need_another() -> None:
    """Each priority is planned for by itself, and the second machine is empty for those who count hosts."""
    first = pods("first", 2, spec(cpu=1, priority=10, spread=(spread(HOST, group="g"),)), labels=G)
    second = pods("second", 2, spec(gpus=1))
    coming = Upcoming("m-1", "main", "g.1", "on-demand", "z1")
    case = Case((*first, *second), Policy((SMALL,), preferences="respect"), State(upcoming=(coming,)))
    made = case.plan()
    assert_comes_true(case, made)
    assert sorted(placed(made)) == ["first-0", "second-0"]
    assert [len(machine.pods) for machine in made.machines] == [2]


def test_pods_that_a_machine_to_come_takes_keep_it_when_others_that_were_to_go_there_do_not() -> None:
    """Who spreads over hosts is shut out by the machine that is bought; who spreads over zones is not, and needs none in z2."""
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
def test_a_pod_that_others_count_by_zone_is_not_where_the_cloud_has_still_to_choose_the_zone(coming: bool) -> None:
    open_still = pool(*zones("g.1", 0.5, pool="open", names=("z1", "z2")), chooser="cloud")
    one = pod("one", spec(gpus=1), labels=G)
    even = pods("even", 3, spec(gpus=1, spread=(spread(ZONE, group="g"),)), labels=G)
    choices = tuple((of.instance_type, of.market, of.zone) for of in open_still.offerings)
    machines = (Upcoming("m-1", "open", "g.1", "on-demand", "z1", choices=choices),) if coming else ()
    case = Case((one, *even), Policy((pool(*zones("g.1", names=("z1", "z2"))), open_still)), State(upcoming=machines))
    made = case.plan()
    assert_comes_true(case, made)
    assert zones_of(made) == {"z1": 2, "z2": 2}


def test_a_pod_that_others_count_takes_a_machine_of_any_zone_where_nothing_else_is_to_be_had() -> None:
    open_still = pool(*zones("g.1", names=("z1", "z2")), chooser="cloud")
    one = pod("one", spec(gpus=1), labels=G)
    even = pod("even", spec(gpus=1, spread=(spread(ZONE, group="g"),)), labels=G)
    made = Case((one, even), Policy((open_still,))).plan()
    assert [machine.pods for machine in made.machines] == [(one.key,)]


def crowd(count: int) -> list[Pod]:
    """Pods of which no two request the same, with labels and rules that look at labels; rules and labels have nothing in common."""
    rules: tuple[dict[str, Any], ...] = (
        {},
        *({"spread": (spread(ZONE, app=app),)} for app in "abc"),
        *({"spread": (spread(HOST, app=app),)} for app in "abc"),
    )
    return [
        pod(f"p-{number:04}", spec(gpus=1, cpu=1 + number / 1000, **rules[number % 7]), labels={"app": "abc"[number % 3]})
        for number in range(count)
    ]


def test_a_crowd_that_counts_itself_needs_no_order_either() -> None:
    case = Case(tuple(crowd(450)), Policy((pool(*zones("g.8", 8.0, gpus=8, cpu=64)),)))
    made = case.plan()
    where = homes(case, made)
    assert len(where) == 450
    for room in rooms(case, made):
        waiting = [case.cluster.pods[key] for key in where]
        spreads = [one for one in waiting if one.spec.spread]
        others = [one for one in waiting if not one.spec.spread]
        assert bind(room, [*others, *spreads], where) == []


@pytest.mark.parametrize("first", range(5))
def test_promised_machines_of_two_zones_are_kept_whoever_of_those_that_spread_is_looked_at_first(first: int) -> None:
    """Once one runs in z1, the others promised there are admitted only when some of z2 have their places."""
    sizes = {f"{name}-{gpus}": gpus for name, gpus in zip("edcba"[first:] + "edcba"[:first], (4, 8, 1, 5, 3), strict=True)}
    waiting = {gpus: pod(name, spec(gpus=gpus, spread=(spread(ZONE, group="g"),)), labels=G) for name, gpus in sizes.items()}
    runs = pod("runs", spec(gpus=2, spread=(spread(ZONE, group="g"),)), labels=G, on="n")
    kinds = [one for gpus in (1, 4, 8) for one in zones(f"g.{gpus}", float(gpus), gpus=gpus, cpu=64, names=("z1", "z2"))]
    homes_of = {"a": ("g.4", "z1", (4,)), "b": ("g.8", "z1", (8,)), "c": ("g.1", "z2", (1,)), "d": ("g.8", "z2", (5, 3))}
    coming = tuple(
        Upcoming(name, "main", kind, "on-demand", zone, pods=tuple(waiting[gpus].key for gpus in those))
        for name, (kind, zone, those) in homes_of.items()
    )
    items: list[Item] = [node("n", offering("g.4", gpus=4, zone="z1")), runs, *waiting.values()]

    made = Case(tuple(items), Policy((pool(*kinds),)), State(upcoming=coming)).plan()

    assert made.machines == ()
    assert placed(made) == {waiting[gpus].name: name for name, (_, _, those) in homes_of.items() for gpus in those}
