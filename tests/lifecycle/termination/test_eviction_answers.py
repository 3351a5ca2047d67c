"""Refusals of evictions are remembered with the removal."""

from tests.lifecycle.termination.kit import draining, tried_eviction
from tests.planning.building import NOW

from gpuscaler.lifecycle.termination import EvictionRefused, record_refusals
from gpuscaler.lifecycle.termination.eviction_answers import MAX_REASON_BYTES
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import Eviction
from gpuscaler.planning.state.ledger.ledger import Ledger

REFUSAL = EvictionRefused("n", "default/p", "uid-p", "the budget web", budget=True, retry_after=30.0)


def after_refusals(entry: Eviction, *refusals: EvictionRefused) -> Eviction:
    current = Ledger(leaving=(draining(entry),))
    after = ledger.fold_events(current, record_refusals(current, refusals, NOW))
    return after.leaving[0].evictions[0]


def test_a_refused_eviction_names_the_pod_the_reason_and_the_next_attempt() -> None:
    assert after_refusals(tried_eviction(again=5.0), REFUSAL) == tried_eviction(again=30.0, why="the budget web", budget=True)
    assert after_refusals(tried_eviction(again=50.0), REFUSAL).again == NOW + 50.0


def test_the_latest_refusal_of_an_eviction_decides_the_cause() -> None:
    assert (
        after_refusals(tried_eviction(why="the budget web", budget=True), EvictionRefused("n", "default/p", "uid-p", "no answer")).budget
        is False
    )


def test_a_refused_eviction_for_an_unknown_pod_or_removal_is_ignored() -> None:
    assert after_refusals(tried_eviction(), EvictionRefused("n", "default/p", "another", "why")) == tried_eviction()
    assert record_refusals(Ledger(leaving=(draining(tried_eviction()),)), [EvictionRefused("m", "default/p", "uid-p", "why")], NOW) == []
    assert record_refusals(Ledger(), [REFUSAL], NOW) == []


def test_a_long_refusal_message_is_cut_between_characters() -> None:
    why = after_refusals(tried_eviction(), EvictionRefused("n", "default/p", "uid-p", "ä" * 500)).why

    assert len(why.encode()) <= MAX_REASON_BYTES
    assert set(why) == {"ä"}
