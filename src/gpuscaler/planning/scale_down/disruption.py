"""Whether pods may be moved to save money (I6): annotations of pods, owners and namespaces, and the number of ready replicas.

``gpuscaler.io/disruption`` on a pod, on its owners or on its Namespace is ``allow`` or ``never``; the nearest one counts. A pod that is
marked safe to evict, or that has a restart cost, counts as ``allow``. Without any of these, a pod that holds a GPU is moved only while
another replica of its owner is ready on a machine that stays. The same holds for pods that serve the cluster itself: CoreDNS and
everything else in kube-system, pods with a system priority, and gpuscaler.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from functools import cached_property

from gpuscaler.model.accelerators import is_device
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.options import ALLOW, DISRUPTION, NEVER
from gpuscaler.model.owners import owner_chain
from gpuscaler.model.pods import Owner, Pod, PodSpec
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.scale_down.blockers import SYSTEM_NAMESPACE, Blocker

SOLE_REPLICA = "sole-replica"
#: Pods with at least this priority are critical. It is that of ``system-cluster-critical``, the lower of Kubernetes' two system classes.
CRITICAL = 2_000_000_000
#: The label that identifies the chart's own pods.
_NAME, _OURSELVES = "app.kubernetes.io/name", "gpuscaler"


class ReplicaGroup(str):
    """Replicas: pods with the same topmost owner, named by its ``Kind namespace/name``."""

    __slots__ = ()


class Disruption:
    """Decides which pods of ``cluster`` may be moved while the nodes ``leaving`` go: replicas there count as gone."""

    def __init__(self, cluster: Cluster, leaving: Set[str]) -> None:
        self._cluster = cluster
        self._leaving = leaving
        self._lines: dict[tuple[str, Owner], tuple[Workload, ...]] = {}
        self._holders: dict[int, tuple[PodSpec, bool]] = {}
        self._ready: dict[ReplicaGroup, int] = {}

    @cached_property
    def _has_statements(self) -> bool:
        """Whether any owner or namespace has the annotation."""
        cluster = self._cluster
        return any(namespace.disruption for namespace in cluster.namespaces.values()) or any(
            workload.disruption for workload in cluster.workloads.values()
        )

    def blocker(self, pods: Iterable[Pod]) -> Blocker | None:
        """Why ``pods``, all pods of one machine that would have to move, may not be moved to save money; the first reason by pod name."""
        at_stake: dict[ReplicaGroup, list[Pod]] = {}
        for pod in sorted(pods, key=lambda pod: pod.key):
            if not (self._has_statements or pod.options.disruption or self.needs_another(pod)):
                continue
            word, source = self.stated(pod)
            if word == NEVER:
                return Blocker("disruption", f"pod {pod.key} may not be moved to save money: {source} has {DISRUPTION}: {NEVER}")
            if word != ALLOW and self.needs_another(pod):
                at_stake.setdefault(self.group(pod), []).append(pod)
        for group, together in at_stake.items():
            if self.ready(group) - sum(map(is_ready, together)) < 1:
                return sole_replica(group, together[0], serves=not self.holds_device(together[0].spec))
        return None

    def evictions(self, pods: Iterable[Pod]) -> Mapping[ReplicaGroup, int]:
        """How many ready replicas of each owner would be moved with ``pods``, of owners that must keep one."""
        held = (pod for pod in pods if self.needs_another(pod) and self.stated(pod)[0] != ALLOW)
        return Counter(self.group(pod) for pod in held if is_ready(pod))

    def stated(self, pod: Pod) -> tuple[str, str]:
        """The nearest statement about moving ``pod`` ("allow", "never" or empty), and the object that makes it."""
        options = pod.options
        if options.disruption:
            return options.disruption, f"pod {pod.key}"
        if options.safe_to_evict is True or options.restart_cost is not None:
            return ALLOW, f"pod {pod.key}"
        if not self._has_statements:
            return "", ""
        for owner in self._owner_chain(pod):
            if owner.disruption:
                return owner.disruption, f"{owner.kind} {owner.namespace}/{owner.name}"
        namespace = self._cluster.namespaces.get(pod.namespace)
        return ("", "") if namespace is None or not namespace.disruption else (namespace.disruption, f"Namespace {namespace.name}")

    def group(self, pod: Pod) -> ReplicaGroup:
        """The replicas that ``pod`` belongs to; a pod without an owner is alone."""
        if not pod.owner.kind:
            return ReplicaGroup(f"pod {pod.key}")
        line = self._owner_chain(pod)
        top = line[-1].owner if line and line[-1].owner.kind else Owner(line[-1].kind, line[-1].name) if line else pod.owner
        return ReplicaGroup(f"{top.kind} {pod.namespace}/{top.name}")

    def ready(self, group: ReplicaGroup) -> int:
        """How many pods of ``group`` are ready on machines that stay."""
        if group not in self._ready:
            self._count(group)
        return self._ready[group]

    def _count(self, group: ReplicaGroup) -> None:
        """Count the ready replicas of every group, once for all, and record 0 for ``group`` if it has none."""
        if not self._ready:
            nodes = self._cluster.nodes
            for name, pods in self._cluster.on_node.items():
                node = nodes.get(name)
                if node is None or not node.ready or node.deleted or name in self._leaving:
                    continue
                for pod in pods.values():
                    if self.needs_another(pod) and is_ready(pod):
                        own_group = self.group(pod)
                        self._ready[own_group] = self._ready.get(own_group, 0) + 1
        self._ready.setdefault(group, 0)

    def _owner_chain(self, pod: Pod) -> tuple[Workload, ...]:
        """The owners of ``pod``, from its controller upwards, as far as they are known."""
        key = (pod.namespace, pod.owner)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = tuple(owner_chain(self._cluster.workloads, pod.namespace, pod.owner))
        return line

    def needs_another(self, pod: Pod) -> bool:
        """Whether ``pod``, unless annotated otherwise, is moved only while another replica is ready."""
        return self.holds_device(pod.spec) or serves_cluster(pod)

    def holds_device(self, spec: PodSpec) -> bool:
        """Whether pods of ``spec`` hold accelerators, or parts of them."""
        entry = self._holders.get(id(spec))
        if entry is None:
            # The spec is kept alive, so that its id() is not reused.
            entry = self._holders[id(spec)] = (spec, any(amount > 0 and is_device(name) for name, amount in spec.requests.items()))
        return entry[1]


def is_ready(pod: Pod) -> bool:
    """Whether ``pod`` is ready and not terminating; without a Ready condition, a running pod counts as ready."""
    return not pod.deleted and not pod.finished and (pod.phase == "Running" if pod.ready is None else pod.ready)


def serves_cluster(pod: Pod) -> bool:
    """Whether the cluster itself or gpuscaler depends on ``pod``. DaemonSet and mirror pods do not count: they leave with their machine."""
    if pod.owner.kind in ("DaemonSet", "Node") or pod.options.mirror:
        return False
    return pod.namespace == SYSTEM_NAMESPACE or pod.spec.priority >= CRITICAL or pod.labels.get(_NAME) == _OURSELVES


def sole_replica(group: ReplicaGroup, pod: Pod, *, serves: bool = False) -> Blocker:
    """The blocker of a machine with the last ready replica of ``group``."""
    reason = "it has no owner that would recreate it" if group == f"pod {pod.key}" else f"no other replica of {group} would be ready"
    allowed = f"{DISRUPTION}: {ALLOW} on the pod, its owner or its Namespace lets it be moved"
    return Blocker(SOLE_REPLICA, f"pod {pod.key} {'serves the cluster itself' if serves else 'holds a GPU'} and {reason}; {allowed}")
