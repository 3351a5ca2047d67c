"""How pods of each class may be moved, given their own affinity and spread rules and the rules of other pods about them.

Most rules concern zones, or the host and the pod's own siblings. Pods with such rules can still be moved in bulk: a pod that stays in its
zone changes no zone's count, and siblings that keep apart are modelled as a resource of which every machine has one. Only the rest, such
as affinity on one machine, depends on the order of moves and is checked move by move.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuscaler.model.accelerators import GPU_MILLI
from gpuscaler.model.cluster import Cluster, PeerKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.well_known import HOSTNAME
from gpuscaler.planning.feasibility.pods.peers import Query
from gpuscaler.planning.feasibility.pods.spread import hard
from gpuscaler.planning.scale_down.pod_classes import RunningClass


class PeerRule(NamedTuple):
    """One rule: it belongs to pods of ``digest`` and selects pods that ``query`` matches, per value of the node label ``key``.

    ``counts_nodes``: only pods on certain nodes count, so that even a move within one domain can change the count.
    """

    query: Query
    key: str
    digest: str
    repels: bool
    counts_nodes: bool
    pending: bool


@dataclass(frozen=True)
class MoveRules:
    """How pods of a class may be moved.

    ``exact``: one move at a time. ``one_per_machine``: a machine takes at most one pod of the class. ``keys``: node labels that must keep
    their value. ``needed``: pending pods of this plan rely on the place of these pods.
    """

    exact: bool = False
    one_per_machine: bool = False
    keys: tuple[str, ...] = ()
    needed: bool = False


class PeerRuleIndex:
    """The rules of all pods that matter for moves, indexed by a label of the pods that they select."""

    def __init__(self, cluster: Cluster, running: Iterable[RunningClass]) -> None:
        self._cluster = cluster
        self._index: dict[tuple[str, str] | None, list[PeerRule]] = {}
        pending = {bucket.sample.spec.digest: bucket.sample.spec for bucket in cluster.unbound.values()}
        moving = {running_class.spec.digest: running_class.spec for running_class in running}
        staying = {digest: user.spec for digest, user in cluster.users.items() if digest not in moving}
        peer_rules = [peer_rule for spec in moving.values() for peer_rule in rules_of(spec, pending=False)]
        peer_rules += [peer_rule for spec in staying.values() for peer_rule in rules_of(spec, pending=False) if peer_rule.repels]
        peer_rules += [peer_rule for spec in pending.values() for peer_rule in rules_of(spec, pending=True)]
        for peer_rule in dict.fromkeys(peer_rules):
            for label in labels_needed(peer_rule.query):
                self._index.setdefault(label, []).append(peer_rule)

    def over(self, running_class: RunningClass) -> list[PeerRule]:
        """The rules that select pods of ``running_class``."""
        if not self._index:
            return []
        peer = PeerKey(running_class.spec.namespace, running_class.labels, False)
        peer_rules = (peer_rule for label in (None, *running_class.labels.items()) for peer_rule in self._index.get(label, ()))
        return [peer_rule for peer_rule in peer_rules if peer_rule.query.matches(peer, self._cluster.namespaces)]


def rules_of(spec: PodSpec, *, pending: bool) -> list[PeerRule]:
    restricted = bool(spec.node_selector or spec.node_affinity)
    peer_rules = [PeerRule(Query.of(term), term.topology_key, spec.digest, True, False, pending) for term in spec.anti_affinity]
    peer_rules += [PeerRule(Query.of(term), term.topology_key, spec.digest, False, False, pending) for term in spec.affinity]
    for rule in hard(spec):
        query = Query(rule.selector, (spec.namespace,))
        peer_rules.append(PeerRule(query, rule.topology_key, spec.digest, False, restricted or rule.honor_taints, pending))
    return peer_rules


def labels_needed(query: Query) -> list[tuple[str, str] | None]:
    """Labels of which a pod must have at least one to be matched; ``[None]`` if there are no such labels."""
    if query.selector is None:
        return []
    needed = next((r for r in query.selector.requirements if r.operator == "In"), None)
    return [None] if needed is None else [(needed.key, value) for value in dict.fromkeys(needed.values)]


def move_rules(
    classes: Sequence[RunningClass], rule_index: PeerRuleIndex, displaced: Collection[RunningClass] = ()
) -> Mapping[RunningClass, MoveRules]:
    """How each of ``classes`` may be moved. Classes with the same spec are treated alike, since their rules select each other.

    ``displaced`` are classes with a pod that does not count in the domain that it runs in.
    """
    over = {running_class: rule_index.over(running_class) for running_class in classes}
    exact = {
        running_class.spec.digest
        for running_class in classes
        if running_class in displaced or depends_on_order(running_class, over[running_class])
    }
    # If moves within a domain can change a count, the pods with the rule that counts must be moved exactly as well.
    exact |= {
        peer_rule.digest
        for running_class in classes
        for peer_rule in over[running_class]
        if peer_rule.counts_nodes and peer_rule.digest != running_class.spec.digest
    }
    rules_by_class = {}
    for running_class in classes:
        foreign = {peer_rule.key for peer_rule in over[running_class] if peer_rule.digest != running_class.spec.digest}
        own = {peer_rule.key for peer_rule in rules_of(running_class.spec, pending=False)}
        is_exact = running_class.spec.digest in exact
        rules_by_class[running_class] = MoveRules(
            exact=is_exact,
            one_per_machine=not is_exact and HOSTNAME in own,
            keys=tuple(sorted((foreign if is_exact else own | foreign) - {HOSTNAME})),
            needed=any(w.pending and not w.repels and (w.key == HOSTNAME or w.counts_nodes) for w in over[running_class]),
        )
    return rules_by_class


def depends_on_order(running_class: RunningClass, over: Sequence[PeerRule]) -> bool:
    """Whether a move of ``running_class`` can make another move impossible in a way that zones and room do not describe."""
    spec = running_class.spec
    if spec.host_ports or spec.volumes or spec.requests.get(GPU_MILLI):
        return True
    if any(peer_rule.key == HOSTNAME and not peer_rule.repels for peer_rule in rules_of(spec, pending=False)):
        return True
    if any(peer_rule.digest != spec.digest and (peer_rule.key == HOSTNAME or peer_rule.counts_nodes) for peer_rule in over):
        return True
    # Siblings can be modelled as one resource only if every such term selects every one of them.
    own_host = {peer_rule for peer_rule in rules_of(spec, pending=False) if peer_rule.key == HOSTNAME}
    return not own_host <= set(over)
