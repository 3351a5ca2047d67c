"""How many replicas one metric asks for. Source: ``pkg/controller/podautoscaler/replica_calculator.go`` of Kubernetes 1.35."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpuscaler.simulation.horizontal.arithmetic import (
    INT32_MAX,
    INT64_MAX,
    ceiling32,
    ceiling64,
    quotient,
    ratio,
    wrapped32,
    wrapped64,
)
from gpuscaler.simulation.horizontal.specs import Container, ControllerSettings, Current, ReplicaPod, Sample, Scale

#: The ratio of usage to target, and the usage as the status shows it.
Usage = tuple[float, Current]


class MetricError(Exception):
    """A metric that cannot be used; the message is Kubernetes'."""


class Tolerances(NamedTuple):
    """Tolerated deviation of usage from its target, as a share of the target."""

    down: float
    up: float

    def allow(self, usage_ratio: float) -> bool:
        return 1.0 - self.down <= usage_ratio <= 1.0 + self.up


class Situation(NamedTuple):
    """Inputs that the calculation of every metric needs."""

    scale: Scale
    pods: Sequence[ReplicaPod]
    tolerances: Tolerances
    settings: ControllerSettings
    now: float


class _Groups(NamedTuple):
    ready: int
    unready: frozenset[str]
    missing: frozenset[str]
    ignored: frozenset[str]


def by_utilization(
    samples: Mapping[str, Sample], target: int, *, resource: str, container: str, situation: Situation
) -> tuple[int, Current]:
    """Replicas that bring the use of ``resource`` to ``target`` percent of what is requested. Raises :class:`MetricError`."""
    groups, values = _grouped(samples, resource, situation)
    requests = {pod.name: _request(pod, container, resource) for pod in situation.pods}
    # A missing pod counts as using all that it requests, or the target if that is more.
    full = max(100, target)
    return _replicas(
        values,
        groups,
        situation,
        usage=lambda values: _utilization(values, requests, target),
        on_target=lambda name: quotient(wrapped64(requests[name] * full), 100),
    )


def by_average(samples: Mapping[str, Sample], target: int, *, resource: str = "", situation: Situation) -> tuple[int, Current]:
    """Replicas that bring the average over the pods to ``target``. Raises :class:`MetricError`."""
    groups, values = _grouped(samples, resource, situation)
    return _replicas(values, groups, situation, usage=lambda values: _average(values, target), on_target=lambda _: target)


def by_value(usage: int, target: int, *, situation: Situation) -> tuple[int, Current]:
    """Replicas that bring the total value of all replicas to ``target``; also from zero replicas. Raises :class:`MetricError`."""
    usage_ratio, replicas = ratio(usage, target), situation.scale.replicas
    if replicas == 0:
        return ceiling32(usage_ratio), Current(value=usage)
    if situation.tolerances.allow(usage_ratio):
        return replicas, Current(value=usage)
    if not situation.pods:
        raise MetricError("unable to calculate ready pods: no pods returned by selector while calculating replica count")
    ready = sum(pod.phase == "Running" and pod.ready == "True" for pod in situation.pods)
    proposed = usage_ratio * ready
    return (INT32_MAX if proposed > INT32_MAX else ceiling32(proposed)), Current(value=usage)


def by_share(usage: int, target: int, *, situation: Situation, bounded: bool) -> tuple[int, Current]:
    """Replicas that bring the share of ``usage`` per replica to ``target``. ``bounded``: clamp values beyond int32 to its maximum."""
    status_replicas = situation.scale.observed
    replicas = status_replicas
    if not situation.tolerances.allow(ratio(usage, float(target) * float(status_replicas))):
        proposed = ratio(usage, target)
        replicas = INT32_MAX if bounded and proposed > INT32_MAX else ceiling32(proposed)
    if bounded and float(usage) >= float(INT64_MAX):
        return replicas, Current(average_value=INT64_MAX)
    return replicas, Current(average_value=ceiling64(ratio(usage, status_replicas)))


def total(values: Iterable[int], *, per_pod: bool) -> int:
    """The sum of all series; an overflow is clamped to the largest number, as each kind of target detects it."""
    usage = 0
    for value in values:
        if per_pod:
            usage = wrapped64(usage + value)
            if usage < 0:
                return INT64_MAX
        elif value > 0 and usage > INT64_MAX - value:
            return INT64_MAX
        else:
            usage = wrapped64(usage + value)
    return usage


