"""Machines on their way of which the cloud has still to choose the type or the zone."""

from tests.planning.building import ZONE, near, node, offering, placed, planned, pod, pool, spec

from gpuscaler.model.pods import Pod
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State, Upcoming

KEEPS_AWAY = spec(cpu=1, anti_affinity=(near(ZONE, app="b"),))


def with_promise(*items: Pod) -> Plan:
    """A machine is coming to z1 or z2 for a pod; a node in z1 has what ``items`` say."""
    mixed = pool(offering(zone="z1", pool="mixed"), offering(zone="z2", pool="mixed"), chooser="cloud")
    choices = (("g.1", "on-demand", "z1"), ("g.1", "on-demand", "z2"))
    coming = Upcoming("m-1", "mixed", "g.1", "on-demand", "z1", choices=choices, pods=("default/p",))
    there = node("a", offering(zone="z1", gpus=0))
    return planned([there, *items, pod("p", labels={"app": "b"})], mixed, pool(offering(zone="z2")), state=State(upcoming=(coming,)))


def test_a_promise_is_kept_where_every_choice_keeps_it() -> None:
    assert placed(with_promise()) == {"p": "m-1"}


def test_a_pod_is_bought_for_again_when_its_machine_may_turn_out_where_others_keep_it_away() -> None:
    made = with_promise(pod("loner", KEEPS_AWAY, on="a"))
    assert not made.placements
    assert [(machine.zone, machine.pods) for machine in made.machines] == [("z2", ("default/p",))]
