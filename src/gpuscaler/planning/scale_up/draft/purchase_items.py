"""Purchase items: the input of a mix."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuscaler.model.requests import LARGEST
from gpuscaler.model.table import Mask
from gpuscaler.planning.scale_up.draft.draft import Queue


@dataclass(frozen=True)
class PurchaseItem:
    """``count`` pods of one class to buy for, and a flag for each kind that may serve them; all of them ``on_one_machine`` if set.

    ``allowed_in_any_domain`` flags the kinds that may serve them if the domain is ignored; ``domain`` is the chosen domain, or None.
    ``announced`` more pods influence the mix.
    """

    queue: Queue
    count: int
    allowed: Mask
    allowed_in_any_domain: Mask
    on_one_machine: bool = False
    announced: int = 0
    domain: tuple[int, ...] | None = None


def request_of(item: PurchaseItem) -> dict[str, int]:
    """The request of one packed item, ``pods`` included: one pod, or all pods ``on_one_machine``; at most ``LARGEST`` of each resource."""
    times = item.count if item.on_one_machine else 1
    return {name: min(amount * times, LARGEST) for name, amount in item.queue.pod_class.spec.requests.items()} | {"pods": times}


def distinct(masks: Sequence[Mask]) -> tuple[list[int], list[Mask]]:
    """Return the index of each mask among the distinct masks, and the distinct masks."""
    numbers: dict[bytes, int] = {}
    # Mostly equal masks are the same object, and lookup by identity is faster.
    places = {name: numbers.setdefault(mask.tobytes(), len(numbers)) for name, mask in {id(mask): mask for mask in masks}.items()}
    return [places[id(mask)] for mask in masks], [np.frombuffer(raw, dtype=np.bool_) for raw in numbers]
