"""Whether our own pods are where the chart means them to be: nodes are told apart by labels, and not every cloud labels its GPUs."""

from collections.abc import Iterator

from gpuscaler.control.records.findings import nodes
from gpuscaler.model.accelerators import gpus_of
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.planning.capacity.node_templates import daemon_sets, runs_on

#: What selects exporters: the labels that the chart gives them, under any name.
_EXPORTER = {"app.kubernetes.io/name": "gpuscaler", "app.kubernetes.io/component": "exporter"}
#: With a value that begins so NVIDIA's operator keeps clients of the driver away while it changes it.
_CLIENT, _PAUSED = "nvidia.com/gpu.deploy.client", "paused-for-"


def misplaced(cluster: Cluster, pod: str) -> Iterator[str]:
    """A sentence for the leader's own ``pod`` (``namespace/name``) on a node with GPUs, and for GPUs that no exporter measures."""
    yield from _leading(cluster, pod)
    exporters = [one for one in daemon_sets(cluster) if _EXPORTER.items() <= one.template_labels.items()]
    if not exporters:
        return
    has = [node for node in cluster.nodes.values() if _measurable(node)]
    left = [node.name for node in has if not any(runs_on(one, node) for one in exporters)]
    if left:
        names = ", ".join(f"{one.namespace}/{one.name}" for one in exporters)
        yield (
            f"DaemonSet {names} matches {len(has) - len(left)} of {len(has)} nodes with NVIDIA GPUs, and not {nodes(sorted(left))}: "
            f"saw none of the labels there that it expects, so that nothing measures them; label them, or give exporter.affinity of the "
            f"chart terms of your own"
        )


def _leading(cluster: Cluster, pod: str) -> Iterator[str]:
    own = cluster.pods.get(pod)
    node = cluster.nodes.get(own.node_name) if own is not None else None
    if node is not None and gpus_of(node.allocatable, node.labels):
        yield (
            f"pod {pod}, which leads, runs on node {node.name}, which has GPUs: saw none of the labels there that tell of them, expected a "
            f"node without GPUs; the node cannot be given back while it runs there; label it, or give controller.affinity of the chart "
            f"terms of your own"
        )


def _measurable(node: Node) -> bool:
    """Whether it has devices of NVIDIA now, and the driver may be opened."""
    if node.labels.get(_CLIENT, "").startswith(_PAUSED):
        return False
    return any(amount and name.startswith("nvidia.com/") for name, amount in node.allocatable.items())
