"""Autoscalers with settings that the API server refuses, or that make them flap."""

import re
from collections.abc import Iterator
from typing import Final

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.checks.metrics.programs import flag_of
from gpuscaler.doctor.checks.metrics.reading import (
    AUTOSCALER,
    LAST_APPLIED,
    SCALED_OBJECT,
    is_live,
    is_noisy,
    is_of_keda,
    last_applied,
    metrics_of,
)
from gpuscaler.doctor.commands import kubectl_patch
from gpuscaler.doctor.documents import Document, containers_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import WARNING, Finding, Fix

#: Versions of HorizontalPodAutoscalers that were removed, and the release that did so.
_REMOVED: Final = {"autoscaling/v2beta1": "1.25", "autoscaling/v2beta2": "1.26"}
#: From this minor release of Kubernetes 1 on, the gate HPAScaleToZero is on by default.
_SCALE_TO_ZERO: Final = 37
_REST_CLIENTS: Final = "horizontal-pod-autoscaler-use-rest-clients"
#: The default of Kubernetes for scaling down, in seconds.
_WINDOW: Final = 300


def find_removed_versions(evidence: Evidence) -> Iterator[Finding]:
    """D46: a version that servers no longer have, in a file or in what was applied last."""
    for autoscaler in evidence.of(AUTOSCALER):
        versions = ("apiVersion", autoscaler.api_version), (f"apiVersion in {LAST_APPLIED}", last_applied(autoscaler).api_version)
        field, version = next(((field, version) for field, version in versions if version in _REMOVED), ("", ""))
        if version:
            yield Finding(
                "D46",
                WARNING,
                autoscaler.title,
                field,
                f"{version}, removed in Kubernetes {_REMOVED[version]}",
                "autoscaling/v2",
                "the API server refuses the file, so that the autoscaler can be neither changed nor made again",
                Fix(advice="convert the file, for example with gpuscaler convert, and apply it again"),
                autoscaler.place,
            )


def find_minimum_of_zero(evidence: Evidence) -> Iterator[Finding]:
    """D46: ``minReplicas: 0`` where it is refused, or where no metric can start the first replica."""
    by_default = (
        max((_minor(node.text("status", "nodeInfo", "kubeletVersion")) for node in evidence.of("Node")), default=0) >= _SCALE_TO_ZERO
    )
    allowed = by_default or any(
        "HPAScaleToZero=true" in (flag_of((*container.texts("command"), *container.texts("args")), "feature-gates") or "")
        for container in _control_plane(evidence, "kube-apiserver")
    )
    for autoscaler in evidence.of(AUTOSCALER):
        if autoscaler.number("spec", "minReplicas") != 0:
            continue
        wakes = any(metric.type in ("Object", "External") for metric in metrics_of(autoscaler))
        if wakes and (allowed or is_live(autoscaler)):
            continue
        expected = (
            "at least 1, or the feature gate HPAScaleToZero of kube-apiserver, from Kubernetes 1.36 on of kube-controller-manager, too; "
            "it is on by default from 1.37 on"
            if wakes
            else "at least 1: only metrics of the type Object or External have values without pods"
        )
        yield Finding(
            "D46",
            WARNING,
            autoscaler.title,
            "spec.minReplicas",
            "0",
            expected,
            "the API server refuses the autoscaler",
            Fix((kubectl_patch(autoscaler, {"spec": {"minReplicas": 1}}),), "KEDA scales to zero on every server"),
            autoscaler.place,
        )


