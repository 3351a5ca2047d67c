"""Promises: pods that a machine was bought or chosen for, and whether they came to run there.

A machine that does not take the pods it was planned for was understood wrongly: its room, its labels, or what the pods need. To buy the
same for the same pods again would only repeat that, so ``BROKEN`` promises in a row pause the pair of offering and pod class for a while.
One kept promise is enough to trust the pair again.
"""

from collections.abc import Mapping
from itertools import groupby

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey

#: So many broken promises in a row pause a pair.
BROKEN = 2
#: How long a pair is paused at first and at most, in seconds. Nothing is learned while it is paused, so it is tried again within a day.
PAUSE_SECONDS, LONGEST_SECONDS = 3600.0, 86_400.0


class Kept(Struct, frozen=True, gc=False, tag=True):
    """A pod of the class ``pods`` (its specification's digest) runs where ``offering`` was meant to take it."""

    offering: OfferingKey
    pods: str
    at: float


class Broken(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering``, now ``node``, is ready and did not take ``pod`` of the class ``pods``.

    ``why`` is what the scheduler said or what the node lacks, empty where nobody knows. ``certain``: it never will, since the machine lacks
    what the pod selects by. Nothing is left to chance, and once is enough.
    """

    offering: OfferingKey
    pods: str
    at: float
    pod: str = ""
    node: str = ""
    why: str = ""
    certain: bool = False


class Pair(Struct, frozen=True, gc=False):
    """``broken`` promises in a row, the last at ``last``; paused until ``until``."""

    offering: OfferingKey
    pods: str
    broken: int
    last: float
    until: float
    detail: str = ""


class Promises(Struct, frozen=True, gc=False):
    """Every pair whose last promise was broken, and how many were kept and broken in all."""

    pairs: tuple[Pair, ...] = ()
    kept: int = 0
    broken: int = 0


def step(promises: Promises, event: Kept | Broken) -> Promises:
    """The promises after ``event``."""
    known = next((pair for pair in promises.pairs if (pair.offering, pair.pods) == (event.offering, event.pods)), None)
    others = tuple(pair for pair in promises.pairs if pair is not known)
    if isinstance(event, Kept):
        return Promises(others, promises.kept + 1, promises.broken)
    # Pods of one purchase fail together: while the pair is paused, theirs is the same mistake.
    if known is not None and event.at < known.until:
        return Promises(promises.pairs, promises.kept, promises.broken + 1)
    broken = 1 if known is None else known.broken + 1
    broken = max(broken, BROKEN) if event.certain else broken
    pause = min(PAUSE_SECONDS * 2.0 ** min(20, broken - BROKEN), LONGEST_SECONDS) if broken >= BROKEN else 0.0
    pair = Pair(event.offering, event.pods, broken, event.at, event.at + pause, event.why)
    return Promises((*others, pair), promises.kept, promises.broken + 1)


def mended(promises: Promises, pool: str) -> Promises:
    """The promises once machines of ``pool``, or of every pool where that is empty, are made from something else."""
    left = tuple(pair for pair in promises.pairs if pool and pair.offering.pool != pool)
    return promises if left == promises.pairs else Promises(left, promises.kept, promises.broken)


def paused(promises: Promises, now: float) -> Mapping[str, frozenset[OfferingKey]]:
    """The offerings that are not bought now, by the digest of the pods they are not bought for."""
    resting = sorted((pair.pods, pair.offering) for pair in promises.pairs if now < pair.until)
    return {pods: frozenset(offering for _, offering in pairs) for pods, pairs in groupby(resting, key=lambda entry: entry[0])}
