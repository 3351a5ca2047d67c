"""Pods that keep a node with GPUs alive although its GPUs are not used, or although they themselves could move."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.checks.nodes.gpu_nodes import gpu_nodes
from gpuscaler.doctor.commands import ObjectName, kubectl_annotate
from gpuscaler.doctor.evidence import CLUSTER, Evidence
from gpuscaler.doctor.findings import INFO, WARNING, Finding, Fix
from gpuscaler.model.accelerators import is_device
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.scale_down.blockers import Blocker, Protection
from gpuscaler.planning.scale_down.pod_classes import Grouping, Residents, first_key

#: A node with unused GPUs is reported after the first time, one with used GPUs after the second. Seconds.
_UNUSED_FOR, _USED_FOR = 3600.0, 86_400.0
#: A pod that has been terminating for this long does not end by itself, in seconds.
_TERMINATING_FOR = 3600.0
#: Pods of a node that are named; the rest is counted.
_NAMED = 3
#: What a person put there: other blockers pass, such as a running Job, or have a check of their own, such as budgets.
_LASTING = ("bare-pod", "local-storage", "safe-to-evict", "do-not-disrupt", "do-not-drain", "kube-system")
_SAFE, _VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict", "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
_ADVICE = {
    "bare-pod": "let a controller own the bare pod, or delete it",
    "safe-to-evict": "remove safe-to-evict: false once the pod may be moved",
    "do-not-disrupt": "remove karpenter.sh/do-not-disrupt once the pod may be moved",
    "do-not-drain": "remove the label openai/do-not-drain once the pod may be moved",
    "local-storage": "put the annotation into its pod template, too; what the volume holds is lost with the node",
    "kube-system": "keep system pods off the nodes with GPUs with a taint, or give them a PodDisruptionBudget",
}


class _Hold(NamedTuple):
    """A pod that keeps its node, and why."""

    pod: Pod
    blocker: Blocker


def find_held_nodes(evidence: Evidence) -> Iterable[Finding]:
    """D35: nodes with GPUs, with the pods that forbid their removal."""
    policy = evidence.policy or Policy(())
    grouping, protection = Grouping(evidence.cluster, evidence.now, {}), Protection(evidence.cluster, policy, evidence.now)
    nodes = {node.name: node for node in gpu_nodes(evidence.cluster)}
    of_pool = members(nodes, policy, evidence.unlisted) if policy.pools else {}
    for node in nodes.values():
        pods = evidence.cluster.on_node.get(node.name, {}).values()
        in_use = any(is_device(name) for pod in pods for name in pod.spec.requests)
        # Pods that use the GPUs are what the node is for.
        holds = [hold for hold in _holds(grouping, protection, node) if not any(map(is_device, hold.pod.spec.requests))]
        holds.sort(key=lambda hold: (_since(hold.pod), hold.pod.key))
        member = of_pool.get(node.name)
        price = f" and costs ${member.offering.price:.2f} an hour" if member is not None and member.offering is not None else ""
        if holds and evidence.now - min(_since(hold.pod) for hold in holds) >= (_USED_FOR if in_use else _UNUSED_FOR):
            yield _finding(node, holds, evidence.now, price, in_use=in_use)
        yield from _terminating(node, pods, evidence.now, price)


def _since(pod: Pod) -> float:
    return pod.started or pod.created


def _holds(grouping: Grouping, protection: Protection, node: Node) -> Iterator[_Hold]:
    for running_class, pods in grouping.load(node).load.items():
        blocker = protection.blocker(Residents({running_class: pods}, (), (), ages=False))
        if blocker is not None and blocker.word in _LASTING:
            # It names the first of the pods alike.
            first = first_key(pods)
            yield from (_Hold(pod, Blocker(blocker.word, blocker.detail.replace(first, pod.key, 1))) for pod in pods)


def _finding(node: Node, holds: list[_Hold], now: float, price: str, *, in_use: bool) -> Finding:
    shown = [f"{hold.blocker.detail} ({_age(now, hold.pod)})" for hold in holds[:_NAMED]]
    more = [f"{len(holds) - _NAMED} more"] if len(holds) > _NAMED else []
    effect = "the node is not removed for these pods alone" if in_use else "the node stays although its GPUs are not used"
    return Finding(
        "D35",
        INFO if in_use else WARNING,
        f"Node {node.name}",
        "pods",
        "; ".join((*shown, *more)),
        "pods that can be moved, or that use the GPUs",
        f"{effect}{price}",
        Fix(
            tuple(command for hold in holds if (command := _command(hold))),
            "; ".join(dict.fromkeys(_ADVICE[hold.blocker.word] for hold in holds)),
        ),
    )


def _age(now: float, pod: Pod) -> str:
    since = _since(pod)
    if not since:
        return "for an unknown time"
    hours = max(0.0, now - since) / 3600
    return f"for {hours / 24:.0f} days" if hours >= 48 else f"for {hours:.0f} hours"


def _command(hold: _Hold) -> str:
    """The command that lets the pod be moved, where that loses nothing that a person wanted to keep."""
    target = ObjectName("Pod", hold.pod.namespace, hold.pod.name)
    if hold.blocker.word == "kube-system":
        return kubectl_annotate(target, _SAFE, "true")
    if hold.blocker.word == "local-storage":
        return kubectl_annotate(target, _VOLUMES, ",".join(hold.pod.spec.local_storage))
    return ""


def _terminating(node: Node, pods: Iterable[Pod], now: float, price: str) -> Iterator[Finding]:
    stuck = sorted(pod.key for pod in pods if 0 < pod.deleted <= now - _TERMINATING_FOR)
    if stuck:
        more = f" and {len(stuck) - _NAMED} more" if len(stuck) > _NAMED else ""
        yield Finding(
            "D35",
            WARNING,
            f"Node {node.name}",
            "pods[].metadata.deletionTimestamp",
            f"{', '.join(stuck[:_NAMED])}{more} still there an hour after their end",
            "pods that end within their grace period",
            f"their GPUs are not free for others, and the node stays{price}",
            Fix(
                advice="look at `metadata.finalizers` of the pod, and whether its kubelet answers; if the machine is gone, delete the node"
            ),
        )


CHECKS = (Check("D35", "pods that keep nodes with GPUs", (CLUSTER, "Node", "Pod"), find_held_nodes, continuous=True),)
