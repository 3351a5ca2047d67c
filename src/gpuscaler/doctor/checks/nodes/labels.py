"""Labels and taints of nodes: those that differ within a group or from its template, and those that Cluster Autoscaler needs."""

from collections import Counter
from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.checking import WORKLOADS, Check
from gpuscaler.doctor.checks.nodes.gpu_nodes import AMD, group_of, is_of, lasting_taints, vendor_of
from gpuscaler.doctor.commands import ObjectName, kubectl_label, kubectl_taint
from gpuscaler.doctor.evidence import CLUSTER, Evidence
from gpuscaler.doctor.findings import INFO, WARNING, Finding, Fix
from gpuscaler.model.accelerators import count_accelerators, node_accelerators
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.live_templates import is_complete, template_differences
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.well_known import GPU_PRODUCT, POOL_LABEL
from gpuscaler.planning.capacity.pool_membership import members

#: Labels that differ between the nodes of a group by nature: of places, machines, images, and of what programs find out.
_DIFFERING = (
    "kubernetes.io/",
    "node.kubernetes.io/",
    "beta.kubernetes.io/",
    "topology.",
    "failure-domain.beta.kubernetes.io/",
    "feature.node.kubernetes.io/",
    "nvidia.com/",
    "amd.com/",
    "gpuscaler.io/",
    "karpenter.",
    "eks.amazonaws.com/",
    "k8s.io/",
    "alpha.eksctl.io/",
    "kubernetes.azure.com/",
    "cloud.google.com/",
    "node-role.kubernetes.io/",
)
#: The label by which Cluster Autoscaler knows nodes with GPUs, by the start of the machine's identity. Source: the ``GPULabel`` of its
#: cloud providers. GKE sets its own.
_AUTOSCALER_LABELS = {"aws://": "k8s.amazonaws.com/accelerator", "azure://": "kubernetes.azure.com/accelerator"}
#: Labels and taints that a finding lists.
_NAMED = 4
_OTHERS = "the next node of the group may not have it: pods that need it wait although a machine is bought for them"


def find_differing_nodes(evidence: Evidence) -> Iterable[Finding]:
    """D10: nodes of a group that differ in what decides about pods, and templates of the run file that differ from their nodes."""
    used = _selected_keys(evidence.cluster)
    groups: dict[str, list[Node]] = {}
    for node in evidence.cluster.nodes.values():
        if (group := group_of(node)) and not node.deleted:
            groups.setdefault(group, []).append(node)
    for group, nodes in groups.items():
        if len(nodes) > 1:
            yield from _differences(group, nodes, used)
    if evidence.policy is not None:
        yield from _template_differences(evidence)


def _differences(group: str, nodes: list[Node], used: frozenset[str]) -> Iterator[Finding]:
    for key in used:
        values = Counter(node.labels.get(key) for node in nodes)
        (value, count), *others = values.most_common(2)
        # A label on few nodes may be a person's own.
        if others and value is not None and not key.startswith(_DIFFERING):
            for node in nodes:
                if node.labels.get(key) != value:
                    yield Finding(
                        "D10",
                        WARNING,
                        f"Node {node.name}",
                        f"metadata.labels[{key}]",
                        node.labels.get(key, "none"),
                        f"{value}, as on {count} of the {len(nodes)} nodes of {group}; pods select by it",
                        _OTHERS,
                        Fix(
                            (kubectl_label(ObjectName("Node", "", node.name), key, value),),
                            "set the label in the configuration of the group, so that its next nodes have it",
                        ),
                    )
    taints = Counter(taint for node in nodes for taint in set(lasting_taints(node)))
    for taint, count in taints.items():
        # A taint on few nodes may be a person's temporary one.
        if len(nodes) > count >= len(nodes) / 2:
            for node in nodes:
                if taint not in node.taints:
                    yield Finding(
                        "D10",
                        WARNING,
                        f"Node {node.name}",
                        "spec.taints",
                        f"no {taint}",
                        f"{taint}, as on {count} of the {len(nodes)} nodes of {group}",
                        "pods that the group is not for run there, and autoscalers take one node for the template of the others",
                        Fix((kubectl_taint(node.name, str(taint)),), "set the taint in the configuration of the group, too"),
                    )
    sizes = Counter(amount for node in nodes if (amount := node_accelerators(node.capacity or node.allocatable, node.labels)))
    # A pool of gpuscaler may have machines of several sizes, each with its own template.
    if len(sizes) > 1 and not group.startswith(POOL_LABEL):
        yield Finding(
            "D10",
            WARNING,
            f"Node group {group}",
            "number of GPUs",
            f"nodes with {', '.join(map(str, sorted(sizes)))} GPUs",
            "the same number on all nodes of a group",
            "an autoscaler takes one node for the template of the others: it buys too few machines, or ones that do not hold the pods",
            Fix(advice="make one group for each number of GPUs"),
        )


