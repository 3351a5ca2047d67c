"""Promised pods: which of them are pending, whether they have room on their node, and which older pods take their places."""

from collections.abc import Iterable, Iterator, Mapping, Set

from msgspec.structs import replace

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.live_templates import format_amount
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod, PodOptions
from gpuscaler.model.pools import Policy
from gpuscaler.planning.feasibility.resources import PODS, counted_requests
from gpuscaler.planning.state.ledger.ledger import Ledger


def pending_pods(pods: Iterable[str], cluster: Cluster) -> Iterator[Pod]:
    """Yield the pods of ``pods`` that are still pending."""
    for key in pods:
        pod = cluster.pods.get(key)
        if pod is not None and pod.is_pending:
            yield pod


def has_room(pods: Iterable[Pod], node: Node, cluster: Cluster) -> bool:
    """Whether ``node`` has the resources for all of ``pods``, in addition to the bound pods that are not being deleted."""
    free = dict(node.allocatable)
    bound = cluster.on_node.get(node.name, {}).values()
    for pod in (*(pod for pod in bound if not pod.deleted), *pods):
        for resource, amount in (*counted_requests(pod.spec).items(), (PODS, 1)):
            free[resource] = free.get(resource, 0) - amount
            if free[resource] < 0:
                return False
    return True


def describe_shortage(pod: Pod, node: Node, cluster: Cluster) -> str:
    """Return, as text, of which resource ``node`` has too little for ``pod`` even if only DaemonSet and static pods run there, or "".

    A resource of which the node shows none at all is left out, because the device plugin may be restarting.
    """
    daemons = [
        other for other in cluster.on_node.get(node.name, {}).values() if other.options.mirror or other.owner.kind in ("DaemonSet", "Node")
    ]
    for resource, amount in (*counted_requests(pod.spec).items(), (PODS, 1)):
        shown = node.allocatable.get(resource, 0)
        room = shown - sum(1 if resource == PODS else counted_requests(daemon.spec).get(resource, 0) for daemon in daemons)
        if shown and room < amount:
            has, requested = format_amount(resource, max(0, room)), format_amount(resource, amount)
            return f"node {node.name} has {has} {resource}, and the pod requests {requested}"
    return ""


def crowded_machines(ledger: Ledger, cluster: Cluster, policy: Policy) -> frozenset[str]:
    """Return the machines of ``ledger``, by id, whose nodes no longer have room for all their pending pods.

    Pods that tolerate every taint, or that something else binds, can take room on a machine before it opens.
    """
    registered = [
        machine for machine in ledger.coming if machine.pods and machine.node in cluster.on_node and machine.node in cluster.nodes
    ]
    if not registered:
        return frozenset()
    promised = {offering.key: offering.allocatable for offering in policy.offerings.values()}
    crowded_ids = set()
    for machine in registered:
        node, pending = cluster.nodes[machine.node], list(pending_pods(machine.pods, cluster))
        # Resources that the node does not show yet are assumed to come as promised.
        expected = replace(node, allocatable={**promised.get(machine.key, {}), **node.allocatable})
        if pending and not has_room(pending, expected, cluster):
            crowded_ids.add(machine.id)
    return frozenset(crowded_ids)


#: The properties by which scheduling distinguishes pods.
Alike = tuple[str, LabelSet, PodOptions]


def pending_by_kind(cluster: Cluster) -> Mapping[Alike, list[Pod]]:
    """Return the unschedulable pods, grouped so that scheduling does not distinguish the pods of a group."""
    pods: dict[Alike, list[Pod]] = {}
    for key, bucket in cluster.unbound.items():
        if key.unschedulable and not key.terminating and not key.nominated:
            pods.setdefault((key.spec, key.labels, key.options), []).extend(bucket.pods.values())
    return pods


def find_overtaken(pods: list[Pod], pending: Mapping[Alike, list[Pod]], *, busy: Set[str]) -> tuple[tuple[str, str], ...]:
    """Return those of ``pods``, all of one machine, that give their place to an older, identical pod of ``pending``, each with that pod.

    Gang members keep their places, and pods in ``busy`` take none. Pods with an ephemeral volume keep theirs, because it may be bound to a
    zone.
    """
    pods_of: dict[Alike, list[Pod]] = {}
    for pod in pods:
        if not pod.options.gang and not any(volume.ephemeral for volume in pod.spec.volumes):
            pods_of.setdefault((pod.spec.digest, pod.labels, pod.options), []).append(pod)
    pairs: list[tuple[str, str]] = []
    for alike, alike_pods in pods_of.items():
        names = {pod.key for pod in alike_pods}
        newest = max(pod.created for pod in alike_pods)
        # Pods of the same age, such as pods of one owner, keep their places.
        elsewhere = [pod for pod in pending.get(alike, ()) if pod.created < newest and pod.key not in names and pod.key not in busy]
        by_age = sorted((pod.created, pod.key not in names, pod.key) for pod in (*alike_pods, *elsewhere))
        first = {key for _, _, key in by_age[: len(alike_pods)]}
        pairs += zip((pod.key for pod in alike_pods if pod.key not in first), sorted(first - names), strict=True)
    return tuple(pairs)
