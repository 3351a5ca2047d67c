"""What was decided, in lines that people can follow: steps that follow from a decision are left out, and what is alike is one line."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from gpuscaler.control.records.events import happening as kinds
from gpuscaler.control.records.events.happening import Happening
from gpuscaler.control.records.words import counted, some

#: Kinds that are told, and in which word.
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
    kinds.DECIDED: "gives back",
    kinds.KEPT: "keeps",
    kinds.ACTED: "failed",
    kinds.FAILED: "failed",
}


class Line(Struct, frozen=True, gc=False):
    """Something that happened at ``at`` (seconds since the epoch), in a ``word`` and a sentence; ``kind`` is the happening's."""

    at: float
    kind: str
    word: str
    text: str


def lines(happenings: Iterable[Happening]) -> Iterator[Line]:
    """Lines of what happened, in order of time; what comes directly after another of its kind and is alike joins its line."""
    group: list[Happening] = []
    for one in happenings:
        if one.kind not in WORDS:
            continue
        if group and not _alike(group[-1], one):
            yield _line(group)
            group = []
        group.append(one)
    if group:
        yield _line(group)


def _alike(one: Happening, other: Happening) -> bool:
    if one.kind != other.kind or other.at - one.at > 1.0:
        return False
    if one.kind == kinds.REFUSED:
        return (one.offering or ("",) * 4)[1] == (other.offering or ("",) * 4)[1]
    return one.kind in {kinds.DECIDED, kinds.KEPT} and _reason(one) == _reason(other)


def _reason(one: Happening) -> str:
    """Why a node goes or stays, without its name, which differs."""
    return one.text.removeprefix(f"node {one.node} ").removeprefix("will be removed: ")


def _line(group: list[Happening]) -> Line:
    first = group[0]
    if first.kind == kinds.REFUSED:
        text = _refused(group)
    elif first.kind == kinds.ORDERED:
        what, _, more = first.text.partition(" ordered")
        text = f"{what} for {some(first.pods, 1)}{more}" if first.pods else f"{what}{more}"
    elif first.kind in {kinds.DECIDED, kinds.KEPT}:
        text = f"{some(tuple(one.node for one in group))}: {_reason(first)}"
    else:
        text = first.text
    return Line(first.at, first.kind, WORDS[first.kind], text)


def _refused(group: list[Happening]) -> str:
    """One market that has nothing refuses a dozen offerings one after the other."""
    first = group[0]
    what, _, why = first.text.partition(" refused: ")
    if len(group) == 1:
        return f"{what}: {why}"
    cause = why.partition(" (")[0]
    market = first.offering.market if first.offering else ""
    return f"{counted(len(group), f'{market} offering')}: {cause}"