def _grouped(samples: Mapping[str, Sample], resource: str, situation: Situation) -> tuple[_Groups, dict[str, int]]:
    """Group the pods by what is known about them, and return the values that count at first."""
    if not situation.pods:
        raise MetricError("no pods returned by selector while calculating replica count")
    groups = _groups(samples, resource, situation)
    values = {name: sample.value for name, sample in samples.items() if name not in groups.ignored and name not in groups.unready}
    if not values:
        raise MetricError("did not receive metrics for targeted pods (pods might be unready)")
    return groups, values


def _groups(samples: Mapping[str, Sample], resource: str, situation: Situation) -> _Groups:
    unready, missing, ignored = set(), set(), set()
    for pod in situation.pods:
        if pod.deleting or pod.phase == "Failed":
            ignored.add(pod.name)
        elif pod.phase == "Pending":
            unready.add(pod.name)
        elif pod.name not in samples:
            missing.add(pod.name)
        elif resource == "cpu" and _starting(pod, samples[pod.name], situation):
            unready.add(pod.name)
    ready = len(situation.pods) - len(unready) - len(missing) - len(ignored)
    return _Groups(ready, frozenset(unready), frozenset(missing), frozenset(ignored))


def _starting(pod: ReplicaPod, sample: Sample, situation: Situation) -> bool:
    """Whether the CPU usage of a pod is not meaningful yet: it is starting, or has never been ready."""
    if pod.ready is None or pod.started is None:
        return True
    if pod.started + situation.settings.cpu_initialization_period > situation.now:
        return pod.ready == "False" or sample.at < pod.ready_since + sample.window
    return pod.ready == "False" and pod.started + situation.settings.initial_readiness_delay > pod.ready_since


def _replicas(
    values: dict[str, int],
    groups: _Groups,
    situation: Situation,
    *,
    usage: Callable[[Mapping[str, int]], Usage],
    on_target: Callable[[str], int],
) -> tuple[int, Current]:
    """Missing and unready pods are assumed to oppose the change: idle when scaling up, at the target when scaling down."""
    replicas = situation.scale.replicas
    usage_ratio, current = usage(values)
    scale_up_with_unready = bool(groups.unready) and usage_ratio > 1.0
    if not scale_up_with_unready and not groups.missing:
        return (replicas if situation.tolerances.allow(usage_ratio) else ceiling32(usage_ratio * groups.ready)), current
    if usage_ratio < 1.0:
        values.update({name: on_target(name) for name in groups.missing})
    elif usage_ratio > 1.0:
        values.update(dict.fromkeys(groups.missing | groups.unready, 0))
    assumed_ratio, _ = usage(values)
    if situation.tolerances.allow(assumed_ratio) or usage_ratio < 1.0 < assumed_ratio or assumed_ratio < 1.0 < usage_ratio:
        return replicas, current
    proposed = ceiling32(assumed_ratio * len(values))
    if (assumed_ratio < 1.0 and proposed > replicas) or (assumed_ratio > 1.0 and proposed < replicas):
        return replicas, current
    return proposed, current


def _utilization(values: Mapping[str, int], requests: Mapping[str, int], target: int) -> Usage:
    pods = [name for name in values if name in requests]
    used = wrapped64(sum(values[name] for name in pods))
    requested = wrapped64(sum(requests[name] for name in pods))
    if requested == 0:
        raise MetricError("no metrics returned matched known pods")
    percent = wrapped32(quotient(wrapped64(used * 100), requested))
    return ratio(percent, target), Current(average_value=quotient(used, len(pods)), average_utilization=percent)


def _average(values: Mapping[str, int], target: int) -> Usage:
    mean = quotient(wrapped64(sum(values.values())), len(values))
    return ratio(mean, target), Current(average_value=mean)


def _request(pod: ReplicaPod, container: str, resource: str) -> int:
    """The request of a pod, or of one container. Raises :class:`MetricError` if there is none."""
    if pod.pod_requests is not None and not container:
        if resource not in pod.pod_requests:
            raise MetricError(f"missing pod-level request for {resource} in Pod {pod.name}")
        return pod.pod_requests[resource]
    named = [counted for counted in pod.containers if container in ("", counted.name)]
    if container and not named:
        raise MetricError(f"container {container} not found in Pod {pod.name}")
    return wrapped64(sum(_container_request(counted, pod, resource) for counted in (named[:1] if container else named)))


def _container_request(container: Container, pod: ReplicaPod, resource: str) -> int:
    if resource not in container.requests:
        raise MetricError(f"missing request for {resource} in container {container.name} of Pod {pod.name}")
    return container.requests[resource]
