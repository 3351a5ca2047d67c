"""The memory, the effect of a turn on it, and how a plan becomes orders and removals."""

from typing import Any

import msgspec
import pytest
from tests.planning.building import GI, NOW, bought, node, offering, planned, pod, pods, pool, spec

from gpuscaler.lifecycle.actions import Bind, End, Lift, Mark, Unmark
from gpuscaler.lifecycle.memory import Memory, state_of
from gpuscaler.lifecycle.purchase_intents import place_orders
from gpuscaler.lifecycle.reconcile import Facts, Reconciliation, reconcile
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Policy
from gpuscaler.model.taints import Taint
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import boot_times, breakers, learned_templates, node_refusals, offering_events, promises
from gpuscaler.planning.state.idle_clocks import IdleClocks
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.ledger import OPEN, Ledger, Order, OrderedMachine, Promise, Removal
from gpuscaler.planning.state.node_refusals import Refusals, Wait

KIND = offering("g.1", memory=32)
LARGER = offering("g.2", 2.0, memory=64)
POLICY = Policy((pool(KIND, LARGER, idle_after=0.0),))


def plan_and_order(memory: Memory, *items: Item, policy: Policy = POLICY, now: float = NOW) -> tuple[Memory, tuple[Order, ...]]:
    """Return the memory and the orders after a plan for ``items``."""
    cluster, state = Cluster.of(items), state_of(memory, policy, now)
    return place_orders(memory, plan(cluster, state, policy, now), cluster, policy, state=state, now=now)


def arrived(**more: Any) -> Node:
    """The node of the machine that was bought for pod p."""
    return node("n", KIND, **{"provider_id": "i-1", "taints": (Taint("gpuscaler.io/arriving"),), "created": NOW, **more})


def granted(memory: Memory, *, at: float = NOW) -> Memory:
    """Return the memory after the cloud has answered the first order."""
    (order,) = memory.ledger.orders
    return msgspec.structs.replace(memory, ledger=ledger.step(memory.ledger, ledger.Answered(order.token, at, (("i-1", KIND.key),))))


def reconciled(memory: Memory, *items: Item, now: float = NOW + 60.0, **facts: Any) -> Reconciliation:
    listed = Inventory(now, (Instance("i-1", *KIND.key, launched=NOW),))
    return reconcile(memory, Cluster.of(items), POLICY, Facts(**{"inventory": listed, **facts}), now)


# From a plan to orders


def test_planned_machines_of_one_offering_become_one_order_with_a_token() -> None:
    memory, (order,) = plan_and_order(Memory(), *pods("p", 3))

    assert (order.count, order.pool, order.offerings) == (3, "main", (KIND.key,))
    assert {machine.order for machine in memory.ledger.coming} == {order.token}
    assert sorted(pod for machine in memory.ledger.coming for pod in machine.pods) == ["default/p-0", "default/p-1", "default/p-2"]


def test_pods_with_an_ordered_machine_get_no_second_one() -> None:
    memory, _ = plan_and_order(Memory(), *pods("p", 3))

    assert plan_and_order(memory, *pods("p", 3))[1] == ()
    assert [order.count for order in plan_and_order(memory, *pods("p", 4), now=NOW + 1.0)[1]] == [1]


def test_tokens_of_orders_are_never_reused() -> None:
    tokens, memory = [], Memory()
    for number in range(3):
        memory, orders = plan_and_order(memory, *pods("p", number + 1))
        tokens += [order.token for order in orders]
        # Even if the serial number was lost, the time differs.
        lost = plan_and_order(Memory(), *pods("p", 1), now=NOW + 1.0 + number)[1]
        tokens += [order.token for order in lost]

    assert len(tokens) == len(set(tokens)) == 6


def test_a_removal_names_its_replacements_as_the_ledger_does() -> None:
    policy = Policy((pool(offering("dear", 10.0, gpus=1), KIND, idle_after=0.0),), min_saving=0.0)
    old = node("old", policy.pools[0].offerings[0], provider_id="i-old")
    memory, orders = plan_and_order(Memory(), old, pod("p", on="old", options={"disruption": "allow"}), policy=policy)

    (leaving,) = memory.ledger.leaving
    assert leaving.pods == ("default/p",)
    assert leaving.needs == tuple(machine.id for machine in memory.ledger.coming)
    assert len(orders) == 1


def test_pods_expected_on_an_open_node_are_remembered() -> None:
    memory, orders = plan_and_order(Memory(), node("n", KIND), pod("p"))

    assert (orders, memory.refusals.waits) == ((), (Wait("default/p", "n", NOW),))


# Passes


