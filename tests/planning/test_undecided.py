"""Ordered machines whose type or zone the cloud has not chosen yet."""

import pytest
from tests.planning.building import ZONE, affinity, near, node, offering, placed, planned, pod, pool, spec

from gpuscaler.model.pods import Pod, PodSpec
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State, Upcoming

KEEPS_AWAY = spec(cpu=1, anti_affinity=(near(ZONE, app="b"),))


CHOICES = (("g.1", "on-demand", "z1"), ("g.1", "on-demand", "z2"))


def with_promise(*items: Pod, of: PodSpec | None = None) -> Plan:
    """Plan with a machine ordered in z1 or z2 for a pod of the kind ``of``; a node in z1 runs ``items``."""
    mixed = pool(offering(zone="z1", pool="mixed"), offering(zone="z2", pool="mixed"), chooser="cloud")
    coming = Upcoming("m-1", "mixed", "g.1", "on-demand", "z1", choices=CHOICES, pods=("default/p",))
    there = node("a", offering(zone="z1", gpus=0))
    either = pool(offering(zone="z1"), offering(zone="z2"))
    return planned([there, *items, pod("p", of, labels={"app": "b"})], mixed, either, state=State(upcoming=(coming,)))


def test_a_pod_keeps_its_promised_machine_if_every_possible_offering_fits() -> None:
    assert placed(with_promise()) == {"p": "m-1"}


@pytest.mark.parametrize(
    ("wanted", "where"), [(("z1", "z2"), {"p": "m-1"}), (("z1", "z2", "z3"), {"p": "m-1"}), (("z1",), {}), (("z2", "z3"), {})]
)
def test_only_one_machine_is_bought_for_a_pod_that_admits_every_possible_offering(wanted: tuple[str, ...], where: dict[str, str]) -> None:
    made = with_promise(of=spec(gpus=1, node_affinity=affinity((ZONE, "In", *wanted))))
    assert placed(made) == where
    assert len(made.machines) == 1 - len(where)


def test_an_ordered_machine_is_not_used_if_a_possible_offering_misses_the_node_selector() -> None:
    assert not with_promise(of=spec(gpus=1, node_selector=((ZONE, "z2"),))).placements


def test_a_registered_machine_has_the_zone_of_its_node() -> None:
    mixed = pool(offering(zone="z1", pool="mixed"), offering(zone="z2", pool="mixed"), chooser="cloud")
    coming = Upcoming("m-1", "mixed", "g.1", "on-demand", "z1", node="a", choices=CHOICES)
    there = node("a", offering(zone="z2", pool="mixed"))
    made = planned([there, pod("p", spec(gpus=1, node_affinity=affinity((ZONE, "In", "z2"))))], mixed, state=State(upcoming=(coming,)))
    assert len(made.placements) + len(made.machines) == 1


def test_another_machine_is_bought_if_anti_affinity_may_exclude_the_promised_one() -> None:
    made = with_promise(pod("loner", KEEPS_AWAY, on="a"))
    assert not made.placements
    assert [(machine.zone, machine.pods) for machine in made.machines] == [("z2", ("default/p",))]


def test_pods_avoid_all_possible_zones_of_a_machine_with_pods_that_they_exclude() -> None:
    mixed = pool(offering(zone="z1", pool="mixed"), offering(zone="z2", pool="mixed"), chooser="cloud")
    coming = Upcoming("m-1", "mixed", "g.1", "on-demand", "z1", choices=CHOICES, pods=("default/p",))
    menu = pool(offering(zone="z2"), offering(price=3.0, zone="z3"))
    waiting = [pod("p", labels={"app": "b"}), pod("loner", KEEPS_AWAY)]
    made = planned(waiting, mixed, menu, state=State(upcoming=(coming,)))
    assert placed(made) == {"p": "m-1"}
    assert [(machine.zone, machine.pods) for machine in made.machines] == [("z3", ("default/loner",))]
