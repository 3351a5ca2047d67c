"""Removals in progress, and those that were given up recently: the step of each, what holds it up, and the cost of its node."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.words import format_dollars, format_duration
from gpuscaler.kube.events import cut_to_bytes
from gpuscaler.lifecycle.termination.eviction import is_saving, saves_until
from gpuscaler.model.pods import Pod
from gpuscaler.model.quantities import format_count
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


class RemovalStatus(Struct, frozen=True, omit_defaults=True):
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


def removal_statuses(latest: Latest, now: float) -> tuple[RemovalStatus, ...]:
    """All removals; those that are held up come first, the most expensive at the top."""
    memory = latest.memory
    offerings = [offering for pool in (latest.policy.pools if latest.policy is not None else ()) for offering in pool.offerings]
    prices = {offering.key: offering.price for offering in offerings}
    removals = [
        RemovalStatus(
            node=removal.node,
            pool=removal.offering.pool,
            step=removal.step,
            since=removal.since,
            reason=cut_to_bytes(removal.reason, SENTENCE),
            held=cut_to_bytes(removal.detail, SENTENCE),
            dollars_per_hour=prices.get(removal.offering),
            until=removal.ends or None,
        )
        for removal in memory.ledger.leaving
    ]
    leaving = {removal.node for removal in removals}
    for spared in memory.spared.nodes:
        if now < spared.until and spared.node not in leaving:
            price = prices.get(spared.offering)
            why = cut_to_bytes(spared.why, SENTENCE)
            removals.append(
                RemovalStatus(spared.node, spared.offering.pool, GIVEN_UP, held=why, dollars_per_hour=price, until=spared.until)
            )
    return tuple(sorted(removals, key=lambda removal: (not removal.held, -(removal.dollars_per_hour or 0.0), removal.node)))


def describe_removal(removal: RemovalStatus, now: float) -> str:
    """A removal in one line for people."""
    cost = f" ({format_dollars(removal.dollars_per_hour)}/h)" if removal.dollars_per_hour is not None else ""
    if removal.step == GIVEN_UP:
        return f"{removal.node}{cost} stays: {removal.held}; tried again in {format_duration((removal.until or now) - now)}"
    ends = f"; the machine ends in {format_duration(removal.until - now)}" if removal.until is not None else ""
    held = f": {removal.held}" if removal.held else ""
    step = STEPS.get(removal.step, removal.step)
    return f"{removal.node}{cost}: {step}, since {format_duration(now - removal.since)}{held}{ends} [{removal.reason}]"


def describe_eviction(removal: Removal, pod: Pod, now: float) -> Iterator[str]:
    """Sentences about the eviction of ``pod``, which is on the node of the removal ``removal``."""
    eviction = next((entry for entry in removal.evictions if (entry.pod, entry.uid) == (pod.key, pod.uid)), None)
    if pod.deleted:
        yield "it is terminating" + (
            f"; its grace period ends in {format_duration(pod.deleted - now)}" if pod.deleted > now else " and is overdue"
        )
    elif eviction is not None and eviction.signalled and is_saving(removal, pod, eviction, now):
        until = saves_until(removal, pod, eviction.signalled)
        yield (
            f"it was asked {format_duration(now - eviction.signalled)} ago to save its work, "
            f"and has {format_duration(until - now)} left (gpuscaler.io/grace)"
        )
    elif eviction is not None and eviction.why:
        yield (
            f"its eviction failed {format_count(eviction.tries, 'time')}: {eviction.why}; "
            f"tried again in {format_duration(eviction.again - now)}"
        )


def describe_removal_progress(removal: Removal, now: float) -> Iterator[str]:
    """Sentences about the removal of one node."""
    yield f"its removal began {format_duration(now - removal.at)} ago: {removal.reason}"
    needs = f" ({format_count(len(removal.needs), 'machine')})" if removal.needs else ""
    detail = f": {removal.detail}" if removal.detail else ""
    yield f"{STEPS.get(removal.step, removal.step)}{needs}{detail}"
    if removal.ends:
        yield (
            f"the machine ends in {format_duration(removal.ends - now)}"
            if removal.ends > now
            else f"the machine should have ended {format_duration(now - removal.ends)} ago"
        )
