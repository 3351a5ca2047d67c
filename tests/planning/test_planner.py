"""Pending pods fill existing and ordered machines, and new machines are bought for the rest."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.planning.building import (
    DAEMON,
    GPU,
    NOW,
    bought,
    ignored,
    node,
    offering,
    placed,
    planned,
    pod,
    pods,
    pool,
    room,
    shares,
    spec,
    unplaced,
)

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.pools import Policy
from gpuscaler.model.taints import Taint, Toleration
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import State, Upcoming

COMING = Upcoming("m-1", "main", "g.1", "on-demand", "z1")


def test_without_pending_pods_nothing_is_bought_at_no_cost() -> None:
    made = planned([])
    assert (made.machines, made.purchases, made.placements, made.cost_per_hour, made.gap) == ((), (), (), 0.0, 0.0)


@pytest.mark.parametrize("tolerations", [(), (Toleration(operator="Exists"),)])
def test_no_pod_waits_for_a_machine_that_may_not_exist_regardless_of_tolerations(
    tolerations: tuple[Toleration, ...],
) -> None:
    cluster = Cluster.of([pod("p", spec(tolerations=tolerations))])
    policy = Policy((pool(offering("g.1")),))
    awaited = plan(cluster, State(upcoming=(COMING,)), policy, NOW)
    doubted = plan(cluster, State(upcoming=(replace(COMING, unproven=True),)), policy, NOW)

    assert (len(awaited.machines), len(doubted.machines)) == (0, 1)


def test_existing_nodes_are_filled_before_anything_is_bought() -> None:
    made = planned([node("a", offering("g.2", gpus=2)), *pods("p", 3)])
    assert list(placed(made).values()) == ["a", "a"]
    assert bought(made) == {"g.1": 1}


def test_a_pod_is_placed_on_the_node_with_the_least_free_capacity_that_fits() -> None:
    large, small = offering("g.8", gpus=8), offering("g.1")
    made = planned([node("a", large), node("b", small), pod("p"), *pods("q", 1, spec(gpus=8))])
    assert placed(made) == {"p": "b", "q-0": "a"}


def test_resources_of_running_pods_are_not_used_twice() -> None:
    made = planned([node("a"), pod("runs", on="a"), pod("p")])
    assert placed(made) == {}
    assert bought(made) == {"g.1": 1}


def test_terminating_pods_still_use_resources_and_finished_pods_do_not() -> None:
    leaving = planned([node("a"), pod("runs", on="a", deleted=NOW), pod("p")])
    ended = planned([node("a"), pod("ran", on="a", phase="Succeeded"), pod("p")])
    assert (bought(leaving), placed(leaving)) == ({"g.1": 1}, {})
    assert (bought(ended), placed(ended)) == ({}, {"p": "a"})


@pytest.mark.parametrize(
    "closed",
    [{"ready": False}, {"deleted": NOW}, {"unschedulable": True}, {"taints": (Taint("maintenance"),)}],
    ids=["not ready", "being deleted", "cordoned", "tainted"],
)
def test_a_node_that_takes_no_pods_is_not_counted_as_capacity(closed: dict[str, Any]) -> None:
    made = planned([node("a", **closed), pod("p")])
    assert placed(made) == {}
    assert bought(made) == {"g.1": 1}


def test_a_node_whose_removal_is_in_progress_is_not_counted_as_capacity() -> None:
    made = planned([node("a"), pod("p")], state=State(disrupting=frozenset({"a"})))
    assert (placed(made), bought(made)) == ({}, {"g.1": 1})


def test_an_unregistered_machine_takes_the_pods_that_will_fit() -> None:
    made = planned(pods("p", 2), state=State(upcoming=(COMING,)))
    assert list(placed(made).values()) == ["m-1"]
    assert bought(made) == {"g.1": 1}


def test_a_registered_machine_that_is_not_open_yet_is_counted_once() -> None:
    bare = node("a", allocatable=room(), ready=False, taints=(Taint("gpuscaler.io/arriving"),))
    made = planned([bare, *pods("p", 2)], state=State(upcoming=(Upcoming("m-1", "main", "g.1", "on-demand", "z1", node="a"),)))
    assert list(placed(made).values()) == ["m-1"]
    assert bought(made) == {"g.1": 1}


def test_running_daemonset_pods_are_subtracted_only_once_from_an_arriving_machine() -> None:
    agent = spec(cpu=4)
    runs = pod("agent", agent, on="a", owner=DAEMON)
    coming = Upcoming("m-1", "main", "g.1", "on-demand", "z1", node="a")
    made = planned([node("a"), runs, pod("p", spec(gpus=1, cpu=4))], state=State(upcoming=(coming,)))
    assert placed(made) == {"p": "m-1"}


def test_pods_keep_the_machine_that_was_bought_for_them() -> None:
    """Without the promise, the small pods, which come first by name, would take the capacity that the large pod needs."""
    coming = (
        Upcoming("m-1", "main", "g.8", "on-demand", "z1", pods=("default/large",)),
        Upcoming("m-2", "main", "g.8", "on-demand", "z1", pods=("default/a", "default/b")),
    )
    eight = pool(offering("g.8", 8.0, gpus=8))
    waiting = [pod("large", spec(gpus=5)), pod("a", spec(gpus=4)), pod("b", spec(gpus=4)), pod("c", spec(gpus=3))]
    made = planned(waiting, eight, state=State(upcoming=coming))
    assert placed(made) == {"large": "m-1", "a": "m-2", "b": "m-2", "c": "m-1"}
    assert bought(made) == {}


def test_a_promised_pod_that_no_longer_fits_its_machine_is_planned_again() -> None:
    coming = Upcoming("m-1", "main", "g.1", "on-demand", "z1", pods=("default/p-0", "default/p-1"))
    made = planned(pods("p", 2), state=State(upcoming=(coming,)))
    assert placed(made) == {"p-0": "m-1"}
    assert bought(made) == {"g.1": 1}


def test_an_upcoming_machine_with_several_possible_types_counts_as_the_smallest() -> None:
    two = pool(offering("g.1"), offering("g.4", 4.0, gpus=4), chooser="cloud")
    choices = (("g.1", "on-demand", "z1"), ("g.4", "on-demand", "z1"))
    coming = Upcoming("m-1", "main", "g.4", "on-demand", "z1", choices=choices)
    made = planned(pods("p", 2), two, state=State(upcoming=(coming,)))
    assert list(placed(made).values()) == ["m-1"]


def test_an_upcoming_machine_of_an_unknown_pool_is_reported_and_not_counted() -> None:
    made = planned([pod("p")], state=State(upcoming=(Upcoming("m-1", "gone", "g.1", "on-demand", "z1"),)))
    assert (placed(made), bought(made)) == ({}, {"g.1": 1})
    assert made.warnings == ("upcoming machine m-1: pool 'gone' is unknown or has no offerings; not counted as capacity",)


@pytest.mark.parametrize(
    "strange", [("g.1", "teleported", "z1"), ("g.1", "on-demand", "z9"), ("gone", "on-demand", "z1")], ids=["market", "zone", "type"]
)
def test_an_upcoming_machine_without_a_matching_offering_takes_its_promised_pods(strange: tuple[str, str, str]) -> None:
    made = planned([pod("p")], state=State(upcoming=(Upcoming("m-1", "main", *strange),)))
    assert (placed(made), bought(made)) == ({"p": "m-1"}, {})
    assert made.warnings == (
        f"upcoming machine m-1: pool 'main' offers no {' '.join(strange)}; it counts as the most expensive offering that it may be",
    )


def test_a_nominated_pod_reserves_capacity_of_its_node_and_is_not_planned() -> None:
    made = planned([node("a"), pod("p", nominated_node="a"), pod("q")])
    assert ignored(made) == {"p": "nominated to node a"}
    assert (placed(made), bought(made)) == ({}, {"g.1": 1})


def test_a_nominated_pod_whose_node_is_gone_is_planned_again() -> None:
    made = planned([pod("p", nominated_node="gone")])
    assert ignored(made) == {}
    assert bought(made) == {"g.1": 1}


def test_ten_pods_with_three_gpus_and_ten_with_five_share_ten_machines_with_eight() -> None:
    eight = pool(offering("g.8", 8.0, gpus=8, cpu=96, memory=700))
    made = planned(pods("three", 10, spec(gpus=3)) + pods("five", 10, spec(gpus=5)), eight)
    assert bought(made) == {"g.8": 10}
    assert shares(made) == [2] * 10


def test_no_gpu_machine_is_bought_for_pods_without_gpus_if_a_cheaper_one_exists() -> None:
    both = (pool(offering("g.1", 1.0, cpu=8)), pool(offering("c.8", 0.4, pool="cpu", gpus=0, cpu=8)))
    made = planned(pods("p", 4, spec(cpu=4)), *both)
    assert bought(made) == {"c.8": 2}


def test_pods_without_gpus_go_to_nodes_without_gpus_first() -> None:
    plain = offering("c.16", gpus=0, cpu=16)
    made = planned([node("a", offering("g.1", cpu=8)), node("b", plain), pod("p", spec(cpu=1))])
    assert placed(made) == {"p": "b"}


def test_pods_without_gpus_fill_the_remaining_capacity_of_gpu_machines() -> None:
    both = (pool(offering("g.1", 1.0, cpu=8)), pool(offering("c.8", 0.4, pool="cpu", gpus=0, cpu=8)))
    made = planned([pod("gpu", spec(gpus=1, cpu=4)), *pods("p", 4, spec(cpu=1))], *both)
    assert bought(made) == {"g.1": 1}


def test_the_cheapest_mix_over_markets_sizes_and_families_is_bought() -> None:
    menu = pool(
        offering("g.1", 1.0),
        offering("g.1", 0.4, market="spot"),
        offering("g.4", 1.5, gpus=4, cpu=32, memory=128, market="spot"),
        offering("h.4", 1.4, gpus=4, cpu=16),
    )
    made = planned(pods("p", 5), menu)
    assert sorted((m.instance_type, m.market) for m in made.machines) == [("g.1", "spot"), ("h.4", "on-demand")]
    assert made.cost_per_hour == pytest.approx(1.8)
    assert made.lower_bound_per_hour <= made.cost_per_hour


def test_a_pod_too_large_for_every_machine_does_not_affect_the_others() -> None:
    made = planned([pod("huge", spec(gpus=64)), pod("p")])
    assert unplaced(made) == ["huge"]
    assert bought(made) == {"g.1": 1}


def test_purchases_count_machines_by_offering() -> None:
    made = planned(pods("p", 5))
    (purchase,) = made.purchases
    assert (purchase.instance_type, purchase.count, purchase.price_per_hour) == ("g.1", 5, 1.0)
    assert made.cost_per_hour == 5.0
    assert [machine.id for machine in made.machines] == [f"new-{number}" for number in range(1, 6)]


def test_a_plan_reports_that_its_search_was_stopped_early() -> None:
    cluster = Cluster.of(pods("three", 9, spec(gpus=3, cpu=7)) + pods("five", 7, spec(gpus=5, cpu=3)) + pods("c", 31, spec(cpu=5)))
    menu = Policy((pool(*(offering(f"g.{n}", 0.5 + n, gpus=n, cpu=5 * n + 3, memory=99) for n in (3, 5, 7, 8))),))
    assert plan(cluster, State(), menu, NOW, should_stop=lambda: True).brake
    assert not plan(cluster, State(), menu, NOW, should_stop=lambda: False).brake


def test_the_order_of_objects_does_not_change_the_plan() -> None:
    items: list[Item] = [node("a", offering("g.2", gpus=2)), *pods("p", 5), *pods("q", 3, spec(gpus=2, cpu=3)), *pods("r", 4, spec(cpu=3))]
    menu = pool(offering("g.1"), offering("g.4", 3.0, gpus=4, cpu=32))
    assert planned(items, menu) == planned(items[::-1], menu)


def test_a_pod_that_requests_a_resource_of_no_offering_is_unplaced() -> None:
    made = planned([pod("p", spec(requests={"example.com/fpga": 1, "cpu": 100}))], pool(offering()))
    assert unplaced(made) == ["p"]
    assert GPU not in made.unplaced[0].reasons[0].detail
