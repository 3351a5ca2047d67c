"""What a mix is asked to buy for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuscaler.model.requests import LARGEST
from gpuscaler.model.table import Mask
from gpuscaler.planning.scale_up.draft.draft import Queue


@dataclass(frozen=True)
class Lot:
    """``count`` pods of one class to buy for, and a flag per kind that may serve them; all on one machine when ``whole``.

    ``anywhere`` flags the kinds that would serve them had no domain been chosen; ``domain`` is the one chosen, None where all are free.
    ``announced`` more are to shape the mix.
    """

    queue: Queue
    count: int
    allowed: Mask
    anywhere: Mask
    whole: bool = False
    announced: int = 0
    domain: tuple[int, ...] | None = None


def request_of(lot: Lot) -> dict[str, int]:
    """What one thing to be packed requests, ``pods`` included: a pod, or all of a lot that stays whole; at most ``LARGEST`` of each."""
    times = lot.count if lot.whole else 1
    return {name: min(amount * times, LARGEST) for name, amount in lot.queue.one.spec.requests.items()} | {"pods": times}


def distinct(masks: Sequence[Mask]) -> tuple[list[int], list[Mask]]:
    """The place of each mask among the distinct ones, and those."""
    known: dict[bytes, int] = {}
    # Mostly they share the objects too, and identity is quicker to look up.
    places = {name: known.setdefault(mask.tobytes(), len(known)) for name, mask in {id(mask): mask for mask in masks}.items()}
    return [places[id(mask)] for mask in masks], [np.frombuffer(raw, dtype=np.bool_) for raw in known]
