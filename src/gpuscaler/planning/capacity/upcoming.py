"""Ordered machines as the nodes that they will become."""

from collections.abc import Mapping, Sequence

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Offering
from gpuscaler.model.requests import FULL
from gpuscaler.model.well_known import HOSTNAME
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.capacity.node_templates import Overhead, smallest_allocatable, template_node
from gpuscaler.planning.capacity.similar_offerings import assumed_offering
from gpuscaler.planning.state import State, Upcoming

#: The inputs from which the node of an upcoming machine was made, and the node: see :func:`upcoming_nodes`.
Promised = tuple[Upcoming, Node | None, Mapping[str, Pod] | None, tuple[Workload, ...], Node]


def upcoming_nodes(
    cluster: Cluster, offerings: Mapping[OfferingKey, Offering], state: State, cache: dict[str, Promised]
) -> tuple[dict[str, Node], list[str]]:
    """Nodes that upcoming machines will become, by machine id, and warnings about machines that no offering describes any more.

    A registered machine is planned as its offering promises: its row replaces what the Node shows now, and resources that its own
    DaemonSet pods already use are not subtracted twice. ``cache`` caches nodes from call to call, as long as their inputs are the same;
    ``offerings`` must not change between calls.
    """
    overhead = Overhead(cluster)
    nodes: dict[str, Node] = {}
    warnings: list[str] = []
    for machine in sorted(state.upcoming, key=lambda m: m.id):
        registered, pods = cluster.nodes.get(machine.node), cluster.on_node.get(machine.node)
        before = cache.get(machine.id)
        if before is None or before[1] is not registered or before[2] is not pods or before[0] != machine or before[3] != overhead.daemons:
            possible = offerings_of(machine, offerings)
            if not possible:
                warnings.append(
                    f"upcoming machine {machine.id}: pool {machine.pool!r} is unknown or has no offerings; not counted as capacity"
                )
                continue
            cache[machine.id] = before = (machine, registered, pods, overhead.daemons, promised_node(cluster, machine, possible, overhead))
        nodes[machine.id] = before[4]
        if all(key not in offerings for key in machine.keys):
            warnings.append(
                f"upcoming machine {machine.id}: pool {machine.pool!r} offers no {machine.instance_type} {machine.market} {machine.zone}; "
                f"it counts as the most expensive offering that it may be"
            )
    for old in cache.keys() - nodes.keys():
        del cache[old]
    return nodes, warnings


def offerings_of(machine: Upcoming, offerings: Mapping[OfferingKey, Offering]) -> list[Offering]:
    """The offerings that an upcoming machine may turn out to be; if none of them exists any more, the one that stands in for it."""
    keys = machine.keys
    listed = [offerings[key] for key in keys if key in offerings]
    return listed or [offering for key in keys[:1] if (offering := assumed_offering(key, offerings)) is not None]


def promised_node(cluster: Cluster, machine: Upcoming, offerings: Sequence[Offering], overhead: Overhead) -> Node:
    """A node with the common promise of all ``offerings``: shared labels, the taints of any, the room of the smallest."""
    registered = cluster.nodes.get(machine.node) if machine.node else None
    name = registered.name if registered is not None else machine.id
    any_of = undecided_node(name, [template_node(offering, overhead, name) for offering in offerings])
    labels, room, may_be = any_of.labels, dict(any_of.allocatable), any_of.may_be
    if registered is not None:
        labels, may_be = {**labels, **registered.labels}, ()
        for pod in cluster.on_node.get(name, {}).values():
            if pod.owner.kind == "DaemonSet":
                for resource, amount in (*pod.spec.requests.items(), ("pods", 1)):
                    room[resource] = min(room.get(resource, 0) + amount, FULL)
    # A taint would not keep every pod off, because pods may tolerate any taint; a node without room does.
    return Node(name=name, labels=labels, allocatable={} if machine.unproven else room, taints=any_of.taints, may_be=may_be)


def undecided_node(name: str, nodes: Sequence[Node]) -> Node:
    """A node that may turn out to be any of ``nodes``: shared labels, taints of any, room of the smallest, its own host name."""
    first, *others = nodes
    may_be = tuple({**node.labels, HOSTNAME: name} for node in nodes) if others else ()
    labels = {key: value for key, value in first.labels.items() if all(other.labels.get(key) == value for other in others)}
    taints = first.taints if not others else tuple(dict.fromkeys(taint for node in nodes for taint in node.taints))
    return Node(name=name, labels={**labels, HOSTNAME: name}, allocatable=smallest_allocatable(nodes), taints=taints, may_be=may_be)