def find_flapping(evidence: Evidence) -> Iterator[Finding]:
    """D46: no stabilization of scale-down with a metric of GPUs, which changes within seconds."""
    for autoscaler in evidence.of(AUTOSCALER):
        if is_of_keda(autoscaler):
            continue  # KEDA would undo a change.
        names = [metric.name for metric in metrics_of(autoscaler) if metric.is_noisy]
        if names and _is_unstable(autoscaler.part("spec", "behavior")):
            patch = {"spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": _WINDOW}}}}
            yield _flapping(
                autoscaler, "spec.behavior.scaleDown.stabilizationWindowSeconds", metric=names[0], command=kubectl_patch(autoscaler, patch)
            )
    for scaled in evidence.of(SCALED_OBJECT):
        path = ("spec", "advanced", "horizontalPodAutoscalerConfig", "behavior")
        queries = [trigger.text("metadata", "query") for trigger in scaled.parts("spec", "triggers")]
        noisy = [query for query in queries if is_noisy(query)]
        if noisy and _is_unstable(scaled.part(*path)):
            changed = {"behavior": {"scaleDown": {"stabilizationWindowSeconds": _WINDOW}}}
            command = kubectl_patch(scaled, {"spec": {"advanced": {path[2]: changed}}})
            yield _flapping(scaled, ".".join((*path, "scaleDown", "stabilizationWindowSeconds")), metric=noisy[0], command=command)


def _is_unstable(behavior: Document) -> bool:
    down = behavior.part("scaleDown")
    return down.number("stabilizationWindowSeconds") == 0 and down.text("selectPolicy") != "Disabled"


def _flapping(document: Document, field: str, *, metric: str, command: str) -> Finding:
    effect = f"replicas are removed whenever {metric[:80]} dips, and have to load their model again seconds later"
    return Finding(
        "D46", WARNING, document.title, field, "0", f"some minutes; the default is {_WINDOW} s", effect, Fix((command,)), document.place
    )


def find_removed_flags(evidence: Evidence) -> Iterator[Finding]:
    """D46: the flag of kube-controller-manager that the oldest instructions for custom metrics demand."""
    effect = "kube-controller-manager does not start with an unknown flag: then nothing is scaled, replaced or collected"
    for pod in evidence.of("Pod"):
        words = [word for _, container in containers_of(pod) for word in (*container.texts("command"), *container.texts("args"))]
        if any(word.lstrip("-").partition("=")[0] == _REST_CLIENTS for word in words):
            advice = (
                "remove the flag from /etc/kubernetes/manifests/kube-controller-manager.yaml on each control plane node; it is the default"
            )
            yield _flag(pod, "spec.containers[0].command", effect=effect, advice=advice)
    for config in evidence.of("ConfigMap"):
        if config.name == "kubeadm-config" and _REST_CLIENTS in config.text("data", "ClusterConfiguration"):
            advice = "remove the flag from controllerManager.extraArgs in that ConfigMap"
            yield _flag(config, "data.ClusterConfiguration: controllerManager.extraArgs", effect=effect, advice=advice)


def _flag(document: Document, field: str, *, effect: str, advice: str) -> Finding:
    return Finding("D46", WARNING, document.title, field, f"--{_REST_CLIENTS}", "no such flag", effect, Fix(advice=advice), document.place)


def _control_plane(evidence: Evidence, name: str) -> Iterator[Document]:
    """The containers of one part of the control plane, where it runs as pods."""
    for pod in evidence.of("Pod"):
        if pod.namespace == "kube-system" and pod.name.startswith(name):
            for _, container in containers_of(pod):
                yield container


def _minor(version: str) -> int:
    """The minor release of a version such as ``v1.31.4-eks-1``; 0 if it is not readable."""
    match = re.match(r"v?1\.(\d{1,4})", version)
    return int(match.group(1)) if match else 0


CHECKS = (
    Check("D46", "autoscalers of removed versions", (AUTOSCALER,), find_removed_versions),
    Check("D46", "autoscalers with a minimum of 0", (AUTOSCALER,), find_minimum_of_zero, on_files=True),
    Check("D46", "autoscalers that flap", (AUTOSCALER,), find_flapping, on_files=True),
    Check("D46", "flags of kube-controller-manager for autoscalers", ("Pod",), find_removed_flags, reads=("ConfigMap",)),
)
