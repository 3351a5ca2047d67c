"""Minimum sizes and headroom: machines bought before any pod needs them."""

from tests.planning.building import bought, node, offering, placed, planned, pod, pods, pool, spec

from gpuscaler.model.pools import Spare
from gpuscaler.planning.state import State, Upcoming


def test_machines_are_bought_for_a_pool_below_its_minimum_size() -> None:
    made = planned([node("a")], pool(offering(), min=3))
    assert bought(made, "spare") == {"g.1": 2}
    assert made.cost_per_hour == 0.0


def test_ordered_machines_and_machines_bought_for_pods_count_towards_the_minimum() -> None:
    coming = Upcoming("m-1", "main", "g.1", "on-demand", "z1")
    made = planned([node("a"), pod("runs", on="a"), *pods("p", 2)], pool(offering(), min=3), state=State(upcoming=(coming,)))
    assert (bought(made), bought(made, "spare")) == ({"g.1": 1}, {})


def test_only_completely_empty_machines_count_as_spare_machines() -> None:
    made = planned([node("a"), pod("runs", spec(cpu=1), on="a"), node("b")], pool(offering(), spare=Spare(machines=2)))
    assert bought(made, "spare") == {"g.1": 1}


def test_a_spare_machine_that_the_plan_uses_for_pods_is_replaced() -> None:
    made = planned([node("a"), pod("p")], pool(offering(), spare=Spare(machines=1)))
    assert placed(made) == {"p": "a"}
    assert (bought(made), bought(made, "spare")) == ({}, {"g.1": 1})


def test_free_gpus_on_machines_of_the_pool_count_as_spare_gpus() -> None:
    eight = offering("g.8", 8.0, gpus=8)
    menu = pool(eight, spare=Spare(gpus=4))
    enough = planned([node("a", eight), pod("runs", spec(gpus=4), on="a")], menu)
    short = planned([node("a", eight), pod("runs", spec(gpus=5), on="a")], menu)
    assert (bought(enough, "spare"), bought(short, "spare")) == ({}, {"g.8": 1})


def test_free_gpus_on_machines_bought_for_pods_count_as_spare_gpus() -> None:
    made = planned([pod("p", spec(gpus=5))], pool(offering("g.8", 8.0, gpus=8), spare=Spare(gpus=3)))
    assert (bought(made), bought(made, "spare")) == ({"g.8": 1}, {})


def test_spare_gpus_are_bought_at_the_lowest_price() -> None:
    menu = pool(offering("g.1", 1.2), offering("g.4", 4.0, gpus=4), spare=Spare(gpus=4))
    assert bought(planned([], menu), "spare") == {"g.4": 1}


def test_spare_gpus_are_not_bought_where_the_cloud_may_choose_a_machine_without_gpus() -> None:
    mixed = pool(offering("g.1", 1.2), offering("c.8", 1.0, gpus=0), chooser="cloud", spare=Spare(gpus=2))
    made = planned([], mixed)
    assert bought(made, "spare") == {}
    assert "pool main: spare GPUs are not bought, because any machine of the pool may have none" in made.warnings[0]
    alike = pool(offering("g.1", 1.2), offering("g.2", 2.0, gpus=2), chooser="cloud", spare=Spare(gpus=2))
    assert sum(bought(planned([], alike), "spare").values()) == 1


def test_the_minimum_and_headroom_of_one_pool_do_not_affect_another() -> None:
    made = planned([], pool(offering(), min=1), pool(offering("h.1", pool="other")))
    assert bought(made, "spare") == {"g.1": 1}


def test_pause_pods_with_a_priority_above_the_cutoff_act_as_headroom() -> None:
    made = planned(pods("pause", 2, spec(gpus=1, priority=-1)))
    assert bought(made) == {"g.1": 2}


def test_nodes_of_other_pools_and_closed_nodes_do_not_count_as_headroom() -> None:
    other = offering("h.1", pool="other")
    made = planned([node("a", other), node("b", ready=False)], pool(offering(), spare=Spare(machines=1)), pool(other))
    assert bought(made, "spare") == {"g.1": 1}
