"""The rules of prometheus-adapter, and of gpuscaler metrics in the same language: what each needs of Prometheus.

Source: the configuration of prometheus-adapter (docs/config.md of v0.12), the charts of dcgm-exporter and the GPU operator.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from gpuscaler.doctor.checks.checking import WORKLOADS, Check
from gpuscaler.doctor.checks.metrics.programs import Program, Serving, flag_of, mounted
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, Finding, Fix, Unchecked
from gpuscaler.doctor.yaml_text import LONGEST, read_text

#: Series of NVIDIA's exporter.
_DCGM: Final = re.compile(r"DCGM_|dcgm_")
_LISTS = ("rules", "externalRules")


class _RulesFile(NamedTuple):
    """The file of rules of a program: the ConfigMap that it comes from, its key, and what it contains.

    ``error`` says why that is not YAML, ``unread`` why it was not read.
    """

    program: Program
    config: Document
    key: str
    content: Document
    error: str = ""
    unread: str = ""


def _files(serving: Serving, evidence: Evidence) -> Iterator[_RulesFile]:
    for program in serving.programs:
        path = flag_of(program.words, "config")
        if program.name not in ("prometheus-adapter", "gpuscaler metrics") or not path:
            continue
        for kind, name, key in mounted(program.workload, program.container, path):
            config = evidence.find("ConfigMap", program.workload.namespace, name) if kind == "ConfigMap" else None
            text = config.pairs("data").get(key, "") if config is not None else ""
            if config is not None and len(text) > LONGEST:
                yield _RulesFile(program, config, key, Document({}), unread=f"it has more than {LONGEST:,} characters")
            elif config is not None and text:
                content, error = _parsed(text)
                yield _RulesFile(program, config, key, Document(content), error)


def _parsed(text: str) -> tuple[Mapping[str, Any], str]:
    value, error = read_text(text)
    if error:
        return {}, error
    return (value, "") if isinstance(value, Mapping) else ({}, f"a {type(value).__name__}")


class Needs(NamedTuple):
    """What the rule for a metric needs: series, with labels by the resource that each names, from the Prometheus of a program."""

    program: Program
    series: str
    labels: Mapping[str, str]

    @property
    def text(self) -> str:
        labels = ", ".join(f"{label} ({resource})" for label, resource in self.labels.items())
        return f"{self.series}{f', with the labels {labels}' if labels else ''}"


class Rules:
    """All rules of a cluster."""

    def __init__(self, serving: Serving, evidence: Evidence) -> None:
        self._files = [file for file in _files(serving, evidence) if not (file.error or file.unread)]

    def needs_of(self, metric: str) -> Needs | None:
        """What the first rule that makes ``metric`` needs."""
        for file in self._files:
            for name in _LISTS:
                for rule in file.content.parts(name):
                    if _makes(rule, metric):
                        return Needs(file.program, rule.text("seriesQuery"), _labels(rule))
        return None

    def advice_for(self, metric: str) -> str:
        """What to check for ``metric``; empty if the rules cannot be read. Our own program has rules beside those of its file."""
        needs = self.needs_of(metric)
        if needs is not None:
            return f"check that Prometheus has the series of its rule: {needs.text}"
        if self._files and all(file.program.name == "prometheus-adapter" for file in self._files):
            return f"add a rule that makes it to {', '.join(sorted({file.config.title for file in self._files}))}"
        return ""


def _makes(rule: Document, metric: str) -> bool:
    """Whether a rule makes a metric of this name; patterns count where they can be read."""
    fixed = rule.text("name", "as")
    if fixed and "$" not in fixed:
        return fixed == metric
    series = rule.text("seriesQuery")
    base = re.sub(r"_(over_time|current|per_second)$", "", metric)
    return len(base) > 2 and base in series


def _labels(rule: Document) -> dict[str, str]:
    """The labels that a rule maps to resources, by name."""
    overrides = rule.part("resources", "overrides").data
    return {str(label): Document(overrides).text(str(label), "resource") for label in overrides}


def find_broken_rules(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D45: rules that cannot be read, that map no namespace, or that look for the labels of GPUs under other names than Prometheus has."""
    renamed = _renaming_monitor(evidence)
    for file in _files(Serving(evidence), evidence):
        field = f"data[{file.key}]"
        if file.unread:
            yield Unchecked("D45", f"{file.config.title} {field}", file.unread)
            continue
        if file.error:
            effect = f"{file.program.name} does not start, or keeps its former rules"
            yield _finding(file, field, seen=file.error, expected="YAML with a list of rules", effect=effect, advice="correct the file")
            continue
        for index, rule in enumerate(file.content.parts("rules")):
            labels, place = _labels(rule), f"{field}: rules[{index}].resources"
            template = rule.text("resources", "template")
            if labels and not template and "namespace" not in labels.values() and rule.flag("resources", "namespaced", default=True):
                seen = f"labels for {', '.join(sorted(set(labels.values())))}, none for namespace"
                advice = "map the label that has the pod's namespace: overrides: {namespace: {resource: namespace}}"
                yield _finding(file, place, seen=seen, expected="a label for namespace", effect=_EMPTY, advice=advice)
            elif renamed is not None and _DCGM.search(rule.text("seriesQuery")) and _uses_own_names(labels, template):
                advice = (
                    f"set honorLabels: true in {renamed.title} (the chart's value is serviceMonitor.honorLabels), or map exported_pod and "
                    "exported_namespace in the rule"
                )
                seen = "the labels pod and namespace of DCGM's series, which Prometheus calls exported_pod and exported_namespace"
                yield _finding(file, place, seen=seen, expected="the labels that the series have", effect=_EMPTY, advice=advice)


_EMPTY = "the metric is listed, and every request for it gets an empty list, or the values of the exporter's own pods"


def _uses_own_names(labels: Mapping[str, str], template: str) -> bool:
    return labels.get("pod") == "pod" or template in ("<<.Resource>>", "{{.Resource}}")


def _renaming_monitor(evidence: Evidence) -> Document | None:
    """A ServiceMonitor or PodMonitor of dcgm-exporter with which Prometheus renames the labels of its page."""
    for monitor in evidence.of("ServiceMonitor", "PodMonitor"):
        selected = " ".join((monitor.name, *monitor.pairs("spec", "selector", "matchLabels").values()))
        endpoints = (*monitor.parts("spec", "endpoints"), *monitor.parts("spec", "podMetricsEndpoints"))
        keeps = any(endpoint.flag("honorLabels") for endpoint in endpoints)
        # Relabelling may bring the names back.
        restores = any(rule.text("targetLabel") == "pod" for endpoint in endpoints for rule in endpoint.parts("metricRelabelings"))
        if "dcgm" in selected.lower() and endpoints and not keeps and not restores:
            return monitor
    return None


def _finding(file: _RulesFile, field: str, *, seen: str, expected: str, effect: str, advice: str) -> Finding:
    return Finding("D45", CRITICAL, file.config.title, field, seen, expected, effect, Fix(advice=advice), file.config.place)


_READS = (*WORKLOADS, "ServiceMonitor", "PodMonitor")
CHECKS = (Check("D45", "rules of metrics programs", ("ConfigMap", "Deployment"), find_broken_rules, reads=_READS, on_files=True),)
