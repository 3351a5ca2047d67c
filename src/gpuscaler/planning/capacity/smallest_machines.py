"""How large a pod counts as where it is compared with the minimum of a machine."""

import math
from collections.abc import Iterable

import numpy as np

from gpuscaler.model.accelerators import count_accelerators, is_device
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Policy
from gpuscaler.model.table import NodeTable
from gpuscaler.planning.capacity.node_templates import MachineKind, Templates, admits_arch
from gpuscaler.planning.feasibility.min_gpus import PodSize, with_closing_tolerations
from gpuscaler.planning.feasibility.static import Rows

#: Specs whose results are kept from one plan to the next.
REMEMBERED = 10_000


class PodSizes:
    """Finds the sizes of pods where they are compared with the minimum of a machine (``min_gpus_per_pod``, ``closed``).

    A pod counts as the GPUs that it requests. If it fits some machines, but each of them has a minimum that is larger than that, it counts
    as the minimum of the smallest machine that it fits, so that minimums leave no pod without a place. In closed pools it counts as the
    smallest type of machine that it fits. Whether it fits depends on selectors, taints, architecture and size, and not on what can be
    bought now: a pod whose own pool has no capacity waits for that pool.
    """

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        #: The templates of all offerings, whether they can be bought now or not.
        self.templates = Templates(cluster, policy, frozenset())
        self._rows = Rows(NodeTable(self.templates.boundless))
        self._sizes: dict[str, PodSize] = {}

    def learn(self, specs: Iterable[PodSpec]) -> None:
        """Find the sizes of ``specs``, which must be as their pods have them: specs derived from them in a plan then have the same."""
        if len(self._sizes) > REMEMBERED:
            self._sizes.clear()
            self._rows = Rows(self._rows.table)
        for spec in specs:
            self(spec)

    def __call__(self, spec: PodSpec) -> PodSize:
        # Digests of derived specs have a suffix.
        digest = spec.digest.partition(":")[0]
        size = self._sizes.get(digest)
        if size is None:
            size = self._sizes[digest] = self._find(spec)
        return size

    def _find(self, spec: PodSpec) -> PodSize:
        requested = count_accelerators(spec.requests)
        kinds = self._fitting_kinds(spec)
        dollars: dict[str, float] = {}
        for kind in kinds:
            # Where the cloud chooses among types, the pod may come to any of them.
            size = self.templates.minimums.size(kind.pool.name, (self.templates.offerings[row].instance_type for row in kind.rows))
            if size:
                dollars[kind.pool.name] = min(size, dollars.get(kind.pool.name, math.inf))
        # From the smallest machine: its size and its minimum. A price would change the result from one plan to the next.
        least = [(kind.gpus, kind.pool.min_gpus_per_pod) for kind in kinds]
        if not any(map(is_device, spec.requests)) or not least or any(minimum <= requested for _, minimum in least):
            return PodSize(requested, dollars)
        return PodSize(min(least)[-1], dollars)

    def _fitting_kinds(self, spec: PodSpec) -> list[MachineKind]:
        templates = self.templates
        mask = self._rows.verdict(with_closing_tolerations(spec))[0] & templates.holds_one(spec)
        if not admits_arch(spec):
            mask &= ~templates.foreign_arch
        return [templates.kinds[index] for index in np.flatnonzero(templates.kinds_within(mask)) if templates.kinds[index].pool.max != 0]
