"""The columns of ``kubectl get pods``. Source: ``printPod`` in ``k8s.io/kubernetes/pkg/printers/internalversion``, Kubernetes 1.35."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuscaler.embedded.apiserver.store import Object


def _statuses(pod: Mapping[str, Any], field: str = "containerStatuses") -> Sequence[Any]:
    return (pod.get("status") or {}).get(field) or ()


def _condition(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == kind), {})


def pod_ready(pod: Object, _: float) -> str:
    """The number of ready containers, and of all."""
    ready = sum(1 for status in _statuses(pod) if status.get("ready") and (status.get("state") or {}).get("running") is not None)
    return f"{ready}/{len((pod.get('spec') or {}).get('containers') or ())}"


def pod_restarts(pod: Object, _: float) -> str:
    return str(sum(int(status.get("restartCount") or 0) for status in _statuses(pod)))


def pod_status(pod: Object, _: float) -> str:
    """The status in one word: the phase, or a more specific reason from the containers."""
    status = pod.get("status") or {}
    phase = status.get("phase") or "Unknown"
    word = status.get("reason") or phase
    if _condition(pod, "PodScheduled").get("reason") == "SchedulingGated":
        word = "SchedulingGated"
    word = _initializing(pod) or _running(pod, word)
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if phase not in ("Succeeded", "Failed"):
            return "Terminating"
    return word


def _initializing(pod: Object) -> str:
    for place, status in enumerate(_statuses(pod, "initContainerStatuses")):
        state = status.get("state") or {}
        ended = state.get("terminated")
        if ended is not None and not ended.get("exitCode"):
            continue
        if ended is not None:
            return f"Init:{_ended(ended)}"
        waiting = (state.get("waiting") or {}).get("reason")
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{place}/{len((pod.get('spec') or {}).get('initContainers') or ())}"
    return ""


def _ended(ended: Mapping[str, Any]) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _running(pod: Object, word: str) -> str:
    running, failed = False, ""
    for status in reversed(_statuses(pod)):
        state = status.get("state") or {}
        ended = state.get("terminated")
        if (state.get("waiting") or {}).get("reason"):
            word = state["waiting"]["reason"]
        elif ended is not None:
            word = _ended(ended)
            failed = word if ended.get("exitCode") else failed
        elif status.get("ready") and state.get("running") is not None:
            running = True
    if word != "Completed":
        return word
    if running and _condition(pod, "Ready").get("status") == "True":
        return "Running"
    return failed or ("NotReady" if running else word)
