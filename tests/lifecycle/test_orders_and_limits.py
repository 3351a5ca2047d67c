"""The limits hold whatever a cloud grants of the offerings that an order names (I5)."""

from random import Random

import pytest
from tests.planning.building import NOW, node, offering, pods, pool, spec

from gpuscaler.lifecycle.memory import Memory, state_of
from gpuscaler.lifecycle.purchase_intents import place_orders
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Limits, Offering, Policy
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state.ledger import ledger

SMALL = offering("g.1", 1.0, market="spot", gpus=1, cpu=4)
TWIN = offering("g.1", 1.2, market="spot", gpus=1, cpu=4, zone="z2")
LARGE = offering("g.4", 2.5, market="spot", gpus=4, cpu=16)
FIXED = offering("g.1", 3.0, gpus=1, cpu=4)
POOL = pool(SMALL, TWIN, LARGE, FIXED)
KEYS = {offering.key: f"{offering.instance_type}/{offering.zone}" for offering in POOL.offerings}


def asked(limits: Limits, memory: Memory, count: int, *, chooser: str = "buyer") -> tuple[Memory, list[list[str]]]:
    """Return the memory after a plan for ``count`` pods of a GPU and a CPU, and the offerings that each of its orders names."""
    chosen = {"chooser": "cloud", "names_zone": True} if chooser == "zone" else {"chooser": chooser}
    policy = Policy((pool(*POOL.offerings, **chosen),), limits=limits)
    cluster = Cluster.of([node("there", SMALL), *pods("runs", 1, on="there"), *pods("p", count, spec(gpus=1, cpu=3))])
    state = state_of(memory, policy, NOW)
    made, orders = place_orders(memory, plan(cluster, state, policy, NOW), cluster, policy, state=state, now=NOW)
    return made, [[KEYS[key] for key in order.offerings] for order in orders for _ in range(order.count)]


def test_without_limits_an_order_names_every_suitable_offering() -> None:
    assert asked(Limits(), Memory(), 1)[1] == [["g.1/z1", "g.1/z2", "g.4/z1"]]


def test_offerings_that_exceed_the_remaining_gpu_limit_are_not_requested() -> None:
    assert asked(Limits(gpus=4), Memory(), 1)[1] == [["g.1/z1", "g.1/z2"]]
    assert asked(Limits(gpus=5), Memory(), 1)[1] == [["g.1/z1", "g.1/z2", "g.4/z1"]]


def test_offerings_that_exceed_the_remaining_cost_limit_are_not_requested() -> None:
    assert asked(Limits(dollars_per_hour=2.1), Memory(), 1)[1] == [["g.1/z1"]]
    assert asked(Limits(dollars_per_hour=2.3), Memory(), 1)[1] == [["g.1/z1", "g.1/z2"]]


def test_a_zone_where_the_cloud_could_choose_beyond_the_limits_is_not_requested() -> None:
    large_in_z2 = offering("g.4", 9.0, market="spot", gpus=4, cpu=16, zone="z2")
    in_zones = pool(SMALL, TWIN, large_in_z2, chooser="cloud", names_zone=True)
    cluster = Cluster.of([*pods("p", 1, spec(gpus=1, cpu=3))])
    for limits, zones in ((Limits(), ["z1", "z2", "z2"]), (Limits(gpus=3), ["z1"]), (Limits(dollars_per_hour=5.0), ["z1"])):
        policy = Policy((in_zones,), limits=limits)
        state = state_of(Memory(), policy, NOW)
        _, orders = place_orders(Memory(), plan(cluster, state, policy, NOW), cluster, policy, state=state, now=NOW)
        assert [key[3] for order in orders for key in order.offerings] == zones


def test_two_ordered_machines_share_the_remaining_limit() -> None:
    assert sorted(map(len, asked(Limits(gpus=6), Memory(), 2)[1])) == [2, 3]


def test_an_unanswered_order_counts_against_limits_as_its_largest_possible_grant() -> None:
    memory, _ = asked(Limits(gpus=5), Memory(), 1)
    assert asked(Limits(gpus=5), memory, 3)[1] == []
    assert len(asked(Limits(gpus=6), memory, 3)[1]) == 1


@pytest.mark.parametrize("chooser", ["buyer", "cloud", "zone"])
@pytest.mark.parametrize("seed", range(40))
def test_limits_hold_for_any_grant_at_any_delay(seed: int, chooser: str) -> None:
    dice = Random(seed)
    limits = Limits(gpus=dice.choice((None, dice.randint(1, 14))), dollars_per_hour=dice.choice((None, dice.uniform(1.0, 9.0))))
    by_key = {offering.key: offering for offering in POOL.offerings}
    memory = Memory()
    for _ in range(4):
        memory, _ = asked(limits, memory, dice.randint(1, 6), chooser=chooser)
        for order in memory.ledger.orders:
            if dice.random() < 0.5:
                memory = granted(memory, order, max(order.offerings, key=lambda key: highest_price(by_key[key], dice)), dice)
    dear = [
        max(by_key[key].price for key in ([machine.offering] if machine.offering else machine.offerings))
        for machine in memory.ledger.coming
    ]
    gpus = [
        max(by_key[key].gpus for key in ([machine.offering] if machine.offering else machine.offerings)) for machine in memory.ledger.coming
    ]
    assert limits.gpus is None or 1 + sum(gpus) <= max(1, limits.gpus)
    assert limits.dollars_per_hour is None or SMALL.price + sum(dear) <= max(SMALL.price, limits.dollars_per_hour) + 1e-6


def highest_price(offering: Offering, dice: Random) -> float:
    return dice.choice((offering.gpus, offering.price))


def granted(memory: Memory, order: ledger.Order, key: OfferingKey, dice: Random) -> Memory:
    """Let the cloud grant the whole order as machines of ``key``."""
    names = tuple((f"i-{order.token}-{number}-{dice.random()}", key) for number in range(order.count))
    return Memory(ledger=ledger.step(memory.ledger, ledger.Answered(order.token, NOW, names)))
