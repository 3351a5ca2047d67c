"""How many GPUs a pod counts as where it is compared with the minimum of a machine."""

from collections.abc import Iterable

import numpy as np

from gpuscaler.model.accelerators import count_accelerators, is_device
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Policy
from gpuscaler.model.table import NodeTable
from gpuscaler.planning.capacity.node_templates import MachineKind, Templates, admits_arch
from gpuscaler.planning.feasibility.min_gpus import with_closing_tolerations
from gpuscaler.planning.feasibility.static import Rows

#: Specs whose results are kept from one plan to the next.
REMEMBERED = 10_000


class PodSizes:
    """Counts the GPUs of a pod where they are compared with the minimum of a machine (``min_gpus_per_pod``, ``closed``).

    A pod counts as the GPUs that it requests. If it fits some machines, but each of them has a minimum that is larger than that, it counts
    as the minimum of the smallest machine that it fits, so that minimums leave no pod without a place. Whether it fits depends on
    selectors, taints, architecture and size, and not on what can be bought now: a pod whose own pool has no capacity waits for that pool.
    """

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        #: The templates of all offerings, whether they can be bought now or not.
        self.templates = Templates(cluster, policy, frozenset())
        self._rows = Rows(NodeTable(self.templates.boundless))
        self._counts: dict[str, int] = {}

    def learn(self, specs: Iterable[PodSpec]) -> None:
        """Count ``specs``, which must be as their pods have them: specs derived from them in a plan then count the same."""
        if len(self._counts) > REMEMBERED:
            self._counts.clear()
            self._rows = Rows(self._rows.table)
        for spec in specs:
            self(spec)

    def __call__(self, spec: PodSpec) -> int:
        # Digests of derived specs have a suffix.
        digest = spec.digest.partition(":")[0]
        count = self._counts.get(digest)
        if count is None:
            count = self._counts[digest] = self._count(spec)
        return count

    def _count(self, spec: PodSpec) -> int:
        requested = count_accelerators(spec.requests)
        if not any(map(is_device, spec.requests)):
            return requested
        # From the smallest machine: its size and its minimum. A price would change the result from one plan to the next.
        fitting = [(kind.gpus, self.templates.minimums.on(kind.pool.name, kind.gpus).least) for kind in self._fitting_kinds(spec)]
        if not fitting or any(least <= requested for _, least in fitting):
            return requested
        return min(fitting)[-1]

    def _fitting_kinds(self, spec: PodSpec) -> list[MachineKind]:
        templates = self.templates
        mask = self._rows.verdict(with_closing_tolerations(spec))[0] & templates.holds_one(spec)
        if not admits_arch(spec):
            mask &= ~templates.foreign_arch
        return [templates.kinds[index] for index in np.flatnonzero(templates.kinds_within(mask)) if templates.kinds[index].pool.max != 0]
