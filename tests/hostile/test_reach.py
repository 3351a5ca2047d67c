"""Ordinary pods get the same places with and without hostile pods, within a counted amount of work."""

from functools import cache

import pytest
from tests.hostile.workloads import CASES, NOW, POOLS, cluster_of, ordinary, policy

from gpuscaler.planning.planner import plan
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State

#: The number of pods of each kind, a fraction of the number that once stopped the controller.
FEW = {
    "mixed": 250,
    "zonal": 250,
    "many_namespaces": 700,
    "alike_first": 300,
    "random_ports": 100,
    "many_ports": 60,
    "gangs": 200,
    "one_gang": 300,
    "spread": 400,
    "many_terms": 2,
    "large_affinity": 2,
}


def types_bought(made: Plan) -> dict[str, str]:
    """The type of machine that is bought for each ordinary pod."""
    return {key: machine.instance_type for machine in made.machines for key in machine.pods if key.startswith("others/")}


@cache
def plan_for_ordinary_pods() -> Plan:
    return plan(cluster_of(ordinary(200)), State(), policy(POOLS), NOW)


@pytest.mark.parametrize("name", FEW)
def test_ordinary_pods_get_the_same_places_with_and_without_hostile_pods(name: str) -> None:
    make, _ = CASES[name]
    alone = plan_for_ordinary_pods()
    among = plan(cluster_of([*make(FEW[name]), *ordinary(200)]), State(), policy(POOLS), NOW)

    assert types_bought(alone).keys() == types_bought(among).keys()
    assert not any(each.pod.startswith("others/") for each in among.unplaced)


def test_planning_hostile_pods_twice_gives_the_same_plan() -> None:
    cluster = cluster_of([*CASES["zonal"][0](600), *ordinary(100)])

    first, second = (plan(cluster, State(), policy(), NOW) for _ in range(2))
    assert first == second
    assert any(reason.excluded_by == "budget" for each in first.unplaced for reason in each.reasons)


def test_a_pod_with_affinity_rules_of_absurd_size_is_skipped_and_reported() -> None:
    cluster = cluster_of([*CASES["many_terms"][0](1), *ordinary(1)])

    (aside,) = cluster.set_aside
    assert aside.object == "Pod tenant/p0"
    assert "expected at most 131072 bytes" in aside.reason
