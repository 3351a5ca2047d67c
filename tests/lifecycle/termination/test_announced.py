"""Interruptions that the cloud announces long before are remembered until then."""

from tests.planning.building import NOW, node, offering, pool

from gpuscaler.lifecycle.interruptions import AHEAD_SECONDS
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.reconcile import Facts, reconcile
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.pools import Policy

KIND = offering()
POLICY = Policy((pool(KIND),))
AT = NOW + 86_400.0


def reconciled(memory: Memory, now: float, *, listed: bool = True, **facts: object) -> Memory:
    inventory = Inventory(now, (Instance("i-1", *KIND.key),) if listed else ())
    cluster = Cluster.of((node("n", KIND, provider_id="i-1"),))
    return reconcile(memory, cluster, POLICY, Facts(inventory=inventory, **facts), now).memory  # type: ignore[arg-type]  # any facts


def test_maintenance_that_is_announced_once_still_drains_the_machine_after_a_change_of_leader() -> None:
    memory = reconciled(Memory(), NOW, maintenance_at={"i-1": AT})
    assert memory.ledger.leaving == ()

    memory = reconciled(memory, AT - AHEAD_SECONDS - 1.0)
    assert memory.ledger.leaving == ()
    (removal,) = reconciled(memory, AT - AHEAD_SECONDS).ledger.leaving
    assert (removal.node, removal.forced, removal.ends) == ("n", True, AT)


def test_a_new_maintenance_time_replaces_the_old_one_and_that_of_a_lost_machine_is_dropped() -> None:
    memory = reconciled(Memory(), NOW, maintenance_at={"i-1": AT})

    assert reconciled(memory, NOW + 1.0, maintenance_at={"i-1": AT + 9.0}).maintenance_at == {"i-1": AT + 9.0}
    assert reconciled(memory, NOW + 1.0, listed=False).maintenance_at == {}