def test_a_granted_machine_registers_becomes_ready_and_opens() -> None:
    memory, _ = plan_and_order(Memory(), pod("p", uid="u", unschedulable=True))
    memory = granted(memory)

    ready = reconciled(memory, arrived(), pod("p", uid="u", unschedulable=True))
    assert ready.acts == (Bind("default/p", "u", "n", {"nvidia.com/gpu": 1}),)
    assert boot_times.forecast(ready.memory.boots, KIND.key).seen == 1
    assert [sent_binding.pod for sent_binding in ready.memory.admissions.bound.values()] == ["default/p"]
    settled = reconciled(ready.memory, arrived(), pod("p", on="n", uid="u"), now=NOW + 64.0)
    assert settled.outcomes == (promises.Kept(KIND.key, spec(gpus=1).digest, NOW + 64.0),)
    assert settled.acts == ()
    opens = reconciled(settled.memory, arrived(), pod("p", on="n", uid="u"), now=NOW + 65.0)
    assert [type(act) for act in opens.acts] == [Lift]
    there = reconciled(opens.memory, arrived(taints=()), pod("p", on="n", uid="u"), now=NOW + 66.0)
    assert (there.memory.ledger.coming, there.memory.ledger.promises) == ((), ())


def test_a_node_with_less_than_its_template_corrects_the_template_for_the_next_plan() -> None:
    hungry = spec(gpus=1, memory=30)
    memory, _ = plan_and_order(Memory(), pod("p", hungry))
    small = {**KIND.allocatable, "memory": 28 * GI}
    memory_after = reconciled(granted(memory), arrived(allocatable=small), pod("p", hungry)).memory

    honest = learned_templates.corrected_policy(POLICY, memory_after.learned)
    assert bought(planned([pod("q", hungry)], *POLICY.pools)) == {"g.1": 1}
    assert bought(planned([pod("q", hungry)], *honest.pools)) == {"g.2": 1}


def test_without_a_fresh_observation_nothing_is_removed_and_idle_time_does_not_count() -> None:
    leaving = Removal("n", "i-1", KIND.key, "idle", NOW - 9.0, NOW - 2.0, step=ledger.ENDING)
    memory = Memory(ledger=Ledger(leaving=(leaving,)))
    items = (arrived(taints=(Taint("gpuscaler.io/leaving"),)), node("idle", KIND))

    stale = reconciled(memory, *items, fresh=False)
    assert not any(isinstance(act, End) for act in stale.acts)
    assert stale.memory.clocks == IdleClocks()
    fresh = reconciled(memory, *items)
    assert any(isinstance(act, End) for act in fresh.acts)
    assert "idle" in fresh.memory.clocks.since


def test_a_machine_that_never_registered_is_ended_and_counts_against_its_offering() -> None:
    memory = granted(plan_and_order(Memory(), pod("p"))[0])
    reconciliation = reconciled(memory, pod("p"), now=NOW + 900.0)

    assert [(act.instance, act.reason) for act in reconciliation.acts if isinstance(act, End)] == [
        ("i-1", "machine i-1 did not become a node within 900 s (pace.register_timeout)")
    ]
    assert [breaker.cause for breaker in reconciliation.memory.breakers.open] == [offering_events.ABSENT, offering_events.FAILED]


def test_an_order_whose_answer_was_lost_is_sent_again_if_the_cloud_keeps_tokens() -> None:
    memory, (order,) = plan_and_order(Memory(), pod("p"))
    doubtful = msgspec.structs.replace(memory, ledger=ledger.step(memory.ledger, ledger.Doubted(order.token, NOW)))

    nothing = Inventory(NOW + 60.0, ())
    again = reconciled(doubtful, pod("p"), inventory=nothing)
    assert [order.token for order in again.doubtful] == [order.token]
    # Sending is saved before, and does not happen in every pass.
    assert again.memory != doubtful
    assert reconciled(again.memory, pod("p"), inventory=nothing, now=NOW + 61.0).doubtful == ()
    assert reconciled(doubtful, pod("p"), inventory=nothing, now=NOW + 1.0).doubtful == ()


def test_a_node_that_refuses_a_pod_is_avoided_by_its_whole_class() -> None:
    memory = Memory(refusals=Refusals((Wait("default/p", "n", NOW),)))
    items = (node("n", KIND), pod("p"))
    reconciliation = reconciled(memory, *items, attempts={"default/p": NOW + 30.0}, messages={"default/p": "no"})

    assert [(node_refused.node, node_refused.detail) for node_refused in reconciliation.refused] == [("n", "no")]
    assert state_of(reconciliation.memory, POLICY, NOW + 60.0).refusing == {spec(gpus=1).digest: frozenset({"n"})}
    assert sum(order.count for order in plan_and_order(reconciliation.memory, *items, now=NOW + 61.0)[1]) == 1


