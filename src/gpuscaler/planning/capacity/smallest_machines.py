"""How large a pod counts as where it is compared with the minimum of a machine."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from gpuscaler.model.accelerators import count_accelerators, is_device
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Policy
from gpuscaler.model.table import NodeTable
from gpuscaler.planning.capacity.node_templates import MachineKind, Templates, admits_arch
from gpuscaler.planning.feasibility.min_gpus import PodSize, price_of_type, with_closing_tolerations
from gpuscaler.planning.feasibility.static import Rows

#: Specs whose results are kept from one plan to the next.
REMEMBERED = 10_000


class FittingKinds:
    """Finds the kinds of machines that hold a pod, whether they can be bought now or not.

    Selectors, taints, architecture and size decide; pools with a maximum of 0 are left out.
    """

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        #: The templates of all offerings.
        self.templates = Templates(cluster, policy, frozenset())
        self._rows = Rows(NodeTable(self.templates.boundless))
        self._known: dict[str, Sequence[MachineKind]] = {}

    def of(self, spec: PodSpec) -> Sequence[MachineKind]:
        """The kinds that hold a pod of ``spec``, which must be as the pod has it."""
        kinds = self._known.get(spec.digest)
        if kinds is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
                self._rows = Rows(self._rows.table)
            kinds = self._known[spec.digest] = self._fitting_kinds(spec)
        return kinds

    def _fitting_kinds(self, spec: PodSpec) -> list[MachineKind]:
        templates = self.templates
        mask = self._rows.verdict(with_closing_tolerations(spec))[0] & templates.holds_one(spec)
        if not admits_arch(spec):
            mask &= ~templates.foreign_arch
        return [templates.kinds[index] for index in np.flatnonzero(templates.kinds_within(mask)) if templates.kinds[index].pool.max != 0]


class PodSizes:
    """The sizes of pods where they are compared with the minimum of a machine (``min_gpus_per_pod``, ``closed``).

    A pod counts as the GPUs that it requests. If it fits some machines, but each of them has a minimum that is larger than that, it counts
    as the minimum of the smallest machine that it fits, so that minimums leave no pod without a place: a pod whose own pool has no capacity
    waits for that pool. In a closed pool a pod counts as the cheapest machine that it fits, of those that are not ``blocked``.
    """

    def __init__(self, fitting: FittingKinds, blocked: frozenset[OfferingKey]) -> None:
        self.blocked = blocked
        self._fitting = fitting
        self._sizes: dict[str, PodSize] = {}

    def learn(self, specs: Iterable[PodSpec]) -> None:
        """Find the sizes of ``specs``, which must be as their pods have them: specs derived from them in a plan then have the same."""
        if len(self._sizes) > REMEMBERED:
            self._sizes.clear()
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
        kinds = self._fitting.of(spec)
        cheapest: dict[str, tuple[bool, float]] = {}
        for kind in kinds:
            members = kind.members or (kind.offering,)
            price = kind.price or max(price_of_type(kind.pool, offering.instance_type, offering.gpus) for offering in members)
            # A kind that cannot be bought now counts only if no other can.
            blocked = all(offering.key in self.blocked for offering in members)
            cheapest[kind.pool.name] = min((blocked, price), cheapest.get(kind.pool.name, (True, math.inf)))
        dollars = {pool: price for pool, (_, price) in cheapest.items()}
        # From the smallest machine: its size and its minimum. A price would change the result from one plan to the next.
        least = [(kind.gpus, kind.pool.min_gpus_per_pod) for kind in kinds]
        if not any(map(is_device, spec.requests)) or not least or any(minimum <= requested for _, minimum in least):
            return PodSize(requested, dollars)
        return PodSize(min(least)[-1], dollars)
