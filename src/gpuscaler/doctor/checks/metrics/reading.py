"""Reads HorizontalPodAutoscalers of every version, and what they scale."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpuscaler.doctor.checks.metrics.programs import space_of
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence

AUTOSCALER, SCALED_OBJECT = "HorizontalPodAutoscaler", "ScaledObject"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_OF_V1: Final = "autoscaling.alpha.kubernetes.io/metrics"
#: Names of metrics of GPUs: those of NVIDIA's and our exporter, and of the write-ups.
_GPU: Final = re.compile(r"gpu|dcgm|nvidia|cuda|duty_cycle", re.IGNORECASE)
#: Parts of names of metrics and queries that are averages of a window already.
_SMOOTHED: Final = re.compile(r"over_time|_avg\b|_average\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of an autoscaler: its type, name, field and source, and whether its target is a percentage of requests."""

    type: str
    name: str
    field: str
    is_utilization: bool
    source: Document

    @property
    def is_unmeasured(self) -> bool:
        """Whether it is a resource of which metrics-server has no values, such as GPUs: it has only cpu and memory."""
        return self.type in ("Resource", "ContainerResource") and self.name not in ("cpu", "memory", "")

    @property
    def is_noisy(self) -> bool:
        """Whether it is the current value of something about GPUs."""
        return self.type not in ("Resource", "ContainerResource") and is_noisy(self.name)


def is_noisy(text: str) -> bool:
    """Whether a metric's name, or a query, is the current value of something about GPUs."""
    return bool(_GPU.search(text)) and not _SMOOTHED.search(text)


def metrics_of(autoscaler: Document) -> tuple[Metric, ...]:
    """The metrics of an autoscaler; without any, Kubernetes uses 80 % of the requested CPU."""
    entries = autoscaler.parts("spec", "metrics")
    if not entries and _OF_V1 in autoscaler.annotations:
        # autoscaling/v1 shows other metrics than CPU there.
        field = f"metadata.annotations[{_OF_V1}]"
        return tuple(_metric(entry, f"{field}[{index}]") for index, entry in enumerate(_from_json(autoscaler, _OF_V1).parts("items")))
    if not entries:
        field = "spec.targetCPUUtilizationPercentage" if autoscaler.has("spec", "targetCPUUtilizationPercentage") else "spec.metrics"
        return (Metric("Resource", "cpu", field, is_utilization=True, source=Document({})),)
    return tuple(_metric(entry, f"spec.metrics[{index}]") for index, entry in enumerate(entries))


def _metric(entry: Document, field: str) -> Metric:
    kind = entry.text("type")
    source = entry.part(kind[:1].lower() + kind[1:])
    name = source.text("metric", "name") or source.text("metricName") or source.text("name")
    utilization = source.text("target", "type") == "Utilization" or source.has("targetAverageUtilization")
    return Metric(kind, name, field, utilization, source)


@dataclass(frozen=True, slots=True)
class Target:
    """What an autoscaler scales."""

    namespace: str
    kind: str
    name: str

    @property
    def title(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def scale_target_of(autoscaler: Document) -> Target:
    """The target of a HorizontalPodAutoscaler or a ScaledObject."""
    reference = autoscaler.part("spec", "scaleTargetRef")
    return Target(space_of(autoscaler), reference.text("kind", default="Deployment"), reference.text("name"))


def is_of_keda(autoscaler: Document) -> bool:
    """Whether KEDA made a HorizontalPodAutoscaler for a ScaledObject."""
    owners = autoscaler.parts("metadata", "ownerReferences")
    return "scaledobject.keda.sh/name" in autoscaler.labels or any(owner.text("kind") == SCALED_OBJECT for owner in owners)


def is_live(document: Document) -> bool:
    """Whether a server has accepted the object."""
    return document.has("metadata", "uid") or document.has("metadata", "resourceVersion")


def last_applied(document: Document) -> Document:
    """What kubectl applied last; empty if that is not known."""
    return _from_json(document, LAST_APPLIED)


def _from_json(document: Document, annotation: str) -> Document:
    """The object in an annotation, or its list as ``items``; empty if there is none that can be read."""
    try:
        value = json.loads(document.annotations.get(annotation, ""))
    except (ValueError, RecursionError):
        value = None
    value = {"items": value} if isinstance(value, list) else value
    return Document(value if isinstance(value, Mapping) else {}, document.place)


class Targets:
    """The workloads that can be scaled, and the pods of each, by name."""

    KINDS: Final = ("Deployment", "StatefulSet", "ReplicaSet", "ReplicationController")

    def __init__(self, evidence: Evidence) -> None:
        self._workloads = {(space_of(item), item.kind, item.name): item for item in evidence.of(*self.KINDS)}
        self._pods: dict[tuple[str, str, str], list[Document]] = {}
        for pod in evidence.of("Pod"):
            for key, value in pod.labels.items():
                self._pods.setdefault((space_of(pod), key, value), []).append(pod)

    def workload(self, target: Target) -> Document | None:
        return self._workloads.get((target.namespace, target.kind, target.name))

    def pod(self, target: Target) -> Document | None:
        """A pod of the target: what the API server and its admission made of the template."""
        workload = self.workload(target)
        selector = workload.pairs("spec", "selector", "matchLabels") if workload is not None else {}
        candidates = [self._pods.get((target.namespace, key, value), []) for key, value in selector.items()]
        pods = min(candidates, key=len, default=[])
        return next((pod for pod in pods if selector.items() <= pod.labels.items()), None)
