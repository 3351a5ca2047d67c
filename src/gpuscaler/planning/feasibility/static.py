"""Filter results for rows of a node table that do not depend on running pods: computed once per spec, and shared between rooms."""

from collections.abc import Iterator, Sequence

import numpy as np

from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.table import Mask, NodeTable, pack_parts
from gpuscaler.model.table import merge_tables as tables_merged
from gpuscaler.planning.feasibility import Passes
from gpuscaler.planning.feasibility.min_gpus import MIN_GPUS, MinGpus, joined, with_closing_tolerations
from gpuscaler.planning.feasibility.nodes import NodeMasks
from gpuscaler.planning.feasibility.pods.peers import readable
from gpuscaler.planning.feasibility.pods.spread import SpreadMasks, hard

Static = tuple[Mask, Passes]


class Rows:
    """A node table with the filter results that do not depend on running pods, for all rooms over the same rows.

    ``min_gpus`` is the rule of kept machines; None if no row is one.
    """

    def __init__(self, table: NodeTable, min_gpus: MinGpus | None = None) -> None:
        self.table = table
        self.min_gpus = min_gpus
        self.nodes = NodeMasks(table)
        self.spread = SpreadMasks(self.nodes)
        self._verdicts: dict[str, Static] = {}
        self._before: dict[str, Static] = {}
        self._parts: tuple[Rows, ...] = ()

    def __len__(self) -> int:
        return len(self.table)

    def verdict(self, spec: PodSpec) -> Static:
        """The rows that ``spec`` may run on by selector, affinity, taints and cordons, combined and by filter. The masks are read-only."""
        verdict = self._verdicts.get(spec.digest)
        if verdict is None:
            # Query the parts each time: they forget results that are not requested.
            parts = [part.verdict(spec) for part in self._parts]
            verdict = self._before.get(spec.digest) or (concatenate(parts) if parts else self._evaluate(spec))
            self._verdicts[spec.digest] = verdict
        return verdict

    @property
    def parts(self) -> tuple["Rows", ...]:
        """The parts that these rows were joined from, or only themselves."""
        return self._parts or (self,)

    def _evaluate(self, spec: PodSpec) -> Static:
        nodes = self.nodes
        passes = {
            "NodeUnschedulable": nodes.schedulable(spec),
            "TaintToleration": nodes.tolerated(spec),
            "NodeAffinity": nodes.selected(spec),
        }
        if self.min_gpus is not None:
            passes["TaintToleration"] = passes["TaintToleration"] | (self.min_gpus.kept & nodes.tolerated(with_closing_tolerations(spec)))
            passes[MIN_GPUS] = self.min_gpus.passes(spec)
        passes |= {name: np.zeros(len(self.table), dtype=np.bool_) for name in unreadable_plugins(spec)}
        return intersect(passes)

    def extended(self, nodes: Sequence[Node], min_gpus: MinGpus | None = None) -> "Rows":
        """These rows with ``nodes`` appended."""
        return self.joined(Rows(NodeTable(nodes), min_gpus))

    def joined(self, other: "Rows") -> "Rows":
        """These rows with ``other`` appended; each part is evaluated separately, and once."""
        new = Rows(self.table.joined(other.table), joined(self.min_gpus, len(self), other.min_gpus, len(other)))
        # Parts have no parts themselves, since there may be thousands of joins.
        new._parts = pack_parts((*self.parts, *other.parts), merged)
        return new

    def forget(self) -> None:
        """Drop results that were not requested since the last call."""
        self._before, self._verdicts = self._verdicts, {}
        self.nodes = NodeMasks(self.table)
        self.spread = SpreadMasks(self.nodes)


def merged(first: Rows, second: Rows) -> Rows:
    """The rows of both as one part."""
    return Rows(tables_merged(first.table, second.table), joined(first.min_gpus, len(first), second.min_gpus, len(second)))


def intersect(passes: Passes) -> Static:
    """The rows that all of ``passes`` admit, and ``passes`` themselves; all arrays become read-only."""
    first, *others = passes.values()
    mask = first.copy()
    for passing in others:
        mask &= passing
    for array in (mask, *passes.values()):
        array.setflags(write=False)
    return mask, passes


def concatenate(parts: Sequence[Static]) -> Static:
    """Concatenate the results of several parts of a table. In a part without a filter's result, that filter rejects nothing."""
    names = dict.fromkeys(name for _, passes in parts for name in passes)
    everywhere = [np.ones(len(mask), dtype=np.bool_) for mask, _ in parts]
    whole = {
        name: np.concatenate([passes.get(name, everywhere_mask) for (_, passes), everywhere_mask in zip(parts, everywhere, strict=True)])
        for name in names
    }
    mask = np.concatenate([mask for mask, _ in parts])
    for array in (mask, *whole.values()):
        array.setflags(write=False)
    return mask, whole


def unreadable_plugins(spec: PodSpec) -> Iterator[str]:
    """The plug-ins that fail the pod everywhere, because the pod has a selector that they cannot parse."""
    if not readable((*spec.affinity, *spec.anti_affinity, *spec.preferred_affinity, *spec.preferred_anti_affinity)):
        yield "InterPodAffinity"
    if any(constraint.selector is not None and not constraint.selector.valid for constraint in hard(spec)):
        yield "PodTopologySpread"
