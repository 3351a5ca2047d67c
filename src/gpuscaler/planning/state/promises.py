"""Promises: pods that a machine was bought or chosen for, and whether they ran there.

If a machine does not take the pods it was planned for, the plan was wrong about its room, its labels, or the needs of the pods. Buying
the same offering for the same pods would repeat the mistake, so ``BROKEN`` promises in a row pause the pair of offering and pod class for
a while. One kept promise is enough to trust the pair again.
"""

from collections.abc import Mapping
from itertools import groupby

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey

#: The number of broken promises in a row that pauses a pair.
BROKEN = 2
#: How long a pair is paused at first and at most, in seconds. Nothing is learned while it is paused, so it is tried again within a day.
PAUSE_SECONDS, LONGEST_SECONDS = 3600.0, 86_400.0


class Kept(Struct, frozen=True, gc=False, tag=True):
    """A pod of the class ``pods`` (its specification's digest) runs on the machine of ``offering`` that was promised to it."""

    offering: OfferingKey
    pods: str
    at: float


class Broken(Struct, frozen=True, gc=False, tag=True):
    """A machine of ``offering``, now ``node``, is ready and did not take ``pod`` of the class ``pods``.

    ``why`` is the scheduler's message or the lacking resource, empty if unknown. ``certain``: it never will take the pod, because the
    machine lacks the labels that the pod selects by; then one broken promise is enough.
    """

    offering: OfferingKey
    pods: str
    at: float
    pod: str = ""
    node: str = ""
    why: str = ""
    certain: bool = False


class Pair(Struct, frozen=True, gc=False):
    """An offering and a pod class with ``broken`` promises in a row, the last at ``last``; paused until ``until``."""

    offering: OfferingKey
    pods: str
    broken: int
    last: float
    until: float
    detail: str = ""


class Promises(Struct, frozen=True, gc=False):
    """Every pair whose last promise was broken, and the total numbers of kept and broken promises."""

    pairs: tuple[Pair, ...] = ()
    kept: int = 0
    broken: int = 0


def step(promises: Promises, event: Kept | Broken) -> Promises:
    """The promises after ``event``."""
    previous = next((pair for pair in promises.pairs if (pair.offering, pair.pods) == (event.offering, event.pods)), None)
    others = tuple(pair for pair in promises.pairs if pair is not previous)
    if isinstance(event, Kept):
        return Promises(others, promises.kept + 1, promises.broken)
    # Pods of one purchase fail together: while the pair is paused, their failures are the same mistake.
    if previous is not None and event.at < previous.until:
        return Promises(promises.pairs, promises.kept, promises.broken + 1)
    broken = 1 if previous is None else previous.broken + 1
    broken = max(broken, BROKEN) if event.certain else broken
    pause = min(PAUSE_SECONDS * 2.0 ** min(20, broken - BROKEN), LONGEST_SECONDS) if broken >= BROKEN else 0.0
    pair = Pair(event.offering, event.pods, broken, event.at, event.at + pause, event.why)
    return Promises((*others, pair), promises.kept, promises.broken + 1)


def forgive(promises: Promises, pool: str) -> Promises:
    """The promises after the configuration of ``pool`` changed, or of every pool if that is empty: its pairs are forgotten."""
    left = tuple(pair for pair in promises.pairs if pool and pair.offering.pool != pool)
    return promises if left == promises.pairs else Promises(left, promises.kept, promises.broken)


def paused_offerings(promises: Promises, now: float) -> Mapping[str, frozenset[OfferingKey]]:
    """The offerings that are not bought now, by the digest of the pods they are not bought for."""
    resting = sorted((paused.pods, paused.offering) for paused in promises.pairs if now < paused.until)
    return {pods: frozenset(offering for _, offering in pairs) for pods, pairs in groupby(resting, key=lambda entry: entry[0])}
