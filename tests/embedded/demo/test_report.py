"""Figures of a demo's report."""

from gpuscaler.control.records.events.happening import GRANTED, ORDERED, REFUSED, HistoryEvent
from gpuscaler.embedded.demo.report import failovers
from gpuscaler.model.offerings import OfferingKey


def of(kind: str, at: float, market: str) -> HistoryEvent:
    return HistoryEvent(at, kind, "", offering=OfferingKey("p", market, "g", "z"))


def test_a_failover_lasts_from_the_first_refusal_until_another_market_is_tried() -> None:
    happened = [
        of(ORDERED, 1, "spot"),
        of(REFUSED, 3, "spot"),
        of(ORDERED, 4, "spot"),
        of(REFUSED, 6, "spot"),
        of(ORDERED, 7, "on-demand"),
        of(ORDERED, 20, "on-demand"),
        of(REFUSED, 30, "on-demand"),
        of(ORDERED, 31, "spot"),
    ]

    assert failovers(happened) == [4.0, 1.0]


def test_repeated_refusals_without_another_market_are_no_failover() -> None:
    assert failovers([of(REFUSED, 3, "spot"), of(ORDERED, 9, "spot"), of(GRANTED, 10, "spot")]) == []