@pytest.mark.parametrize("promised", ["a", "b"])
def test_no_removal_of_a_promised_node_begins_although_a_plan_has_another_node_for_its_pod(promised: str) -> None:
    """It would be undone at once, and begin again: each time the leaving taint comes and goes, and the scheduler may miss the node."""
    opened = Promise(promised, KIND.key, ("default/p",), NOW + 60.0, step=OPEN, nominated=NOW + 60.0)
    memory = Memory(ledger=Ledger(promises=(opened,)))
    taints: dict[str, tuple[Taint, ...]] = {"a": (), "b": ()}
    begun, undone = [], []
    for turn in range(30):
        now = NOW + 60.0 + 0.2 * turn
        nodes = (node(name, KIND, provider_id=f"i-{name}", created=NOW - 100.0, taints=on_node) for name, on_node in taints.items())
        items: tuple[Item, ...] = (*nodes, pod("p", uid="u", unschedulable=True))
        listed = Inventory(now, tuple(Instance(f"i-{name}", *KIND.key, launched=NOW - 100.0) for name in taints))
        seen = reconciled(memory, *items, now=now, inventory=listed)
        undone += [name for name, _ in seen.kept]
        taints |= {act.node: (Taint("gpuscaler.io/leaving"),) for act in seen.acts if isinstance(act, Mark)}
        taints |= {act.node: () for act in seen.acts if isinstance(act, Unmark)}
        memory, _ = plan_and_order(seen.memory, *items, now=now)
        begun += [leaving.node for leaving in memory.ledger.leaving if leaving not in seen.memory.ledger.leaving]

    assert undone == []
    assert promised not in begun
    made = plan(Cluster.of(items), state_of(memory, POLICY, now), POLICY, now)
    assert {blocked.node: blocked.detail for blocked in made.blocked_nodes}[promised] == "it is promised to pod default/p"


def test_two_broken_promises_pause_an_offering_for_the_refused_pods() -> None:
    broken = [promises.Broken(KIND.key, spec(gpus=1).digest, NOW)] * 2
    kept_promises = promises.Promises()
    for event in broken:
        kept_promises = promises.step(kept_promises, event)

    _, (order,) = plan_and_order(Memory(promises=kept_promises), pod("p"))
    assert order.offerings == (LARGER.key,)


# The state at a moment


def test_the_state_for_the_planner_contains_arriving_and_leaving_machines() -> None:
    ledger = Ledger(
        coming=(OrderedMachine("o-0", "o", (KIND.key,), 1.0, NOW, pods=("default/p",), node="n"),),
        leaving=(Removal("m", "i-2", KIND.key, "idle", NOW, NOW),),
        bought=((NOW - 61.0, 5), (NOW - 59.0, 2)),
        broken=(("default/q", "n"),),
    )
    state = state_of(Memory(ledger=ledger, clocks=IdleClocks({"m": NOW - 30.0})), POLICY, NOW)

    assert [(upcoming.id, upcoming.node, upcoming.pods) for upcoming in state.upcoming] == [("o-0", "n", ("default/p",))]
    assert (state.disrupting, state.bought_last_minute, state.broken_promises) == (frozenset({"m"}), 2, frozenset({"default/q"}))
    assert state.idle_seconds == {"m": 30.0}


def test_the_saved_state_equals_itself_after_encoding_and_decoding() -> None:
    memory = granted(plan_and_order(Memory(), *pods("p", 2))[0])
    refused = node_refusals.step(Refusals((Wait("p", "n", NOW),)), node_refusals.NodeRefused("p", "class", "n", "face", NOW, "no"))
    tripped = breakers.step(memory.breakers, offering_events.Reclaimed(KIND.key, NOW))
    memory = msgspec.structs.replace(memory, refusals=refused, breakers=tripped)

    assert msgspec.json.decode(msgspec.json.encode(memory), type=Memory) == memory
    # The data of an older version lacks later fields.
    assert msgspec.json.decode(b"{}", type=Memory) == Memory()


def test_a_second_machine_that_matches_an_order_counts_in_the_same_turn() -> None:
    """Without tokens either machine may belong to the order until one is assigned: the plan of that turn must not buy another."""
    memory, (order,) = plan_and_order(Memory(), pod("p", unschedulable=True))
    accepted = msgspec.structs.replace(memory, ledger=ledger.step(memory.ledger, ledger.Answered(order.token, NOW, (), 1)))
    listed = Inventory(NOW + 60.0, tuple(Instance(f"i-{number}", *KIND.key, launched=NOW + number) for number in (1, 2)))
    reconciliation = reconcile(accepted, Cluster.of((pod("p", unschedulable=True),)), POLICY, Facts(inventory=listed), NOW + 60.0)

    assert [machine.instance for machine in reconciliation.memory.ledger.coming] == ["i-1"]
    assert reconciliation.memory.ledger.unregistered == {"i-2": NOW + 60.0}
    assert [upcoming.id for upcoming in reconciliation.unordered] == ["found-i-2"]
