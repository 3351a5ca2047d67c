"""The proposal of one metric of a HorizontalPodAutoscaler, and Kubernetes' messages for metrics that cannot be used.

Source: ``computeReplicasForMetric`` and the functions it calls in ``pkg/controller/podautoscaler/horizontal.go`` of Kubernetes 1.35.
"""

from typing import NamedTuple, NoReturn, TypeVar

from gpuscaler.simulation.horizontal.replicas import MetricError, Situation, by_average, by_share, by_utilization, by_value, total
from gpuscaler.simulation.horizontal.specs import (
    Autoscaler,
    Current,
    Metric,
    MetricAnswer,
    MetricSelector,
    ObjectReference,
    ObjectSample,
    PodSamples,
    SeriesSamples,
    Unavailable,
)

_Samples = TypeVar("_Samples", PodSamples, ObjectSample, SeriesSamples)


class Proposal(NamedTuple):
    """The replicas that one metric asks for, and the metric's name as conditions and events show it."""

    replicas: int
    metric: str
    current: Current


class UnusableMetricError(Exception):
    """A metric without a proposal: ``reason`` and ``cause`` appear in the condition, the whole message in the controller's error."""

    def __init__(self, reason: str, cause: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.cause = cause


def propose(autoscaler: Autoscaler, metric: Metric, answer: MetricAnswer, situation: Situation) -> Proposal:
    """Raises :class:`UnusableMetricError`."""
    match metric.type:
        case "Resource" | "ContainerResource":
            return _of_resource(metric, answer, situation)
        case "Pods":
            return _of_pods(metric, answer, situation)
        case "Object":
            return _of_object(autoscaler, metric, answer, situation)
        case _:
            return _of_external(autoscaler, metric, answer, situation)


def _of_resource(metric: Metric, answer: MetricAnswer, situation: Situation) -> Proposal:
    name, target, containers = metric.name, metric.target, metric.type == "ContainerResource"
    kind = "usage" if target.average_value is not None else "utilization"
    try:
        samples = _samples_of(answer, PodSamples, f"unable to get metrics for resource {name}: ").of
        if target.average_value is not None:
            replicas, current = by_average(samples, target.average_value, resource=name, situation=situation)
            return Proposal(replicas, f"{name} resource", current)
        assert target.average_utilization is not None
        replicas, current = by_utilization(
            samples, target.average_utilization, resource=name, container=metric.container, situation=situation
        )
    except MetricError as error:
        cause = f"failed to get {name} {kind}: {error}"
        if containers:
            _refuse("FailedGetContainerResourceMetric", cause, f"failed to get {metric.container} container metric value: {cause}")
        _refuse("FailedGetResourceMetric", cause, f"failed to get {name} resource metric value: {cause}")
    return Proposal(replicas, f"{name} {'container ' if containers else ''}resource utilization (percentage of request)", current)


def _of_pods(metric: Metric, answer: MetricAnswer, situation: Situation) -> Proposal:
    assert metric.target.average_value is not None
    try:
        samples = _samples_of(answer, PodSamples, f"unable to get metric {metric.name}: ").of
        replicas, current = by_average(samples, metric.target.average_value, situation=situation)
    except MetricError as error:
        _refuse("FailedGetPodsMetric", str(error), f"failed to get pods metric value: {error}")
    return Proposal(replicas, f"pods metric {metric.name}", current)


def _of_object(autoscaler: Autoscaler, metric: Metric, answer: MetricAnswer, situation: Situation) -> Proposal:
    name, target, described = metric.name, metric.target, metric.described or ObjectReference("", "")
    of_value = target.type == "Value" and target.value is not None
    of_average = target.type == "AverageValue" and target.average_value is not None
    wrapping = f"failed to get {name} object metric: " if of_average else ""
    try:
        if not of_value and not of_average:
            raise MetricError("invalid object metric source: neither a value target nor an average value target was set")
        # Kubernetes prints the described object in this order.
        before = f"unable to get metric {name}: {described.kind} on {autoscaler.namespace} {described.name}/"
        usage = _samples_of(answer, ObjectSample, before).value
        if of_value and target.value is not None:
            replicas, current = by_value(usage, target.value, situation=situation)
            return Proposal(replicas, f"{described.kind} metric {name}", current)
        replicas, current = by_share(usage, target.average_value or 0, situation=situation, bounded=False)
    except MetricError as error:
        _refuse("FailedGetObjectMetric", str(error), f"failed to get object metric value: {wrapping}{error}")
    # Kubernetes calls an Object metric with an average target external here, and conditions are compared by their texts.
    return Proposal(replicas, f"external metric {name}({format_selector(metric.selector)})", current)


def _of_external(autoscaler: Autoscaler, metric: Metric, answer: MetricAnswer, situation: Situation) -> Proposal:
    name, target, selector = metric.name, metric.target, format_selector(metric.selector)
    per_pod = target.average_value is not None
    wrapping = f"failed to get {name} external metric: " if per_pod else f"failed to get external metric {name}: "
    try:
        values = _samples_of(answer, SeriesSamples, f"unable to get external metric {autoscaler.namespace}/{name}/{selector}: ").values
        usage = total(values, per_pod=per_pod)
        if target.average_value is not None:
            replicas, current = by_share(usage, target.average_value, situation=situation, bounded=True)
        else:
            replicas, current = by_value(usage, target.value or 0, situation=situation)
    except MetricError as error:
        _refuse("FailedGetExternalMetric", str(error), f"failed to get {name} external metric value: {wrapping}{error}")
    return Proposal(replicas, f"external metric {name}({selector})", current)


def format_selector(selector: MetricSelector | None) -> str:
    """Format a label selector as Go prints it."""
    if selector is None:
        return "nil"
    labels = "".join(f"{key}: {value}," for key, value in selector.labels)
    expressions = "".join(
        f"LabelSelectorRequirement{{Key:{requirement.key},Operator:{requirement.operator},Values:[{' '.join(requirement.values)}],}},"
        for requirement in selector.expressions
    )
    return f"&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"


def _samples_of(answer: MetricAnswer, kind: type[_Samples], before: str) -> _Samples:
    if isinstance(answer, Unavailable):
        raise MetricError(f"{before}{answer.message}")
    if not isinstance(answer, kind):
        raise TypeError(
            f"saw {type(answer).__name__}, expected {kind.__name__} or Unavailable; answer metrics in the order of the autoscaler"
        )
    return answer


def _refuse(reason: str, cause: str, message: str) -> NoReturn:
    raise UnusableMetricError(reason, cause, message) from None
