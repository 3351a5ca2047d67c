"""Places pods as if some nodes were gone, as Karpenter simulates it.

Source: sigs.k8s.io/karpenter v1.15.0, ``SimulateScheduling`` of ``pkg/controllers/disruption/helpers.go``: the pods of the nodes to remove,
pending pods, and pods on nodes being drained are packed as in provisioning, initialised nodes first. If a pod would move to a node that has
not been initialised, the removal is rejected.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from gpuscaler.model.pods import PodSpec
from gpuscaler.model.table import Mask
from gpuscaler.simulation.policies.peers.books import add_upcoming
from gpuscaler.simulation.policies.peers.claims import OfferingTable, PackingResult, pack
from gpuscaler.simulation.world.autoscaler import ObservedMachine, Pending, View


class Trial:
    """The cluster at one moment, to try removals on.

    ``available`` says which offerings of each table may be asked. ``closed`` nodes take no pods: they changed less than
    ``consolidateAfter`` ago. (In reality pending pods may go there; only a gang's pods can wait for room that is open.)
    """

    def __init__(self, view: View, tables: Sequence[OfferingTable], *, available: Sequence[Mask], closed: Collection[str] = ()) -> None:
        self._tables = tables
        self._available = available
        self._room = view.room()
        self._coming: set[str] = set()
        self._left = {table.pool.name: table.pool.max for table in tables}
        going: dict[str, PodSpec] = {}
        for observed in view.machines():
            limit = self._left[observed.offering.pool]
            self._left[observed.offering.pool] = None if limit is None else limit - 1
            if observed.closed:
                going.update(observed.pods)
            elif observed.ready is None:
                add_upcoming(self._room, observed)
                self._coming.add(observed.machine.id)
        for name in closed:
            self._room.close(name)
        self._others = [*view.pending(), *as_pending(going)]
        #: The first node that takes a pod of each specification.
        self._first: dict[str, str | None] = {}

    def without(self, nodes: Sequence[ObservedMachine]) -> PackingResult | None:
        """Place all pods with ``nodes`` gone; None if some of their pods find no place, or none that is open yet."""
        room = self._room.copy()
        pods: dict[str, PodSpec] = {}
        for observed in nodes:
            room.close(observed.node)
            pods.update(observed.pods)
        waiting = [*self._others, *as_pending(pods)]
        packed = pack(waiting, room, self._tables, available=self._available, left_in_pool=dict(self._left))
        if any(pod in pods for pod in packed.unplaced) or any(packed.placed.get(pod) in self._coming for pod in pods):
            return None
        return packed

    def may_succeed_without(self, observed: ObservedMachine, *, replaceable: bool) -> bool:
        """Whether a trial without this node can succeed, judged by its pods one by one: a cheap test before an expensive one.

        Pods that fit on no other node would have to fit together on one cheaper machine, if the node is ``replaceable`` by one.
        """
        stranded = [spec for spec in observed.pods.values() if not self._fits_elsewhere(spec, observed.node)]
        return not stranded or (replaceable and self._fit_cheaper(stranded, observed.offering.price))

    def _fits_elsewhere(self, spec: PodSpec, node: str) -> bool:
        if spec.digest not in self._first:
            self._first[spec.digest] = self._room.first(spec)
        first = self._first[spec.digest]
        if first != node:
            return first is not None
        self._room.close(node)
        other = self._room.first(spec)
        self._room.open(node)
        return other is not None

    def _fit_cheaper(self, specs: Sequence[PodSpec], price: float) -> bool:
        """Whether some offering cheaper than ``price`` takes pods of all ``specs`` together."""
        for table, available in zip(self._tables, self._available, strict=True):
            requests = [table.request(spec) for spec in specs]
            satisfiable = [request for request in requests if request is not None]
            if len(satisfiable) == len(requests):
                fitting = available & (table.prices < price) & (table.allocatable >= np.sum(satisfiable, axis=0)).all(axis=1)
                for spec in {spec.digest: spec for spec in specs}.values():
                    fitting = fitting & table.admitting(spec)
                if fitting.any():
                    return True
        return False


def as_pending(pods: Mapping[str, PodSpec]) -> Iterable[Pending]:
    """Running pods as if they were pending, by specification."""
    groups: dict[str, list[str]] = defaultdict(list)
    specs = {spec.digest: spec for spec in pods.values()}
    for pod, spec in pods.items():
        groups[spec.digest].append(pod)
    return [Pending(specs[digest], "", tuple(names), 0.0, 0.0) for digest, names in groups.items()]
