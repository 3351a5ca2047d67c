"""Which pods to evict now, and how: group by group, with the pauses that the API server asks for, and before the machine ends.

If the cloud ends a machine at a known time, this is a deadline for the drain. To meet it, pods get less time to save their work and to end;
if this is not enough, groups are no longer evicted in order; and as a last resort PodDisruptionBudgets are overridden.
"""

import math
from collections.abc import Iterator, Set

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.lifecycle.actions import Act, Checkpoint, Delete, Evict
from gpuscaler.lifecycle.termination.node_pods import NodePods, is_daemon
from gpuscaler.model.pods import Pod
from gpuscaler.planning.state.ledger.entries import Eviction, Removal

#: Pause before an eviction that was refused, or had no visible effect, is tried again; it doubles each time, up to the second value, in
#: seconds. kubectl tries every 5 s.
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0
#: All pods have to end this many seconds before the machine does.
MARGIN_SECONDS = 5.0
#: If time is short, a pod that first saves its work keeps this many seconds for its termination.
END_IN_SECONDS = 30.0
#: How long before the end of the machine annotations no longer protect pods, and how long before it budgets are overridden, in seconds. The
#: shortest notice of AWS is 120 s.
PROTECTED_SECONDS, LAST_SECONDS = 120.0, 15.0


class EvictionRound(Struct, frozen=True, gc=False):
    """The next evictions, ``acts``, and the state of all ``evictions`` after that; ``done`` means that the drain is complete.

    ``held`` is what delays the drain, as text, or empty. ``idle`` are pods without any visible progress: they are neither ending nor saving
    their work.
    """

    evictions: tuple[Eviction, ...]
    acts: tuple[Act, ...]
    done: bool
    held: str
    idle: tuple[Pod, ...]


def evict(removal: Removal, node_pods: NodePods, now: float, awaited: Set[str] = frozenset()) -> EvictionRound:
    """Return the next evictions of ``removal``. ``awaited`` are pods for which another machine is on its way."""
    evictions = {(entry.pod, entry.uid): entry for entry in removal.evictions}
    entries: list[Eviction] = []
    acts: list[Act] = []
    held: list[str] = []
    idle: list[Pod] = []
    turn = True
    for group in node_pods.groups:
        for pod in group:
            before = evictions.get((pod.key, pod.uid)) or Eviction(pod.key, pod.uid)
            after, act = before, None
            if (spared := why_spared(removal, pod, now, awaited)) is not None:
                held.append(spared)
            elif turn or is_late(removal, pod, now):
                after, act, waits = _next_step(removal, pod, before, now)
                held += waits
            if act is not None:
                acts.append(act)
            if after != Eviction(pod.key, pod.uid):
                entries.append(after)
            if not pod.deleted and not is_daemon(pod) and not is_saving(removal, pod, after, now):
                idle.append(pod)
        turn = turn and not any(_holds_up(pod, entries, now) for pod in group)
    return EvictionRound(tuple(entries), tuple(acts), turn, _summarize(held), tuple(idle))


def _next_step(removal: Removal, pod: Pod, entry: Eviction, now: float) -> tuple[Eviction, Act | None, Iterator[str]]:
    """Return the next step for one pod: the state of its eviction, the act, and what the eviction waits for, as text."""
    again = now >= entry.again
    if pod.deleted:
        # A pod that would end after its machine is evicted again, with a shorter grace period.
        if removal.ends and pod.deleted > removal.ends - MARGIN_SECONDS + 1.0 and again:
            return _count_try(removal, entry, now), _evict(removal, pod, now), iter(())
        return entry, None, iter(())
    if is_saving(removal, pod, entry, now):
        entry = entry if entry.signalled else replace(entry, signalled=now)
        if pod.checkpoint_requested >= math.floor(entry.signalled) or not again:
            return entry, None, iter((f"pod {pod.key} is saving its work",))
        checkpoint = Checkpoint(
            pod.key, pod.uid, removal.node, entry.signalled, saves_until(removal, pod, entry.signalled) - entry.signalled
        )
        return replace(entry, again=now + FIRST_PAUSE), checkpoint, iter((f"pod {pod.key} is saving its work",))
    waits = iter((f"pod {pod.key} cannot be evicted: {entry.why}",) if entry.why and not is_daemon(pod) else ())
    if entry.budget and removal.ends and now >= removal.ends - LAST_SECONDS:
        # No time is left for the pause that the API server asked for.
        if again or entry.again > now + FIRST_PAUSE:
            return _count_try(removal, entry, now), Delete(pod.key, pod.uid, removal.node, grace_left(removal, now)), waits
    elif (again or not entry.tries) and not (is_daemon(pod) and entry.tries):
        return _count_try(removal, entry, now), _evict(removal, pod, now), waits
    return entry, None, waits


