"""Autoscalers, pods and metrics for these tests."""

from collections.abc import Sequence
from typing import Any

from gpuscaler.simulation.horizontal import History, Outcome, read_autoscaler, step
from gpuscaler.simulation.horizontal.specs import Autoscaler, Container, MetricAnswer, PodSamples, ReplicaPod, Sample, Scale, SeriesSamples

Json = dict[str, Any]

#: Pods that ran long before a test began.
NOW = 10_000.0

LOAD: Json = {"type": "Pods", "pods": {"metric": {"name": "load"}, "target": {"type": "AverageValue", "averageValue": "10"}}}
QUEUE: Json = {"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "10"}}}
CPU: Json = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}


def autoscaler(*metrics: Json, **spec: Any) -> Autoscaler:
    """An autoscaler of 1 to 10 replicas, with a target of 10 of the metric ``load`` for each."""
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "serving"}
    return read_autoscaler({"spec": {"scaleTargetRef": reference, "maxReplicas": 10, "metrics": list(metrics or (LOAD,)), **spec}})


def pods(count: int, **fields: Any) -> list[ReplicaPod]:
    """Running, ready pods that request 100 thousandths of a CPU."""
    usual = {"started": 0.0, "ready_since": 10.0, "containers": (Container("main", {"cpu": 100}),)}
    return [ReplicaPod(f"p{number}", **{**usual, **fields}) for number in range(count)]


def samples(*values: float, at: float = NOW) -> PodSamples:
    """Samples of the pods, in the metric's unit."""
    return PodSamples({f"p{number}": Sample(round(value * 1000), at) for number, value in enumerate(values)})


def series(*values: float) -> SeriesSamples:
    return SeriesSamples(tuple(round(value * 1000) for value in values))


def decide(
    autoscaler: Autoscaler,
    answers: MetricAnswer | Sequence[MetricAnswer],
    *,
    running: Sequence[ReplicaPod] | int,
    replicas: int | None = None,
    history: History | None = None,
    now: float = NOW,
) -> Outcome:
    """A step for ``replicas`` replicas, as many as pods by default."""
    replica_pods = pods(running) if isinstance(running, int) else running
    count = len(replica_pods) if replicas is None else replicas
    answered = answers if isinstance(answers, Sequence) else (answers,)
    return step(autoscaler, Scale(count, count), metrics=answered, pods=replica_pods, history=history or History(), now=now)


def reasons(outcome: Outcome) -> dict[str, str]:
    """The conditions in short: status and reason by type."""
    return {condition.type: f"{condition.status} {condition.reason}" for condition in outcome.conditions}
