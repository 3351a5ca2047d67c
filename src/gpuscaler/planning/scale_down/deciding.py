"""Scale-down from the first look to the last word: what leaves, what replaces it, and why everything else stays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuscaler.planning.plans import BlockedNode, Machine, Removal
from gpuscaler.planning.scale_down.blockers import Blocker
from gpuscaler.planning.scale_down.budgets import IDLE, Allowances
from gpuscaler.planning.scale_down.clocks import clock_blocker, idle_reason
from gpuscaler.planning.scale_down.situation import Down, Situation
from gpuscaler.planning.scale_down.spare import held
from gpuscaler.planning.scale_down.survey import Candidate, survey


@dataclass
class Ledger:
    """What has been decided so far, and the accounts it is counted against."""

    allowances: Allowances
    removals: list[Removal] = field(default_factory=list)
    machines: list[Machine] = field(default_factory=list)
    blocked: dict[str, Blocker] = field(default_factory=dict)


def scale_down(situation: Situation) -> Down:
    """What may be given back in ``situation``. Pure; the order of objects in the cluster does not matter."""
    first = survey(situation)
    ledger = Ledger(Allowances(situation), blocked=dict(first.blocked))
    due = []
    for candidate in first.idle:
        blocker = clock_blocker(situation, candidate)
        if blocker is None:
            due.append(candidate)
        else:
            ledger.blocked[candidate.name] = blocker
    kept = held(situation, frozenset(ledger.blocked))
    remove_idle(situation, ledger, due, kept)
    for candidate in first.busy:
        ledger.blocked[candidate.name] = Blocker("in-use", "its pods are not moved")
    return answer(ledger)


def remove_idle(situation: Situation, ledger: Ledger, due: Sequence[Candidate], kept: Mapping[str, Blocker]) -> None:
    """Give back the idle machines whose time has come, the dearest first."""
    for candidate in sorted(due, key=lambda c: (-c.price, c.name)):
        blocker = kept.get(candidate.name) or ledger.allowances.refusal(candidate.member.pool, IDLE)
        if blocker is not None:
            ledger.blocked[candidate.name] = blocker
            continue
        ledger.allowances.take(candidate.member.pool)
        ledger.removals.append(Removal(candidate.name, idle_reason(situation, candidate), saving_per_hour=candidate.price))


def answer(ledger: Ledger) -> Down:
    blocked = (BlockedNode(name, blocker.word, blocker.detail) for name, blocker in sorted(ledger.blocked.items()))
    return Down(tuple(ledger.removals), tuple(ledger.machines), tuple(blocked))
