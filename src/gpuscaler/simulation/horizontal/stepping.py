"""One reconciliation of a HorizontalPodAutoscaler. Source: ``reconcileAutoscaler`` and ``computeReplicasForMetrics`` of Kubernetes 1.35."""

from collections.abc import Sequence

from msgspec import Struct

from gpuscaler.simulation.horizontal.history import History
from gpuscaler.simulation.horizontal.limits import apply_limits
from gpuscaler.simulation.horizontal.metrics import Proposal, UnusableMetricError, propose
from gpuscaler.simulation.horizontal.replicas import Situation, Tolerances
from gpuscaler.simulation.horizontal.specs import Autoscaler, Condition, ControllerSettings, Current, MetricAnswer, ReplicaPod, Scale

DEFAULT_SETTINGS = ControllerSettings()


class Outcome(Struct, frozen=True, gc=False):
    """The decision of a step.

    ``desired`` is the new replica count for the target's scale. ``reason`` explains a change; ``error`` is the failure, in Kubernetes'
    words: with an error, scaling up may continue and scaling down may not. ``recommendation`` is the count that the metrics asked for, None
    if they were not read or gave no answer; ``current`` has one entry for each metric that was read, None for a metric without an answer.
    """

    desired: int
    history: History
    reason: str = ""
    error: str = ""
    recommendation: int | None = None
    current: tuple[Current | None, ...] = ()

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return self.history.conditions


class _MetricsResult(Struct, frozen=True, gc=False):
    """The combined result of all metrics: ``replicas`` is None if nothing may be done."""

    history: History
    current: tuple[Current | None, ...]
    replicas: int | None
    metric: str = ""
    error: str = ""


def step(
    autoscaler: Autoscaler,
    scale: Scale,
    *,
    metrics: Sequence[MetricAnswer],
    pods: Sequence[ReplicaPod],
    history: History,
    now: float,
    settings: ControllerSettings = DEFAULT_SETTINGS,
) -> Outcome:
    """Decide once, as kube-controller-manager does every 15 s.

    ``metrics`` are the answers to ``autoscaler.metrics``, one for each and in their order; ``pods`` are all pods that the target's selector
    selects. The scale is assumed to be readable and writable and to have a selector of its own.
    """
    current = scale.replicas
    history = history.with_condition(
        "AbleToScale", "True", "SucceededGetScale", "the HPA controller was able to get the target's current scale", now=now
    )
    if not history.recommendations:
        history = history.with_recommendation(current, now, replace_index=None)
    if current == 0 and autoscaler.min_replicas != 0:
        message = "scaling is disabled since the replica count of the target is zero"
        return Outcome(0, history.with_condition("ScalingActive", "False", "ScalingDisabled", message, now=now))
    if current > autoscaler.max_replicas:
        reason = "Current number of replicas above Spec.MaxReplicas"
        return Outcome(autoscaler.max_replicas, _record_rescale(autoscaler, history, current, autoscaler.max_replicas, now=now), reason)
    if current < autoscaler.min_replicas:
        reason = "Current number of replicas below Spec.MinReplicas"
        return Outcome(autoscaler.min_replicas, _record_rescale(autoscaler, history, current, autoscaler.min_replicas, now=now), reason)
    situation = Situation(scale, pods, _tolerances(autoscaler, settings), settings, now)
    computed = _largest_proposal(autoscaler, metrics, situation, history)
    if computed.replicas is None:
        reference = f"{autoscaler.target.kind}/{autoscaler.namespace}/{autoscaler.target.name}"
        error = f"failed to compute desired number of replicas based on listed metrics for {reference}: {computed.error}"
        return Outcome(current, computed.history, error=error, current=computed.current)
    return _apply_limits(autoscaler, computed, situation)


def _largest_proposal(autoscaler: Autoscaler, metrics: Sequence[MetricAnswer], situation: Situation, history: History) -> _MetricsResult:
    """Return the largest proposal of all metrics. If one metric cannot be used, nothing is scaled down."""
    best = Proposal(0, "", Current())
    currents: list[Current | None] = []
    errors: list[UnusableMetricError] = []
    for metric, answer in zip(autoscaler.metrics, metrics, strict=True):
        try:
            proposed = propose(autoscaler, metric, answer, situation)
        except UnusableMetricError as error:
            errors.append(error)
            currents.append(None)
            continue
        currents.append(proposed.current)
        if best.replicas == 0 or proposed.replicas > best.replicas:
            best = proposed
    text = ""
    if errors:
        text = f"invalid metrics ({len(errors)} invalid out of {len(currents)}), first error is: {errors[0]}"
        if len(errors) == len(currents) or best.replicas < situation.scale.replicas:
            message = f"the HPA was unable to compute the replica count: {errors[0].cause}"
            history = history.with_condition("ScalingActive", "False", errors[0].reason, message, now=situation.now)
            return _MetricsResult(history, tuple(currents), None, error=text)
    message = f"the HPA was able to successfully calculate a replica count from {best.metric}"
    history = history.with_condition("ScalingActive", "True", "ValidMetricFound", message, now=situation.now)
    return _MetricsResult(history, tuple(currents), best.replicas, best.metric, text)


def _apply_limits(autoscaler: Autoscaler, computed: _MetricsResult, situation: Situation) -> Outcome:
    """Apply the limits to the metrics' result, and record the consequences."""
    assert computed.replicas is not None
    current, now = situation.scale.replicas, situation.now
    # A negative count becomes zero, and then no metric is named.
    recommended, metric = (computed.replicas, computed.metric) if computed.replicas > 0 else (0, "")
    reason = f"{metric} above target" if recommended > current else "All metrics below target" if recommended < current else ""
    desired, history = apply_limits(
        autoscaler, computed.history, current=current, recommended=recommended, now=now, settings=situation.settings
    )
    if desired == current:
        reason = ""
    else:
        history = _record_rescale(autoscaler, history, current, desired, now=now)
    return Outcome(desired, history, reason, computed.error, recommended, computed.current)


def _record_rescale(autoscaler: Autoscaler, history: History, current: int, desired: int, *, now: float) -> History:
    message = f"the HPA controller was able to update the target scale to {desired}"
    history = history.with_condition("AbleToScale", "True", "SucceededRescale", message, now=now)
    behavior = autoscaler.behavior
    if behavior is None:
        return history
    return history.with_scale_event(behavior.up if desired > current else behavior.down, change=desired - current, now=now)


def _tolerances(autoscaler: Autoscaler, settings: ControllerSettings) -> Tolerances:
    behavior = autoscaler.behavior
    tolerances = (behavior.down.tolerance, behavior.up.tolerance) if behavior is not None else (None, None)
    down, up = (settings.tolerance if tolerance is None else tolerance for tolerance in tolerances)
    return Tolerances(down, up)
