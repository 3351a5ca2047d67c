"""Decisions as readable lines: steps that only follow from a decision are left out, and similar events share one line."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from gpuscaler.control.records.events import happening as kinds
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.words import format_names
from gpuscaler.model.quantities import format_count

#: The kinds of events that are shown, and the word for each.
WORDS = {
    kinds.ORDERED: "buys",
    kinds.INSTEAD: "gets",
    kinds.REFUSED: "refused",
    kinds.UNPLACED: "waits",
    kinds.UNFILLED: "withdraws",
    kinds.ANSWER_LOST: "doubts",
    kinds.OPENED: "opens",
    kinds.LOST: "lost",
    kinds.BROKEN: "broken",
    kinds.DECIDED: "removes",
    kinds.KEPT: "keeps",
    kinds.ACTED: "failed",
    kinds.FAILED: "failed",
}


class DecisionLine(Struct, frozen=True, gc=False):
    """An event at ``at`` (seconds since the epoch), as a ``word`` and a sentence; ``kind`` is the kind of the event."""

    at: float
    kind: str
    word: str
    text: str


def lines(happenings: Iterable[HistoryEvent]) -> Iterator[DecisionLine]:
    """Lines for the events, in order of time; consecutive similar events of one kind share a line."""
    group: list[HistoryEvent] = []
    for event in happenings:
        if event.kind not in WORDS:
            continue
        if group and not _alike(group[-1], event):
            yield _line(group)
            group = []
        group.append(event)
    if group:
        yield _line(group)


def _alike(event: HistoryEvent, other: HistoryEvent) -> bool:
    if event.kind != other.kind or other.at - event.at > 1.0:
        return False
    if event.kind == kinds.REFUSED:
        return (event.offering or ("",) * 4)[1] == (other.offering or ("",) * 4)[1]
    return event.kind in {kinds.DECIDED, kinds.KEPT} and _reason(event) == _reason(other)


def _reason(event: HistoryEvent) -> str:
    """The reason why a node is removed or stays, without the node's name."""
    return event.text.removeprefix(f"node {event.node} ").removeprefix("will be removed: ")


def _line(group: list[HistoryEvent]) -> DecisionLine:
    first = group[0]
    if first.kind == kinds.REFUSED:
        text = _refusals_text(group)
    elif first.kind == kinds.ORDERED:
        what, _, more = first.text.partition(" ordered")
        text = f"{what} for {format_names(first.pods, 1)}{more}" if first.pods else f"{what}{more}"
    elif first.kind in {kinds.DECIDED, kinds.KEPT}:
        text = f"{format_names(tuple(event.node for event in group))}: {_reason(first)}"
    else:
        text = first.text_with_pods
    return DecisionLine(first.at, first.kind, WORDS[first.kind], text)


def _refusals_text(group: list[HistoryEvent]) -> str:
    """The text for refusals of one market: a market without capacity refuses a dozen offerings in a row."""
    first = group[0]
    what, _, why = first.text.partition(" refused: ")
    if len(group) == 1:
        return f"{what}: {why}"
    cause = why.partition(" (")[0]
    market = first.offering.market if first.offering else ""
    return f"{format_count(len(group), f'{market} offering')}: {cause}"
