"""Autoscalers whose metrics have no values: what their own conditions say, and what the metrics APIs answer.

The answers are documents of the kind :data:`PROBED_METRIC`, one for each metric of an autoscaler that was asked for:
``{metadata: {name, namespace}, field, status, message, items, path, series}``, with the name of the autoscaler, the field of the metric in
it, the HTTP status (0 without an answer), the number of values, and what was requested. ``series`` is what Prometheus has for the metric's
rule: ``{count, labels}``, the number of series (a few are counted), and the names of their labels.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Final

from gpuscaler.doctor.checks.checking import Check, in_part
from gpuscaler.doctor.checks.metrics.programs import CUSTOM, EXTERNAL, RESOURCE, Serving, space_of
from gpuscaler.doctor.checks.metrics.reading import AUTOSCALER, Metric, Targets, metrics_of, scale_target_of
from gpuscaler.doctor.checks.metrics.rules import Rules
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, Finding, Fix, Unchecked
from gpuscaler.model.accelerators import is_device
from gpuscaler.model.wire import UnreadableError, parse_timestamp

PROBED_METRIC: Final = "probe/Metric"
GROUPS: Final[Mapping[str, str]] = {
    "Resource": RESOURCE,
    "ContainerResource": RESOURCE,
    "Pods": CUSTOM,
    "Object": CUSTOM,
    "External": EXTERNAL,
}
_EFFECT = "the autoscaler does not know this metric: by it, it adds no replicas under load, and as long as it is unknown it removes none"
#: Metrics of pods that have just started are unknown for a while, in seconds.
_PATIENCE = 300.0
_REASON = re.compile(r"^(FailedGet\w*Metric|InvalidMetricSourceType|InvalidSelector)$")


def find_unknown_values(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D45: metrics that no program serves, that are served without values, or that the autoscaler itself reports as unknown."""
    yield from in_part("D45", "which programs serve the metrics of autoscalers", evidence, "APIService")
    groups = _Groups(evidence)
    rules, targets = Rules(Serving(evidence), evidence), Targets(evidence)
    probes = {(probe.namespace, probe.name, probe.text("field")): probe for probe in evidence.of(PROBED_METRIC)}
    for autoscaler in evidence.of(AUTOSCALER):
        workload = targets.workload(scale_target_of(autoscaler))
        findings: list[Finding] = []
        for metric in metrics_of(autoscaler):
            group = GROUPS.get(metric.type, "")
            if metric.is_unmeasured:
                continue  # find_unmeasured_resources says it, with and without a status.
            if group in groups.missing:
                findings.append(_unserved(autoscaler, metric, group))
            elif (
                group not in groups.unavailable and (probe := probes.get((autoscaler.namespace, autoscaler.name, metric.field))) is not None
            ):
                result = _probed(autoscaler, metric, probe, rules=rules, is_idle=_is_idle(autoscaler, workload))
                if isinstance(result, Unchecked):
                    yield result
                elif result is not None:
                    findings.append(result)
        if any(metric.is_unmeasured for metric in metrics_of(autoscaler)):
            yield from findings
            continue
        if not findings and (finding := _reported(autoscaler, workload, groups, evidence)) is not None:
            findings.append(finding)
        yield from findings


def find_unmeasured_resources(evidence: Evidence) -> Iterator[Finding]:
    """D45: resources such as ``nvidia.com/gpu`` as metrics of the type Resource, which no program measures."""
    for autoscaler in evidence.of(AUTOSCALER):
        for metric in metrics_of(autoscaler):
            if metric.is_unmeasured:
                kind = "GPUs" if is_device(metric.name) or "gpu" in metric.name else "that resource"
                yield _finding(
                    autoscaler,
                    metric.field,
                    seen=f"{metric.name} as a metric of the type {metric.type}: metrics-server has only cpu and memory",
                    expected=f"a metric of the type Pods or External for {kind}",
                    fix=Fix(
                        advice="let gpuscaler metrics or prometheus-adapter serve the values of gpuscaler's exporter or dcgm-exporter, and "
                        "use them as a Pods metric such as duty_cycle_current (docs/how-to/scale-on-gpu-metrics.md)"
                        if kind == "GPUs"
                        else "serve it as a Pods or External metric, for example with prometheus-adapter"
                    ),
                )


class _Groups:
    """The API groups of metrics without an APIService, and those with one that is not available."""

    def __init__(self, evidence: Evidence) -> None:
        services = [item for item in evidence.of("APIService") if item.has("spec", "service")]
        served = {item.text("spec", "group") for item in services}
        # Every cluster has APIServices of its own groups: a list without them is a part of the cluster.
        is_complete = len(services) < len(evidence.of("APIService"))
        self.missing = frozenset((RESOURCE, CUSTOM, EXTERNAL)) - served if is_complete else frozenset()
        self.unavailable = frozenset(
            item.text("spec", "group")
            for item in services
            if any(
                condition.text("type") == "Available" and condition.text("status") == "False"
                for condition in item.parts("status", "conditions")
            )
        )


def _finding(autoscaler: Document, field: str, *, seen: str, expected: str, fix: Fix) -> Finding:
    return Finding("D45", CRITICAL, autoscaler.title, field, seen, expected, _EFFECT, fix, autoscaler.place)


