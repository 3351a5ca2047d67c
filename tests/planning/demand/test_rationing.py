"""The planning budget of each namespace and owner when there is more work than one plan can take."""

from collections import Counter

import pytest
from tests.planning.building import NOW, ZONE, near, pod, pods, spec

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Owner, Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.demand.pending import Demand, collect_demand
from gpuscaler.planning.demand.rationing import CLASS, TOTAL, TURN_SECONDS, BudgetCut, class_units, fair_shares, ration
from gpuscaler.planning.state import State


def demand_of(cluster: Cluster) -> Demand:
    return collect_demand(cluster, State(), Policy(pools=()), NOW)


def ration_pods(*items: Pod, total: int, now: float = NOW, first: frozenset[str] = frozenset()) -> tuple[list[str], list[BudgetCut]]:
    cluster = Cluster.of(items)
    left, cuts = ration(demand_of(cluster), cluster, now, first=first, total=total)
    return sorted(
        key for pod_class in (*left.classes, *(pod_class for gang in left.gangs for pod_class in gang.classes)) for key in pod_class.keys
    ), cuts


def different_pods(count: int, namespace: str, owner: str = "u1") -> list[Pod]:
    of = Owner("ReplicaSet", owner, owner)
    return [pod(f"{owner}-{number}", spec(namespace=namespace, cpu=number + len(owner)), owner=of) for number in range(count)]


@pytest.mark.parametrize(
    ("needs", "total", "shares"),
    [
        ({"a": 1, "b": 100}, 10, {"a": 1, "b": 9}),
        ({"a": 100, "b": 100}, 10, {"a": 5, "b": 5}),
        ({"a": 2, "b": 3, "c": 100}, 11, {"a": 2, "b": 3, "c": 6}),
        ({"a": 2, "b": 3}, 100, {"a": 2, "b": 3}),
        ({}, 100, {}),
    ],
)
def test_unneeded_shares_of_the_budget_go_to_other_namespaces(needs: dict[str, int], total: int, shares: dict[str, int]) -> None:
    assert fair_shares(needs, total) == shares


def test_the_planning_budget_bounds_the_number_of_different_pods_in_a_plan() -> None:
    crowd = [pod(f"p-{number}", spec(cpu=number + 1)) for number in range(1900)]
    served, _ = ration_pods(*crowd, total=TOTAL)

    assert 1000 < len(served) <= 1250


def test_pods_within_the_planning_budget_are_all_planned_for() -> None:
    cluster = Cluster.of([*pods("p", 5000), *different_pods(50, "a")])
    demand = demand_of(cluster)

    assert ration(demand, cluster, NOW) == (demand, [])


def test_a_namespace_over_its_share_does_not_reduce_the_shares_of_others() -> None:
    served, cuts = ration_pods(*different_pods(1000, "tenant"), *different_pods(10, "others"), total=100 * CLASS)
    spaces = Counter(key.split("/")[0] for key in served)

    assert spaces["others"] == 10
    assert 50 < spaces["tenant"] < 100
    assert {cut.detail.split(":")[0] for cut in cuts} == {"planning budget of namespace tenant used up"}
    assert len(served) + len(cuts) == 1010


def test_an_owner_over_its_share_does_not_reduce_the_shares_of_others_in_its_namespace() -> None:
    served, _ = ration_pods(*different_pods(1000, "tenant", "greedy"), *different_pods(10, "tenant", "modest" * 200), total=100 * CLASS)

    assert sum("/modest" in key for key in served) == 10


def test_pods_with_a_promised_machine_are_planned_first_and_others_by_priority() -> None:
    urgent = pod("urgent", spec(priority=5))
    crowd = different_pods(100, "default")
    promised = crowd[77].key
    served, _ = ration_pods(*crowd, urgent, total=4 * CLASS + 500, first=frozenset({promised}))

    assert {promised, urgent.key} <= set(served)


def test_equal_pods_take_turns_if_the_budget_does_not_cover_all() -> None:
    crowd = different_pods(100, "tenant")
    tried: set[str] = set()
    for turn in range(100):
        tried.update(ration_pods(*crowd, total=10 * CLASS, now=NOW + turn * TURN_SECONDS)[0])

    assert len(tried) == 100


def test_a_gang_is_planned_for_completely_or_not_at_all() -> None:
    gang = {"gang": "g", "gang_size": 5, "gang_source": "annotation"}
    members = [pod(f"m-{number}", spec(cpu=number + 1), options=gang) for number in range(5)]
    served, cuts = ration_pods(*members, total=3 * CLASS)

    assert served == []
    assert sorted(cuts[0].keys) == sorted(member.key for member in members)


def test_pods_with_rules_about_other_pods_use_more_of_the_planning_budget() -> None:
    plain, *_ = demand_of(Cluster.of([pod("p")])).classes
    ruled, *_ = demand_of(Cluster.of([pod("p", spec(gpus=1, affinity=(near(ZONE, a="b"),)))])).classes

    assert class_units(ruled) > 3 * class_units(plain)


@pytest.mark.parametrize("spaces", [10, 300, 2000])
def test_many_namespaces_with_costly_rules_crowd_out_neither_simple_pods_nor_each_other(spaces: int) -> None:
    rule = (near(ZONE, a="b"),)
    crowd = [pod(f"p-{number}", spec(namespace=f"t{number}", cpu=number + 1, affinity=rule)) for number in range(spaces)]
    simple = different_pods(20, "others")
    unit = class_units(demand_of(Cluster.of(crowd[:1])).classes[0])
    served, cuts = ration_pods(*crowd, *simple, total=50 * CLASS)

    assert sum(key.startswith("others/") for key in served) == 20
    assert len(served) - 20 == min(spaces, 30 * CLASS // unit)
    assert len(served) + sum(len(cut.keys) for cut in cuts) == spaces + 20


def test_gangs_take_turns_if_there_are_more_namespaces_than_budget_shares() -> None:
    def gang(number: int) -> Pod:
        options = {"gang": f"g{number}", "gang_size": 1, "gang_source": "annotation"}
        return pod(f"m-{number}", spec(namespace=f"t{number}", cpu=number + 1), options=options)

    crowd = [gang(number) for number in range(100)]
    served = [ration_pods(*crowd, total=100 * CLASS, now=NOW + turn * TURN_SECONDS)[0] for turn in range(100)]

    assert all(served)
    assert len(set().union(*served)) == 100


def test_the_reason_of_an_unplaced_pod_says_that_the_planning_budget_was_exceeded() -> None:
    gang = {"gang": "g", "gang_size": 50, "gang_source": "annotation"}
    members = [pod(f"m-{number}", spec(cpu=number + 1), options=gang) for number in range(50)]
    _, (cut,) = ration_pods(*members, total=100 * CLASS)

    assert f"units of work, more than the {100 * CLASS} of one plan" in cut.detail
