"""Machines that no offering describes stop buying in their pool: those of our orders while they exist, others while they arrive."""

from msgspec.structs import replace
from tests.planning.building import NOW, node, offering, planned, pod, pool

from gpuscaler.lifecycle.memory import Memory, breakers_of, state_of
from gpuscaler.lifecycle.reconcile import Facts, reconcile
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import RUNNING, Instance, Inventory
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine

POLICY = Policy((pool(offering()),))
STRANGE = OfferingKey("main", "on-demand", "g.9", "z1")
ARRIVED = node("a", offering("g.9"), provider_id="i-1")


def machine(order: str) -> OrderedMachine:
    return OrderedMachine("m", order, (offering().key,), 1.0, NOW, offering=STRANGE, instance="i-1", granted=NOW)


def reconciled(memory: Memory, cluster: Cluster, *listed: Instance) -> Memory:
    return reconcile(memory, cluster, POLICY, Facts(inventory=Inventory(NOW, listed)), NOW).memory


def stops(memory: Memory) -> list[str]:
    return [breaker.detail for breaker in breakers_of(memory, POLICY, NOW).open]


def test_an_ordered_machine_of_an_unoffered_type_stops_purchases_of_its_pool_until_it_is_gone() -> None:
    there = Instance("i-1", *STRANGE, state=RUNNING, launched=NOW)
    memory = reconciled(Memory(ledger=Ledger(coming=(machine("order"),))), Cluster.of([]), there)
    (message,) = stops(memory)
    assert message == "i-1 is g.9 on-demand z1, which the pool does not offer; it counts as the most expensive machine that it may be"
    assert state_of(memory, POLICY, NOW).blocked_offerings == {offering().key}

    opened = replace(memory, ledger=Ledger())
    assert stops(reconciled(opened, Cluster.of([ARRIVED]), there))
    assert stops(reconciled(opened, Cluster.of([]))) == []


def test_a_foreign_machine_of_an_unoffered_type_stops_its_pool_only_until_it_is_a_node() -> None:
    there = Instance("i-1", *STRANGE, state=RUNNING, launched=NOW)
    memory = reconciled(Memory(ledger=Ledger(coming=(machine(""),))), Cluster.of([]), there)
    assert stops(memory)

    assert stops(reconciled(replace(memory, ledger=Ledger()), Cluster.of([ARRIVED]), there)) == []


def test_buying_resumes_once_the_pool_offers_the_type_of_the_machine() -> None:
    memory = Memory(unfamiliar={"i-1": STRANGE})
    wide = Policy((pool(offering(), offering("g.9")),))
    memory_after = reconcile(memory, Cluster.of([ARRIVED]), wide, Facts(), NOW).memory

    assert memory_after.unfamiliar == {}
    assert planned([pod("p")], *wide.pools, state=state_of(memory_after, wide, NOW)).machines
