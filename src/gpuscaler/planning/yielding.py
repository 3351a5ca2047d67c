"""Who comes before whom: what a node has left, and who would take it before the pods that it is promised to.

kube-scheduler counts a nominated pod as if it ran, but only against pods of its own priority or less (``addGENominatedPods`` in
``pkg/scheduler/framework/runtime``). A pod of higher priority that waits for a machine of its own takes the room of any that opens before.
"""

from collections.abc import Callable, Iterable, Mapping, Set

from gpuscaler.model.accelerators import gpus_in
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.live_templates import spoken
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod, PodOptions, PodSpec
from gpuscaler.model.taints import untolerated
from gpuscaler.planning.filters.resources import PODS, wanted
from gpuscaler.planning.filters.spread import hard
from gpuscaler.planning.keeping import lifted
from gpuscaler.planning.membership import ZONE_LABELS
from gpuscaler.planning.room import Room

#: Our own taints come and go by what we do; they say nothing of whom a node admits.
OWN_PREFIX = "gpuscaler.io/"
ZONE = ZONE_LABELS[0]


def has_room(pods: Iterable[Pod], node: Node, cluster: Cluster) -> bool:
    """Whether all of ``pods`` have room on ``node`` beside the pods that are bound there and stay, by what they ask for."""
    free = dict(node.allocatable)
    here = cluster.on_node.get(node.name, {}).values()
    for pod in (*(one for one in here if not one.deleted), *pods):
        for resource, amount in (*wanted(pod.spec).items(), (PODS, 1)):
            free[resource] = free.get(resource, 0) - amount
            if free[resource] < 0:
                return False
    return True


def falls_short(pod: Pod, node: Node, cluster: Cluster) -> str:
    """What ``node`` has too little of for ``pod``, had it none but its DaemonSets' and mirror pods, in words; "" where it has enough.

    A resource of which it shows none at all is left out: the device plugin may be restarting.
    """
    here = [one for one in cluster.on_node.get(node.name, {}).values() if one.options.mirror or one.owner.kind in ("DaemonSet", "Node")]
    for resource, amount in (*wanted(pod.spec).items(), (PODS, 1)):
        shown = node.allocatable.get(resource, 0)
        room = shown - sum(1 if resource == PODS else wanted(one.spec).get(resource, 0) for one in here)
        if shown and room < amount:
            return f"node {node.name} has {spoken(resource, max(0, room))} {resource}, and it asks for {spoken(resource, amount)}"
    return ""


def rivals(promised: Iterable[Pod], node: Node, others: Mapping[str, Iterable[Pod]], cluster: Cluster) -> Set[str]:
    """Of the machines that ``others`` wait for, by name, those with pods that come before some ``promised`` of ``node`` and may go there.

    None where all have room beside each other.
    """
    here = list(promised)
    least = min((pod.spec.priority for pod in here), default=0)
    found: dict[str, list[Pod]] = {}
    for name, pods in others.items() if here else ():
        ahead = [pod for pod in pods if pod.spec.priority > least and _admits(pod.spec, node)]
        kept = ((pod, [one for one in here if one.spec.priority >= pod.spec.priority]) for pod in ahead)
        ahead = [pod for pod, before in kept if has_room((pod, *before), node, cluster)]
        if ahead:
            found[name] = ahead
    if has_room((*here, *(pod for pods in found.values() for pod in pods)), node, cluster):
        return frozenset()
    return found.keys()


def _admits(spec: PodSpec, node: Node) -> bool:
    """Whether selector, required affinity and foreign taints let a pod onto ``node``."""
    foreign = (taint for taint in node.taints if not taint.key.startswith(OWN_PREFIX))
    return untolerated(foreign, spec.tolerations) is None and _selects(spec, node)


def _selects(spec: PodSpec, node: Node) -> bool:
    chosen, affinity = dict(spec.node_selector).items() <= node.labels.items(), spec.node_affinity
    return chosen and (affinity is None or affinity.matches(node.labels, node.name))


def takers(pods: Iterable[Pod], promised: Iterable[Pod], node: Node, cluster: Cluster) -> bool:
    """Whether any of ``pods``, who wait for other machines, might take the room of those ``promised`` this node.

    Who is like one of them leaves him a place that is as good.
    """
    mine = {pod.spec.digest for pod in promised}
    others = {pod.spec.digest: pod for pod in pods if pod.spec.digest not in mine}
    return any(_admits(pod.spec, node) and has_room((pod,), node, cluster) for pod in others.values())


def over_zones(spec: PodSpec) -> bool:
    """Whether pods spread over zones, and none that would be uneven is bound."""
    return any(rule.topology_key == ZONE for rule in hard(spec))


def is_counted(zone: str, spec: PodSpec, nodes: Iterable[Node]) -> bool:
    """Whether kube-scheduler counts a zone when it spreads pods, for one of ``nodes`` is there, be it closed.

    Where it knows of one zone only, nothing there is too crowded for them.
    """
    return any(node.labels.get(ZONE) == zone and _selects(spec, node) for node in nodes)


