"""Our side of the comparison: answers a case in the oracle's form."""

from collections import Counter
from typing import Any

from gpuscaler.simulation.horizontal import History, read_autoscaler, step
from gpuscaler.simulation.horizontal.specs import (
    Container,
    ControllerSettings,
    Current,
    Metric,
    MetricAnswer,
    ObjectSample,
    PodSamples,
    ReplicaPod,
    Sample,
    Scale,
    SeriesSamples,
    Unavailable,
)

Json = dict[str, Any]


def answer(case: Json) -> list[Json]:
    """One result for each step."""
    autoscaler = read_autoscaler(case["autoscaler"])
    given = case["settings"]
    settings = ControllerSettings(given["tolerance"], given["stabilization"], given["cpuInitialization"], given["initialReadinessDelay"])
    history, replicas, desired = History(), 0, 0
    results = []
    for one in case["steps"]:
        if one["replicas"] is not None:
            replicas = one["replicas"]
        scale = Scale(replicas, replicas if one["observed"] is None else one["observed"])
        metrics = [_answer(metric, one["metrics"]) for metric in autoscaler.metrics]
        pods = [_pod(pod) for pod in one["pods"]]
        outcome = step(autoscaler, scale, metrics=metrics, pods=pods, history=history, now=one["at"], settings=settings)
        history = outcome.history
        rescaled = outcome.desired != replicas
        # If no decision was possible, the status keeps its previous number.
        stopped = bool(outcome.error) and outcome.recommendation is None
        desired = desired if stopped else outcome.desired
        results.append(
            {
                "replicas": outcome.desired,
                "desired": desired,
                "conditions": [
                    {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message, "since": c.since}
                    for c in outcome.conditions
                ],
                "current": [_current(current) for current in outcome.current],
                "error": outcome.error,
                "rescales": [f"New size: {outcome.desired}; reason: {outcome.reason}"] if rescaled else [],
            }
        )
        replicas = outcome.desired
    return results


def _answer(metric: Metric, answers: Json) -> MetricAnswer:
    found = answers[metric.name if metric.type in ("Pods", "Object", "External") else f"{metric.name}/{metric.container}"]
    if found.get("error"):
        return Unavailable(found["error"])
    match metric.type:
        case "Object":
            return ObjectSample(found["object"])
        case "External":
            return SeriesSamples(tuple(found["series"]))
        case _:
            return PodSamples({name: Sample(one["value"], one["at"], one["window"]) for name, one in found["pods"].items()})


def _pod(pod: Json) -> ReplicaPod:
    return ReplicaPod(
        name=pod["name"],
        phase=pod["phase"],
        deleting=pod["deleting"],
        ready=pod["ready"],
        ready_since=pod["readySince"],
        started=pod["started"],
        containers=tuple(Container(one["name"], one["requests"]) for one in pod["containers"]),
        pod_requests=_pod_requests(pod),
    )


def _pod_requests(pod: Json) -> dict[str, int] | None:
    """The requests of a pod with pod-level requests: for resources that these leave out, those of its containers count."""
    if "podRequests" not in pod:
        return None
    sums: Counter[str] = Counter()
    for container in pod["containers"]:
        sums.update(container["requests"])
    return {**sums, **pod["podRequests"]}


def _current(current: Current | None) -> Json:
    if current is None:
        return {}
    shown = {"value": current.value, "averageValue": current.average_value, "averageUtilization": current.average_utilization}
    return {name: value for name, value in shown.items() if value is not None}
