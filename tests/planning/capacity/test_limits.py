"""Limits hold for any demand, existing and upcoming machines count, and priority decides which pod gets the last machine."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.building import ZONE, bought, near, node, offering, planned, pod, pods, pool, reasons, spec, unplaced, zones

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Limits, Policy, Spare
from gpuscaler.planning.capacity.limits import Fleet, Remaining, fleets, limit_usage
from gpuscaler.planning.capacity.node_templates import Templates
from gpuscaler.planning.capacity.pool_membership import Member
from gpuscaler.planning.state import State, Upcoming

COMING = Upcoming("m-1", "main", "g.1", "on-demand", "z1")
PAIR = Limits(machines=2)
SHARED: dict[str, Any] = {"nvidia.com/gpu.shared": 8}


@pytest.mark.parametrize(
    ("limits", "machines"),
    [
        ({"machines": 3}, 3),
        ({"gpus": 4}, 4),
        ({"dollars_per_hour": 2.5}, 2),
        ({"machines_per_minute": 1}, 1),
        ({"machines": 0}, 0),
        ({"machines": 5, "gpus": 3, "dollars_per_hour": 4.0, "machines_per_minute": 9}, 3),
    ],
)
def test_a_limit_over_all_pools_is_never_exceeded(limits: Mapping[str, Any], machines: int) -> None:
    made = planned(pods("p", 9), limits=Limits(**limits))
    assert len(made.machines) == machines
    assert len(made.unplaced) == 9 - machines


@pytest.mark.parametrize("limits", [{"machines": 3}, {"gpus": 3}, {"dollars_per_hour": 3.0}])
def test_existing_and_ordered_machines_count_against_the_limits(limits: Mapping[str, Any]) -> None:
    made = planned([node("a"), pod("runs", on="a"), pod("q"), *pods("p", 9)], limits=Limits(**limits), state=State(upcoming=(COMING,)))
    assert bought(made) == {"g.1": 1}


def test_a_registered_machine_in_the_ledger_counts_once_against_the_limits() -> None:
    coming = Upcoming("m-1", "main", "g.1", "on-demand", "z1", node="a")
    made = planned([node("a"), *pods("p", 9)], limits=PAIR, state=State(upcoming=(coming,)))
    assert bought(made) == {"g.1": 1}


TWO_SIZES = pool(offering("g.1"), offering("g.1", 1.5, market="spot", zone="z2"), offering("g.8", 9.0, gpus=8))


@pytest.mark.parametrize(
    ("strange", "fleet"),
    [
        (("main", "teleported", "g.1", "z1"), Fleet(1, 1, 1.5)),
        (OfferingKey("main", "on-demand", "g.1", "z9"), Fleet(1, 1, 1.5)),
        (OfferingKey("main", "on-demand", "gone", "z1"), Fleet(1, 8, 9.0)),
    ],
    ids=["market", "zone", "type"],
)
def test_a_machine_without_a_matching_offering_counts_as_the_most_expensive_possible_one(strange: OfferingKey, fleet: Fleet) -> None:
    policy = Policy((TWO_SIZES,))
    name, market, instance_type, zone = strange
    state = State(upcoming=(Upcoming("m-1", name, instance_type, market, zone),))

    assert fleets(policy, policy.offerings, state, {}) == {"main": fleet}


def test_a_node_of_an_unoffered_type_costs_as_much_as_the_most_expensive_one() -> None:
    shows = node("a", offering("gone", gpus=2))
    bare = node("a", offering("gone", gpus=0))

    assert limit_usage(shows, Member(TWO_SIZES, None)) == ("main", 2, 9.0)
    assert limit_usage(bare, Member(TWO_SIZES, None)) == ("main", 8, 9.0)


def test_nothing_is_bought_if_a_limit_is_already_exceeded() -> None:
    made = planned([node("a"), node("b"), node("c"), *pods("p", 5)], limits=PAIR)
    assert bought(made) == {}
    assert len(made.placements) == 3


def test_shared_or_partitioned_gpus_count_as_whole_devices_against_the_limits() -> None:
    labels = {"nvidia.com/gpu.count": "2"}
    shared = offering("g.2", gpus=0, labels=labels, **SHARED)
    wants = spec(requests=SHARED)
    assert bought(planned(pods("p", 5, wants), pool(shared), limits=Limits(gpus=5))) == {"g.2": 2}
    there: list[Item] = [node("a", shared), pod("runs", wants, on="a"), *pods("p", 5, wants)]
    made = planned(there, pool(shared), limits=Limits(gpus=5))
    assert bought(made) == {"g.2": 1}
    assert made.unplaced[0].reasons[0].excluded_by == "limit"


def test_a_node_that_does_not_show_its_gpus_yet_counts_with_the_purchased_number() -> None:
    bare = node("a", offering("g.1", gpus=0))
    assert bought(planned([bare, *pods("p", 3)], limits=Limits(gpus=2))) == {"g.1": 1}


def test_machines_bought_in_the_last_minute_count_against_the_rate_limit() -> None:
    made = planned(pods("p", 9), limits=Limits(machines_per_minute=5), state=State(bought_last_minute=3))
    assert bought(made) == {"g.1": 2}


def test_a_pool_does_not_grow_beyond_its_maximum_and_the_next_pool_is_used() -> None:
    cheap = pool(offering("g.1", 1.0), max=2)
    dear = pool(offering("h.1", 2.0, pool="dear"))
    made = planned([node("a"), pod("runs", on="a"), *pods("p", 4)], cheap, dear)
    assert bought(made) == {"g.1": 1, "h.1": 3}


def test_no_more_machines_of_an_offering_are_bought_than_its_stock() -> None:
    reserved = offering("g.1", 0.0, market="reserved", count=2)
    made = planned(pods("p", 5), pool(reserved, offering("g.1", 1.0)))
    assert sorted(machine.market for machine in made.machines) == ["on-demand"] * 3 + ["reserved"] * 2


def test_two_gangs_do_not_both_get_the_last_machine_of_an_offering() -> None:
    one_left = pool(offering("g.1", 0.1, market="reserved", count=1), offering("g.1", 1.0))
    gangs = [pod(f"{name}-{n}", options={"gang": name, "gang_size": 2}) for name in ("a", "b") for n in range(2)]
    made = planned(gangs, one_left)
    assert [machine.market for machine in made.machines].count("reserved") == 1
    assert len(made.machines) == 4


def test_priority_decides_which_pod_gets_the_last_machine() -> None:
    important = pods("important", 2, spec(gpus=1, priority=100))
    made = planned([*pods("a", 5), *important], limits=PAIR)
    assert [pod for machine in made.machines for pod in machine.pods] == ["default/important-0", "default/important-1"]
    assert unplaced(made) == [f"a-{n}" for n in range(5)]


def test_priority_decides_even_when_many_small_pods_would_use_the_machine_better() -> None:
    made = planned(
        [*pods("small", 8, spec(gpus=1)), pod("large", spec(gpus=5, priority=1))],
        pool(offering("g.8", 8.0, gpus=8)),
        limits=Limits(machines=1),
    )
    (machine,) = made.machines
    assert machine.pods == ("default/large", "default/small-0", "default/small-1", "default/small-2")


def test_a_gang_of_low_priority_does_not_take_the_machine_of_a_pod_of_high_priority() -> None:
    gang = [pod(f"g-{n}", options={"gang": "g", "gang_size": 2}) for n in range(2)]
    made = planned([*gang, pod("important", spec(gpus=1, priority=9))], limits=PAIR)
    assert [pod for machine in made.machines for pod in machine.pods] == ["default/important"]
    assert unplaced(made) == ["g-0", "g-1"]


def test_a_gang_of_high_priority_is_placed_before_pods_of_low_priority() -> None:
    gang = [pod(f"g-{n}", spec(gpus=1, priority=9), options={"gang": "g", "gang_size": 2}) for n in range(2)]
    made = planned([*gang, *pods("p", 3)], limits=PAIR)
    assert unplaced(made) == ["p-0", "p-1", "p-2"]


def test_a_high_priority_pod_that_needs_a_zone_also_gets_the_last_machine() -> None:
    bound = spec(gpus=1, priority=9, node_selector=(("topology.kubernetes.io/zone", "z2"),))
    made = planned([*pods("p", 5), pod("bound", bound)], pool(*zones()), limits=Limits(machines=1))
    assert [machine.pods for machine in made.machines] == [("default/bound",)]


def test_headroom_and_minimum_sizes_stay_within_the_limits() -> None:
    made = planned(pods("p", 2), pool(offering(), min=9, spare=Spare(machines=5)), limits=Limits(machines=3))
    assert (bought(made), bought(made, "spare")) == ({"g.1": 2}, {"g.1": 1})


@pytest.mark.parametrize(
    ("limits", "detail"),
    [
        ({"machines": 2}, "the limit on machines is reached (limits.machines or machines_per_minute)"),
        ({"gpus": 2}, "g.1 has 1 GPU, the limit leaves 0 (limits.gpus)"),
        ({"dollars_per_hour": 2.5}, "g.1 costs $1.00/h, the limit leaves $0.50/h (limits.dollars_per_hour)"),
    ],
)
def test_the_reason_of_an_unplaced_pod_names_the_limit(limits: Mapping[str, Any], detail: str) -> None:
    made = planned(pods("p", 3), limits=Limits(**limits))
    (reason,) = reasons(made, "p-2")
    assert (reason.pool, reason.excluded_by, reason.detail) == ("main", "limit", detail)


def test_a_reason_about_a_limit_names_the_smallest_machine_that_fits() -> None:
    made = planned(pods("p", 2), pool(offering(), offering("g.4", 9.0, gpus=4)), limits=Limits(gpus=1))
    (reason,) = reasons(made, "p-1")
    assert reason.detail == "g.1 has 1 GPU, the limit leaves 0 (limits.gpus)"


def test_the_reason_of_an_unplaced_pod_names_the_maximum_of_the_pool() -> None:
    made = planned(pods("p", 2), pool(offering(), max=1))
    (reason,) = reasons(made, "p-1")
    assert (reason.excluded_by, reason.detail) == ("limit", "pool main is at its maximum")


def test_the_reason_of_an_unplaced_pod_names_an_offering_that_is_out_of_stock() -> None:
    made = planned(pods("p", 2), pool(offering(count=1)))
    (reason,) = reasons(made, "p-1")
    assert (reason.excluded_by, reason.detail) == ("limit", "only 1 g.1 can be bought, and all are taken")


def test_headroom_buys_no_more_of_an_offering_than_its_remaining_stock() -> None:
    made = planned([pod("p")], pool(offering(count=3), min=9))
    assert (bought(made), bought(made, "spare")) == ({"g.1": 1}, {"g.1": 2})


def test_the_stock_of_an_offering_set_is_the_sum_of_its_members() -> None:
    made = planned(pods("p", 9), pool(*zones(names=("z1", "z2"), count=2), chooser="cloud"))
    assert len(made.machines) == 4


@pytest.mark.parametrize("machines", [1, 2, 3])
def test_a_limit_holds_for_pods_of_one_zone_that_need_machines_of_several_sizes(machines: int) -> None:
    rules: dict[str, Any] = {"affinity": (near(ZONE, app="a"),)}
    sizes = {"cpu": (4, 1), "memory": (1, 32), "small": (0.5, 0.5)}
    waiting = [pod for name, (cpu, gib) in sizes.items() for pod in pods(name, 6, spec(cpu=cpu, memory=gib, **rules), labels={"app": "a"})]
    kinds = pool(*zones("c.8", gpus=0, cpu=8, memory=4), *zones("m.2", gpus=0, cpu=2, memory=64))
    made = planned(waiting, kinds, limits=Limits(machines=machines))
    assert len(made.machines) == machines
    assert len({machine.zone for machine in made.machines}) == 1
    assert len(unplaced(made)) == len(waiting) - sum(len(machine.pods) for machine in made.machines)


bounds = st.none() | st.integers(0, 9)


@given(bounds, bounds, st.none() | st.floats(0, 9), st.dictionaries(st.sampled_from(["main", "other"]), st.integers(0, 2)))
def test_kinds_are_available_if_the_limits_admit_one_machine_of_them(machines: Any, gpus: Any, dollars: Any, pools: dict[str, int]) -> None:
    few = offering("g.2", gpus=2, price=2.5, count=1)
    kinds = pool(offering(), offering("c.1", gpus=0, price=0.0), few, offering("g.8", gpus=8, price=9.0))
    templates = Templates(Cluster(), Policy((kinds, pool(offering("g.4", gpus=4, price=4.5), name="other"))), frozenset())
    for spent in ({}, {few.key: 1}):
        left = Remaining(machines, gpus, dollars, pools, spent)
        assert left.admitted(templates).tolist() == [left.admitted_count(kind, 1) > 0 for kind in templates.kinds]
