"""What autoscalers scale: targets that do not exist, that two autoscalers scale, or whose pods request nothing."""

from collections.abc import Iterator

from msgspec.structs import replace

from gpuscaler.doctor.checks.checking import WORKLOADS, Check, in_part
from gpuscaler.doctor.checks.metrics.programs import space_of
from gpuscaler.doctor.checks.metrics.reading import (
    AUTOSCALER,
    SCALED_OBJECT,
    Metric,
    Target,
    Targets,
    is_of_keda,
    metrics_of,
    scale_target_of,
)
from gpuscaler.doctor.commands import kubectl_patch
from gpuscaler.doctor.documents import Document, template_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import ABSENCE, WARNING, Finding, Fix, Unchecked

_APPS = ("Deployment", "StatefulSet", "ReplicaSet")
_REMOVED_APPS = ("extensions/v1beta1", "apps/v1beta1", "apps/v1beta2")


def find_missing_targets(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D46: a target that does not exist, or whose version does not exist any more."""
    targets = Targets(evidence)
    for autoscaler in evidence.of(AUTOSCALER, SCALED_OBJECT):
        if is_of_keda(autoscaler):
            continue  # Its ScaledObject names the same target.
        target, version = scale_target_of(autoscaler), autoscaler.text("spec", "scaleTargetRef", "apiVersion")
        if target.kind in _APPS and version in _REMOVED_APPS:
            patch = {"spec": {"scaleTargetRef": {"apiVersion": "apps/v1"}}}
            effect = "the autoscaler does not find what it should scale, and does nothing"
            fix = Fix((kubectl_patch(autoscaler, patch),))
            yield _finding(autoscaler, "spec.scaleTargetRef.apiVersion", seen=version, expected="apps/v1", effect=effect, fix=fix)
        elif _is_missing(target, version, targets):
            if target.kind in evidence.unread:
                reason = f"{target.kind} could not be read: {evidence.unread[target.kind]}"
                yield Unchecked("D46", f"the target of {autoscaler.title}", reason)
                continue
            advice = "correct the name and the kind, or delete the autoscaler; autoscaler and target are in one namespace"
            effect = "the autoscaler scales nothing"
            seen, expected = f"{target.kind} {target.name}, which does not exist", f"a {target.kind} of this namespace"
            finding = _finding(autoscaler, "spec.scaleTargetRef", seen=seen, expected=expected, effect=effect, fix=Fix(advice=advice))
            yield replace(finding, relies_on=ABSENCE)


def _is_missing(target: Target, version: str, targets: Targets) -> bool:
    """Whether a target that was read does not exist; targets of other kinds are not read."""
    is_known = target.kind in Targets.KINDS and version.partition("/")[0] in ("apps", "", "v1")
    return is_known and bool(target.name) and targets.workload(target) is None


def find_shared_targets(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D46: two autoscalers of one target."""
    yield from in_part("D46", "ScaledObjects beside other autoscalers", evidence, SCALED_OBJECT)
    by_target: dict[Target, list[Document]] = {}
    adopted = {
        (scaled.namespace, scaled.text("spec", "advanced", "horizontalPodAutoscalerConfig", "name"))
        for scaled in evidence.of(SCALED_OBJECT)
        if scaled.annotations.get("scaledobject.keda.sh/transfer-hpa-ownership") == "true"
    }
    for autoscaler in evidence.of(AUTOSCALER, SCALED_OBJECT):
        if not is_of_keda(autoscaler) and (autoscaler.namespace, autoscaler.name) not in adopted:
            by_target.setdefault(scale_target_of(autoscaler), []).append(autoscaler)
    for target, autoscalers in by_target.items():
        if len(autoscalers) < 2 or not target.name:
            continue
        for autoscaler in autoscalers:
            others = ", ".join(other.title for other in autoscalers if other is not autoscaler)
            if any(other.kind == SCALED_OBJECT for other in autoscalers):
                effect = "KEDA's own autoscaler and the other set different numbers of replicas in turn"
            else:
                effect = "Kubernetes lets none of them scale (AmbiguousSelector)"
            advice = (
                "keep one autoscaler with the metrics of all: an autoscaler takes the largest number of replicas that a metric asks for"
            )
            seen, expected = f"{target.title}, which {others} scales too", "one autoscaler of a target"
            yield _finding(autoscaler, "spec.scaleTargetRef", seen=seen, expected=expected, effect=effect, fix=Fix(advice=advice))


def find_missing_requests(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D46: a metric in percent of requests, and containers without such a request."""
    targets = Targets(evidence)
    defaults = _default_requests(evidence)
    kinds = sorted({scale_target_of(autoscaler).kind for autoscaler in evidence.of(AUTOSCALER, SCALED_OBJECT)} & {*Targets.KINDS})
    yield from in_part("D46", "requests of the targets of autoscalers", evidence, *kinds)
    for autoscaler in evidence.of(AUTOSCALER, SCALED_OBJECT):
        target = scale_target_of(autoscaler)
        workload = targets.workload(target)
        pod = targets.pod(target) or (template_of(workload) if workload is not None else None)
        if pod is None or is_of_keda(autoscaler):
            continue
        for metric in metrics_of(autoscaler) if autoscaler.kind == AUTOSCALER else _triggers(autoscaler):
            if (
                metric.is_utilization
                and metric.type in ("Resource", "ContainerResource")
                and not metric.is_unmeasured
                and (target.namespace, metric.name) not in defaults
            ):
                lacking = _lacking(pod, metric)
                if lacking:
                    yield _unrequested(autoscaler, metric, lacking)


def _default_requests(evidence: Evidence) -> frozenset[tuple[str, str]]:
    """The namespaces and resources that a LimitRange has a default request for."""
    return frozenset(
        (space_of(limits), resource)
        for limits in evidence.of("LimitRange")
        for limit in limits.parts("spec", "limits")
        for field in ("defaultRequest", "default")
        for resource in limit.part(field).data
    )


def _triggers(scaled: Document) -> Iterator[Metric]:
    """The triggers of a ScaledObject for resources of its pods."""
    for index, trigger in enumerate(scaled.parts("spec", "triggers")):
        if trigger.text("type") in ("cpu", "memory"):
            container = trigger.text("metadata", "containerName")
            average = "AverageValue" in (trigger.text("metricType"), trigger.text("metadata", "type"))
            source = Document({"container": container})
            kind = "ContainerResource" if container else "Resource"
            yield Metric(kind, trigger.text("type"), f"spec.triggers[{index}]", is_utilization=not average, source=source)


def _lacking(pod: Document, metric: Metric) -> list[str]:
    """The containers of a pod whose request for the resource of ``metric`` is missing."""
    if pod.value("spec", "resources", "requests", metric.name) is not None:
        return []
    # Sidecars, which are init containers that keep running, count as well.
    sidecars = (container for container in pod.parts("spec", "initContainers") if container.text("restartPolicy") == "Always")
    only = metric.source.text("container") if metric.type == "ContainerResource" else ""
    # A limit without a request is the request.
    return [
        container.text("name")
        for container in (*pod.parts("spec", "containers"), *sidecars)
        if (not only or container.text("name") == only)
        and all(container.value("resources", key, metric.name) is None for key in ("requests", "limits"))
    ]


def _unrequested(autoscaler: Document, metric: Metric, lacking: list[str]) -> Finding:
    names, reason = ", ".join(lacking), f"FailedGet{metric.type}Metric"
    advice = (
        f"set resources.requests.{metric.name} of container {names} in {scale_target_of(autoscaler).title}, or use the type AverageValue"
    )
    return _finding(
        autoscaler,
        metric.field,
        seen=f"a percentage of requested {metric.name}, and no request in container {names} of the target",
        expected=f"resources.requests.{metric.name} in every container",
        effect=f"this metric is never known ({reason})",
        fix=Fix(advice=advice),
    )


def _finding(document: Document, field: str, *, seen: str, expected: str, effect: str, fix: Fix) -> Finding:
    return Finding("D46", WARNING, document.title, field, seen, expected, effect, fix, document.place)


CHECKS = (
    Check("D46", "targets of autoscalers", (AUTOSCALER,), find_missing_targets, on_files=True),
    Check("D46", "targets of several autoscalers", (AUTOSCALER,), find_shared_targets, on_files=True),
    Check(
        "D46",
        "requests of the targets of autoscalers",
        (AUTOSCALER,),
        find_missing_requests,
        reads=(*WORKLOADS, "LimitRange"),
        on_files=True,
    ),
)
