"""Lines for decisions."""

from gpuscaler.control.records.events import happening as kinds
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.embedded.demo.decisions import lines
from gpuscaler.model.offerings import OfferingKey


def lines_of(*happenings: HistoryEvent) -> list[tuple[float, str, str]]:
    return [(line.at, line.word, line.text) for line in lines(happenings)]


def refusal(at: float, kind: str, market: str = "spot") -> HistoryEvent:
    text = f"{kind} {market} in z refused: no capacity (0 left)"
    return HistoryEvent(at, kinds.REFUSED, text, offering=OfferingKey("p", market, kind, "z"))


def test_simultaneous_refusals_of_one_market_share_one_line() -> None:
    assert lines_of(refusal(5, "a"), refusal(5, "b"), refusal(5, "c")) == [(5, "refused", "3 spot offerings: no capacity")]


def test_refusals_of_other_markets_and_at_other_times_have_their_own_lines() -> None:
    assert lines_of(refusal(5, "a"), refusal(5, "b", "on-demand"), refusal(60, "b", "on-demand")) == [
        (5, "refused", "a spot in z: no capacity (0 left)"),
        (5, "refused", "b on-demand in z: no capacity (0 left)"),
        (60, "refused", "b on-demand in z: no capacity (0 left)"),
    ]


def test_nodes_removed_for_the_same_reason_share_one_line() -> None:
    removals = [HistoryEvent(9, kinds.DECIDED, f"node n{number} will be removed: idle for 5m", node=f"n{number}") for number in range(5)]

    assert lines_of(*removals) == [(9, "removes", "n0, n1, n2 and 2 more: idle for 5m")]


def test_the_line_of_unplaced_pods_names_them() -> None:
    text = "no machine can be bought for it now: pool gpu: the limit is reached"
    unplaced = HistoryEvent(1, kinds.UNPLACED, text, pods=("d/a", "d/b", "d/c"))

    assert lines_of(unplaced) == [(1, "waits", "no machine can be bought for d/a and 2 more now: pool gpu: the limit is reached")]


def test_a_purchase_names_its_pods() -> None:
    ordered = HistoryEvent(1, kinds.ORDERED, "g5 spot in z ordered: ready in about 4m, $1.01/h", pods=("d/a", "d/b"))

    assert lines_of(ordered) == [(1, "buys", "g5 spot in z for d/a and 1 more: ready in about 4m, $1.01/h")]
    assert lines_of(HistoryEvent(1, kinds.ORDERED, "g5 ordered: ready soon")) == [(1, "buys", "g5: ready soon")]


def test_steps_that_follow_from_earlier_decisions_have_no_line() -> None:
    assert lines_of(*(HistoryEvent(1, kind, "x") for kind in (kinds.GRANTED, kinds.MARKED, kinds.ENDING, kinds.REMOVED))) == []
