"""Learned templates: what machines offer in truth."""

from functools import reduce

import msgspec
from tests.planning.building import GI, NOW, offering, pod, pool, room, spec

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.planning.planner import plan
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State
from gpuscaler.planning.state.learned import Learned, Seen, corrected, step

SMALL, BIG = offering("small", 1.0, memory=32), offering("big", 3.0, memory=128)
POLICY = Policy((pool(SMALL, BIG),))


def seen(at: float = 0.0, *, memory: float = 30) -> Seen:
    return Seen(SMALL.key, at, room(gpus=1, memory=memory))


def after(*events: Seen) -> Learned:
    return reduce(step, events, Learned())


def memory(learned: Learned) -> float:
    return corrected(POLICY, learned).pools[0].offerings[0].allocatable["memory"] / GI


def made(learned: Learned) -> Plan:
    cluster = Cluster.of([pod("p", spec(gpus=1, memory=31))])
    return plan(cluster, State(), corrected(POLICY, learned), NOW)


def test_a_node_that_offers_less_than_promised_corrects_its_kind_and_no_other() -> None:
    small, big = corrected(POLICY, after(seen())).pools[0].offerings

    assert small.allocatable["memory"] == 30 * GI
    assert big is BIG


def test_what_does_not_fit_in_truth_is_not_bought_again() -> None:
    assert [machine.instance_type for machine in made(Learned()).machines] == ["small"]
    assert [machine.instance_type for machine in made(after(seen())).machines] == ["big"]


def test_a_node_that_offers_more_is_no_reason_to_promise_more() -> None:
    assert memory(after(seen(memory=64))) == 32


def test_a_resource_that_a_node_does_not_show_yet_is_still_promised() -> None:
    event = Seen(SMALL.key, 0.0, {name: amount for name, amount in room(memory=30).items() if name != "nvidia.com/gpu"})

    assert corrected(POLICY, after(event)).pools[0].offerings[0].allocatable["nvidia.com/gpu"] == 1


def test_the_newest_node_speaks_for_the_next() -> None:
    assert memory(after(seen(0.0, memory=20), seen(10.0, memory=31))) == 31
    assert memory(after(seen(10.0, memory=31), seen(0.0, memory=20))) == 31


def test_every_zone_and_market_of_the_kind_learns() -> None:
    other = offering("small", 0.4, market="spot", zone="z9", memory=32)
    (_, corrected_other) = corrected(Policy((pool(SMALL, other),)), after(seen())).pools[0].offerings

    assert corrected_other.allocatable["memory"] == 30 * GI


def test_a_policy_with_nothing_to_correct_stays_itself() -> None:
    assert corrected(POLICY, Learned()) is POLICY
    assert corrected(POLICY, after(seen(memory=32))) is POLICY


def test_lessons_survive_a_restart() -> None:
    learned = after(seen())

    assert msgspec.json.decode(msgspec.json.encode(learned), type=Learned) == learned
