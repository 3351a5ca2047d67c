"""Whether pods may be moved to save money (I6): what they, their owners and their namespaces say, and what their replicas leave.

``gpuscaler.io/disruption`` on a pod, on what controls it, or on its Namespace says ``allow`` or ``never``; the nearest word counts. A pod
that is safe to evict, or that states what a restart costs, has allowed it. Where nothing is said, a pod that holds a GPU is moved only
while another replica of its owner is ready elsewhere, on a machine that stays. So is what serves the cluster itself: CoreDNS, what else is
in kube-system or has a priority of the system's, and gpuscaler.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from functools import cached_property

from gpuscaler.model.accelerators import is_device
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.options import ALLOW, DISRUPTION, NEVER
from gpuscaler.model.owners import line_of
from gpuscaler.model.pods import Owner, Pod, PodSpec
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.scale_down.blockers import SYSTEM_NAMESPACE, Blocker

SOLE_REPLICA = "sole-replica"
#: From this priority on a pod is critical: that of ``system-cluster-critical``, of Kubernetes' own two classes the lower one.
CRITICAL = 2_000_000_000
#: How the chart's pods say what they are.
_NAME, _OURSELVES = "app.kubernetes.io/name", "gpuscaler"


class Group(str):
    """Pods that stand in for each other: those with one topmost owner, by its ``Kind namespace/name``."""

    __slots__ = ()


class Disruption:
    """What ``cluster`` allows while the machines of the nodes ``leaving`` go: replicas there are as good as gone."""

    def __init__(self, cluster: Cluster, leaving: Set[str]) -> None:
        self._cluster = cluster
        self._leaving = leaving
        self._lines: dict[tuple[str, Owner], tuple[Workload, ...]] = {}
        self._holders: dict[int, tuple[PodSpec, bool]] = {}
        self._ready: dict[Group, int] = {}

    @cached_property
    def _is_spoken_of(self) -> bool:
        """Whether any owner or namespace says anything."""
        cluster = self._cluster
        return any(one.disruption for one in cluster.namespaces.values()) or any(one.disruption for one in cluster.workloads.values())

    def blocker(self, pods: Iterable[Pod]) -> Blocker | None:
        """Why ``pods``, all those of one machine that would have to move, may not be moved to save money; the first by name."""
        at_stake: dict[Group, list[Pod]] = {}
        for pod in sorted(pods, key=lambda pod: pod.key):
            if not (self._is_spoken_of or pod.options.disruption or self.needs_another(pod)):
                continue
            word, where = self.stated(pod)
            if word == NEVER:
                return Blocker("disruption", f"pod {pod.key} may not be moved to save money: {where} says {DISRUPTION}: {NEVER}")
            if word != ALLOW and self.needs_another(pod):
                at_stake.setdefault(self.group(pod), []).append(pod)
        for group, together in at_stake.items():
            if self.ready(group) - sum(map(is_ready, together)) < 1:
                return sole_replica(group, together[0], serves=not self.holds_device(together[0].spec))
        return None

    def evictions(self, pods: Iterable[Pod]) -> Mapping[Group, int]:
        """How many ready replicas of each owner with a say would go with ``pods``."""
        held = (pod for pod in pods if self.needs_another(pod) and self.stated(pod)[0] != ALLOW)
        return Counter(self.group(pod) for pod in held if is_ready(pod))

    def stated(self, pod: Pod) -> tuple[str, str]:
        """The nearest word about moving ``pod``, "allow", "never" or empty, and the object that says it."""
        options = pod.options
        if options.disruption:
            return options.disruption, f"pod {pod.key}"
        if options.safe_to_evict is True or options.restart_cost is not None:
            return ALLOW, f"pod {pod.key}"
        if not self._is_spoken_of:
            return "", ""
        for owner in self._line(pod):
            if owner.disruption:
                return owner.disruption, f"{owner.kind} {owner.namespace}/{owner.name}"
        namespace = self._cluster.namespaces.get(pod.namespace)
        return ("", "") if namespace is None or not namespace.disruption else (namespace.disruption, f"Namespace {namespace.name}")

    def group(self, pod: Pod) -> Group:
        """The replicas that ``pod`` is one of; one without an owner is alone."""
        if not pod.owner.kind:
            return Group(f"pod {pod.key}")
        line = self._line(pod)
        top = line[-1].owner if line and line[-1].owner.kind else Owner(line[-1].kind, line[-1].name) if line else pod.owner
        return Group(f"{top.kind} {pod.namespace}/{top.name}")

    def ready(self, group: Group) -> int:
        """How many pods of ``group`` are ready on machines that stay."""
        if group not in self._ready:
            self._count(group)
        return self._ready[group]

    def _count(self, group: Group) -> None:
        """Count the replicas of ``group``, and of all that are met on the way."""
        if not self._ready:
            nodes = self._cluster.nodes
            for name, pods in self._cluster.on_node.items():
                node = nodes.get(name)
                if node is None or not node.ready or node.deleted or name in self._leaving:
                    continue
                for pod in pods.values():
                    if self.needs_another(pod) and is_ready(pod):
                        mine = self.group(pod)
                        self._ready[mine] = self._ready.get(mine, 0) + 1
        self._ready.setdefault(group, 0)

    def _line(self, pod: Pod) -> tuple[Workload, ...]:
        """What controls ``pod``, what controls that, and so on, as far as it is known."""
        key = (pod.namespace, pod.owner)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = tuple(line_of(self._cluster.workloads, pod.namespace, pod.owner))
        return line

    def needs_another(self, pod: Pod) -> bool:
        """Whether ``pod`` is moved only while another replica is ready, if nothing is said of it."""
        return self.holds_device(pod.spec) or serves_cluster(pod)

    def holds_device(self, spec: PodSpec) -> bool:
        """Whether pods of ``spec`` hold accelerators, or parts of them."""
        known = self._holders.get(id(spec))
        if known is None:
            # The specification is kept, so that its identity stays its own.
            known = self._holders[id(spec)] = (spec, any(amount > 0 and is_device(name) for name, amount in spec.requests.items()))
        return known[1]


def is_ready(pod: Pod) -> bool:
    """Whether ``pod`` serves and is not about to end; where nothing is said of readiness, a pod that runs is ready."""
    return not pod.deleted and not pod.finished and (pod.phase == "Running" if pod.ready is None else pod.ready)


def serves_cluster(pod: Pod) -> bool:
    """Whether the cluster itself, and we, depend on ``pod``. What each node has one of leaves with its machine."""
    if pod.owner.kind in ("DaemonSet", "Node") or pod.options.mirror:
        return False
    return pod.namespace == SYSTEM_NAMESPACE or pod.spec.priority >= CRITICAL or pod.labels.get(_NAME) == _OURSELVES


def sole_replica(group: Group, pod: Pod, *, serves: bool = False) -> Blocker:
    """The blocker of a machine that nothing else than its last replica keeps."""
    whose = "it has no owner that would start another" if group == f"pod {pod.key}" else f"no other replica of {group} would be ready"
    allowed = f"{DISRUPTION}: {ALLOW} on the pod, its owner or its Namespace lets it be moved"
    return Blocker(SOLE_REPLICA, f"pod {pod.key} {'serves the cluster itself' if serves else 'holds a GPU'} and {whose}; {allowed}")
