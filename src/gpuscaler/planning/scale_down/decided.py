"""The decisions of scale-down so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuscaler.planning.plans import BlockedNode, Move, PlannedMachine, PlannedRemoval
from gpuscaler.planning.scale_down.blockers import Blocker
from gpuscaler.planning.scale_down.budgets import Allowances
from gpuscaler.planning.scale_down.candidates import Candidate
from gpuscaler.planning.scale_down.contract import ScaleDownResult


@dataclass
class RemovalDecisions:
    """Decisions, and the allowances that they use up."""

    allowances: Allowances
    removals: list[PlannedRemoval] = field(default_factory=list)
    machines: list[PlannedMachine] = field(default_factory=list)
    blocked: dict[str, Blocker] = field(default_factory=dict)
    stopped_early: bool = False

    def remove(self, candidate: Candidate, reason: str, *, saving: float, moves: Sequence[Move] = (), needs: Sequence[str] = ()) -> None:
        """Record the removal of ``candidate``; its allowances must have been taken."""
        self.blocked.pop(candidate.name, None)
        self.removals.append(PlannedRemoval(candidate.name, reason, tuple(moves), tuple(needs), saving))

    def result(self) -> ScaleDownResult:
        blocked = [BlockedNode(name, self.blocked[name].word, self.blocked[name].detail) for name in sorted(self.blocked)]
        return ScaleDownResult(tuple(self.removals), tuple(self.machines), tuple(blocked), self.stopped_early)
