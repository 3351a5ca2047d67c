"""Events that agents on nodes report about their machines."""

from msgspec.structs import replace
from tests.planning.building import NOW, node, offering, pool

from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.node_events import STALE_SECONDS, TERMINATED, NodeEvents, observe
from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.lifecycle.reconcile import Facts, Reconciliation, reconcile
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Policy
from gpuscaler.model.scheduled_events import FREEZE, PREEMPT, REBOOT, REDEPLOY, TERMINATE, ScheduledEvent
from gpuscaler.planning.state import offering_events

SPOT = offering(market="spot")
POLICY = Policy((pool(SPOT),))
LISTED = Inventory(NOW, (Instance("i-1", *SPOT.key), Instance("i-2", *SPOT.key)))


def announcing(kind: str, at: float = NOW + 30.0, *, name: str = "n", machine: str = "i-1") -> Node:
    made = node(name, SPOT, provider_id=machine)
    return replace(made, bought=SPOT.key, scheduled_event=ScheduledEvent(kind, f"e-{kind}", at))


def observed(
    *nodes: Node,
    reported: dict[str, str] | None = None,
    foreign: frozenset[str] = frozenset(),
    pages: dict[str, ScheduledEvent] | None = None,
) -> NodeEvents:
    return observe(reported or {}, MachineIndex.of(Cluster.of(nodes), LISTED), foreign, NOW, pages=pages)


def reconciled(*nodes: Node, memory: Memory | None = None, facts: Facts | None = None) -> Reconciliation:
    return reconcile(memory or Memory(), Cluster.of(nodes), POLICY, facts or Facts(LISTED), NOW)


def test_preempt_and_terminate_take_the_machine_away_and_only_terminate_needs_another_reason() -> None:
    events = observed(announcing(PREEMPT), announcing(TERMINATE, 0.0, name="m", machine="i-2"))

    assert events == NodeEvents({"i-1": NOW + 30.0, "i-2": 0.0}, why={"i-2": TERMINATED})


def test_redeploy_and_reboot_are_maintenance_with_a_time_and_a_freeze_is_only_reported() -> None:
    events = observed(
        announcing(REDEPLOY, NOW + 600.0),
        announcing(REBOOT, 0.0, name="m", machine="i-2"),
        announcing(FREEZE, NOW + 900.0, name="o", machine="i-3"),
    )

    assert events.taken_away_at == {}
    assert events.maintenance_at == {"i-1": NOW + 600.0, "i-2": 0.0}
    assert [remark.text for remark in events.remarks] == [
        "the cloud announces maintenance (Redeploy) of machine i-1; it is drained before that",
        "the cloud announces maintenance (Reboot) of machine i-2; no action is taken",
        "the cloud announces maintenance (Freeze) of machine i-3; no action is taken",
    ]


def test_maintenance_is_reported_once_per_event_and_forgotten_once_it_is_cancelled() -> None:
    first = observed(announcing(REBOOT))

    assert observed(announcing(REBOOT), reported=dict(first.reported)).remarks == ()
    assert observed(node("n", SPOT, provider_id="i-1"), reported=dict(first.reported)) == NodeEvents()


def test_a_reported_event_is_not_reported_again_after_a_restart_without_a_list() -> None:
    unlisted = replace(announcing(FREEZE), bought=None)
    memory = reconciled(announcing(FREEZE)).memory
    assert memory.node_events

    pending = reconciled(unlisted, memory=memory, facts=Facts())
    assert reconciled(announcing(FREEZE), memory=pending.memory).remarks == ()
    assert reconciled(unlisted, facts=Facts()).remarks == ()


def test_old_events_and_events_of_foreign_machines_and_of_nodes_that_share_an_id_count_for_nothing() -> None:
    old, shared = announcing(PREEMPT, NOW - STALE_SECONDS - 1.0), observed(announcing(PREEMPT), node("m", SPOT, provider_id="i-1"))

    assert observed(old) == observed(announcing(PREEMPT), foreign=frozenset({"i-1"})) == NodeEvents()
    assert (shared.taken_away_at, [remark.text for remark in shared.remarks]) == (
        {},
        ["the cloud announces the Preempt of machine i-1; another node has the same spec.providerID, so it is ignored"],
    )


def test_an_event_on_an_exporters_page_counts_for_its_node_unless_the_node_itself_has_one() -> None:
    pages = {name: ScheduledEvent(PREEMPT, "e-1", NOW + 60.0) for name in ("n", "m", "gone")}
    events = observed(announcing(PREEMPT), node("m", SPOT, provider_id="i-2"), pages=pages)

    assert events.taken_away_at == {"i-1": NOW + 30.0, "i-2": NOW + 60.0}


def test_a_preempted_machine_is_removed_at_once_like_one_with_a_notice_of_the_cloud_and_no_other_is() -> None:
    announced = reconciled(announcing(PREEMPT), node("m", SPOT, provider_id="i-2"))
    noticed = reconciled(
        node("n", SPOT, provider_id="i-1"), node("m", SPOT, provider_id="i-2"), facts=Facts(LISTED, taken_away_at={"i-1": NOW + 30.0})
    )

    (removal,) = announced.memory.ledger.leaving
    assert (removal.node, removal.forced, removal.ends, removal.reason) == ("n", True, NOW + 30.0, "the cloud takes it back")
    assert noticed.memory.ledger.leaving == (removal,)
    assert [breaker.cause for breaker in announced.memory.breakers.open] == [offering_events.RECLAIMED]


def test_a_removal_goes_on_after_the_event_is_gone_and_cancelled_maintenance_is_not_remembered() -> None:
    preempted = reconciled(announcing(PREEMPT))
    later = reconciled(announcing(REDEPLOY, NOW + 7200.0))

    assert reconciled(node("n", SPOT, provider_id="i-1"), memory=preempted.memory).memory.ledger.leaving != ()
    assert later.memory.ledger.leaving == ()
    assert later.memory.maintenance_at == {}
    assert later.announced.maintenance_at == {"i-1": NOW + 7200.0}


def test_the_notice_of_the_cloud_counts_more_than_the_annotation() -> None:
    both = reconciled(announcing(PREEMPT, NOW + 900.0), facts=Facts(LISTED, taken_away_at={"i-1": NOW + 120.0}))

    (removal,) = both.memory.ledger.leaving
    assert removal.ends == NOW + 120.0
