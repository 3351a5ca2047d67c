"""Whose rules look at a running pod from outside: they decide whether it may be moved without a look at every other pod."""

from collections.abc import Iterable, Mapping

from gpuscaler.model.cluster import Cluster, PeerKey
from gpuscaler.planning.filters.peers import Query
from gpuscaler.planning.filters.spread import hard
from gpuscaler.planning.room import GPU_MILLI
from gpuscaler.planning.scale_down.running import RunningClass


class Watchers:
    """Anti-affinity of bound and pending pods, and affinity and hard spread of pending ones."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        bound = {user.spec.digest: user.spec for user in cluster.users.values() if user.spec.anti_affinity}
        pending = {spec.digest: spec for bucket in cluster.unbound.values() for spec in (bucket.sample.spec,)}
        self._repelling = indexed(Query.of(term) for spec in (bound | pending).values() for term in spec.anti_affinity)
        attracting = [Query.of(term) for spec in pending.values() for term in spec.affinity]
        spreading = [Query(rule.selector, (spec.namespace,)) for spec in pending.values() for rule in hard(spec)]
        self._anchoring = indexed(attracting + spreading)

    def repel(self, one: RunningClass) -> bool:
        """Whether some pod may refuse to share a domain with pods of ``one``."""
        return self._any(self._repelling, one)

    def count_on(self, one: RunningClass) -> bool:
        """Whether where pods of ``one`` run decides where pending pods may go."""
        return self._any(self._anchoring, one)

    def _any(self, index: Mapping[tuple[str, str] | None, list[Query]], one: RunningClass) -> bool:
        if not index:
            return False
        peer = PeerKey(one.spec.namespace, one.labels, False)
        queries = (query for key in (None, *one.labels.items()) for query in index.get(key, ()))
        return any(query.matches(peer, self._cluster.namespaces) for query in queries)


def indexed(queries: Iterable[Query]) -> dict[tuple[str, str] | None, list[Query]]:
    """Queries by a label that a pod must have to match; by None where there is no such label."""
    index: dict[tuple[str, str] | None, list[Query]] = {}
    for query in dict.fromkeys(queries):
        if query.selector is not None:
            needed = next((r for r in query.selector.requirements if r.operator == "In"), None)
            for key in [None] if needed is None else [(needed.key, value) for value in dict.fromkeys(needed.values)]:
                index.setdefault(key, []).append(query)
    return index


def stands_alone(one: RunningClass, watchers: Watchers) -> bool:
    """Whether only resources and properties of nodes decide where pods of ``one`` may go, so that any number can be moved at once."""
    spec = one.spec
    asks = spec.affinity or spec.anti_affinity or hard(spec) or spec.host_ports or spec.volumes or spec.requests.get(GPU_MILLI)
    return not asks and not watchers.repel(one)
