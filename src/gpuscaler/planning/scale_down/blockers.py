"""Blockers: reasons from a node itself or from its pods that forbid its removal, independent of free resources and price."""

from collections.abc import Collection, Mapping

from msgspec import Struct

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.model.well_known import ARRIVING_TAINT, LEAVING_TAINT
from gpuscaler.model.workloads import PodDisruptionBudget
from gpuscaler.planning.capacity.pool_membership import Member
from gpuscaler.planning.scale_down.contract import Situation
from gpuscaler.planning.scale_down.pod_classes import Load, Residents, RunningClass, first_key

SYSTEM_NAMESPACE = "kube-system"


class Blocker(Struct, frozen=True, gc=False):
    """Why a node stays. Programs and filters read ``word``; ``detail`` is a sentence for people."""

    word: str
    detail: str


DISRUPTING = Blocker("disrupting", "its removal is in progress")
ARRIVING = Blocker("arriving", "the machine is not open yet")
NEEDED = Blocker("needed", "pods that are pending, or about to leave other machines, are planned onto this node")


def is_arriving(node: Node, member: Member | None) -> bool:
    """Whether ``node`` is not open yet.

    In a pool that keeps its machines closed, every node keeps the arriving taint permanently, so there the taint does not count.
    """
    if not node.taints or (member is not None and member.pool.keeps_closed):
        return False
    return any(taint.key == ARRIVING_TAINT for taint in node.taints)


def is_leaving(node: Node, disrupting: frozenset[str]) -> bool:
    """Whether ``node`` is already being removed."""
    tainted = bool(node.taints) and any(taint.key == LEAVING_TAINT for taint in node.taints)
    return tainted or node.deleted > 0 or node.name in disrupting


def node_blocker(situation: Situation, node: Node, promised: frozenset[str]) -> Blocker | None:
    """The blocker of ``node``, ignoring its pods and the plan. ``promised`` are the nodes of machines in the ledger."""
    own = own_blocker(node, situation.members.get(node.name))
    if node.name in situation.state.unlisted:
        return _unlisted(node, listed=situation.state.listed)
    if own is not None and own.word in ("not-in-a-pool", "deleting"):
        return own
    if node.name in situation.state.disrupting:
        return DISRUPTING
    if own is None and node.name in situation.state.spared:
        return Blocker("drain-failed", situation.state.spared[node.name])
    return ARRIVING if node.name in promised and own is not DISRUPTING else own


def _unlisted(node: Node, *, listed: bool) -> Blocker:
    message = f"the cloud's list for this cluster does not include machine {node.provider_id}"
    if not node.provider_id:
        message = "no spec.providerID identifies its machine"
    elif not listed:
        message = f"the cloud has not listed its machines yet, and nothing else shows that machine {node.provider_id} is of a pool"
    return Blocker("not-listed", f"{message}, so the node is not removed")


def own_blocker(node: Node, member: Member | None) -> Blocker | None:
    """The blocker that follows from the Node object alone; ``member`` gives its pool."""
    if member is None:
        return Blocker("not-in-a-pool", "the node belongs to no pool: neither its label gpuscaler.io/pool nor its instance type names one")
    if node.deleted:
        return Blocker("deleting", "the Node object is being deleted")
    if is_leaving(node, frozenset()):
        return DISRUPTING
    if is_arriving(node, member):
        return ARRIVING
    if not node.ready:
        return Blocker("not-ready", "the node is not Ready, so the state of its pods is unknown")
    if node.scale_down_disabled:
        return Blocker("scale-down-disabled", "the annotation cluster-autoscaler.kubernetes.io/scale-down-disabled is true")
    if node.do_not_disrupt:
        return Blocker("do-not-disrupt", "the node has the annotation karpenter.sh/do-not-disrupt")
    return None


def duplicate_blockers(nodes: Collection[Node]) -> Mapping[str, Blocker]:
    """Blockers, by name, of nodes that share a provider ID: ending the machine of one would end the pods of the other (I4)."""
    ids = [node.provider_id for node in nodes if node.provider_id]
    if len(set(ids)) == len(ids):
        return {}
    alike: dict[str, list[str]] = {}
    for node in nodes:
        if node.provider_id:
            alike.setdefault(node.provider_id, []).append(node.name)
    blockers = {}
    for instance, names in alike.items():
        for name in names if len(names) > 1 else ():
            other = next(name_of_other for name_of_other in names if name_of_other != name)
            blockers[name] = Blocker("same-machine", f"node {other} has the same spec.providerID, {instance}")
    return blockers


