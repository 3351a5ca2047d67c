"""Refused evictions, as events for the ledger: the pod is tried again later, and status output shows the reason until then."""

from collections.abc import Iterable
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import Eviction, Removal
from gpuscaler.planning.state.ledger.ledger import Ledger

#: How many bytes of the reason for a refusal are kept: the ledger has to fit into a ConfigMap.
MAX_REASON_BYTES = 240


class EvictionRefused(Struct, frozen=True, gc=False):
    """An eviction for the removal of ``node`` failed; ``why`` is the message of the API server.

    ``budget`` is whether PodDisruptionBudgets refused it, ``retry_after`` how many seconds the API server asks to wait.
    """

    node: str
    pod: str
    uid: str
    why: str
    budget: bool = False
    retry_after: float = 0.0


def record_refusals(current: Ledger, refused: Iterable[EvictionRefused], now: float) -> list[ledger.Event]:
    """Return events that record refused evictions in the ledger, except for removals that are over."""
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
    why = refusal.why.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
    again = max(entry.again, now + refusal.retry_after)
    return replace(entry, why=why, budget=refusal.budget, again=again)