def strays(pod: Pod, zone: str, promised: Iterable[Pod], node: Node, cluster: Cluster) -> bool:
    """Whether a pod that waits for a machine in another ``zone`` may go to ``node``, and has room that those ``promised`` leave there."""
    return node.labels.get(ZONE, zone) != zone and _admits(pod.spec, node) and has_room((pod, *promised), node, cluster)


def has_rules(pod: Pod) -> bool:
    """Whether it depends on other pods where one may go: hard topology spread, affinity."""
    return bool(pod.spec.affinity or hard(pod.spec))


def may_come(pod: Pod, node: str, room: Room) -> bool:
    """Whether a pod's rules about others would let it onto ``node``, were that open now."""
    passes, row = room.verdict(lifted(pod.spec), pod.labels).passes, room.table.row[node]
    return all(bool(passes[name][row]) for name in ("PodTopologySpread", "InterPodAffinity") if name in passes)


def sharing(waiting: Mapping[str, Iterable[Pod]], nodes: Iterable[tuple[str, Node]]) -> Mapping[str, str]:
    """For each pool that pods wait in, the first of those that it shares pods with, be it through others.

    ``nodes`` are some of each pool, one of each kind.
    """
    group = {pool: pool for pool in waiting}
    kinds = list(nodes)
    for pool, pods in waiting.items():
        specs = {pod.spec.digest: pod.spec for pod in pods}.values()
        for other, node in kinds:
            if group[other] != group[pool] and any(_admits(spec, node) for spec in specs):
                one, two = sorted((group[pool], group[other]))
                group = {name: one if first == two else first for name, first in group.items()}
    return group


def in_line(rivals_of: Mapping[str, Set[str]], first: Iterable[str], burden: Callable[[str], tuple[int, ...]]) -> list[list[str]]:
    """Who of ``first``, in this order, opens next, and who together.

    Those without rivals, each for itself. Where all wait for each other, those who do open together: whichever was first would be filled by
    the others' pods. Of several such circles the one of the least ``burden``. Whoever waits for somebody that ``rivals_of`` does not have,
    be it through others, stays.
    """
    order = list(first)
    free = [[name] for name in order if not rivals_of[name]]
    reach = {} if free else {name: _reached(rivals_of, name) for name in rivals_of}
    closed = {name: those for name, those in reach.items() if those <= rivals_of.keys()}
    circles = [name for name in order if name in closed and all(name in closed[other] for other in closed[name])]
    if not circles:
        return free
    together = closed[min(circles, key=lambda name: max(map(burden, closed[name])))]
    return [[name for name in order if name in together]]


def burden(pods: Iterable[Pod]) -> tuple[int, int]:
    """The largest pod that might lose its room to one of higher priority, in GPUs and CPU: a small one finds another place more easily."""
    pods = list(pods)
    highest = max((pod.spec.priority for pod in pods), default=0)
    low = [pod.spec.requests for pod in pods if pod.spec.priority < highest] or [pod.spec.requests for pod in pods]
    return max(((gpus_in(requests), requests.get("cpu", 0)) for requests in low), default=(0, 0))


def _reached(rivals_of: Mapping[str, Set[str]], start: str) -> Set[str]:
    seen, waiting = {start}, [start]
    while waiting:
        fresh = rivals_of.get(waiting.pop(), frozenset()) - seen
        seen |= fresh
        waiting += fresh
    return seen


def overtaken(pods: list[Pod], cluster: Cluster, *, busy: Set[str]) -> tuple[tuple[str, str], ...]:
    """Those of ``pods``, who wait for one machine, that an older pod is behind which scheduling cannot tell from them, each with that one.

    Members of gangs have their places together, and pods that are ``busy`` have theirs. A volume of a pod's own may tie it to a zone.
    """
    mine: dict[tuple[str, LabelSet, PodOptions], list[Pod]] = {}
    for pod in pods:
        if not pod.options.gang and not any(volume.ephemeral for volume in pod.spec.volumes):
            mine.setdefault((pod.spec.digest, pod.labels, pod.options), []).append(pod)
    others: dict[tuple[str, LabelSet, PodOptions], list[Pod]] = {}
    for key, bucket in cluster.unbound.items() if mine else ():
        alike = (key.spec, key.labels, key.options)
        if alike in mine and key.unschedulable and not key.terminating and not key.nominated:
            others.setdefault(alike, []).extend(bucket.pods.values())
    pairs: list[tuple[str, str]] = []
    for alike, here in mine.items():
        names = {pod.key for pod in here}
        elsewhere = [pod for pod in others.get(alike, ()) if pod.key not in names and pod.key not in busy]
        # Of one age, which many are that one owner made, everybody stays where he is.
        everybody = sorted((pod.created, pod.key not in names, pod.key) for pod in (*here, *elsewhere))
        first = {key for _, _, key in everybody[: len(here)]}
        pairs += zip((pod.key for pod in here if pod.key not in first), sorted(first - names), strict=True)
    return tuple(pairs)
