"""Machines that the cloud takes away."""

from typing import Any

from tests.planning.building import NOW, node, offering, pod, pool

from gpuscaler.lifecycle.interruptions import (
    AHEAD_SECONDS,
    NOTICE_SECONDS,
    Announcements,
    InterruptionFindings,
    Remark,
    describe_changes,
    reclaim_events,
    remove_interrupted,
    remove_terminated,
    unexpectedly_gone,
)
from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import RUNNING, STOPPING, TERMINATED, Instance, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import CLEARING, ENDING, Eviction, OrderedMachine, Removal
from gpuscaler.planning.state.ledger.ledger import Ledger

SPOT = offering(market="spot")
POLICY = Policy((pool(SPOT),))
NODE = node("n", SPOT, provider_id="i-1")
INSTANCE = Instance("i-1", *SPOT.key)
GOING = Announcements({"i-1": NOW + 120.0})


def leaving(**more: Any) -> Removal:
    return Removal("n", "i-1", SPOT.key, "idle", NOW, NOW, **more)


def test_an_announced_interruption_removes_the_machine_and_counts_against_its_market() -> None:
    interrupted = remove_interrupted(
        Ledger(), Cluster.of([NODE, pod("p", on="n")]), POLICY, Announcements({"i-1": NOW + 120.0, "i-unknown": 0.0}), NOW
    )

    (left,) = interrupted.steps
    assert isinstance(left, ledger.RemovalUpdated)
    assert (left.removal.node, left.removal.pods, left.removal.forced, left.removal.ends) == ("n", ("default/p",), True, NOW + 120.0)
    assert interrupted.breaker_events == (offering_events.Reclaimed(SPOT.key, NOW),)


def test_an_interruption_begins_one_removal_even_if_our_own_was_in_progress() -> None:
    cluster = Cluster.of([NODE])

    assert len(remove_interrupted(Ledger(leaving=(leaving(),)), cluster, POLICY, GOING, NOW).steps) == 1
    for begun in (leaving(forced=True), leaving(step=ENDING), leaving(step=CLEARING)):
        assert remove_interrupted(Ledger(leaving=(begun,)), cluster, POLICY, GOING, NOW) == InterruptionFindings()


def test_an_interruption_of_another_market_than_spot_does_not_count_against_it() -> None:
    kept = offering(market="on-demand")
    interrupted = remove_interrupted(Ledger(), Cluster.of([node("n", kept, provider_id="i-1")]), Policy((pool(kept),)), GOING, NOW)

    assert (len(interrupted.steps), interrupted.breaker_events) == (1, ())


def test_eviction_attempts_from_before_an_interruption_still_count() -> None:
    asked = (Eviction("default/p", "uid-p", signalled=NOW - 9.0),)
    (left,) = remove_interrupted(Ledger(leaving=(leaving(evictions=asked),)), Cluster.of([NODE]), POLICY, GOING, NOW).steps

    assert isinstance(left, ledger.RemovalUpdated)
    assert left.removal.evictions == asked


def test_an_interruption_without_a_time_is_assumed_to_come_with_the_shortest_notice() -> None:
    (left,) = remove_interrupted(Ledger(), Cluster.of([NODE]), POLICY, Announcements({"i-1": 0.0}), NOW).steps

    assert isinstance(left, ledger.RemovalUpdated)
    assert left.removal.ends == NOW + NOTICE_SECONDS


def test_a_machine_with_planned_maintenance_is_removed_shortly_before_it() -> None:
    cluster, late = Cluster.of([NODE]), NOW + AHEAD_SECONDS
    interrupted = remove_interrupted(Ledger(), cluster, POLICY, Announcements(maintenance_at={"i-1": late}), NOW)

    (left,) = interrupted.steps
    assert isinstance(left, ledger.RemovalUpdated)
    assert (left.removal.reason, left.removal.ends, interrupted.breaker_events) == ("the cloud is about to work on it", late, ())
    for elsewhen in (0.0, late + 1.0, NOW - 1.0):
        assert remove_interrupted(Ledger(), cluster, POLICY, Announcements(maintenance_at={"i-1": elsewhen}), NOW) == InterruptionFindings()