def _evict(removal: Removal, pod: Pod, now: float) -> Evict:
    seconds = grace_left(removal, now)
    return Evict(pod.key, pod.uid, removal.node, seconds if removal.ends and seconds < pod.spec.grace_seconds else None)


def _count_try(removal: Removal, entry: Eviction, now: float) -> Eviction:
    # If the machine has a known end, the pauses do not grow.
    pause = FIRST_PAUSE if removal.ends else min(FIRST_PAUSE * 2.0 ** min(entry.tries, 10), LONGEST_PAUSE)
    return replace(entry, tries=entry.tries + 1, again=now + pause)


def grace_left(removal: Removal, now: float) -> int:
    """Return how many whole seconds a pod has before the machine ends; at least one, because 0 would kill it without a signal."""
    return max(1, int(removal.ends - MARGIN_SECONDS - now))


def is_late(removal: Removal, pod: Pod, now: float) -> bool:
    """Whether ``pod`` must be evicted before its turn, or it would not have its full grace period."""
    return bool(removal.ends) and now >= removal.ends - MARGIN_SECONDS - pod.spec.grace_seconds - (pod.options.grace or 0.0)


def why_spared(removal: Removal, pod: Pod, now: float, awaited: Set[str]) -> str | None:
    """Return why ``pod`` is not evicted yet although its machine will end; None if it may be, or must be because little time is left."""
    options = pod.options
    needs = (options.grace or 0.0) + pod.spec.grace_seconds + MARGIN_SECONDS
    if not removal.ends or pod.deleted or now >= removal.ends - max(PROTECTED_SECONDS, needs):
        return None
    if is_protected(pod, now):
        return f"an annotation protects pod {pod.key} until the machine ends"
    if (pod.owner.kind == "Job" or options.gang) and options.restart_cost is None:
        return f"pod {pod.key} states no restart cost and runs until the machine ends"
    return f"pod {pod.key} waits for the replacement of this machine" if pod.key in awaited else None


def is_protected(pod: Pod, now: float) -> bool:
    """Whether an annotation or label protects ``pod``. A limited protection begins when the pod starts, if this is known."""
    options, start = pod.options, pod.started or pod.created
    for_now = options.do_not_disrupt is not False and (options.do_not_disrupt is True or not start or now < start + options.do_not_disrupt)
    return options.do_not_drain or options.safe_to_evict is False or for_now


def is_saving(removal: Removal, pod: Pod, entry: Eviction, now: float) -> bool:
    """Whether ``pod`` gets time to save its work before it is evicted."""
    if pod.options.grace is None or pod.deleted or pod.phase == "Pending":
        return False
    if entry.signalled and pod.checkpointed >= math.floor(entry.signalled):
        return False
    return now < saves_until(removal, pod, entry.signalled or now)


def saves_until(removal: Removal, pod: Pod, since: float) -> float:
    """Return until when ``pod`` may save its work, which it was asked to do at ``since``."""
    until = since + (pod.options.grace or 0.0)
    if not removal.ends:
        return until
    return min(until, removal.ends - MARGIN_SECONDS - min(pod.spec.grace_seconds, END_IN_SECONDS))


def _holds_up(pod: Pod, entries: list[Eviction], now: float) -> bool:
    """Whether the next group waits for ``pod``. A DaemonSet pod whose eviction is refused ends with the machine."""
    if not is_daemon(pod) or pod.deleted:
        return True
    entry = next((entry for entry in entries if (entry.pod, entry.uid) == (pod.key, pod.uid)), None)
    return entry is None or not (entry.why or now >= entry.again)


def _summarize(held: list[str]) -> str:
    if not held:
        return ""
    return held[0] if len(held) == 1 else f"{held[0]} (and {len(held) - 1} more)"
