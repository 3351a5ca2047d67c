"""DaemonSets: one pod on every matching node.

Source: ``k8s.io/kubernetes/pkg/controller/daemon/daemon_controller.go`` and ``util/daemonset_util.go``, Kubernetes 1.35.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from gpuscaler.embedded.workloads.steps import Object, Steps, hash_of, is_active, is_finished, is_leaving, is_ready, name_of, pod_of
from gpuscaler.kube.resources import DAEMON_SETS, PODS
from gpuscaler.model.decoding import Interner, decode_object
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod, PodSpec
from gpuscaler.model.taints import untolerated

REVISION = "controller-revision-hash"
#: Tolerations of the pods of every DaemonSet.
TOLERATED: Final = (
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
)


def decide(daemon_set: Mapping[str, Any], pods: Sequence[Object], nodes: Iterable[Node]) -> Steps:
    """The steps for ``daemon_set``, which owns ``pods``, in a cluster of ``nodes``."""
    template = daemon_set["spec"]["template"]
    revision = hash_of(template)
    bare, nodes = _bare(daemon_set), tuple(nodes)
    wanted = _admitting(bare, nodes)
    # Pods on a node that takes no new pods continue there, unless its taint is NoExecute.
    staying = _admitting(
        bare, [replace(node, taints=tuple(taint for taint in node.taints if taint.effect == "NoExecute")) for node in nodes]
    )
    by_node: dict[str, list[Object]] = {}
    for pod in pods:
        by_node.setdefault(_node_of(pod), []).append(pod)
    steps = Steps(status=_status(daemon_set, by_node, wanted, revision))
    if is_leaving(daemon_set):
        return steps
    for name in wanted:
        here = by_node.get(name, [])
        if not here:
            steps.creates.append((PODS, _pod(daemon_set, name, revision)))
        alive = [pod for pod in here if is_active(pod)]
        steps.deletes += [(PODS, pod) for pod in here if is_finished(pod) and not is_leaving(pod)]
        steps.deletes += [(PODS, pod) for pod in sorted(alive, key=lambda pod: not is_ready(pod))[1:]]
    for name in by_node.keys() - {*wanted, *staying}:
        steps.deletes += [(PODS, pod) for pod in by_node[name] if not is_leaving(pod)]
    if not steps.creates and not steps.deletes:
        steps.deletes = _outdated(daemon_set, pods, wanted, revision)
    return steps


def _admitting(spec: PodSpec | None, nodes: Iterable[Node]) -> list[str]:
    """The nodes where a pod of ``spec`` should run, whether or not there is room."""
    if spec is None:
        return []
    return sorted(
        node.name
        for node in nodes
        if not any(node.labels.get(key) != value for key, value in spec.node_selector)
        and (spec.node_affinity is None or spec.node_affinity.matches(node.labels, node.name))
        and untolerated(node.taints, spec.tolerations) is None
    )


def _bare(daemon_set: Mapping[str, Any]) -> PodSpec | None:
    """The pod spec before it is tied to a node; None if it cannot be parsed."""
    pod = pod_of(daemon_set["spec"]["template"], daemon_set, DAEMON_SETS)
    pod["metadata"] |= {"name": name_of(daemon_set), "uid": "template"}
    pod["spec"]["tolerations"] = _tolerations(pod["spec"])
    decoded = decode_object(pod, Interner())
    return decoded.spec if isinstance(decoded, Pod) else None


def _tolerations(spec: Mapping[str, Any]) -> list[Object]:
    own = list(spec.get("tolerations") or ())
    added = [{"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect} for name, effect in TOLERATED]
    return [*own, *(toleration for toleration in added if toleration not in own)]


def _pod(daemon_set: Mapping[str, Any], node: str, revision: str) -> Object:
    """A pod that fits only ``node``; kube-scheduler binds it like any other."""
    pod = pod_of(daemon_set["spec"]["template"], daemon_set, DAEMON_SETS)
    pod["metadata"]["generateName"] = f"{name_of(daemon_set)}-"
    pod["metadata"]["labels"][REVISION] = revision
    spec = pod["spec"]
    spec["tolerations"] = _tolerations(spec)
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = dict(spec.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    # It replaces the template's own terms, by which the node was chosen.
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    spec["affinity"] = {**affinity, "nodeAffinity": node_affinity}
    return pod


def _node_of(pod: Mapping[str, Any]) -> str:
    """The node that a pod is bound to or intended for."""
    if node := pod["spec"].get("nodeName"):
        return str(node)
    required = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def _is_current(pod: Mapping[str, Any], revision: str) -> bool:
    return (pod["metadata"].get("labels") or {}).get(REVISION) == revision


def _outdated(daemon_set: Mapping[str, Any], pods: Sequence[Object], wanted: Sequence[str], revision: str) -> list[tuple[Any, Object]]:
    """Pods of an older template, at most as many as may be unavailable."""
    strategy = daemon_set["spec"].get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete":
        return []
    max_unavailable = (strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1)
    most = (
        max(1, int(max_unavailable.removesuffix("%")) * len(wanted) // 100) if isinstance(max_unavailable, str) else max(1, max_unavailable)
    )
    old = sorted((pod for pod in pods if not _is_current(pod, revision)), key=lambda pod: (is_ready(pod), name_of(pod)))
    unready = [pod for pod in old if not is_ready(pod)]
    room = max(0, most - sum(1 for pod in pods if not is_ready(pod)))
    return [(PODS, pod) for pod in (*unready, *old[len(unready) :][:room]) if not is_leaving(pod)]


def _status(daemon_set: Mapping[str, Any], by_node: Mapping[str, Sequence[Object]], wanted: Sequence[str], revision: str) -> Object:
    here = [next((pod for pod in by_node.get(name, ()) if is_active(pod)), None) for name in wanted]
    scheduled = [pod for pod in here if pod is not None]
    ready = sum(map(is_ready, scheduled))
    astray = sum(1 for name, pods in by_node.items() if name not in wanted and any(pod["spec"].get("nodeName") for pod in pods))
    return {
        "observedGeneration": daemon_set["metadata"].get("generation"),
        "desiredNumberScheduled": len(wanted),
        "currentNumberScheduled": len(scheduled),
        "numberMisscheduled": astray,
        "numberReady": ready,
        "numberAvailable": ready or None,
        "numberUnavailable": len(wanted) - ready or None,
        "updatedNumberScheduled": sum(1 for pod in scheduled if _is_current(pod, revision)) or None,
    }
