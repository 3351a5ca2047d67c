"""Removals in progress, and those that were given up recently: the step of each, what holds it up, and the cost of its node."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.words import counted, money, spoken
from gpuscaler.kube.events import shortened
from gpuscaler.lifecycle.termination.eviction import is_saving, saves_until
from gpuscaler.model.pods import Pod
from gpuscaler.planning.state.ledger.entries import CLEARING, DETACHING, DRAINING, ENDING, MARKING, REOPENING, WAITING, Removal

#: Steps of a removal, in words.
STEPS: Mapping[str, str] = {
    MARKING: "it is being closed to new pods",
    WAITING: "it is closed to new pods, waiting for its replacement",
    DRAINING: "its pods are being evicted",
    DETACHING: "its volumes are being detached",
    ENDING: "its machine is being ended",
    CLEARING: "its machine is terminated, waiting for the Node object to be deleted",
    REOPENING: "its removal was given up; it is being opened again",
}
GIVEN_UP = "given-up"
#: The maximum length of a sentence, in bytes.
SENTENCE = 400


class RemovalNow(Struct, frozen=True, omit_defaults=True):
    """A removal of ``node`` that has been at ``step`` since ``since``, or was ``given-up`` and is not tried again before ``until``.

    ``held`` says what holds it up or why it was given up; ``dollars_per_hour`` is the node's cost, None if it is unknown. If the machine
    is taken away, ``until`` is when. Times are seconds since the epoch.
    """

    node: str
    pool: str
    step: str
    since: float = 0.0
    reason: str = ""
    held: str = ""
    dollars_per_hour: float | None = None
    until: float | None = None


def removals_of(latest: Latest, now: float) -> tuple[RemovalNow, ...]:
    """All removals; those that are held up come first, the most expensive at the top."""
    memory = latest.memory
    offerings = [one for pool in (latest.policy.pools if latest.policy is not None else ()) for one in pool.offerings]
    prices = {one.key: one.price for one in offerings}
    found = [
        RemovalNow(
            node=one.node,
            pool=one.offering.pool,
            step=one.step,
            since=one.since,
            reason=shortened(one.reason, SENTENCE),
            held=shortened(one.detail, SENTENCE),
            dollars_per_hour=prices.get(one.offering),
            until=one.ends or None,
        )
        for one in memory.ledger.leaving
    ]
    leaving = {one.node for one in found}
    for spared in memory.spared.nodes:
        if now < spared.until and spared.node not in leaving:
            price = prices.get(spared.offering)
            why = shortened(spared.why, SENTENCE)
            found.append(RemovalNow(spared.node, spared.offering.pool, GIVEN_UP, held=why, dollars_per_hour=price, until=spared.until))
    return tuple(sorted(found, key=lambda one: (not one.held, -(one.dollars_per_hour or 0.0), one.node)))


def told(one: RemovalNow, now: float) -> str:
    """A removal in one line for people."""
    cost = f" ({money(one.dollars_per_hour)}/h)" if one.dollars_per_hour is not None else ""
    if one.step == GIVEN_UP:
        return f"{one.node}{cost} stays: {one.held}; tried again in {spoken((one.until or now) - now)}"
    ends = f"; the machine ends in {spoken(one.until - now)}" if one.until is not None else ""
    held = f": {one.held}" if one.held else ""
    return f"{one.node}{cost}: {STEPS.get(one.step, one.step)}, since {spoken(now - one.since)}{held}{ends} [{one.reason}]"


def of_resident(one: Removal, pod: Pod, now: float) -> Iterator[str]:
    """Sentences about the eviction of ``pod``, which is on the node of the removal ``one``."""
    found = next((entry for entry in one.evictions if (entry.pod, entry.uid) == (pod.key, pod.uid)), None)
    if pod.deleted:
        yield "it is terminating" + (f"; its grace period ends in {spoken(pod.deleted - now)}" if pod.deleted > now else " and is overdue")
    elif found is not None and found.signalled and is_saving(one, pod, found, now):
        until = saves_until(one, pod, found.signalled)
        yield f"it was asked {spoken(now - found.signalled)} ago to save its work, and has {spoken(until - now)} left (gpuscaler.io/grace)"
    elif found is not None and found.why:
        yield f"its eviction failed {counted(found.tries, 'time')}: {found.why}; tried again in {spoken(found.again - now)}"


def of_leaving(one: Removal, now: float) -> Iterator[str]:
    """Sentences about the removal of one node."""
    yield f"its removal began {spoken(now - one.at)} ago: {one.reason}"
    needs = f" ({counted(len(one.needs), 'machine')})" if one.needs else ""
    detail = f": {one.detail}" if one.detail else ""
    yield f"{STEPS.get(one.step, one.step)}{needs}{detail}"
    if one.ends:
        yield (
            f"the machine ends in {spoken(one.ends - now)}"
            if one.ends > now
            else f"the machine should have ended {spoken(now - one.ends)} ago"
        )
