"""Volumes that are still attached to a node: if the machine ended with them, the next pod would wait for them for minutes."""

from collections.abc import Mapping, Set

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node


def attachments(cluster: Cluster) -> Mapping[str, Set[str]]:
    """Return the persistent volumes attached to each node, by its name."""
    volumes_by_node: dict[str, set[str]] = {}
    for volume_attachment in cluster.attachments.values():
        if volume_attachment.volume:
            volumes_by_node.setdefault(volume_attachment.node_name, set()).add(volume_attachment.volume)
    return volumes_by_node


def unused(cluster: Cluster, node: Node, volumes: Set[str]) -> tuple[str, ...]:
    """Return the ``volumes`` attached to ``node`` that no pod there uses, sorted. Volumes of pods that stay are never detached."""
    if not volumes:
        return ()
    pods = cluster.on_node.get(node.name, {}).values()
    claims = {f"{pod.namespace}/{use.claim}" for pod in pods for use in pod.spec.volumes if use.claim}
    used = {cluster.claims[key].volume for key in claims if key in cluster.claims}
    return tuple(sorted(volumes - used))
