"""Pods that must be near others: a plan does not rely on their binding before the others."""

from typing import Any

import pytest
from tests.planning.building import HOST, ZONE, near, node, offering, placed, pod, pods, pool, spec, unplaced, zones
from tests.planning.replaying import Case, assert_comes_true

from gpuscaler.model.cluster import Item
from gpuscaler.model.pods import HostPort, Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State, Upcoming

A = {"app": "a"}
SMALL = pool(*zones("g.1"))
OF_CORES = node("n-z1", offering("c.8", gpus=0, zone="z1"))


def plan_that_comes_true(*items: Item, coming: tuple[Upcoming, ...] = ()) -> Plan:
    case = Case(items, Policy((SMALL,)), State(upcoming=coming))
    made = case.plan()
    assert_comes_true(case, made)
    return made


@pytest.mark.parametrize("key", [ZONE, HOST])
def test_pods_with_affinity_do_not_start_on_an_ordered_machine_if_their_target_goes_to_a_node(key: str) -> None:
    first = pod("first", spec(gpus=1, affinity=(near(key, app="a"),)), labels=A)
    plain = pod("plain", spec(cpu=1), labels=A)
    made = plan_that_comes_true(OF_CORES, first, plain, coming=(Upcoming("m-1", "main", "g.1", "on-demand", "z2"),))
    assert placed(made) == {"plain": "n-z1"}
    assert [machine.zone for machine in made.machines] == (["z1"] if key == ZONE else [])


def test_no_machine_is_bought_in_another_zone_than_the_matching_pod_on_a_node() -> None:
    bound = pod("bound", spec(gpus=1, affinity=(near(ZONE, app="a"),), node_selector=((ZONE, "z2"),)), labels=A)
    made = plan_that_comes_true(OF_CORES, bound, pod("plain", spec(cpu=1), labels=A))
    assert placed(made) == {"plain": "n-z1"}
    assert unplaced(made) == ["bound"]


def test_a_pod_of_higher_priority_does_not_follow_a_pod_placed_after_it() -> None:
    first = pod("first", spec(cpu=1, priority=10, affinity=(near(ZONE, app="a"),)), labels=A)
    assert placed(plan_that_comes_true(OF_CORES, first, pod("plain", spec(cpu=7.5), labels=A))) == {"first": "n-z1"}


def company_refused() -> list[tuple[str, list[Pod]]]:
    """Pods that must share a machine with pods with which they cannot share one."""
    beside: dict[str, Any] = {"affinity": (near(HOST, app="a"),)}
    apart: dict[str, Any] = {"anti_affinity": (near(HOST, app="a"),)}
    return [
        ("anti-affinity", pods("p", 4, spec(gpus=0, **beside, **apart), labels=A)),
        ("port", pods("p", 2, spec(gpus=0, **beside, host_ports=(HostPort(80),)), labels=A)),
        ("another family", [pod("p-0", spec(cpu=1, **beside), labels=A), pod("p-1", spec(cpu=1, **beside, **apart), labels=A)]),
    ]


@pytest.mark.parametrize("group", [group for _, group in company_refused()], ids=[name for name, _ in company_refused()])
def test_of_pods_that_must_share_a_machine_but_cannot_only_one_is_placed(group: list[Pod]) -> None:
    made = plan_that_comes_true(*group)
    assert [len(machine.pods) for machine in made.machines] == [1]
    assert len(unplaced(made)) == len(group) - 1
