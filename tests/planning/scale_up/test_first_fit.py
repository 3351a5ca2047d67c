"""Hundreds of classes with rules between pods are packed by first-fit, and every rule and limit holds."""

import random
from typing import Any

import pytest
from tests.planning.building import HOST, ZONE, near, node, offering, pod, pool, spec, spread, zones
from tests.planning.replaying import Case, assert_comes_true

from gpuscaler.model.cluster import Item
from gpuscaler.model.pods import HostPort, Pod
from gpuscaler.model.pools import Limits, Policy

MENU = pool(
    *(o for n in (4, 8, 16, 32) for o in zones(f"c.{n}", 0.05 * n, gpus=0, cpu=n, memory=4 * n)), *zones("g.1", 1.0, cpu=8), name="main"
)


def crowd(count: int, seed: int = 1) -> list[Pod]:
    """Pods with different requests, by turns: plain, spread by zone, spread by host, in one zone, one per machine, with a host port."""
    draw = random.Random(seed)
    rules: tuple[dict[str, Any], ...] = (
        {},
        {"spread": (spread(ZONE, app="zonal"),)},
        {"spread": (spread(HOST, app="hosts"),)},
        {"affinity": (near(ZONE, app="near"),)},
        {"anti_affinity": (near(HOST, app="lone"),)},
        {"host_ports": (HostPort(8080),)},
    )
    names = ("plain", "zonal", "hosts", "near", "lone", "port")
    pods = []
    for number in range(count):
        turn = number % len(rules)
        of = spec(cpu=draw.randint(100, 2000) / 1000 + number / 1_000_000, memory=draw.choice((0.25, 0.5, 1, 2)), **rules[turn])
        pods.append(pod(f"p-{number:04}", of, labels={"app": names[turn]}))
    return pods


def test_a_plan_for_many_different_pods_respects_every_rule() -> None:
    case = Case(tuple(crowd(500)), Policy((MENU,)))
    made = case.plan()
    assert made.unplaced == ()
    assert sum(len(machine.pods) for machine in made.machines) == 500
    assert 0 < made.lower_bound_per_hour <= made.cost_per_hour
    assert_comes_true(case, made)


def test_many_different_pods_fill_existing_nodes_first() -> None:
    here: list[Item] = [node(f"n-{n}", zones("c.32", gpus=0, cpu=32, memory=128)[n % 3]) for n in range(6)]
    case = Case((*here, *crowd(500)), Policy((MENU,)))
    made = case.plan()
    assert len(made.placements) > 100
    assert made.unplaced == ()
    assert_comes_true(case, made)


@pytest.mark.parametrize("limits", [Limits(machines=20), Limits(dollars_per_hour=6.0)])
def test_a_plan_for_many_different_pods_respects_limits(limits: Limits) -> None:
    case = Case(tuple(crowd(500)), Policy((MENU,), limits))
    made = case.plan()
    assert len(made.machines) <= (limits.machines or 500)
    assert made.cost_per_hour <= (limits.dollars_per_hour or 1e9) + 1e-9
    assert len(made.machines) > 10
    assert sum(len(machine.pods) for machine in made.machines) + len(made.unplaced) == 500
    assert_comes_true(case, made)


def test_priority_also_decides_among_many_different_pods() -> None:
    important = [pod(f"i-{n}", spec(cpu=1, priority=9, anti_affinity=(near(HOST, app="i"),)), labels={"app": "i"}) for n in range(20)]
    case = Case((*crowd(500), *important), Policy((MENU,), Limits(machines=20)))
    made = case.plan()
    assert not [entry.pod for entry in made.unplaced if entry.pod.startswith("default/i-")]


def test_many_different_pods_get_no_more_of_an_offering_than_its_stock() -> None:
    scarce = pool(offering("c.64", 0.1, gpus=0, cpu=64, memory=256, count=2), *zones("c.8", 0.4, gpus=0, cpu=8))
    made = Case(tuple(crowd(500)), Policy((scarce,))).plan()
    assert sum(machine.instance_type == "c.64" for machine in made.machines) <= 2


def test_the_order_of_many_different_pods_does_not_change_their_plan() -> None:
    pods = crowd(450)
    assert Case(tuple(pods), Policy((MENU,))).plan() == Case(tuple(reversed(pods)), Policy((MENU,))).plan()


@pytest.mark.parametrize("power", [1.0, 1.1], ids=["price in proportion", "large ones more expensive per pod"])
def test_under_a_limit_large_machines_take_the_pods_of_dropped_machines(power: float) -> None:
    """150 pods need a machine each; all 450 others fit on twenty machines."""
    sizes = pool(*(of for cores in (4, 8, 16, 32) for of in zones(f"c.{cores}", 0.05 * cores**power, gpus=0, cpu=cores, memory=4 * cores)))
    lone = spec(cpu=1, anti_affinity=(near(HOST, app="lone"),))
    apart = [pod(f"lone-{number:03}", lone, labels={"app": "lone"}) for number in range(150)]
    others = [pod(f"other-{number:03}", spec(cpu=1 + number / 1000), labels={"app": f"{number}"}) for number in range(450)]
    case = Case((*apart, *others), Policy((sizes,), Limits(machines=20)))
    made = case.plan()
    assert_comes_true(case, made)
    assert len(made.machines) == 20
    assert [entry.pod for entry in made.unplaced if "other" in entry.pod] == []
    assert len(made.unplaced) == 130


@pytest.mark.parametrize("bound", [False, True], ids=["anywhere", "in three zones"])
def test_machines_that_rules_require_are_filled_with_other_pods_before_more_are_bought(bound: bool) -> None:
    lone = spec(cpu=1.5, anti_affinity=(near(HOST, app="lone"),))
    apart = [pod(f"lone-{number:03}", lone, labels={"app": "lone"}) for number in range(100)]
    others = []
    for number in range(500):
        where: dict[str, Any] = {"node_selector": ((ZONE, f"z{1 + number % 3}"),)} if bound else {}
        others.append(pod(f"other-{number:03}", spec(cpu=0.2 + number / 1000, **where), labels={"app": f"{number}"}))
    sizes = pool(*(of for cores in (2, 4, 16) for of in zones(f"c.{cores}", 0.05 * cores, gpus=0, cpu=cores)))
    case = Case((*apart, *others), Policy((sizes,)))
    made = case.plan()
    assert_comes_true(case, made)
    assert made.unplaced == ()
    assert made.cost_per_hour <= 1.05 * made.lower_bound_per_hour
