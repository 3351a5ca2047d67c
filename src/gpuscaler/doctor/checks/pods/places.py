"""The nodes that exist, and those that could be bought: whether a pod ever fits there, apart from what runs there now."""

from functools import cached_property

import numpy as np
from msgspec.structs import replace

from gpuscaler.doctor.checks.nodes.gpu_nodes import lasting_taints
from gpuscaler.model.accelerators import is_device
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Policy
from gpuscaler.model.table import Mask, NodeTable
from gpuscaler.planning.capacity.node_templates import Templates
from gpuscaler.planning.feasibility.min_gpus import with_closing_tolerations
from gpuscaler.planning.feasibility.nodes import NodeMasks
from gpuscaler.planning.feasibility.volumes.plugins import VolumeFacts


class Places:
    """Rows of nodes and then of templates, with the filters of the scheduler that do not depend on other pods.

    Nodes count without passing taints and cordons. Their resources count as if only they were empty, those of templates less DaemonSets.
    """

    def __init__(self, cluster: Cluster, policy: Policy | None) -> None:
        self.cluster = cluster
        self.templates = Templates(cluster, policy, frozenset()) if policy is not None else None
        nodes = [node for node in cluster.nodes.values() if not node.deleted]
        self.nodes = tuple(replace(node, taints=lasting_taints(node)) if node.taints else node for node in nodes)
        self.table = NodeTable((*self.nodes, *(self.templates.nodes if self.templates is not None else ())))
        self.masks = NodeMasks(self.table)

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def _volumes(self) -> VolumeFacts:
        return VolumeFacts(self.cluster, self.masks)

    def selected(self, spec: PodSpec) -> Mask:
        """Rows that selector and required affinity admit."""
        return self.masks.selected(spec)

    def tolerated(self, spec: PodSpec) -> Mask:
        """Rows whose taints are tolerated."""
        return self.masks.tolerated(with_closing_tolerations(spec))

    def reached(self, spec: PodSpec) -> Mask:
        """Rows that the volumes of bound claims can be attached to."""
        mask = np.ones(len(self), dtype=np.bool_)
        for passing in self._volumes.passes(spec).values() if spec.volumes else ():
            mask = mask & passing
        return mask

    def offers(self, resource: str, amount: int) -> Mask:
        """Rows with at least ``amount`` of ``resource``."""
        return self.table.allocatable(resource) >= amount

    def sold(self, spec: PodSpec) -> Mask:
        """Rows of nodes, and of templates that may be bought for pods with so many GPUs."""
        mask = np.ones(len(self), dtype=np.bool_)
        if self.templates is None:
            return mask
        first = len(self.nodes)
        if self.templates.min_gpus is not None:
            mask[first:] &= self.templates.min_gpus.passes(spec)
        if self.templates.for_gpus is not None and not any(map(is_device, spec.requests)):
            mask[first:] &= ~self.templates.for_gpus
        return mask

    def values(self, key: str) -> tuple[str, ...]:
        """The values of a label."""
        return self.table.column(key).values

    @cached_property
    def label_keys(self) -> frozenset[str]:
        """The keys of all labels."""
        return frozenset(key for node in self.table.nodes for key in node.labels)

    def at(self, row: int) -> Node:
        return self.table.nodes[row]
