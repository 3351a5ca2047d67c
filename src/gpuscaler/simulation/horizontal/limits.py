"""Limits the replicas that the metrics ask for: stabilisation, rates, minimum and maximum replicas.

Source: ``normalizeDesiredReplicas`` and ``normalizeDesiredReplicasWithBehaviors`` of ``pkg/controller/podautoscaler/horizontal.go``.
"""

from collections.abc import Callable
from typing import NamedTuple

from gpuscaler.simulation.horizontal.arithmetic import INT32_MAX, ceiling32, truncate32, wrapped32
from gpuscaler.simulation.horizontal.history import History, changed_within
from gpuscaler.simulation.horizontal.specs import Autoscaler, Behavior, ControllerSettings, ScalingRules, Status

LOWER = "recent recommendations were lower than current one, applying the lowest recent recommendation"
HIGHER = "recent recommendations were higher than current one, applying the highest recent recommendation"
READY = ("ReadyForNewScale", "recommended size matches current size")
WITHIN = ("DesiredWithinRange", "the desired count is within the acceptable range")
TOO_FEW = ("TooFewReplicas", "the desired replica count is less than the minimum replica count")
TOO_MANY = ("TooManyReplicas", "the desired replica count is more than the maximum replica count")
TOO_FAST_UP = ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate")
TOO_FAST_DOWN = ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate")

ReasonAndMessage = tuple[str, str]


class BoundedReplicas(NamedTuple):
    """A number of replicas, with the reason and message of the limit that applied."""

    replicas: int
    words: ReasonAndMessage


def apply_limits(
    autoscaler: Autoscaler, history: History, *, current: int, recommended: int, now: float, settings: ControllerSettings
) -> tuple[int, History]:
    """Return the replicas that the target gets now, and the history with the recommendation and the conditions."""
    behavior = autoscaler.behavior
    if behavior is None:
        stable, history = _stabilized(history, recommended, now=now, window=settings.downscale_stabilization)
        bounded = _within_default_rate(autoscaler, current=current, recommended=stable.replicas)
    else:
        stable, history = _stabilized_by(behavior, history, current=current, recommended=recommended, now=now, settings=settings)
        bounded = _within_rates(autoscaler, behavior, history, current=current, recommended=stable.replicas, now=now)
    history = history.with_condition("AbleToScale", "True", *(READY if stable.replicas == recommended else stable.words), now=now)
    limiting: Status = "False" if bounded.replicas == stable.replicas else "True"
    return bounded.replicas, history.with_condition("ScalingLimited", limiting, *bounded.words, now=now)


def down_window(behavior: Behavior, settings: ControllerSettings) -> int:
    """Return for how many seconds a higher recommendation delays scaling down."""
    return int(settings.downscale_stabilization) if behavior.down.window is None else behavior.down.window


def _stabilized(history: History, recommended: int, *, now: float, window: float) -> tuple[BoundedReplicas, History]:
    """Return the highest recommendation of the window, for an object without ``behavior``."""
    cutoff, highest, replace_index = now - window, recommended, None
    for number, past in enumerate(history.recommendations):
        if past.at < cutoff:
            replace_index = number
        else:
            highest = max(highest, past.replicas)
    return BoundedReplicas(highest, ("ScaleDownStabilized", HIGHER)), history.with_recommendation(
        recommended, now, replace_index=replace_index
    )


def _stabilized_by(
    behavior: Behavior, history: History, *, current: int, recommended: int, now: float, settings: ControllerSettings
) -> tuple[BoundedReplicas, History]:
    """Return the number closest to the current one that the recommendations of both windows allow."""
    up_cutoff, down_cutoff = now - (behavior.up.window or 0), now - down_window(behavior, settings)
    lowest = highest = recommended
    replace_index = None
    for number, past in enumerate(history.recommendations):
        if past.at > up_cutoff:
            lowest = min(lowest, past.replicas)
        if past.at > down_cutoff:
            highest = max(highest, past.replicas)
        if past.at < up_cutoff and past.at < down_cutoff:
            replace_index = number
    stable = min(max(current, lowest), highest)
    words = ("ScaleUpStabilized", LOWER) if recommended >= current else ("ScaleDownStabilized", HIGHER)
    return BoundedReplicas(stable, words), history.with_recommendation(recommended, now, replace_index=replace_index)


def _within_default_rate(autoscaler: Autoscaler, *, current: int, recommended: int) -> BoundedReplicas:
    """Limit without behaviours: at most twice the current number, or 4."""
    fastest = truncate32(max(2.0 * current, 4.0))
    limit, words = (fastest, TOO_FAST_UP) if autoscaler.max_replicas > fastest else (autoscaler.max_replicas, TOO_MANY)
    if recommended < autoscaler.min_replicas:
        return BoundedReplicas(autoscaler.min_replicas, TOO_FEW)
    return BoundedReplicas(limit, words) if recommended > limit else BoundedReplicas(recommended, WITHIN)


def _within_rates(
    autoscaler: Autoscaler, behavior: Behavior, history: History, *, current: int, recommended: int, now: float
) -> BoundedReplicas:
    if recommended > current:
        fastest = max(_fastest(behavior.up, history, current=current, now=now, up=True), current)
        limit, words = (fastest, TOO_FAST_UP) if autoscaler.max_replicas > fastest else (autoscaler.max_replicas, TOO_MANY)
        if recommended > limit:
            return BoundedReplicas(limit, words)
    elif recommended < current:
        fastest = min(_fastest(behavior.down, history, current=current, now=now, up=False), current)
        limit, words = (fastest, TOO_FAST_DOWN) if autoscaler.min_replicas < fastest else (autoscaler.min_replicas, TOO_FEW)
        if recommended < limit:
            return BoundedReplicas(limit, words)
    return BoundedReplicas(recommended, WITHIN)


def _fastest(rules: ScalingRules, history: History, *, current: int, now: float, up: bool) -> int:
    """Return how far the policies of one direction let the target go now."""
    if rules.select == "Disabled":
        return current
    furthest: Callable[[int, int], int] = max if up == (rules.select == "Max") else min
    result = -INT32_MAX - 1 if furthest is max else INT32_MAX
    for policy in rules.policies:
        added, removed = changed_within(history.ups, policy.period, now), changed_within(history.downs, policy.period, now)
        before = wrapped32(current - added + removed)
        if policy.type == "Pods":
            proposed = wrapped32(before + policy.value if up else before - policy.value)
        elif up:
            proposed = ceiling32(before * (1 + policy.value / 100))
        else:
            proposed = truncate32(before * (1 - policy.value / 100))
        result = furthest(result, proposed)
    return result
