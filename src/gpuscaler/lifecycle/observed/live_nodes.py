"""The live nodes of each pool and instance type, and how they differ from its node template.

A person may change one node, for example remove labels or set a taint for a repair, and the next node will not have this change. Therefore
nodes count with the labels and taints that they had ten minutes after their creation, when discovery has set its labels.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from gpuscaler.model.instances import Instance
from gpuscaler.model.live_templates import TemplateDifferences, template_differences
from gpuscaler.model.nodes import Node, first_label
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.model.well_known import INSTANCE_TYPE_LABELS, LEAVING_TAINT, POOL_LABEL

#: The age of a node, in seconds, at which its labels and taints are taken as those of the next node.
FINISHED_SECONDS = 600.0
#: A pool and an instance type.
Kind = tuple[str, str]
#: The machines of the cloud's list that are alive, by id; None if the cloud has no list.
Alive = Mapping[str, Instance] | None


class LiveNodes:
    """The nodes of each kind and their differences from the template, recomputed only for kinds that changed."""

    def __init__(self) -> None:
        self._nodes: Mapping[str, Node] | None = None
        self._alive: Alive = None
        self._policy: Policy | None = None
        self._templates: dict[Kind, tuple[Offering, str]] = {}
        self._kinds: dict[Kind, tuple[Node, ...]] = {}
        self._shown: dict[Kind, tuple[Offering, tuple[Node, ...], TemplateDifferences]] = {}
        #: Nodes as last seen before the age ``FINISHED_SECONDS``, or as first seen if that was later, by uid, or by name without one.
        self._finished: dict[str, Node] = {}

    def of(self, nodes: Mapping[str, Node], alive: Alive, now: float) -> Mapping[Kind, tuple[Node, ...]]:
        """Return the nodes from which a template can be learned, by kind, the newest first."""
        if self._nodes is not nodes or self._alive is not alive:
            self._nodes, self._alive = nodes, alive
            nodes_of: dict[Kind, list[Node]] = {}
            finished: dict[str, Node] = {}
            for node in nodes.values():
                kind = kind_of(node, alive)
                if kind is None:
                    continue
                uid = node.uid or node.name
                previous = self._finished.get(uid)
                finished[uid] = node if previous is None or now < node.created + FINISHED_SECONDS else previous
                if node.ready and not node.deleted and all(taint.key != LEAVING_TAINT for taint in node.taints):
                    nodes_of.setdefault(kind, []).append(as_finished(node, finished[uid]))
            self._finished = finished
            self._kinds = {kind: tuple(sorted(alike, key=lambda node: (-node.created, node.name))) for kind, alike in nodes_of.items()}
        return self._kinds

    def templates(self, policy: Policy) -> Mapping[Kind, tuple[Offering, str]]:
        """Return the first offering of each kind, whose template holds for all zones and markets, and the revision of its pool."""
        if self._policy is not policy:
            self._policy = policy
            every = ((pool, offering) for pool in reversed(policy.pools) for offering in reversed(pool.offerings))
            self._templates = {(pool.name, offering.instance_type): (offering, pool.revision) for pool, offering in every}
        return self._templates

    def shown(self, kind: Kind, offering: Offering, nodes: tuple[Node, ...]) -> TemplateDifferences:
        previous = self._shown.get(kind)
        if previous is None or previous[0] is not offering or previous[1] != nodes:
            previous = self._shown[kind] = (offering, nodes, template_differences(offering, nodes))
        return previous[2]


def as_finished(node: Node, finished: Node) -> Node:
    """Return ``node`` with the labels and taints of ``finished``, without later changes."""
    if node.labels == finished.labels and node.taints == finished.taints:
        return node
    return replace(node, labels=finished.labels, taints=finished.taints)


def kind_of(node: Node, alive: Alive) -> Kind | None:
    """Return the pool and instance type of a node's machine: from the cloud's list if there is one, else from its labels."""
    if alive is not None:
        machine = alive.get(node.provider_id)
        return None if machine is None else (machine.pool, machine.instance_type)
    pool, instance_type = node.labels.get(POOL_LABEL), first_label(node, INSTANCE_TYPE_LABELS)
    return (pool, instance_type) if pool and instance_type else None
