"""The hard stop: no more machines are on their way than the pending pods could need, whatever a plan contains."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.planning.building import NOW, bought, node, offering, planned, pod, pods, pool, spec

from gpuscaler.lifecycle.hard_stop import without_surplus
from gpuscaler.lifecycle.memory import Memory, state_of
from gpuscaler.lifecycle.purchase_intents import place_orders
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.planning.plans import Plan, PlannedMachine
from gpuscaler.planning.state.breakers import Breakers, Target, step
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine
from gpuscaler.planning.state.offering_events import Lacking

POOL = pool(offering())
KEY = POOL.offerings[0].key
EFA = "vpc.amazonaws.com/efa"


def coming(number: int, *for_pods: str, **more: Any) -> OrderedMachine:
    """A machine that was ordered for pods that a later plan places elsewhere."""
    return OrderedMachine(
        f"m-{number}", f"order-{number}", (KEY,), 1.0, NOW, bought_for=tuple(f"default/{for_pod}" for for_pod in for_pods), **more
    )


def cut_plan(made: Plan, cluster: Cluster, *machines: OrderedMachine, of: Pool = POOL, breakers: Breakers | None = None) -> Plan:
    return without_surplus(made, cluster, Policy((of,)), ledger=Ledger(coming=machines), breakers=breakers or Breakers(), now=NOW)


def test_the_hard_stop_cuts_no_purchase_of_a_plan_without_ordered_machines() -> None:
    items = pods("p", 20)
    made = planned(items)

    assert cut_plan(made, Cluster.of(items)) == made


def test_no_third_machine_is_bought_for_a_pod_while_two_are_arriving() -> None:
    items = [pod("p")]
    made, cluster = planned(items), Cluster.of(items)

    assert cut_plan(made, cluster, coming(1, "p")) == made
    cut = cut_plan(made, cluster, coming(1, "p"), coming(2, "p"))
    assert (cut.machines, cut.purchases, cut.cost_per_hour) == ((), (), 0.0)
    (dropped,) = cut.cut
    assert (dropped.pool, dropped.machines) == ("main", 1)
    assert (
        "2 machines are on their way for demand and the plan buys 1 more, but at most 2 can be needed; 1 of them are not ordered"
        in dropped.text
    )
    assert cut.warnings == (dropped.text,)
    assert [(entry.pod, entry.reasons[0].detail) for entry in cut.unplaced] == [("default/p", dropped.text)]


@pytest.mark.parametrize(
    "other",
    [
        {"bought_for": ("default/gone",)},
        {"bought_for": ("default/runs",)},
        {"order": ""},
        {"gang": "default/g"},
    ],
    ids=["its pod is gone", "its pod runs", "not ordered here", "its gang is planned again"],
)
def test_the_hard_stop_ignores_machines_whose_pods_get_no_new_machine(other: dict[str, Any]) -> None:
    items: list[Item] = [node("a"), pod("runs", on="a"), *pods("p", 2)]
    made, cluster = planned(items), Cluster.of(items)
    machines = [replace(coming(number, "p-0"), **other) for number in range(9)]

    assert len(made.machines) == 2
    assert cut_plan(made, cluster, *machines) == made


def test_machines_for_the_minimum_and_headroom_are_bought_in_addition_but_only_once() -> None:
    kept = pool(offering(), min=2, spare=replace(POOL.spare, machines=1))
    items = [pod("p")]
    made, cluster = planned(items, kept), Cluster.of(items)
    spare = len(made.machines) - 1

    assert spare >= 1
    assert cut_plan(made, cluster, of=kept) == made
    again = [coming(number, purpose="spare") for number in range(3)]
    assert bought(cut_plan(made, cluster, *again, of=kept), "spare") == {}
    assert bought(cut_plan(made, cluster, *again, of=kept)) == {"g.1": 1}


def test_orders_are_bounded_whatever_the_plan_contains() -> None:
    items = [pod("p")]
    cluster, policy = Cluster.of(items), Policy((POOL,))
    lie = Plan(machines=tuple(PlannedMachine(f"new-{n}", "main", "g.1", "on-demand", "z1", 1.0, pods=("default/p",)) for n in range(1, 9)))
    memory = Memory()
    for _ in range(5):
        memory, _ = place_orders(memory, lie, cluster, policy, state=state_of(memory, policy, NOW), now=NOW)

    assert len(memory.ledger.coming) == 2
    assert sum(order.count for order in memory.ledger.orders) == 2


def test_one_machine_must_show_a_previously_missing_resource_before_more_are_bought() -> None:
    size: dict[str, Any] = {EFA: 1}
    wide = pool(offering(**size))
    items = [pod(f"p-{n}", spec(requests={"nvidia.com/gpu": 1, "cpu": 1000, EFA: 1})) for n in range(3)]
    made, cluster = planned(items, wide), Cluster.of(items)
    lacking = step(step(Breakers(), Lacking(KEY, NOW - 9000.0, EFA)), Lacking(KEY, NOW - 9000.0, EFA))

    assert lacking.open[0].target == Target("main", "", ("g.1",))
    assert len(made.machines) == 3
    assert len(cut_plan(made, cluster, of=wide, breakers=lacking).machines) == 1
