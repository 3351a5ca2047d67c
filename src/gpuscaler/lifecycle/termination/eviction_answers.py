"""Refused evictions, folded into the ledger: such a pod is tried again later and named in the meantime."""

from collections.abc import Iterable
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import Eviction, Removal
from gpuscaler.planning.state.ledger.ledger import Ledger

#: How many bytes of a refusal are kept: the ledger has to fit into a ConfigMap.
MOST_WORDS = 240


class EvictionRefused(Struct, frozen=True, gc=False):
    """An eviction for the removal of ``node`` failed; ``why`` is the server's message.

    ``budget`` is whether PodDisruptionBudgets refused it; ``retry_after`` are the seconds that the server asks to wait.
    """

    node: str
    pod: str
    uid: str
    why: str
    budget: bool = False
    retry_after: float = 0.0


def record_refusals(current: Ledger, refused: Iterable[EvictionRefused], now: float) -> list[ledger.Event]:
    """Remember which pods may not be evicted; refusals for removals that are over are ignored."""
    steps: list[ledger.Event] = []
    leaving = {removal.node: removal for removal in current.leaving}
    for node, of_node in groupby(sorted(refused, key=lambda refusal: refusal.node), key=lambda refusal: refusal.node):
        if node in leaving:
            refusals = {(refusal.pod, refusal.uid): refusal for refusal in of_node}
            after = tuple(_apply_refusal(entry, refusals.get((entry.pod, entry.uid)), now) for entry in leaving[node].evictions)
            steps += _update_evictions(leaving[node], after)
    return steps


def _update_evictions(removal: Removal, evictions: tuple[Eviction, ...]) -> list[ledger.Event]:
    return [] if evictions == removal.evictions else [ledger.RemovalUpdated(replace(removal, evictions=evictions))]


def _apply_refusal(entry: Eviction, refusal: EvictionRefused | None, now: float) -> Eviction:
    if refusal is None:
        return entry
    why = refusal.why.encode()[:MOST_WORDS].decode(errors="ignore")
    again = max(entry.again, now + refusal.retry_after)
    return replace(entry, why=why, budget=refusal.budget, again=again)
