"""The pool of a node, and the offering that it was bought as."""

from collections.abc import Mapping, Set
from typing import NamedTuple

from gpuscaler.model.nodes import Node, first_label
from gpuscaler.model.pools import Offering, Policy, Pool
from gpuscaler.model.well_known import INSTANCE_TYPE_LABELS, MARKET_LABELS, POOL_LABEL, ZONE_LABELS


class Member(NamedTuple):
    """A node's pool, and the pool's most similar offering: None when no offering has its instance type."""

    pool: Pool
    offering: Offering | None


class Membership:
    """Finds the pools of nodes under one policy. Results are cached by the values of all labels that count."""

    def __init__(self, policy: Policy) -> None:
        self._by_name = {pool.name: pool for pool in policy.pools}
        self._by_type: dict[str, list[Pool]] = {}
        for pool in policy.pools:
            for instance_type in dict.fromkeys(offering.instance_type for offering in pool.offerings):
                self._by_type.setdefault(instance_type, []).append(pool)
        label_keys = {key for pool in policy.pools for key in pool.match_labels}
        self._keys = tuple(sorted(label_keys | {POOL_LABEL, *INSTANCE_TYPE_LABELS, *ZONE_LABELS, *MARKET_LABELS}))
        # A cluster has few different combinations of these values.
        self._alike: dict[tuple[object, ...], Member | None] = {}

    def of(self, nodes: Mapping[str, Node], unlisted: Set[str]) -> dict[str, Member]:
        """The pool of every node that has one, by name. ``unlisted`` nodes have none, regardless of their labels."""
        members: dict[str, Member] = {}
        for name, node in nodes.items():
            if name in unlisted:
                continue
            values = (node.bought, *map(node.labels.get, self._keys))
            if values not in self._alike:
                chosen = pool_of(node, self._by_name, self._by_type)
                self._alike[values] = Member(chosen, offering_of(node, chosen)) if chosen is not None else None
            member = self._alike[values]
            if member is not None:
                members[name] = member
        return members


def members(nodes: Mapping[str, Node], policy: Policy, unlisted: Set[str]) -> dict[str, Member]:
    """The pool of every node that has one: by its cloud's list, or without a list by labels and instance type.

    ``unlisted`` are nodes that are not known to be machines of the pools. They are not managed here, and belong to no pool: an instance
    type says nothing about who bought a machine. It is a hint only where there is no cloud that could be asked, as in plans from files.
    """
    return Membership(policy).of(nodes, unlisted)


def pool_of(node: Node, by_name: Mapping[str, Pool], by_type: Mapping[str, list[Pool]]) -> Pool | None:
    """The pool by the cloud's list; without a list by the pool label; without that, by matching labels and instance type."""
    if node.bought is not None:
        return by_name.get(node.bought.pool)
    named = node.labels.get(POOL_LABEL)
    if named is not None:
        return by_name.get(named)
    for pool in by_type.get(first_label(node, INSTANCE_TYPE_LABELS), ()):
        if all(node.labels.get(key) == value for key, value in pool.match_labels.items()):
            return pool
    return None


def offering_of(node: Node, pool: Pool) -> Offering | None:
    """The offering of ``pool`` with the node's instance type, preferably of its zone and market; the most expensive if several remain.

    The most expensive, so that a node with an unknown market never counts as cheaper than it is.
    """
    node_values = (first_label(node, INSTANCE_TYPE_LABELS), first_label(node, ZONE_LABELS))
    instance_type, zone = node_values if node.bought is None else node.bought[2:]
    market = market_of(node)
    same = [offering for offering in pool.offerings if offering.instance_type == instance_type]
    return max(same, key=lambda o: (o.zone == zone, o.market == market, o.price, o.key), default=None)


def market_of(node: Node) -> str:
    """The market a node was bought in, by its cloud's list or its capacity-type label; empty if neither is known."""
    if node.bought is not None:
        return node.bought.market
    for key, meanings in MARKET_LABELS.items():
        market = meanings.get(node.labels.get(key, ""))
        if market:
            return market
    return ""
