"""Defaults of pods and of pod templates.

Source: ``k8s.io/kubernetes/pkg/apis/core/v1/defaults.go``, ``plugin/pkg/admission/defaulttolerationseconds`` and
``pkg/apis/core/v1/helper/qos``, Kubernetes 1.35.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuscaler.embedded.apiserver.store import Object

_EVICTING: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def spec(pod: Object) -> None:
    """Fill the ``spec`` of a pod or template in place."""
    for field, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
        ("securityContext", {}),
    ):
        if pod.get(field) is None:
            pod[field] = value
    for field in ("containers", "initContainers"):
        for container in pod.get(field) or ():
            _container(container)


def _container(container: Object) -> None:
    image = str(container.get("image") or "")
    latest = image.endswith(":latest") or ":" not in image.rpartition("/")[2]
    for field, value in (
        ("imagePullPolicy", "Always" if latest else "IfNotPresent"),
        ("terminationMessagePath", "/dev/termination-log"),
        ("terminationMessagePolicy", "File"),
    ):
        container.setdefault(field, value)
    resources = container.get("resources") or {}
    for which in ("limits", "requests"):
        if amounts := resources.get(which):
            resources[which] = {name: _quantity(amount) for name, amount in amounts.items()}
    if limits := resources.get("limits"):
        # Resources with a limit and no request are requested up to the limit; device plugins' resources always are.
        resources["requests"] = {**limits, **(resources.get("requests") or {})}
    container["resources"] = resources
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")


def _quantity(amount: Any) -> Any:
    """A quantity as text, as Kubernetes always shows them; YAML may have a number there."""
    if isinstance(amount, float):
        return f"{amount * 1000:.0f}m" if amount % 1 else f"{amount:.0f}"
    return str(amount) if isinstance(amount, int) and not isinstance(amount, bool) else amount


def tolerations(pod: Object) -> None:
    """Let the pod stay 300 s on a node that is not ready or unreachable, unless it has its own toleration."""
    result = list(pod.get("tolerations") or ())
    for key in _EVICTING:
        if not any(item.get("key") in (key, None, "") and item.get("effect") in ("NoExecute", None, "") for item in result):
            result.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    pod["tolerations"] = result
    pod.setdefault("serviceAccountName", "default")
    pod.setdefault("serviceAccount", pod["serviceAccountName"])
    pod.setdefault("enableServiceLinks", True)


def status(pod: Mapping[str, Any], now: str) -> Object:
    """The status of a new pod."""
    result: Object = {"phase": "Pending", "qosClass": qos_class(pod)}
    if pod.get("schedulingGates"):
        message = "Scheduling is blocked due to non-empty scheduling gates"
        gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": message}
        result["conditions"] = [{**gated, "lastProbeTime": None, "lastTransitionTime": now}]
    return result


def qos_class(pod: Mapping[str, Any]) -> str:
    """Guaranteed, Burstable or BestEffort, by CPU and memory only."""
    containers = [*(pod.get("containers") or ()), *(pod.get("initContainers") or ())]
    requests, limits = (list(_shares(containers, which)) for which in ("requests", "limits"))
    if not any(requests) and not any(limits):
        return "BestEffort"
    whole = all(len(limit) == 2 and limit == request for request, limit in zip(requests, limits, strict=True))
    return "Guaranteed" if whole else "Burstable"


def _shares(containers: Iterable[Mapping[str, Any]], which: str) -> Iterable[Object]:
    for container in containers:
        amounts = (container.get("resources") or {}).get(which) or {}
        yield {name: amounts[name] for name in ("cpu", "memory") if str(amounts.get(name, "0")) != "0"}
