"""What the authors of unplaced pods probably meant: names of resources and labels that resemble those of the pools."""

from collections.abc import Collection, Set
from functools import cached_property

from gpuscaler.model.accelerators import right_name
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.similar import Similar, meant_label
from gpuscaler.model.well_known import HOSTNAME
from gpuscaler.planning.scale_up.draft.draft import PlanDraft

#: Pairs of letters that are compared for one plan, about a tenth of a second of work; later pods get no suggestions.
_WORK = 500_000


class Suggestions:
    """Suggestions for the pods of one plan, as ``gpuscaler doctor`` makes them for pods that fit nowhere."""

    def __init__(self, draft: PlanDraft) -> None:
        self._draft = draft
        self._similar = Similar(_WORK)
        # The same labels are looked up for each pool and for many classes.
        self._labels: dict[tuple[str, str], tuple[str, str]] = {}
        self._pools: dict[tuple[str, str], Set[str]] = {}

    def for_resource(self, resource: str) -> str:
        """The end of a sentence about a requested resource; empty if its name may be right, or a node offers it."""
        meant = right_name(resource)
        if not meant or self._draft.room.table.allocatable(resource).any():
            return ""
        return f"; did you mean {meant}?"

    def for_resources(self, spec: PodSpec) -> str:
        """The same about the resources of a pod that counts as one without accelerators because of a wrong name."""
        texts = ((resource, self.for_resource(resource)) for resource in sorted(spec.requests))
        return next((f"; it requests {resource}{text}" for resource, text in texts if text), "")

    def for_selector(self, spec: PodSpec, pool: str) -> str:
        """The end of a sentence about a node selector: labels of machines of ``pool`` for those that no node has; else empty."""
        meant = (self._meant(key, value) for key, value in spec.node_selector)
        labels = [f"{key}={value}" for key, value in meant if value and pool in self._pools_with(key, value)]
        return f"; did you mean {', '.join(labels)}?" if labels else ""

    @cached_property
    def label_keys(self) -> Collection[str]:
        """The keys of the labels of all machines that can be bought."""
        return frozenset(key for node in self._draft.templates.nodes for key in node.labels)

    def values(self, key: str) -> Collection[str]:
        """The values of a label of all machines that can be bought."""
        return self._draft.templates.table.column(key).values

    def _meant(self, key: str, value: str) -> tuple[str, str]:
        """The label that a selector probably meant; an empty value if that is unclear, or the label exists."""
        meant = self._labels.get((key, value))
        if meant is None:
            # New machines get new names.
            exists = key == HOSTNAME or value in self._draft.room.table.column(key).values
            meant = self._labels[key, value] = (key, "") if exists else meant_label(key, value, self, self._similar)
        return meant

    def _pools_with(self, key: str, value: str) -> Set[str]:
        """The pools with machines of a label."""
        pools = self._pools.get((key, value))
        if pools is None:
            templates = self._draft.templates
            pairs = zip(templates.offerings, templates.nodes, strict=True)
            pools = self._pools[key, value] = {offering.pool for offering, node in pairs if node.labels.get(key) == value}
        return pools
