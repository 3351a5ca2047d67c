"""Volumes that are still attached to a node: a machine that ends with them keeps their next user waiting for minutes."""

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node


def attached(cluster: Cluster, node: Node) -> tuple[str, ...]:
    """The persistent volumes attached to ``node`` that no pod there uses any more, by name: those of pods that stay are never detached."""
    here = sorted({one.volume for one in cluster.attachments.values() if one.node_name == node.name and one.volume})
    if not here:
        return ()
    pods = cluster.on_node.get(node.name, {}).values()
    claims = {f"{pod.namespace}/{use.claim}" for pod in pods for use in pod.spec.volumes if use.claim}
    used = {cluster.claims[key].volume for key in claims if key in cluster.claims}
    return tuple(name for name in here if name not in used)
