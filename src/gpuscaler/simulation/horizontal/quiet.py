"""When time alone changes what a HorizontalPodAutoscaler decides, so that a simulation need not ask every 15 s.

While pods and metrics stay as they are, a step repeats the one before it until an old recommendation leaves a stabilisation window or a
scale event leaves the period of a policy.
"""

import math
from collections.abc import Iterator

from msgspec.structs import replace

from gpuscaler.simulation.horizontal.history import History
from gpuscaler.simulation.horizontal.limits import down_window
from gpuscaler.simulation.horizontal.specs import Autoscaler, ControllerSettings
from gpuscaler.simulation.horizontal.stepping import DEFAULT_SETTINGS, Outcome


def quiet_until(autoscaler: Autoscaler, outcome: Outcome, *, replicas: int, settings: ControllerSettings = DEFAULT_SETTINGS) -> float:
    """The first moment at which a step may decide otherwise than ``outcome`` did for a target of ``replicas``, nothing else changing.

    Minus infinity, which is at once, where the target was scaled or a metric is CPU, which looks at the age of pods; infinity, which is
    never, where nothing that it remembers holds the target back.
    """
    if outcome.desired != replicas or any(metric.name == "cpu" for metric in autoscaler.metrics if "Resource" in metric.type):
        return -math.inf
    if outcome.recommendation is None or outcome.recommendation == replicas:
        return math.inf
    return min(_ends(autoscaler, outcome.history, outcome.recommendation, settings), default=math.inf)


def repeated(outcome: Outcome, until: float) -> History:
    """The history after steps that all came to ``outcome``, the last of them at ``until``.

    Of equal recommendations the latest outlasts all others, so it may stand for them.
    """
    history, past = outcome.history, outcome.history.recommendations
    same = [number for number, one in enumerate(past) if one.replicas == outcome.recommendation]
    if not same:
        return history
    latest = max(same, key=lambda number: past[number].at)
    moved = replace(past[latest], at=max(until, past[latest].at))
    return replace(history, recommendations=(*past[:latest], moved, *past[latest + 1 :]))


def _ends(autoscaler: Autoscaler, history: History, recommendation: int, settings: ControllerSettings) -> Iterator[float]:
    """When what is remembered ceases to count. The latest recommendation is repeated and so does not age."""
    behavior, latest = autoscaler.behavior, max(past.at for past in history.recommendations)
    others = [past.at for past in history.recommendations if past.replicas != recommendation]
    if behavior is None:
        yield from (at + settings.downscale_stabilization for at in others if at + settings.downscale_stabilization >= latest)
        return
    for window in (behavior.up.window or 0, down_window(behavior, settings)):
        yield from (at + window for at in others if at + window > latest)
    for policy in (*behavior.up.policies, *behavior.down.policies):
        yield from (event.at + policy.period for event in (*history.ups, *history.downs) if event.at + policy.period > latest)
