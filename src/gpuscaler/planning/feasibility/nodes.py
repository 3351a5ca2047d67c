"""NodeUnschedulable, TaintToleration and NodeAffinity: filters that depend only on the node and the pod's spec.

Every requirement is evaluated once per distinct label value and mapped to the rows by the column's codes.
"""

from collections.abc import Iterable

import numpy as np

from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from gpuscaler.model.table import Mask, NodeTable
from gpuscaler.model.taints import Taint, Toleration, untolerated
from gpuscaler.model.well_known import UNSCHEDULABLE

_CORDONED = (Taint(UNSCHEDULABLE),)


class NodeMasks:
    """The masks of one table that placing pods never changes. Cached by requirement and by spec; shared by copies of a room."""

    def __init__(self, table: NodeTable) -> None:
        self.table = table
        self._requirements: dict[Requirement, Mask] = {}
        self._selected: dict[str, Mask] = {}
        self._tolerated: dict[tuple[Toleration, ...], Mask] = {}

    def schedulable(self, spec: PodSpec) -> Mask:
        """NodeUnschedulable: cordoned rows pass only for pods that tolerate the taint ``node.kubernetes.io/unschedulable``."""
        if untolerated(_CORDONED, spec.tolerations) is None:
            return np.ones(len(self.table), dtype=np.bool_)
        return ~self.table.unschedulable

    def tolerated(self, spec: PodSpec) -> Mask:
        """TaintToleration: rows without a NoSchedule or NoExecute taint that the pod does not tolerate."""
        mask = self._tolerated.get(spec.tolerations)
        if mask is None:
            codes, lists = self.table.taints
            passes = np.array([untolerated(taints, spec.tolerations) is None for taints in lists], dtype=np.bool_)
            mask = self._tolerated[spec.tolerations] = passes[codes] if lists else np.zeros(0, dtype=np.bool_)
        return mask

    def selected(self, spec: PodSpec) -> Mask:
        """NodeAffinity: rows that match ``nodeSelector`` and the required node affinity."""
        mask = self._selected.get(spec.digest)
        if mask is None:
            mask = np.ones(len(self.table), dtype=np.bool_)
            for key, value in spec.node_selector:
                mask &= self.requirement(Requirement(key, "In", (value,)))
            if spec.node_affinity is not None:
                mask &= self.selector(spec.node_affinity)
            for row in self.table.undecided if spec.node_selector or spec.node_affinity is not None else ():
                mask[row] = _admits_any(spec, self.table.nodes[row])
            self._selected[spec.digest] = mask
        return mask

    def selector(self, selector: NodeSelector) -> Mask:
        """Rows that match at least one of the terms; none for a selector without terms."""
        mask = np.zeros(len(self.table), dtype=np.bool_)
        for term in selector.terms:
            mask |= self.term(term)
        return mask

    def term(self, term: NodeSelectorTerm) -> Mask:
        """Rows that match every requirement of ``term``; none for an empty term."""
        if not term.expressions and not term.fields:
            return np.zeros(len(self.table), dtype=np.bool_)
        mask = self.requirements(term.expressions)
        for requirement in term.fields:
            mask &= self._field(requirement)
        return mask

    def requirements(self, requirements: Iterable[Requirement]) -> Mask:
        """Rows that satisfy all ``requirements``; every row if there are none."""
        mask = np.ones(len(self.table), dtype=np.bool_)
        for requirement in requirements:
            mask &= self.requirement(requirement)
        return mask

    def requirement(self, requirement: Requirement) -> Mask:
        """Rows with labels that satisfy ``requirement``; none if the scheduler cannot parse it."""
        mask = self._requirements.get(requirement)
        if mask is None and not requirement.valid:
            mask = self._requirements[requirement] = np.zeros(len(self.table), dtype=np.bool_)
        if mask is None:
            codes, values = self.table.column(requirement.key)
            # One flag per distinct value, and a last one for the code -1: no such label.
            flags = [requirement.matches({requirement.key: value}) for value in values]
            flags.append(requirement.matches({}))
            mask = self._requirements[requirement] = np.array(flags, dtype=np.bool_)[codes]
        return mask

    def _field(self, requirement: Requirement) -> Mask:
        # Fields support only In and NotIn with exactly one value; metadata.name is the only field, any other reads as the empty string.
        if requirement.operator not in ("In", "NotIn") or len(requirement.values) != 1:
            return np.zeros(len(self.table), dtype=np.bool_)
        wanted = requirement.operator == "In"
        if requirement.key != "metadata.name":
            return np.full(len(self.table), (requirement.values[0] == "") is wanted, dtype=np.bool_)
        mask = np.full(len(self.table), not wanted, dtype=np.bool_)
        row = self.table.row.get(requirement.values[0])
        if row is not None:
            mask[row] = wanted
        return mask


def _admits_any(spec: PodSpec, node: Node) -> bool:
    """Whether selector and affinity admit every set of labels that ``node`` may end up with."""
    wanted, affinity = dict(spec.node_selector).items(), spec.node_affinity
    return all(wanted <= labels.items() and (affinity is None or affinity.matches(labels, node.name)) for labels in node.may_be)


def admits(spec: PodSpec, node: Node) -> bool:
    """Whether selector and node affinity of ``spec`` admit ``node``."""
    if any(node.labels.get(key) != value for key, value in spec.node_selector):
        return False
    return spec.node_affinity is None or spec.node_affinity.matches(node.labels, node.name)


def explain_taint(spec: PodSpec, node: Node) -> str:
    taint = untolerated(node.taints, spec.tolerations)
    return f"taint {taint} is not tolerated"


def explain_selector(spec: PodSpec, node: Node) -> str:
    """The first requirement that ``node`` misses; with several terms, that of the term with the fewest misses."""
    for key, value in spec.node_selector:
        if node.labels.get(key) != value:
            return f"label {key}={value} wanted, {_describe_labels(node, key)}"
    terms = spec.node_affinity.terms if spec.node_affinity is not None else ()
    nearest: list[str] | None = None
    for term in terms:
        misses = [
            f"{_describe_requirement(r)} wanted, {_describe_labels(node, r.key)}"
            for r in term.expressions
            if not (r.valid and r.matches(node.labels))
        ]
        misses += [
            f"{_describe_requirement(r)} wanted, node is {node.name}" for r in term.fields if not r.matches({"metadata.name": node.name})
        ]
        if misses and (nearest is None or len(misses) < len(nearest)):
            nearest = misses
    return nearest[0] if nearest else "the required node affinity has no term that can match a node"


def _describe_requirement(requirement: Requirement) -> str:
    values = ", ".join(requirement.values)
    match requirement.operator:
        case "In" if len(requirement.values) == 1:
            return f"label {requirement.key}={values}"
        case "In" | "NotIn":
            return f"label {requirement.key} {'in' if requirement.operator == 'In' else 'not in'} ({values})"
        case "Exists":
            return f"label {requirement.key}"
        case "DoesNotExist":
            return f"no label {requirement.key}"
        case _:
            return f"label {requirement.key} {requirement.operator} {values}"


def _describe_labels(node: Node, key: str) -> str:
    value = node.labels.get(key)
    return f"node has no label {key}" if value is None else f"node has {key}={value}"
