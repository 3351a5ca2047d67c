"""When time alone changes a HorizontalPodAutoscaler's decision, so that a simulation need not compute it every 15 s.

While pods and metrics stay the same, a step repeats the one before it until an old recommendation leaves a stabilisation window or a scale
event leaves the period of a policy.
"""

import math
from collections.abc import Iterator

from msgspec.structs import replace

from gpuscaler.simulation.horizontal.history import History
from gpuscaler.simulation.horizontal.limits import down_window
from gpuscaler.simulation.horizontal.specs import Autoscaler, ControllerSettings
from gpuscaler.simulation.horizontal.stepping import DEFAULT_SETTINGS, Outcome


def quiet_until(autoscaler: Autoscaler, outcome: Outcome, *, replicas: int, settings: ControllerSettings = DEFAULT_SETTINGS) -> float:
    """The first moment at which a step may differ from ``outcome`` for a target of ``replicas``, if nothing else changes.

    Minus infinity means now: the target was scaled, or a metric is CPU, which depends on the age of pods. Infinity means never: nothing in
    the history holds the target back.
    """
    if outcome.desired != replicas or any(metric.name == "cpu" for metric in autoscaler.metrics if "Resource" in metric.type):
        return -math.inf
    if outcome.recommendation is None or outcome.recommendation == replicas:
        return math.inf
    return min(_ends(autoscaler, outcome.history, outcome.recommendation, settings), default=math.inf)


def repeat_outcome(outcome: Outcome, until: float) -> History:
    """Return the history after steps that all had ``outcome``, the last of them at ``until``.

    Of equal recommendations the latest outlasts all others, so it can replace them.
    """
    history, past = outcome.history, outcome.history.recommendations
    same = [number for number, recommendation in enumerate(past) if recommendation.replicas == outcome.recommendation]
    if not same:
        return history
    latest = max(same, key=lambda number: past[number].at)
    moved = replace(past[latest], at=max(until, past[latest].at))
    return replace(history, recommendations=(*past[:latest], moved, *past[latest + 1 :]))


def _ends(autoscaler: Autoscaler, history: History, recommendation: int, settings: ControllerSettings) -> Iterator[float]:
    """When entries of the history expire. The latest recommendation is repeated and so does not age."""
    behavior, latest = autoscaler.behavior, max(past.at for past in history.recommendations)
    others = [past.at for past in history.recommendations if past.replicas != recommendation]
    if behavior is None:
        yield from (at + settings.downscale_stabilization for at in others if at + settings.downscale_stabilization >= latest)
        return
    for window in (behavior.up.window or 0, down_window(behavior, settings)):
        yield from (at + window for at in others if at + window > latest)
    for policy in (*behavior.up.policies, *behavior.down.policies):
        yield from (event.at + policy.period for event in (*history.ups, *history.downs) if event.at + policy.period > latest)
