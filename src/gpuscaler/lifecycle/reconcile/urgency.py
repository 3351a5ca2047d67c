"""Findings of a pass that need a plan at once."""

from collections.abc import Set

from gpuscaler.lifecycle.memory import Memory, vanishing_nodes
from gpuscaler.lifecycle.reconcile.facts import Reconciliation
from gpuscaler.planning.state import offering_events


def is_urgent(findings: Reconciliation, before: Memory, crowded: Set[str]) -> bool:
    """Whether a pass found something that needs a plan at once.

    ``before`` is the memory before the pass, ``crowded`` are the machines that the last pass found crowded.
    """
    failed = offering_events.Failed | offering_events.Lacking | offering_events.Reclaimed
    return (
        any(isinstance(fate, failed) for fate in findings.arrivals.breaker_events)
        or bool(findings.kept or findings.refused or findings.stray or findings.unfit or findings.turned_away)
        # If other pods took the room of promised pods, the promised pods are planned again before their machine opens.
        or bool(findings.crowded - crowded)
        # A finished removal may let its pool buy again; the plan need not wait for the next resync.
        or len(findings.memory.ledger.leaving) < len(before.ledger.leaving)
        # The replacement of a machine that the cloud takes away is ordered before the pods of that machine are evicted.
        or bool(vanishing_nodes(findings.memory) - vanishing_nodes(before))
    )
