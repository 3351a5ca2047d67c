"""Unknown machines of ours count while they may still become nodes, and are given up by their ids when they do not."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.planning.building import NOW, node, offering, pod, pool

from gpuscaler.lifecycle.actions import End
from gpuscaler.lifecycle.interruptions import Remark
from gpuscaler.lifecycle.memory import Memory, state_of
from gpuscaler.lifecycle.purchase_intents import place_orders
from gpuscaler.lifecycle.reconcile import Facts, Reconciliation, reconcile
from gpuscaler.lifecycle.registration.registering import Waits
from gpuscaler.lifecycle.registration.unregistered import LISTED_SECONDS
from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster, Delta, Item
from gpuscaler.model.instances import TERMINATED, Instance, Inventory
from gpuscaler.model.pools import Policy
from gpuscaler.model.taints import Taint
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state.breakers import Breakers
from gpuscaler.planning.state.ledger.ledger import ACCEPTED, Ledger, Order, OrderedMachine, Removal, Withdrawal

KIND = offering("g.1")
POLICY = Policy((pool(KIND),))
ARRIVING = Taint("gpuscaler.io/arriving")


def instance(name: str = "i-1", **more: Any) -> Instance:
    return Instance(name, *KIND.key, **{"launched": NOW - 5.0, **more})


def reconciled(
    memory: Memory, *items: Item, at: float, listed: tuple[Instance, ...] = (instance(),), aside: tuple[Skipped, ...] = (), **waits: Any
) -> Reconciliation:
    cluster = Cluster().apply(Delta(upserts=items), set_aside=aside)
    facts = Facts(inventory=Inventory(at, listed), waits=Waits(**waits))
    return reconcile(memory, cluster, POLICY, facts, at)


def noticed(*items: Item, **more: Any) -> Memory:
    """Return the memory after a first turn that observes an unregistered machine."""
    return reconciled(Memory(), *items, at=NOW, **more).memory


def coming(memory: Memory) -> list[str]:
    return [machine.instance for machine in memory.ledger.coming]


def ended(seen: Reconciliation) -> list[tuple[str, str]]:
    return [(act.instance, act.reason) for act in seen.acts if isinstance(act, End)]


def test_a_new_unregistered_machine_counts_as_arriving_once_it_certainly_exists() -> None:
    before = reconciled(noticed(), at=NOW + LISTED_SECONDS - 1.0).memory
    after = reconciled(before, at=NOW + LISTED_SECONDS).memory

    assert (coming(before), coming(after)) == ([], ["i-1"])
    state = state_of(after, POLICY, NOW + LISTED_SECONDS)
    wanted = Cluster.of([pod("p")])
    assert plan(wanted, state, POLICY, NOW).machines == ()
    assert len(plan(wanted, state_of(before, POLICY, NOW), POLICY, NOW).machines) == 1


def test_an_adopted_machine_opens_like_an_ordered_one() -> None:
    memory = reconciled(noticed(), at=NOW + 60.0).memory
    arrived = node("n", KIND, provider_id="i-1", taints=(ARRIVING,), created=NOW + 70.0)
    opening = reconciled(memory, arrived, at=NOW + 71.0)
    opened = reconciled(opening.memory, node("n", KIND, provider_id="i-1", created=NOW + 70.0), at=NOW + 72.0)

    assert [type(act).__name__ for act in opening.acts] == ["Lift"]
    assert opened.memory.ledger.coming == ()


@pytest.mark.parametrize("launched", [NOW - 5.0, NOW - 5000.0, 0.0], ids=["young", "old", "unknown"])
def test_an_adopted_machine_that_does_not_register_in_time_is_ended_by_its_id(launched: float) -> None:
    listed = (instance(launched=launched),)
    memory, removed = noticed(listed=listed), []
    for seconds in range(10, 901, 10):
        seen = reconciled(memory, at=NOW + seconds, listed=listed)
        memory = seen.memory
        removed += [(seconds, *entry) for entry in ended(seen)]

    assert removed == [(900, "i-1", "machine i-1 did not become a node within 900 s (pace.register_timeout)")]
    # It may have been a node before its Node was deleted: that says nothing about the next machine.
    assert memory.breakers == Breakers()


def test_an_old_unregistered_machine_does_not_count_as_capacity() -> None:
    listed = (instance(launched=NOW - 5000.0),)
    memory = reconciled(noticed(listed=listed), at=NOW + 600.0, listed=listed).memory

    assert state_of(memory, POLICY, NOW + 600.0).upcoming == ()


@pytest.mark.parametrize(
    ("listed", "items", "ledger"),
    [
        (instance(state=TERMINATED), (), Ledger()),
        (msgspec.structs.replace(instance(), pool="another"), (), Ledger()),
        (instance(), (node("n", KIND, provider_id="i-1"),), Ledger()),
        (instance(), (node("n", KIND, created=NOW),), Ledger()),
        (instance(), (), Ledger(leaving=(Removal("n", "i-1", KIND.key, "idle", NOW, NOW),))),
        (instance(), (), Ledger(coming=(OrderedMachine("a-0", "a", (KIND.key,), 1.0, NOW, instance="i-1", granted=NOW),))),
        (
            instance(token="a"),
            (),
            Ledger((Order("a", "main", (KIND.key,), 1, NOW, NOW),), (OrderedMachine("a-0", "a", (KIND.key,), 1.0, NOW),)),
        ),
        (
            instance(),
            (),
            Ledger(
                (Order("a", "main", (KIND.key,), 1, NOW + 60, NOW, ACCEPTED),), (OrderedMachine("a-0", "a", (KIND.key,), 1.0, NOW + 60),)
            ),
        ),
    ],
    ids=["ended", "of no pool", "a node", "perhaps a node", "leaving", "known", "ordered", "perhaps ordered"],
)
def test_a_machine_that_may_belong_to_a_node_or_an_order_is_not_adopted(listed: Instance, items: tuple[Item, ...], ledger: Ledger) -> None:
    assert reconciled(Memory(ledger=ledger), *items, at=NOW, listed=(listed,)).memory.ledger.unregistered == {}


@pytest.mark.parametrize(("orders", "strangers"), [((1.0,), 1), ((-1.0,), 0), ((-1.0, 1.0), 0)])
def test_a_machine_listed_before_an_order_does_not_fulfil_the_order(orders: tuple[float, ...], strangers: int) -> None:
    """A later order of the same kind must not lead to a second purchase either."""
    ours = tuple(Order(f"a{at:+.0f}", "main", (KIND.key,), 1, NOW + at, NOW + at, ACCEPTED) for at in orders)
    machines = tuple(OrderedMachine(f"{order.token}-0", order.token, (KIND.key,), 1.0, order.at) for order in ours)
    ledger = replace(noticed().ledger, orders=ours, coming=machines)
    seen = reconciled(Memory(ledger=ledger), at=NOW + 2.0, keeps_tokens=False)

    assert len(seen.memory.ledger.unregistered) == strangers
    assert [upcoming.id for upcoming in seen.unordered] == ["found-i-1"] * strangers


@pytest.mark.parametrize(("created", "opens"), [(NOW - 100.0, True), (NOW - 10.0, False)])
def test_a_closed_node_that_is_older_than_an_order_opens_although_the_order_waits(created: float, opens: bool) -> None:
    """An order of a dry pool may wait for hours, in a cloud that lists no tokens."""
    order = Order("a", "main", (KIND.key,), 1, NOW - 30.0, NOW - 30.0, ACCEPTED)
    ledger = Ledger((order,), (OrderedMachine("a-0", "a", (KIND.key,), 1.0, order.at),))
    closed = node("n", KIND, provider_id="i-1", taints=(ARRIVING,), created=created)
    seen = reconciled(Memory(ledger=ledger), closed, at=NOW, keeps_tokens=False)

    named = {machine.id: machine.instance for machine in seen.memory.ledger.coming}
    assert named == ({"a-0": "", "found-i-1": "i-1"} if opens else {"a-0": "i-1"})


def test_no_machine_is_adopted_while_a_node_cannot_be_parsed() -> None:
    aside = (Skipped("Node n", "allocatable: saw a list"),)

    assert reconciled(noticed(), at=NOW + 5000.0, aside=aside).memory.ledger.unregistered == {}
    assert ended(reconciled(noticed(), at=NOW + 5000.0, aside=aside)) == []


@pytest.mark.parametrize(("nodes", "given_up"), [(0, 0), (4, 0), (5, 4)])
def test_no_machine_is_ended_as_unregistered_if_most_nodes_are_gone(nodes: int, given_up: int) -> None:
    listed = tuple(instance(f"i-{number}", launched=NOW - 5000.0) for number in range(4 + nodes))
    items = [node(f"n-{number}", KIND, provider_id=f"i-{number}") for number in range(nodes)]
    memory = reconciled(Memory(), *items, at=NOW, listed=listed).memory

    assert len(ended(reconciled(memory, *items, at=NOW + 900.0, listed=listed))) == given_up


def test_a_machine_is_adopted_later_if_the_cloud_list_is_delayed() -> None:
    early = reconciled(noticed(), at=NOW + 149.0, lag=90.0)
    late = reconciled(noticed(), at=NOW + 150.0, lag=90.0)

    assert (coming(early.memory), coming(late.memory)) == ([], ["i-1"])


def test_an_unregistered_machine_that_left_the_cloud_list_is_forgotten() -> None:
    assert reconciled(noticed(), at=NOW + 30.0, listed=()).memory.ledger.unregistered == {}


def test_a_withdrawal_is_repeated_at_growing_intervals_until_confirmed() -> None:
    memory, sent = Memory(ledger=Ledger(withdrawals=(Withdrawal("a"),))), []
    for seconds in range(0, 3000, 5):
        seen = reconciled(memory, at=NOW + seconds, listed=())
        memory = seen.memory
        sent += [seconds] * len(seen.withdrawals)

    assert sent == [0, 15, 45, 105, 225, 465, 945, 1545, 2145, 2745]


def test_a_paused_pool_is_reported_once() -> None:
    memory, remarks = Memory(), list[Remark]()
    for number in range(3):
        at = NOW + 2000.0 * number
        cluster, state = Cluster.of([pod("p")]), state_of(memory, POLICY, at)
        memory, (order,) = place_orders(memory, plan(cluster, state, POLICY, at), cluster, POLICY, state=state, now=at)
        listed = (instance(f"i-{number}", launched=at, token=order.token),)
        ledger = msgspec.structs.replace(
            memory.ledger, orders=tuple(msgspec.structs.replace(order, state=ACCEPTED) for order in memory.ledger.orders)
        )
        memory = msgspec.structs.replace(memory, ledger=ledger)
        for seconds in (1.0, 901.0, 902.0):
            seen = reconciled(memory, pod("p"), at=at + seconds, listed=listed if seconds < 902.0 else ())
            memory = seen.memory
            remarks += seen.remarks

    # The fruitless purchase for the pod is another remark.
    (remark,) = (remark for remark in remarks if "never became nodes" in remark.text)
    assert remark.text.startswith("pool main: machines never became nodes, 3 times since ")
    assert "retried at 2023-11-1" in remark.text
    assert remark.text.endswith("check how its machines join the cluster: their image, network and permissions")
    state = state_of(memory, POLICY, NOW + 5000.0)
    assert plan(Cluster.of([pod("p")]), state, POLICY, NOW + 5000.0).machines == ()
