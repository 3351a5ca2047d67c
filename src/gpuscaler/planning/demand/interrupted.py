"""Pods on interrupted machines: room for those that come back is found or bought while they are still running."""

from msgspec.structs import replace

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.demand.pending import Demand, PodClass
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State


def evacuees(cluster: Cluster, state: State, policy: Policy) -> tuple[PodClass, ...]:
    """The pods on the vanishing nodes of ``state`` that their controllers will start again, as if they were pending already.

    Pods that need not restart at once are left out: those that wait for spot or have a deadline, and members of gangs, because the place
    of a gang depends on all its members.
    """
    alike: dict[object, list[Pod]] = {}
    for name in sorted(state.vanishing):
        for pod in cluster.on_node.get(name, {}).values():
            if _is_recreated(pod, policy):
                alike.setdefault((pod.spec.digest, pod.labels, pod.options), []).append(pod)
    pod_classes = [
        PodClass(pods[0].spec, pods[0].labels, pods[0].options, tuple(sorted(pod.key for pod in pods))) for pods in alike.values()
    ]
    return tuple(sorted(pod_classes, key=lambda pod_class: pod_class.order))


def _is_recreated(pod: Pod, policy: Policy) -> bool:
    options, spec = pod.options, pod.spec
    if pod.deleted or options.mirror or pod.owner.kind in ("", "DaemonSet", "Node"):
        return False
    if options.gang or options.spot_wait is not None or options.deadline is not None or spec.resource_claims:
        return False
    return spec.scheduler_name in policy.schedulers and spec.priority >= policy.priority_cutoff


def with_evacuees(demand: Demand, pod_classes: tuple[PodClass, ...]) -> Demand:
    """``demand`` with ``pod_classes`` added to the pending classes."""
    return Demand((*demand.classes, *pod_classes), demand.gangs, demand.nominated, demand.ignored) if pod_classes else demand


def without_evacuees(plan: Plan, pod_classes: tuple[PodClass, ...], cluster: Cluster) -> Plan:
    """``plan`` without placements on nodes, and without unplaced entries, for ``pod_classes``: those pods are still running.

    Their placements on ordered machines stay, because those machines are reserved for them.
    """
    running = {key for pod_class in pod_classes for key in pod_class.keys}
    return replace(
        plan,
        placements=tuple(placement for placement in plan.placements if placement.pod not in running or placement.node not in cluster.nodes),
        unplaced=tuple(unplaced for unplaced in plan.unplaced if unplaced.pod not in running),
    )


def untried(cluster: Cluster, policy: Policy) -> tuple[Pod, ...]:
    """Pods that one of the policy's schedulers has not tried yet, sorted by name."""
    pods = (
        pod
        for key, bucket in cluster.unbound.items()
        if key.unschedulable is not True and not key.terminating and not key.nominated and not bucket.sample.spec.gates
        for pod in bucket.pods.values()
        if pod.spec.scheduler_name in policy.schedulers and pod.owner.kind != "DaemonSet"
    )
    return tuple(sorted(pods, key=lambda pod: pod.key))
