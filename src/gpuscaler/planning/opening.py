"""Which of the machines that are ready and closed open next.

Each machine that opens has kube-scheduler try all waiting pods, and those whose own machine is still closed lose their nominations. So
machines open one after the other.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cached_property

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Pod
from gpuscaler.planning.room import Room
from gpuscaler.planning.state.ledger import NOMINATING, OPEN, Coming, Ledger, Promise
from gpuscaler.planning.yielding import (
    burden,
    has_rules,
    in_line,
    is_counted,
    may_come,
    over_zones,
    rivals,
    sharing,
    strays,
    takers,
)

#: The next machine opens when the pods of those before have come, or after ``HOLD``; a group of so many that ``TURNS`` are enough for all.
HOLD_SECONDS, TURNS = 3.0, 8
#: Of so many groups of pools that no waiting pod may choose between machines open in one moment, where they open together.
GROUPS = 16
#: Of those that should open alone, one in so many opens, or the oldest.
LONG = 4
#: A machine whose pods run elsewhere by now opens for nobody after so long: a plan may have others for it, whose room was taken.
UNWANTED_SECONDS = 3.0
#: A machine opens when its nominations have stood for so long, and no pod was tried.
CALM_SECONDS = 0.3
#: So long those that are called wait for that, or ``TRIES`` times as long as it takes to see what was written.
RESTLESS_SECONDS, TRIES = 5.0, 4
#: So long a machine that is ready waits for others whose pods come before its own, or that its own pods spread with.
YIELD_SECONDS = 120.0
#: So long others that became ready later open before it, whose pods are smaller.
OVERTAKEN_SECONDS = 60.0


def waiting(pods: tuple[str, ...], cluster: Cluster) -> Iterator[Pod]:
    """Those of ``pods`` that still wait for a node."""
    for key in pods:
        pod = cluster.pods.get(key)
        if pod is not None and not (pod.node_name or pod.finished or pod.deleted):
            yield pod


def calm(promise: Promise, now: float) -> float:
    """How long nominations must stand: what is seen is as old as they took to show, be it that the API server is slow."""
    shown = promise.stood or now
    return max(CALM_SECONDS, shown - promise.nominated if promise.nominated else 0.0)


def is_restless(promise: Promise, now: float) -> bool:
    """Whether a machine that is called has waited for calm for too long."""
    return bool(promise.called) and now >= promise.called + max(RESTLESS_SECONDS, TRIES * calm(promise, now))


class Line:
    """The machines of ``book`` that are closed, in line to open, as ``cluster`` is at ``now``."""

    def __init__(self, book: Ledger, cluster: Cluster, now: float) -> None:
        self._book, self._cluster, self._now = book, cluster, now
        closed = (one for one in book.promises if one.step == NOMINATING)
        self._closed = {one.node: one for one in sorted(closed, key=lambda one: (one.since, one.node))}
        self._in_vain: dict[str, bool] = {}

    def _waiting(self, promise: Promise | Coming) -> list[Pod]:
        return list(waiting(promise.pods, self._cluster))

    def first(self) -> list[Promise]:
        """Those that open next, in one moment.

        Of each group of pools that is the first, unless the pods of those before are still to come, or others' would take its room. The
        oldest of these opens alone where pods that wait for others might take the room of its own: whatever opens beside it has all of them
        tried. In a long line a quarter of those open at once. Once machines are called nobody joins them, or their nominations would never
        stand for long enough; those whose pods could not come any more by now are sent back.
        """
        wanted = {name: one for name, one in self._closed.items() if self._waiting(one)}
        # Nodes that have come since may count for what their pods depend on.
        called = [wanted[name] for name in self._not_in_vain([name for name, one in wanted.items() if one.called])]
        if not all(is_restless(one, self._now) for one in called):
            return called
        heads = [[name] for name, one in self._closed.items() if name not in wanted and self._is_unwanted(one)]
        heads += self._heads({name: one for name, one in wanted.items() if not one.called})
        heads.sort(key=lambda names: min(self._closed[name].since for name in names))
        machines: list[Coming | Promise] = [*self._book.coming, *self._book.promises]
        pods = [pod for one in machines for pod in self._waiting(one)] if len(heads) > 1 else []
        alone = [names for names in heads if any(self._may_be_taken(name, pods) for name in names)]
        first = (
            alone[: max(1, len(alone) // LONG)]
            if heads and heads[0] in alone
            else [names for names in heads if names not in alone][:GROUPS]
        )
        return [*called, *(self._closed[name] for names in first for name in names)]

    def _heads(self, wanted: Mapping[str, Promise]) -> Iterator[list[str]]:
        """Of each group of pools those that open next."""
        group_of, rivals_of = self._groups(), self._rivals_of()
        by_group: dict[str, list[str]] = {}
        for name, one in wanted.items():
            by_group.setdefault(group_of[one.offering[0]], []).append(name)
        busy = {group_of[one.offering[0]] for one in self._book.promises if self._is_landing(one)}
        for names in [names for group, names in by_group.items() if group not in busy]:
            line = in_line(rivals_of, sorted(names, key=self._rank), self._burden)
            useful = frozenset(self._not_in_vain([name for some in line for name in some]))
            line = [some for some in line if not useful.isdisjoint(some)]
            if line:
                yield [name for some in line[: max(1, len(names) // TURNS)] for name in some]

    def _may_be_taken(self, name: str, pods: Iterable[Pod]) -> bool:
        """Whether pods that wait for other machines might take the room of those that wait for this one."""
        mine, node = self._waiting(self._closed[name]), self._cluster.nodes.get(name)
        return bool(mine) and node is not None and takers(pods, mine, node, self._cluster)

    def _is_unwanted(self, promise: Promise) -> bool:
        """Whether no plan had anybody for a machine that nobody waits for."""
        return bool(promise.called) or self._now >= promise.since + UNWANTED_SECONDS

    def _rank(self, name: str) -> tuple[float, tuple[int, int], float]:
        """Small pods first, who would take the room of large ones if those came first; but nobody is overtaken for long."""
        since = self._closed[name].since
        late = self._now >= since + OVERTAKEN_SECONDS
        return (since, (0, 0), since) if late else (math.inf, self._burden(name), since)

    def _burden(self, name: str) -> tuple[int, int]:
        return burden(self._waiting(self._closed[name]))

    def _groups(self) -> Mapping[str, str]:
        """The first of those pools that each pool shares waiting pods with."""
        pods: dict[str, list[Pod]] = {}
        for one in self._book.promises:
            pods.setdefault(one.offering[0], []).extend(self._waiting(one))
        kinds = {one.offering: self._cluster.nodes[one.node] for one in self._book.promises if one.node in self._cluster.nodes}
        return sharing(pods, [(key[0], node) for key, node in kinds.items()])

    def _rivals_of(self) -> Mapping[str, Set[str]]:
        """For each machine in line, by node, for which others it waits, for their pods would take its own pods' room."""
        pods = {one.id: list(waiting(one.pods, self._cluster)) for one in self._book.coming if not one.ready}
        pods |= {one.node: self._waiting(one) for one in self._book.promises if one.step in (NOMINATING, OPEN)}
        highest = max((pod.spec.priority for some in pods.values() for pod in some), default=0)
        far, tempting = self._far(), self._tempting()
        found: dict[str, Set[str]] = {}
        for name, promise in self._closed.items():
            node = self._cluster.nodes.get(name)
            if node is None or self._now >= promise.since + YIELD_SECONDS:
                found[name] = frozenset()
                continue
            outranked = any(pod.spec.priority < highest for pod in pods[name])
            others = {other: some for other, some in pods.items() if other != name} if outranked else {}
            ahead = rivals(pods[name], node, others, self._cluster) if others else frozenset()
            uncounted = (ids for zone, pod, ids in far if strays(pod, zone, pods[name], node, self._cluster))
            found[name] = frozenset(ahead).union(tempting.get(name, frozenset()), *uncounted)
        return found

    def _far(self) -> list[tuple[str, Pod, Set[str]]]:
        """Zones that kube-scheduler does not count yet, each with a pod of every kind that spreads and for which machines these wait."""
        found: dict[tuple[str, str], tuple[Pod, set[str]]] = {}
        for one in self._book.coming:
            for pod in self._waiting(one) if one.node not in self._cluster.nodes else ():
                if over_zones(pod.spec):
                    found.setdefault((one.key[3], pod.spec.digest), (pod, set()))[1].add(one.id)
        nodes = self._cluster.nodes.values()
        return [(zone, pod, ids) for (zone, _), (pod, ids) in found.items() if zone and not is_counted(zone, pod.spec, nodes)]

    def _tempting(self) -> Mapping[str, Set[str]]:
        """Machines with room to spare for pods that spread over zones and wait for one of another zone, and which others open before.

        Such pods take that room as soon as they are even there, and then others, for which machines of this zone wait, are not. So those of
        this zone that have no such room come first, and machines that these pods wait for, once they are of use to them.
        """
        machines: dict[str, Coming | Promise] = {one.id: one for one in self._book.coming if one.granted and not one.ready} | self._closed
        spread: dict[str, tuple[str, list[Pod]]] = {}
        for name, one in machines.items():
            zone = one.key[3] if isinstance(one, Coming) else one.offering[3]
            pods = [pod for pod in self._waiting(one) if zone and over_zones(pod.spec)]
            if pods:
                spread[name] = zone, pods
        if len({zone for zone, _ in spread.values()}) < 2:
            return {}
        kinds = {(zone, pod.namespace, pod.spec.digest): pod for zone, pods in spread.values() for pod in pods}
        tempted: dict[str, list[Pod]] = {}
        for name, one in self._closed.items():
            node, mine = self._cluster.nodes.get(name), self._waiting(one)
            some = [pod for (zone, *_), pod in kinds.items() if node and mine and strays(pod, zone, mine, node, self._cluster)]
            if some:
                tempted[name] = some

        def comes_first(other: str, name: str) -> bool:
            zone, pods = spread[other]
            same = zone == self._closed[name].offering[3]
            if other in tempted or not (same or other in self._closed):
                return False
            alike = ((pod.namespace == one.namespace, pod.spec.digest == one.spec.digest) for pod in pods for one in tempted[name])
            return any(near and equal != same for near, equal in alike) and not (other in self._closed and self._is_in_vain(other))

        return {name: {other for other in spread if comes_first(other, name)} for name in tempted}

    def _not_in_vain(self, line: list[str]) -> list[str]:
        """Of machines in ``line``, by node, those whose pods may come now; others wait for pods that theirs spread with or must be near.

        All of them, where nobody is awaited, or for too long.
        """
        if not any(map(self._is_in_vain, line)):
            return line
        opening = [one.pods for name, one in self._closed.items() if not self._is_in_vain(name)]
        opening += [one.pods for one in self._book.coming if not one.ready]
        spaces = {pod.namespace for pods in opening for pod in waiting(pods, self._cluster)}
        late = {name for name in line if self._now >= self._closed[name].since + YIELD_SECONDS}
        return [name for name in line if name in late or not self._is_in_vain(name) or self._space(name) not in spaces]

    def _is_in_vain(self, name: str) -> bool:
        """Whether none of the pods of a closed machine might come to it now, found once a look: several ask."""
        if name not in self._in_vain:
            pods = self._waiting(self._closed[name])
            ruled = name in self._cluster.nodes and any(map(has_rules, pods))
            self._in_vain[name] = ruled and not any(may_come(pod, name, self._room) for pod in pods)
        return self._in_vain[name]

    def _space(self, name: str) -> str:
        return next((pod.namespace for pod in self._waiting(self._closed[name])), "")

    def awaits_others(self, pod: Pod, node: str) -> bool:
        """Whether a pod could not come to ``node``, were that open, before others have theirs, whose machines are still to open."""
        if not has_rules(pod) or node not in self._cluster.nodes:
            return False
        closed = [one.pods for name, one in self._closed.items() if name != node]
        closed += [one.pods for one in self._book.coming if one.node != node]
        if all(other.namespace != pod.namespace for pods in closed for other in waiting(pods, self._cluster)):
            return False
        return not may_come(pod, node, self._room)

    @cached_property
    def _room(self) -> Room:
        """The room of the cluster as it is, which few looks need."""
        return Room.of(self._cluster)

    def _is_landing(self, promise: Promise) -> bool:
        """Whether a machine has just opened, and its pods are about to come."""
        if promise.step == NOMINATING:
            return self._now < promise.lifted + HOLD_SECONDS
        return promise.step == OPEN and self._now < promise.since + HOLD_SECONDS and bool(self._waiting(promise))
