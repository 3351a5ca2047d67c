"""ReplicaSets: keep the requested number of pods.

Source: ``k8s.io/kubernetes/pkg/controller/replicaset/replica_set.go``, Kubernetes 1.35. Pods without an owner are not adopted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuscaler.embedded.workloads.steps import Object, Steps, first_to_go, is_active, is_leaving, is_ready, name_of, omit_zero, pod_of
from gpuscaler.kube.resources import PODS, REPLICA_SETS

#: The maximum number of pods that are created or deleted at once (``BurstReplicas``).
BURST = 500


def decide(replica_set: Mapping[str, Any], pods: Sequence[Object]) -> Steps:
    """The steps for ``replica_set``, which owns ``pods``."""
    spec = replica_set["spec"]
    active = [pod for pod in pods if is_active(pod)]
    ready = omit_zero(sum(map(is_ready, active)))
    steps = Steps(
        status={
            "replicas": len(active),
            "fullyLabeledReplicas": omit_zero(len(active)),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "observedGeneration": replica_set["metadata"].get("generation"),
        }
    )
    missing = (spec.get("replicas") or 0) - len(active)
    if is_leaving(replica_set) or not missing:
        return steps
    if missing < 0:
        steps.deletes = [(PODS, pod) for pod in first_to_go(active)[: min(-missing, BURST)]]
    for _ in range(min(missing, BURST)):
        pod = pod_of(spec["template"], replica_set, REPLICA_SETS)
        pod["metadata"]["generateName"] = f"{name_of(replica_set)}-"
        steps.creates.append((PODS, pod))
    return steps