def _selected_keys(cluster: Cluster) -> frozenset[str]:
    """The keys of labels that pods, or the pods of controllers, require of nodes."""
    specs = {workload.template.digest: workload.template for workload in cluster.workloads.values() if workload.template is not None}
    specs.update((pod.spec.digest, pod.spec) for pod in cluster.pods.values() if not pod.finished)
    return frozenset(key for spec in specs.values() for key in required_keys(spec))


def required_keys(spec: PodSpec) -> Iterator[str]:
    """The keys of labels that selector and required affinity name."""
    yield from (key for key, _ in spec.node_selector)
    for term in spec.node_affinity.terms if spec.node_affinity is not None else ():
        yield from (requirement.key for requirement in term.expressions)


def _template_differences(evidence: Evidence) -> Iterator[Finding]:
    assert evidence.policy is not None
    alike: dict[tuple[str, str], list[Node]] = {}
    of_pool = members(evidence.cluster.nodes, evidence.policy, evidence.unlisted)
    for name, member in of_pool.items():
        node = evidence.cluster.nodes[name]
        if member.offering is not None and node.ready and is_of(node, member.pool) and is_complete(node, member.offering.allocatable):
            alike.setdefault((member.pool.name, member.offering.instance_type), []).append(node)
    for (pool, instance_type), nodes in alike.items():
        member = of_pool[nodes[0].name]
        offering = member.offering
        assert offering is not None
        found = template_differences(offering, nodes)
        # Labels that gpuscaler derives are a guess: nodes without Karpenter or GPU feature discovery lack some, which is no mistake.
        keys = offering.labels.keys() & member.pool.configured_labels
        configured = {key: value for key, value in found.labels.items() if key in keys}
        seen = [f"no label {key}" if value is None else f"label {key}={value}" for key, value in configured.items()]
        expected = [f"label {key}={offering.labels[key]}" for key in configured]
        seen += [f"no taint {taint}" for taint in found.untainted] + [f"taint {taint}" for taint in found.taints]
        expected += [f"taint {taint}" for taint in found.untainted] + [f"no taint {taint}" for taint in found.taints]
        if seen:
            yield Finding(
                "D10",
                WARNING,
                f"Pool {pool}",
                f"nodes of type {instance_type}",
                _some(seen),
                f"{_some(expected)}, as the run file, tags or settings of the group say",
                "from zero nodes, machines are bought for pods that they will not take, or not bought for pods that they would take",
                Fix(
                    advice="change the labels and taints in the run file, tags or settings of the group to those of its nodes, or the nodes"
                ),
            )


def _some(texts: list[str]) -> str:
    return ", ".join(texts[:_NAMED]) + (f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else "")


def find_unlabelled_gpu_nodes(evidence: Evidence) -> Iterable[Finding]:
    """D11: nodes with GPUs without the label by which Cluster Autoscaler knows that their GPUs are still to come."""
    autoscaled = any(
        workload.kind == "Deployment" and "cluster-autoscaler" in workload.name for workload in evidence.cluster.workloads.values()
    )
    if evidence.policy is not None and not autoscaled:
        return
    for node in evidence.cluster.nodes.values():
        key = next((key for start, key in _AUTOSCALER_LABELS.items() if node.provider_id.startswith(start)), "")
        if (
            not key
            or key in node.labels
            or "karpenter.sh/nodepool" in node.labels
            or not count_accelerators(node.capacity or node.allocatable)
        ):
            continue
        value = "amd" if vendor_of(node) == AMD else "nvidia"
        if key.startswith("k8s.amazonaws.com/") and node.labels.get(GPU_PRODUCT):
            value = node.labels[GPU_PRODUCT].lower()
        yield Finding(
            "D11",
            WARNING if autoscaled else INFO,
            f"Node {node.name}",
            f"metadata.labels[{key}]",
            "none, although the node has GPUs",
            "the GPU model",
            "Cluster Autoscaler takes a new node for ready before its GPUs are registered, and buys a second one for the same pods",
            Fix(
                (kubectl_label(ObjectName("Node", "", node.name), key, value),),
                "set the label in the configuration of the group, so that its next nodes have it from the start",
            ),
        )


CHECKS = (
    Check("D10", "nodes that differ from others of their group", (CLUSTER, "Node"), find_differing_nodes, reads=WORKLOADS, continuous=True),
    Check("D11", "nodes with GPUs without the label of Cluster Autoscaler", (CLUSTER, "Node"), find_unlabelled_gpu_nodes, continuous=True),
)
