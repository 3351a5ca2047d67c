"""Where running pods could move, by everything but room and other pods."""

from collections.abc import Callable, Iterable

import numpy as np

from gpuscaler.model.nodes import Node
from gpuscaler.model.table import Mask
from gpuscaler.planning.gangs import PRODUCT_LABELS
from gpuscaler.planning.membership import ZONE_LABELS, Member, first_label, market_of
from gpuscaler.planning.scale_down.running import Origin, RunningClass
from gpuscaler.planning.scale_down.situation import Situation
from gpuscaler.planning.templates import ARCH, admits_arch


class Homes:
    """Which existing nodes may become the new home of a class, by everything but room and other pods."""

    def __init__(self, situation: Situation, targets: Iterable[str]) -> None:
        self.room = situation.room
        table = situation.room.table
        self.targets = np.zeros(len(table), dtype=np.bool_)
        self.targets[[table.row[name] for name in sorted(targets)]] = True
        nodes = situation.cluster.nodes
        self._nodes = [nodes.get(name) for name in table.names]
        self._members = [situation.members.get(name) for name in table.names]
        self._memo: dict[object, Mask] = {}

    def admitting(self, one: RunningClass) -> Mask:
        """Rows that may take pods of ``one``: open to them, and with what they had where they are."""
        mask = self.targets & self.room.static_mask(one.spec)
        if not admits_arch(one.spec):
            mask &= self._where(("arch", one.origin.arch), lambda node, _: node.labels.get(ARCH, "amd64") == one.origin.arch)
        if one.options.market and "any" not in one.options.market:
            allowed = one.options.market
            mask &= self._where(("market", allowed), lambda node, member: market(node, member) in allowed)
        if one.options.deadline is not None:
            # Whether spot is still safe for a deadline is decided when a pod starts; it is not moved onto spot later.
            mask &= self._where("deadline", lambda node, member: market(node, member) != "spot")
        if one.origin.zone is not None:
            origin = one.origin
            mask &= self._where(("gang", origin), lambda node, _: same_place(node, origin))
        for key, value in one.origin.domain:
            codes, values = self.room.table.column(key)
            mask &= codes == (values.index(value) if value in values else -1)
        return mask

    def _where(self, key: object, holds: Callable[[Node, Member | None], bool]) -> Mask:
        mask = self._memo.get(key)
        if mask is None:
            pairs = zip(self._nodes, self._members, strict=True)
            mask = self._memo[key] = np.array([node is not None and holds(node, member) for node, member in pairs], dtype=np.bool_)
        return mask


def market(node: Node, member: Member | None) -> str:
    return market_of(node) or (member.offering.market if member is not None and member.offering is not None else "")


def same_place(node: Node, origin: Origin) -> bool:
    """A gang stays in its zone and on its GPU product."""
    return first_label(node, ZONE_LABELS) == origin.zone and first_label(node, PRODUCT_LABELS) == origin.product
