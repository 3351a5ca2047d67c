"""Checks that gpuscaler's own pods run where the chart intends: the chart selects nodes by labels, and not every cloud labels GPUs."""

from collections.abc import Iterator

from gpuscaler.control.records.findings import format_nodes
from gpuscaler.model.accelerators import node_accelerators
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.planning.capacity.node_templates import daemon_sets, runs_on

#: The labels that the chart gives exporters under any name; they select them here.
_EXPORTER = {"app.kubernetes.io/name": "gpuscaler", "app.kubernetes.io/component": "exporter"}
#: The label and the prefix of its value with which NVIDIA's operator keeps clients away while it changes the driver.
_CLIENT, _PAUSED = "nvidia.com/gpu.deploy.client", "paused-for-"


def describe_misplaced(cluster: Cluster, pod: str) -> Iterator[str]:
    """Sentences about the leader's own ``pod`` (``namespace/name``) on a node with GPUs, and about GPUs that no exporter measures."""
    yield from _describe_leader_on_gpu_node(cluster, pod)
    exporters = [workload for workload in daemon_sets(cluster) if _EXPORTER.items() <= workload.template_labels.items()]
    if not exporters:
        return
    gpu_nodes = [node for node in cluster.nodes.values() if _has_measurable_gpus(node)]
    unmeasured = [node.name for node in gpu_nodes if not any(runs_on(workload, node) for workload in exporters)]
    if unmeasured:
        names = ", ".join(f"{workload.namespace}/{workload.name}" for workload in exporters)
        yield (
            f"DaemonSet {names} matches {len(gpu_nodes) - len(unmeasured)} of {len(gpu_nodes)} nodes with NVIDIA GPUs, and not "
            f"{format_nodes(sorted(unmeasured))}: saw none of the labels that it expects on them, so their GPUs are not measured; "
            f"label them, or set exporter.affinity of the chart to your own terms"
        )


def _describe_leader_on_gpu_node(cluster: Cluster, pod: str) -> Iterator[str]:
    own = cluster.pods.get(pod)
    node = cluster.nodes.get(own.node_name) if own is not None else None
    if node is not None and node_accelerators(node.allocatable, node.labels):
        yield (
            f"pod {pod}, which leads, runs on node {node.name}, which has GPUs: saw no label there that indicates GPUs, expected a node "
            f"without GPUs; the node cannot be removed while the pod runs there; label the node, or set controller.affinity of the chart "
            f"to your own terms"
        )


def _has_measurable_gpus(node: Node) -> bool:
    """Whether a node has NVIDIA devices now, and the driver may be opened."""
    if node.labels.get(_CLIENT, "").startswith(_PAUSED):
        return False
    return any(amount and name.startswith("nvidia.com/") for name, amount in node.allocatable.items())