def _unserved(autoscaler: Document, metric: Metric, group: str) -> Finding:
    program = "metrics-server" if group == RESOURCE else "a program such as gpuscaler metrics or prometheus-adapter"
    if group == EXTERNAL:
        program += ", or KEDA"
    advice = f"install {program}, which registers an APIService for {group}"
    return _finding(
        autoscaler,
        metric.field,
        seen=f"a metric of {group}, which no program serves",
        expected=f"an APIService for {group}",
        fix=Fix(advice=advice),
    )


def _probed(autoscaler: Document, metric: Metric, probe: Document, *, rules: Rules, is_idle: bool) -> Finding | Unchecked | None:
    status, items = probe.number("status") or 0, probe.number("items") or 0
    message = " ".join(probe.text("message").split())
    if status == 403:
        return Unchecked("D45", f"metric {metric.name} of {autoscaler.title}", f"there is no permission to read it: {message}")
    if status == 0:
        return Unchecked("D45", f"metric {metric.name} of {autoscaler.title}", message or "no answer came in time")
    if items or (is_idle and status in (200, 404)):
        return None
    ask = f"ask again with kubectl get --raw {shlex.quote(probe.text('path'))}"
    if status == 404:
        seen, expected = f"{metric.name}, which is not served ({message or 404})", "a metric that is served"
    elif status == 200:
        seen, expected = (
            f"{metric.name}, an empty list (200)",
            f"values {'of the pods of the target' if metric.type == 'Pods' else 'that match'}",
        )
    else:
        seen, expected = f"{metric.name}: {status:g} {message}", "values"
    advice = (
        _about_series(metric, probe, rules)
        if status in (200, 404)
        else "check the program that serves it, and whether it reaches Prometheus"
    )
    return _finding(autoscaler, metric.field, seen=seen, expected=expected, fix=Fix(advice=f"{advice}; {ask}"))


def _about_series(metric: Metric, probe: Document, rules: Rules) -> str:
    """Advice on the series that the rule for ``metric`` needs, and on those that Prometheus has."""
    needs, series = rules.needs_of(metric.name), probe.part("series")
    if needs is None or series.number("count") is None:
        general = "compare the labels of its series in Prometheus with those that the rule maps to namespace and pod"
        return rules.advice_for(metric.name) or f"check that a rule makes it, and {general}"
    if not series.number("count"):
        return f"let Prometheus scrape what has the series of its rule, of which it has none: {needs.text}"
    labels = series.texts("labels")
    lacking = [label for label in needs.labels if label not in labels]
    if not lacking:
        return f"Prometheus has series of its rule, but none for these pods: check which pods use GPUs, and {needs.text}"
    instead = [label for label in labels if label.removeprefix("exported_") in lacking and label not in lacking]
    kept = "; or scrape with honor_labels (honorLabels: true)" if instead else ""
    have = f"they have {', '.join(instead or labels)}{kept}"
    return f"map the labels that the series of its rule have: its labels {', '.join(lacking)} do not exist, and {have}"


def _reported(autoscaler: Document, workload: Document | None, groups: _Groups, evidence: Evidence) -> Finding | None:
    """What the autoscaler's own condition says."""
    for condition in autoscaler.parts("status", "conditions"):
        reason, message = condition.text("reason"), " ".join(condition.text("message").split())
        if condition.text("type") != "ScalingActive" or condition.text("status") != "False" or not _REASON.match(reason):
            continue
        kind = reason.removeprefix("FailedGet").removesuffix("Metric")
        # Missing requests are reported by D46, and missing APIs by D42; pods that start or wait for a node have values later.
        if "missing request for" in message or GROUPS.get(kind, "") in groups.unavailable:
            return None
        if _is_new(condition, evidence.now) or _is_idle(autoscaler, workload):
            return None
        advice = (
            f"explain each link of its metrics with gpuscaler why hpa {space_of(autoscaler)}/{autoscaler.name}"
            if kind in ("Pods", "Object", "External")
            else "check that metrics-server runs and has values: kubectl top pods"
        )
        return _finding(
            autoscaler, "status.conditions[ScalingActive]", seen=f"False ({reason}: {message})", expected="True", fix=Fix(advice=advice)
        )
    return None


def _is_new(condition: Document, now: float) -> bool:
    try:
        since = parse_timestamp(condition.text("lastTransitionTime"), "lastTransitionTime")
    except UnreadableError:
        return False
    return now - since < _PATIENCE


def _is_idle(autoscaler: Document, workload: Document | None) -> bool:
    """Whether no pod of the target runs, so that there is nothing to measure."""
    if autoscaler.number("status", "currentReplicas") == 0:
        return True
    if workload is None:
        return False
    return workload.number("spec", "replicas") == 0 or (
        workload.has("status", "replicas") and not workload.number("status", "readyReplicas")
    )


CHECKS = (
    Check("D45", "metrics of autoscalers without values", (AUTOSCALER,), find_unknown_values),
    Check("D45", "resources that no program measures", (AUTOSCALER,), find_unmeasured_resources, on_files=True),
)
