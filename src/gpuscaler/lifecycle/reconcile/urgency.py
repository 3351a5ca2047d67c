"""What a look found that a plan is to answer at once."""

from collections.abc import Set

from gpuscaler.lifecycle.memory import Memory, vanishing
from gpuscaler.lifecycle.reconcile.looks import Look
from gpuscaler.planning.state import offering_events


def is_urgent(seen: Look, before: Memory, crowded: Set[str]) -> bool:
    """Whether a look found something that a plan is to answer at once.

    ``before`` is what was remembered, ``crowded`` were the machines that the last look found crowded.
    """
    failed = offering_events.Failed | offering_events.Lacking | offering_events.Reclaimed
    return (
        any(isinstance(fate, failed) for fate in seen.arrivals.fates)
        or bool(seen.kept or seen.refused or seen.stray or seen.unfit or seen.turned_away)
        # Whose machine others came to first is planned for anew, before it opens.
        or bool(seen.crowded - crowded)
        # What a removal that has ended makes room for need not wait for the next resync.
        or len(seen.memory.ledger.leaving) < len(before.ledger.leaving)
        # What replaces a machine that is about to vanish is asked for before its pods are evicted.
        or bool(vanishing(seen.memory) - vanishing(before))
    )