def test_an_interrupted_machine_that_was_not_open_yet_is_recorded_as_lost_first() -> None:
    current = Ledger(coming=(OrderedMachine("o-0", "o", (SPOT.key,), 1.0, NOW, instance="i-1", node="n"),))
    interrupted = remove_interrupted(current, Cluster.of([NODE]), POLICY, GOING, NOW)

    assert interrupted.steps[0] == ledger.Lost("o-0")
    assert ledger.fold_events(current, interrupted.steps).coming == ()


def test_nodes_outside_our_pools_are_not_touched() -> None:
    theirs = node("n", SPOT, provider_id="i-1", labels={"gpuscaler.io/pool": "theirs"})

    assert remove_interrupted(Ledger(), Cluster.of([theirs]), POLICY, GOING, NOW) == InterruptionFindings()


def test_only_open_machines_that_we_did_not_end_count_as_lost_unexpectedly() -> None:
    arriving = OrderedMachine("o-0", "o", (SPOT.key,), 1.0, NOW, instance="i-1")

    assert unexpectedly_gone(Ledger(), [INSTANCE]) == (INSTANCE,)
    for current in (Ledger(leaving=(leaving(),)), Ledger(coming=(arriving,)), Ledger(departed_ids=frozenset({"i-1"}))):
        assert unexpectedly_gone(current, [INSTANCE]) == ()


def test_a_lost_spot_machine_counts_as_reclaimed_and_other_markets_do_not() -> None:
    assert reclaim_events([SPOT.key, offering().key], NOW) == (offering_events.Reclaimed(SPOT.key, NOW),)


def nodes_removed(state: str = TERMINATED, *nodes: Node, ledger: Ledger | None = None, listed: bool = True) -> tuple[Any, ...]:
    """Return what happens to the Node of a machine that was not ended here."""
    inventory = Inventory(NOW, (Instance("i-1", *SPOT.key, state=state),) if listed else ())
    cluster = Cluster.of(nodes or [node("n", SPOT, provider_id="i-1", ready=False)])
    return remove_terminated(ledger or Ledger(), MachineIndex.of(cluster, inventory), NOW)


def test_the_node_of_a_terminated_machine_is_deleted() -> None:
    (left,) = nodes_removed()

    assert isinstance(left, ledger.RemovalUpdated)
    removal = left.removal
    assert (removal.node, removal.instance, removal.offering, removal.step, removal.since) == ("n", "i-1", SPOT.key, CLEARING, NOW)


def test_the_node_of_an_unlisted_machine_stays_because_a_tag_may_be_missing() -> None:
    assert nodes_removed(listed=False) == ()
    assert remove_terminated(Ledger(), MachineIndex.of(Cluster.of([NODE]), None), NOW) == ()
    assert nodes_removed(RUNNING) == nodes_removed(STOPPING) == ()


def test_a_node_that_is_ready_has_a_twin_or_is_already_leaving_is_not_deleted() -> None:
    silent = node("n", SPOT, provider_id="i-1", ready=False)
    arriving = OrderedMachine("o-0", "o", (SPOT.key,), 1.0, NOW, instance="i-1", node="n")

    assert nodes_removed(TERMINATED, NODE) == ()
    assert nodes_removed(TERMINATED, silent, node("twin", SPOT, provider_id="i-1", ready=False)) == ()
    assert nodes_removed(TERMINATED, node("n", SPOT, provider_id="i-1", ready=False, deleted=NOW)) == ()
    assert nodes_removed(ledger=Ledger(leaving=(leaving(),))) == nodes_removed(ledger=Ledger(coming=(arriving,))) == ()


def test_remarks_on_lost_and_announced_machines_name_machine_and_node() -> None:
    changes = list(
        describe_changes(MachineIndex.of(Cluster.of([NODE]), None), [INSTANCE, Instance("i-2", *SPOT.key)], [("i-1", "maintenance")])
    )

    assert changes == [
        Remark("i-1", "n", "machine i-1 (spot g.1 z1) is gone without any notice; its node n is left to the cloud's controller"),
        Remark("i-2", "", "machine i-2 (spot g.1 z1) is gone without any notice"),
        Remark("i-1", "n", "the cloud announces maintenance of machine i-1; no action is taken"),
    ]
    (remark,) = describe_changes(MachineIndex.of(Cluster.of([NODE]), None), (), [("i-1", "maintenance")], {"i-1": NOW + 60.0})
    assert remark.text == "the cloud announces maintenance of machine i-1; it is drained before that"
