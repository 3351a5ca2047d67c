"""Removals in progress, in status, metrics, Events and explanations: what holds them up, and what that costs."""

from typing import Any

import pytest
from tests.planning.building import NOW, node, offering, pool

from gpuscaler.cli.status import print_status
from gpuscaler.control.loop.cluster_writes import Outcome
from gpuscaler.control.records.events import happening as kinds
from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.events.telling import failed_act_event, observation_events
from gpuscaler.control.records.status.metrics import Gauges
from gpuscaler.control.records.status.removals import RemovalStatus, describe_removal, removal_statuses
from gpuscaler.control.records.status.status import Process, status_of
from gpuscaler.control.records.status.why import why_node
from gpuscaler.kube.requests import RequestMetrics
from gpuscaler.lifecycle.actions import Checkpoint, Evict
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.reconcile import Reconciliation
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state.failed_removals import SparedNode, SparedNodes
from gpuscaler.planning.state.ledger.entries import CLEARING, DRAINING, MARKING, Removal
from gpuscaler.planning.state.ledger.ledger import Ledger

G1, G8 = offering("g.1", 1.0), offering("g.8", 6.5, gpus=8)
POLICY = Policy((pool(G1, G8),))
HELD = "pod default/web cannot be evicted: the budget"


def leaving(name: str = "n1", of: Any = G1, **more: Any) -> Removal:
    return Removal(name, f"i-{name}", of.key, "idle", NOW - 70.0, NOW - 60.0, **{"step": DRAINING, **more})


def latest_with(*removals: Removal, spared: tuple[SparedNode, ...] = ()) -> Latest:
    memory = Memory(ledger=Ledger(leaving=removals), spared=SparedNodes(spared))
    return Latest(Cluster.of([node("n1", G1)]), memory, policy=POLICY)


def test_blocked_removals_are_listed_first_with_the_most_expensive_at_the_top() -> None:
    given_up = SparedNode("n4", "i-4", G8.key, "it could not be drained", NOW + 600.0)
    removals = removal_statuses(
        latest_with(leaving("n1"), leaving("n2", detail=HELD), leaving("n3", G8, detail=HELD), spared=(given_up,)), NOW
    )

    assert [(removal.node, removal.step, removal.dollars_per_hour) for removal in removals] == [
        ("n3", "draining", 6.5),
        ("n4", "given-up", 6.5),
        ("n2", "draining", 1.0),
        ("n1", "draining", 1.0),
    ]


def test_a_node_whose_drain_failed_is_listed_until_it_may_be_removed_again() -> None:
    latest = latest_with(spared=(SparedNode("n4", "i-4", G8.key, "it could not be drained", NOW + 90.0),))

    assert [describe_removal(removal, NOW) for removal in removal_statuses(latest, NOW)] == [
        "n4 ($6.50/h) stays: it could not be drained; tried again in 1m30s"
    ]
    assert removal_statuses(latest, NOW + 90.0) == ()


def test_the_line_of_a_removal_states_its_step_age_obstacle_and_when_the_machine_ends() -> None:
    removal = removal_statuses(latest_with(leaving(detail=HELD, forced=True, ends=NOW + 45.0)), NOW)[0]

    assert describe_removal(removal, NOW) == f"n1 ($1.00/h): its pods are being evicted, since 1m: {HELD}; the machine ends in 45s [idle]"
    assert describe_removal(RemovalStatus("n", "gone", "ending", NOW, "idle"), NOW) == "n: its machine is being ended, since 0s [idle]"


def test_the_explanation_of_a_node_says_when_its_machine_ends() -> None:
    assert "the machine ends in 45s" in why_node(latest_with(leaving(forced=True, ends=NOW + 45.0)), "n1", (), NOW).now
    assert "the machine should have ended 5s ago" in why_node(latest_with(leaving(forced=True, ends=NOW - 5.0)), "n1", (), NOW).now


def test_gauges_count_removals_and_sum_the_cost_of_blocked_ones() -> None:
    status = status_of(
        latest_with(leaving("n1"), leaving("n2", detail=HELD), leaving("n3", G8, detail=HELD)), Process(), troubles=(), happened=(), now=NOW
    )
    gauges = Gauges(status=lambda: status, requests=RequestMetrics(), leading=lambda: True, synced=lambda: True)
    samples = {sample.name: (sample.labels, sample.value) for metric in gauges.collect() for sample in metric.samples}

    assert samples["gpuscaler_removals_under_way"] == ({"pool": "main", "step": "draining"}, 3.0)
    assert samples["gpuscaler_held_removals_dollars_per_hour"] == ({"pool": "main"}, 7.5)


def events_between(before: Removal | None, after: Removal | None) -> list[tuple[str, str]]:
    memory = Memory(ledger=Ledger(leaving=(before,) if before is not None else ()))
    seen = Reconciliation(Memory(ledger=Ledger(leaving=(after,) if after is not None else ())))
    return [(event.kind, event.text) for event in observation_events(memory, seen, Cluster(), {}, NOW)]


def test_the_reason_of_a_blocked_removal_is_reported_once() -> None:
    held = leaving(detail=HELD)

    assert events_between(leaving(), held) == [(kinds.HELD, f"the removal of node n1 waits: {HELD}")]
    assert events_between(held, held) == []


def test_an_interrupted_machine_is_reported_with_the_time_left() -> None:
    taken = leaving(forced=True, ends=NOW + 120.0, step=MARKING, pods=("default/p",))

    assert events_between(None, taken) == [(kinds.DECIDED, "node n1 will be removed: idle; its machine ends in 2m; 1 pod must move first")]


def test_the_text_of_the_status_lists_removals(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(status_of(latest_with(leaving(detail=HELD)), Process("me", "1"), troubles=(), happened=(), now=NOW), NOW)

    assert f"\nLeaving:\n  n1 ($1.00/h): its pods are being evicted, since 1m: {HELD} [idle]\n" in capsys.readouterr().out


def test_a_removal_is_finished_once_the_leftover_node_is_deleted() -> None:
    assert events_between(leaving(step=CLEARING), None) == [(kinds.REMOVED, "node n1 is gone: idle")]


def test_a_checkpoint_request_is_reported_on_the_pod_and_a_disruption_budget_is_not_reported_as_failure() -> None:
    asked = failed_act_event(Outcome(Checkpoint("default/p", "u", "n1", NOW, 300.0)), NOW)

    assert asked is not None
    assert (asked.kind, asked.pods, asked.text) == (kinds.CHECKPOINT, ("default/p",), "save your work within 5m: node n1 is being removed")
    assert failed_act_event(Outcome(Evict("default/p", "u", "n1"), "the budget", budget=True), NOW) is None
    failed = failed_act_event(Outcome(Evict("default/p", "u", "n1"), "no answer"), NOW)
    assert failed is not None
    assert failed.kind == kinds.ACTED
