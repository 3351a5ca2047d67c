"""Machines that a group launches by itself count as on their way for a limited time (I12)."""

from typing import Any

import pytest
from tests.planning.building import NOW, offering, pod, pool

from gpuscaler.lifecycle.memory import Memory, state_of
from gpuscaler.lifecycle.reconcile import Facts, Reconciliation, reconcile
from gpuscaler.lifecycle.registration.group_launches import OWED_SECONDS, REPLACED_SECONDS
from gpuscaler.lifecycle.registration.registering import Waits
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Delivery, Instance, Inventory
from gpuscaler.model.pools import Policy
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state.ledger.ledger import ACCEPTED, INTENDED, Ledger, Order, OrderedMachine, Withdrawal

KIND, OTHER = offering("g.1"), offering("g.2", 2.0)
POLICY = Policy((pool(KIND, OTHER),))


def reconciled(memory: Memory, *deliveries: Delivery, at: float = NOW, listed: tuple[Instance, ...] = ()) -> Reconciliation:
    return reconcile(memory, Cluster(), POLICY, Facts(inventory=Inventory(at, listed, deliveries)), at)


def bought(seen: Reconciliation, *, at: float = NOW, pods: int = 1) -> int:
    """Return how many machines a plan buys for this many pods."""
    state = state_of(seen.memory, POLICY, at)
    state = type(state)(
        **{name: getattr(state, name) for name in state.__struct_fields__} | {"upcoming": (*state.upcoming, *seen.unordered)}
    )
    return len(plan(Cluster.of([pod(f"p-{number}") for number in range(pods)]), state, POLICY, at).machines)


def ordered(state: str, **more: Any) -> Memory:
    order = Order("a", "main", (KIND.key,), 1, NOW - 5.0, NOW - 5.0, state)
    return Memory(ledger=Ledger((order,), (OrderedMachine("a-0", "a", (KIND.key,), 1.0, NOW - 5.0, **more),)))


def test_machines_missing_from_the_desired_capacity_count_as_launching() -> None:
    seen = reconciled(Memory(), Delivery("main", missing=2))

    assert (bought(seen, pods=2), bought(seen, pods=3)) == (0, 1)
    assert seen.memory.ledger.launches_expected_since == {"main": NOW}


def test_a_machine_that_the_group_lists_counts_immediately() -> None:
    seen = reconciled(Memory(), Delivery("main"), listed=(Instance("i-1", *KIND.key, launched=NOW - 1.0),))

    assert bought(seen) == 0


def test_no_launches_are_expected_from_a_group_that_cannot_launch() -> None:
    assert bought(reconciled(Memory(), Delivery("main", missing=1, failing="InsufficientInstanceCapacity"))) == 1


def test_no_launches_are_expected_from_a_group_that_launched_nothing_for_minutes() -> None:
    memory, counted = Memory(), []
    for seconds in range(0, 241, 10):
        seen = reconciled(memory, Delivery("main", missing=1), at=NOW + seconds)
        memory = seen.memory
        counted += [seconds] * (not bought(seen, at=NOW + seconds))

    assert counted == list(range(0, int(OWED_SECONDS), 10))


def test_a_launched_machine_is_no_longer_expected_from_its_group() -> None:
    memory = reconciled(reconciled(Memory(), Delivery("main", missing=1)).memory, Delivery("main"), at=NOW + 60.0).memory

    assert memory.ledger.launches_expected_since == {}


@pytest.mark.parametrize(
    ("memory", "owed"),
    [
        (ordered(ACCEPTED), 0),
        (ordered(ACCEPTED, instance="i-1", granted=NOW), 1),
        (ordered(INTENDED), 1),
        (Memory(ledger=Ledger(withdrawals=(Withdrawal("b", NOW, order=Order("b", "main", (KIND.key,), 1, NOW, NOW), missing=1),))), 0),
    ],
    ids=["raised for our order", "ours has come", "not answered", "being withdrawn"],
)
def test_desired_capacity_raised_by_our_own_orders_is_counted_once(memory: Memory, owed: int) -> None:
    assert len(reconciled(memory, Delivery("main", missing=1)).unordered) == owed


@pytest.mark.parametrize(("replaces", "machines"), [(True, 0), (False, 1)])
def test_the_replacement_that_a_group_will_launch_for_a_machine_without_its_node_counts(replaces: bool, machines: int) -> None:
    old = (Instance("i-1", *KIND.key, launched=NOW - 5000.0),)
    deliveries = [Delivery("main")] if replaces else []
    first = reconciled(Memory(), *deliveries, listed=old)
    late = reconciled(first.memory, *deliveries, at=NOW + REPLACED_SECONDS, listed=old)

    assert (bought(first), bought(late, at=NOW + REPLACED_SECONDS)) == (machines, 1)


def test_no_launch_is_expected_from_a_group_outside_our_pools() -> None:
    assert reconciled(Memory(), Delivery("theirs", missing=3)).unordered == ()


@pytest.mark.parametrize(
    ("tokens", "state", "launched", "deliveries", "counted"),
    [
        # Launched 15 s before the order was made: it belongs to that order if the cloud's clock is behind ours, and counts in addition
        # until then.
        (False, INTENDED, -20.0, (Delivery("main"),), 2),
        # Launched after the order, it belongs to it.
        (False, INTENDED, -4.0, (Delivery("main"),), 1),
        # Once the order is answered, the list or the answer names its machine.
        (False, ACCEPTED, -20.0, (Delivery("main"),), 1),
        # Tokens of orders do not mean that machines show them.
        (True, INTENDED, -20.0, (Delivery("main"),), 2),
        # In a cloud whose pools launch nothing by themselves there are no other machines.
        (False, INTENDED, -20.0, (), 1),
    ],
)
def test_a_machine_launched_before_an_unanswered_order_counts_in_addition_to_the_order(
    tokens: bool, state: str, launched: float, deliveries: tuple[Delivery, ...], counted: int
) -> None:
    listed = (Instance("i-1", *KIND.key, launched=NOW + launched),)
    facts = Facts(inventory=Inventory(NOW, listed, deliveries), waits=Waits(keeps_tokens=tokens))
    seen = reconcile(ordered(state), Cluster(), POLICY, facts, NOW)

    assert (bought(seen, pods=counted), bought(seen, pods=counted + 1)) == (0, 1)