def unreadable_pod_blockers(cluster: Cluster) -> tuple[Blocker | None, Mapping[str, Blocker]]:
    """Blockers from pods that cannot be read: one for every node if the node of such a pod is unknown, and those of single nodes by name.

    Without them, a node with a single, unreadable pod would look empty.
    """
    for_all, by_node = None, dict[str, Blocker]()
    for entry in cluster.set_aside:
        kind, _, key = entry.object.partition(" ")
        if kind != "Pod":
            continue
        # The last version that could be read gives the node: a pod never moves.
        before = cluster.pods.get(key)
        node = before.node_name if entry.node is None and before is not None and before.node_name else entry.node
        if node is None:
            consequence = "and its node is unknown; nothing is removed until it can be read or is gone"
            for_all = Blocker("unreadable-pod", f"{entry.object} cannot be read ({entry.reason}), {consequence}")
        elif node:
            by_node[node] = Blocker("unreadable-pod", f"{entry.object} runs on it and cannot be read: {entry.reason}")
    return for_all, by_node


class Protection:
    """Finds what protects each class of pods from eviction. ``now`` is in seconds since the epoch."""

    def __init__(self, cluster: Cluster, policy: Policy, now: float) -> None:
        self._policy = policy
        self._now = now
        self._budgets: dict[str, list[PodDisruptionBudget]] = {}
        for budget in cluster.budgets.values():
            self._budgets.setdefault(budget.namespace, []).append(budget)
        self._memo: dict[RunningClass, Blocker | None] = {}
        self._harmless: set[RunningClass] = set()
        self._matching: dict[tuple[str, object], tuple[PodDisruptionBudget, ...]] = {}

    def blocker(self, residents: Residents) -> Blocker | None:
        """The first reason, in a stable order, why a pod of a node must not be evicted.

        As in Karpenter, its annotation also counts on pods that leave with the machine (DaemonSet pods, mirror pods).
        """
        # Most nodes run only classes that have been checked already and have no blocker.
        for running_class in sorted(residents.load.keys() - self._harmless, key=lambda running_class: running_class.order):
            blocker = self._class_blocker(running_class)
            if blocker is not None and not (
                blocker.word == "pdb" and self._ignored(self.budgets(running_class), residents.load[running_class])
            ):
                return Blocker(blocker.word, f"pod {first_key(residents.load[running_class])} {blocker.detail}")
            for pod in sorted(residents.load[running_class], key=lambda pod: pod.key):
                if (timed := self._do_not_disrupt(pod)) is not None:
                    return timed
        if residents.going:
            return Blocker("in-use", f"pod {first_key(residents.going)} is still terminating")
        for pod in sorted((pod for pod in residents.attached if pod.options.do_not_disrupt is not False), key=lambda pod: pod.key):
            if (timed := self._do_not_disrupt(pod)) is not None:
                return timed
        return None

    def evictions(self, load: Load) -> dict[str, int]:
        """How many evictions each PodDisruptionBudget, by its key, must allow for the pods of ``load``."""
        counts: dict[str, int] = {}
        for running_class, pods in load.items() if self._budgets else ():
            for budget in self.budgets(running_class):
                if needed := sum(not is_evicted_anyway(pod, budget) for pod in pods):
                    counts[budget.key] = counts.get(budget.key, 0) + needed
        return counts

    @staticmethod
    def _ignored(over: tuple[PodDisruptionBudget, ...], pods: tuple[Pod, ...]) -> bool:
        """Whether the eviction API skips the budget for all of ``pods``. It always refuses pods that several budgets cover."""
        return len(over) == 1 and all(is_evicted_anyway(pod, over[0]) for pod in pods)

    def budgets(self, running_class: RunningClass) -> tuple[PodDisruptionBudget, ...]:
        """The PodDisruptionBudgets that cover the pods of ``running_class``, sorted by name."""
        key = (running_class.spec.namespace, running_class.labels)
        budgets = self._matching.get(key)
        if budgets is None:
            here = self._budgets.get(running_class.spec.namespace, ())
            over = (budget for budget in here if budget.selector is not None and budget.selector.matches(running_class.labels))
            budgets = self._matching[key] = tuple(sorted(over, key=lambda budget: budget.name))
        return budgets

    def _class_blocker(self, running_class: RunningClass) -> Blocker | None:
        if running_class not in self._memo:
            blocker = self._memo[running_class] = self._find(running_class)
            if blocker is None and running_class.options.do_not_disrupt is False:
                self._harmless.add(running_class)
        return self._memo[running_class]

    def _find(self, running_class: RunningClass) -> Blocker | None:
        """The blocker that applies to every pod of a class.

        As in Cluster Autoscaler, ``safe-to-evict: true`` overrides the weaker reasons.
        """
        options, spec = running_class.options, running_class.spec
        if options.do_not_drain:
            return Blocker("do-not-drain", "has the label openai/do-not-drain")
        if options.safe_to_evict is False:
            return Blocker("safe-to-evict", "has the annotation cluster-autoscaler.kubernetes.io/safe-to-evict: false")
        if running_class.restarts and options.restart_cost is None:
            reason = f"belongs to the gang {options.gang!r}" if options.gang else "belongs to a running Job"
            return Blocker("job", f"{reason} and has no gpuscaler.io/restart-cost")
        if spec.resource_claims:
            return Blocker("in-use", "uses dynamic resource allocation, so it is unknown where else it fits")
        if spec.scheduler_name not in self._policy.schedulers:
            return Blocker("in-use", f"is scheduled by {spec.scheduler_name!r}, so it is unknown where it would go")
        return self._weaker(running_class) or self._budget_blocker(running_class)

    def _weaker(self, running_class: RunningClass) -> Blocker | None:
        options, spec = running_class.options, running_class.spec
        if options.safe_to_evict is True:
            return None
        if not running_class.owner_kind:
            return Blocker("bare-pod", "has no controller that would recreate it")
        if spec.namespace == SYSTEM_NAMESPACE and not self.budgets(running_class):
            return Blocker("kube-system", "is in kube-system and no PodDisruptionBudget covers it")
        local = [name for name in spec.local_storage if name not in options.safe_to_evict_local_volumes]
        if local:
            return Blocker("local-storage", f"keeps data on the node in {', '.join(local)}")
        return None

    def _budget_blocker(self, running_class: RunningClass) -> Blocker | None:
        over = self.budgets(running_class)
        if len(over) > 1:
            names = ", ".join(budget.name for budget in over)
            return Blocker("pdb", f"is covered by several PodDisruptionBudgets ({names}), which the eviction API refuses")
        if over and over[0].disruptions_allowed <= 0:
            return Blocker("pdb", f"may not be disrupted now: PodDisruptionBudget {over[0].name} allows 0 disruptions")
        return None

    def _do_not_disrupt(self, pod: Pod) -> Blocker | None:
        """The blocker from karpenter.sh/do-not-disrupt. A duration counts from the pod's start; a pod with unknown start is protected."""
        statement = pod.options.do_not_disrupt
        if statement is False:
            return None
        if statement is True:
            return Blocker("do-not-disrupt", f"pod {pod.key} has the annotation karpenter.sh/do-not-disrupt: true")
        start = pod.started or pod.created
        left = start + statement - self._now if start else statement
        if left <= 0:
            return None
        return Blocker("do-not-disrupt", f"pod {pod.key} is protected by karpenter.sh/do-not-disrupt for {left:.0f} s more")


