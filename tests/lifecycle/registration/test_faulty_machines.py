"""Machines of which the cloud reports a fault before they are nodes."""

import math
from typing import Any

import pytest
from tests.lifecycle.registration.test_registering import KIND, granted, instance, machine, register
from tests.planning.building import NOW, node

from gpuscaler.lifecycle.registration.faulty_machines import FAULT_SECONDS
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.ledger import Ledger

TEXT = "vmssCSE: exit status=50"
FAILED = instance(fault=TEXT)
#: A machine whose fault has been reported for long enough.
HOPELESS = granted(faulted=NOW - FAULT_SECONDS - 1.0)


def test_a_fault_is_noted_when_the_list_first_shows_it_and_ends_nothing_at_once() -> None:
    arrivals = register(Ledger(coming=(granted(),)), listed=[FAILED], age=5.0)

    assert arrivals.steps == (ledger.Faulted("a-0", NOW - 5.0),)
    assert (arrivals.faults, arrivals.overdue) == ({"a-0": TEXT}, ())


def test_a_machine_that_does_not_become_a_node_after_a_fault_is_given_up_long_before_the_usual_time() -> None:
    arrivals = register(Ledger(coming=(HOPELESS,)), listed=[FAILED])

    (overdue,) = arrivals.overdue
    assert overdue.reason == f"machine i-1 did not become a node within 120 s after it failed: the cloud reports {TEXT}"
    assert arrivals.steps == (ledger.Lost("a-0"),)
    assert arrivals.breaker_events == (
        offering_events.Absent(KIND.key, HOPELESS.asked, NOW, overdue.reason),
        offering_events.Failed(KIND.key, NOW, overdue.reason),
    )


def test_a_machine_that_becomes_a_node_despite_a_fault_is_kept() -> None:
    arrivals = register(Ledger(coming=(HOPELESS,)), machine(), listed=[FAILED])

    assert ledger.Faulted("a-0", 0.0) in arrivals.steps
    assert (arrivals.faults, arrivals.overdue) == ({}, ())


def test_while_the_cloud_tries_again_the_time_after_a_fault_does_not_run() -> None:
    arrivals = register(Ledger(coming=(HOPELESS,)), listed=[instance()])

    assert (arrivals.steps, arrivals.overdue) == ((ledger.Faulted("a-0", 0.0),), ())


@pytest.mark.parametrize(
    "seen",
    [{"age": 30.0}, {"observed_until": NOW - 30.0}, {"observed_until": -math.inf}],
    ids=["old list", "old view of the cluster", "on hold"],
)
def test_a_fault_ends_no_machine_that_may_have_become_a_node_unseen(seen: dict[str, Any]) -> None:
    assert register(Ledger(coming=(HOPELESS,)), listed=[FAILED], **seen).overdue == ()


def test_without_a_list_the_time_of_a_fault_is_kept() -> None:
    arrivals = register(Ledger(coming=(HOPELESS,)), listed=None)

    assert (arrivals.steps, arrivals.overdue) == ((), ())


@pytest.mark.parametrize(("created", "kept"), [(NOW - 60.0, True), (NOW - 3600.0, False)])
def test_a_young_node_that_does_not_name_its_machine_may_be_the_node_of_a_machine_with_a_fault(created: float, kept: bool) -> None:
    nameless = node("n", KIND, provider_id="", created=created)

    assert bool(register(Ledger(coming=(HOPELESS,)), nameless, listed=[FAILED]).overdue) != kept


def test_the_usual_time_also_ends_a_machine_with_a_fault_and_names_the_fault() -> None:
    (overdue,) = register(Ledger(coming=(granted(faulted=NOW - 1.0),)), listed=[FAILED], register=50.0).overdue

    assert overdue.reason.endswith(f"within 50 s (pace.register_timeout): the cloud reports {TEXT}")
