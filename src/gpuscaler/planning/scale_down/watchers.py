"""Whose rules look at a running pod from outside: they decide whether it may be moved without a look at every other pod."""

from collections.abc import Iterable, Mapping

from gpuscaler.model.cluster import Cluster, PeerKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.planning.filters.peers import Query
from gpuscaler.planning.filters.spread import hard
from gpuscaler.planning.room import GPU_MILLI
from gpuscaler.planning.scale_down.running import RunningClass


class Watchers:
    """Anti-affinity of all pods, and affinity and hard spread of pods that may move and of pending ones."""

    def __init__(self, cluster: Cluster, running: Iterable[RunningClass]) -> None:
        self._cluster = cluster
        bound = {user.spec.digest: user.spec for user in cluster.users.values() if user.spec.anti_affinity}
        pending = {spec.digest: spec for bucket in cluster.unbound.values() for spec in (bucket.sample.spec,)}
        self._repelling = indexed(Query.of(term) for spec in (bound | pending).values() for term in spec.anti_affinity)
        self._anchoring = indexed(query for spec in pending.values() for query in anchors(spec))
        self._moving = indexed(query for one in running for query in anchors(one.spec))

    def mind(self, one: RunningClass) -> bool:
        """Whether some pod's own place may depend on where pods of ``one`` run, or theirs on it."""
        return self._any(self._repelling, one) or self._any(self._moving, one)

    def count_on(self, one: RunningClass) -> bool:
        """Whether where pods of ``one`` run decides where pending pods may go."""
        return self._any(self._anchoring, one)

    def _any(self, index: Mapping[tuple[str, str] | None, list[Query]], one: RunningClass) -> bool:
        if not index:
            return False
        peer = PeerKey(one.spec.namespace, one.labels, False)
        queries = (query for key in (None, *one.labels.items()) for query in index.get(key, ()))
        return any(query.matches(peer, self._cluster.namespaces) for query in queries)


def anchors(spec: PodSpec) -> list[Query]:
    """What a pod must be near to, or is counted with."""
    return [Query.of(term) for term in spec.affinity] + [Query(rule.selector, (spec.namespace,)) for rule in hard(spec)]


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
    return not asks and not watchers.mind(one)
