"""Nodes that running pods could move to, judged by everything except room and other pods."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node, first_label
from gpuscaler.model.table import Mask
from gpuscaler.model.well_known import ARCH, ZONE_LABELS
from gpuscaler.planning.capacity.gpu_products import own_product
from gpuscaler.planning.capacity.node_templates import Templates, admits_arch
from gpuscaler.planning.capacity.pool_membership import Member, market_of
from gpuscaler.planning.feasibility.snapshot import Room, Rows
from gpuscaler.planning.scale_down.contract import Situation
from gpuscaler.planning.scale_down.pod_classes import Origin, RunningClass, is_bare


class Destinations:
    """The rows of ``room`` that a class may move to, judged by everything except room and other pods.

    ``targets`` are the rows that are open to moved pods at all; ``markets`` and ``nodes`` are by row, if known.
    """

    def __init__(self, room: Room, targets: Mask, *, nodes: Sequence[Node | None], markets: Sequence[str]) -> None:
        self.room = room
        self.targets = targets
        self._nodes = nodes
        self._markets = markets
        self._memo: dict[object, Mask] = {}

    @classmethod
    def on_nodes(cls, situation: Situation, open_nodes: Iterable[str]) -> "Destinations":
        """Existing nodes; only ``open_nodes`` may take pods."""
        table = situation.room.table
        targets = np.zeros(len(table), dtype=np.bool_)
        targets[[table.row[name] for name in open_nodes]] = True
        nodes = [situation.cluster.nodes.get(name) for name in table.names]
        markets = ["" if node is None else node_market(node, situation.members.get(node.name)) for node in nodes]
        return cls(situation.room, targets, nodes=nodes, markets=markets)

    @classmethod
    def on_templates(cls, templates: Templates) -> "Destinations":
        """Machines that could be bought."""
        room = Room(Cluster(), Rows(templates.table, templates.min_gpus))
        markets = [offering.market for offering in templates.offerings]
        return cls(room, np.ones(len(templates.nodes), dtype=np.bool_), nodes=templates.nodes, markets=markets)

    def admitting(self, running_class: RunningClass) -> Mask:
        """Rows that may take pods of ``running_class``: open to them, and with the properties of ``Origin`` that they rely on."""
        mask = self.targets & self.room.static_mask(running_class.spec)
        if not admits_arch(running_class.spec):
            mask &= self._where(
                ("arch", running_class.origin.arch), lambda node, _: node.labels.get(ARCH, "amd64") == running_class.origin.arch
            )
        wanted = running_class.options.market
        if wanted and "any" not in wanted:
            mask &= self._where(("market", wanted), lambda _, row_market: row_market in wanted)
        if running_class.options.deadline is not None:
            # Whether spot is still safe for a deadline is decided when a pod starts; it is not moved onto spot later.
            mask &= self._where("deadline", lambda _, row_market: row_market != "spot")
        if running_class.origin.bare:
            mask &= self._where("bare", lambda node, _: is_bare(node))
        if running_class.origin.zone is not None:
            origin = running_class.origin
            mask &= self._where(("gang", origin.zone, origin.product), lambda node, _: same_place(node, origin))
        for key, value in running_class.origin.domain:
            codes, values = self.room.table.column(key)
            mask &= codes == (values.index(value) if value in values else -1)
        return mask

    def _where(self, key: object, holds: Callable[[Node, str], bool]) -> Mask:
        mask = self._memo.get(key)
        if mask is None:
            pairs = zip(self._nodes, self._markets, strict=True)
            mask = self._memo[key] = np.array([node is not None and holds(node, row_market) for node, row_market in pairs], dtype=np.bool_)
        return mask


def node_market(node: Node, member: Member | None) -> str:
    return market_of(node) or (member.offering.market if member is not None and member.offering is not None else "")


def same_place(node: Node, origin: Origin) -> bool:
    """Whether ``node`` has the zone and the GPU product of ``origin``: a gang keeps both."""
    return first_label(node, ZONE_LABELS) == origin.zone and own_product(node) == origin.product