def is_evicted_anyway(pod: Pod, budget: PodDisruptionBudget) -> bool:
    """Whether ``budget`` lets ``pod`` be evicted even when it allows no disruption.

    Source: ``pkg/registry/core/pod/storage/eviction.go``; ``spec.unhealthyPodEvictionPolicy``, Kubernetes 1.27.
    """
    return budget.always_evict_unhealthy and pod.phase == "Running" and not pod.ready


def needed_blocker(situation: Situation, node: str) -> Blocker | None:
    """The blocker of a node that pods need which are not there yet."""
    pod = situation.state.promised.get(node)
    if pod is not None:
        return promised_to(pod)
    return NEEDED if node in situation.taken else None


def promised_to(pod: str) -> Blocker:
    """The blocker of a node that is promised to ``pod``.

    It holds for plans and for removals that have begun alike, so that no plan begins what would be undone at once.
    """
    return Blocker("needed", f"it is promised to pod {pod}")


def promised_nodes(situation: Situation) -> frozenset[str]:
    """Nodes that have registered for a machine of the ledger and are not open yet."""
    return frozenset(machine.node for machine in situation.state.upcoming if machine.node)


def health_guard(nodes: Collection[Node], members: Mapping[str, Member], promised: frozenset[str]) -> Blocker | None:
    """Cluster Autoscaler's guard: when more than 45 % of the nodes, and more than 3, are not Ready, nothing is removed.

    So many at once point to a fault of the network or the control plane rather than of the machines. Machines that are still arriving
    do not count.
    """
    if sum(not node.ready for node in nodes) <= 3:
        return None
    settled = [node for node in nodes if not is_arriving(node, members.get(node.name)) and node.name not in promised]
    unready = sum(not node.ready for node in settled)
    if unready <= 3 or unready <= 0.45 * len(settled):
        return None
    return Blocker("unhealthy", f"{unready} of {len(settled)} nodes are not Ready; nothing is removed until at most 45 % are")
