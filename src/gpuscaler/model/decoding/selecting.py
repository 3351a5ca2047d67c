"""Decoding of label selectors, node selectors and taints."""

from collections.abc import Iterable, Mapping

from gpuscaler.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from gpuscaler.model.taints import Taint, Toleration
from gpuscaler.model.wire import Wire

_LABEL_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


class WireRequirement(Wire):
    key: str | None = None
    operator: str | None = None
    values: list[str | None] | None = None

    def read(self) -> Requirement:
        return Requirement(self.key or "", self.operator or "", tuple(value or "" for value in self.values or ()))


class WireLabelSelector(Wire):
    match_labels: dict[str, str | None] | None = None
    match_expressions: list[WireRequirement] | None = None


class WireNodeTerm(Wire):
    match_expressions: list[WireRequirement] | None = None
    match_fields: list[WireRequirement] | None = None

    def read(self) -> NodeSelectorTerm:
        expressions = tuple(item.read() for item in self.match_expressions or ())
        return NodeSelectorTerm(expressions, tuple(item.read() for item in self.match_fields or ()))


class WireNodeSelector(Wire):
    node_selector_terms: list[WireNodeTerm] | None = None

    def read(self) -> NodeSelector:
        return NodeSelector(tuple(term.read() for term in self.node_selector_terms or ()))


class WireTaint(Wire):
    key: str | None = None
    value: str | None = None
    effect: str | None = None

    def read(self) -> Taint:
        return Taint(self.key or "", self.value or "", self.effect or "")


class WireToleration(Wire):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None

    def read(self) -> Toleration:
        return Toleration(self.key or "", self.operator or "Equal", self.value or "", self.effect or "")


def label_selector(
    wire: WireLabelSelector | None,
    *,
    labels: Mapping[str, str] | None = None,
    match_keys: Iterable[str | None] | None = None,
    mismatch_keys: Iterable[str | None] | None = None,
    stored_once: bool = True,
) -> LabelSelector | None:
    """Return a label selector with ``matchLabelKeys`` and ``mismatchLabelKeys`` merged in, for a pod with ``labels``.

    The API server merges them when it stores a pod, and rejects a selector that contains such a key itself. So an existing key was already
    merged, with the pod's label at that time. If ``stored_once`` is false, the current label is merged all the same, as kube-scheduler
    does for topology spread. A null selector stays null (it matches nothing). Requirements are sorted and unique, so that equivalent
    selectors are equal.
    """
    if wire is None:
        return None
    requirements = {Requirement(key, "In", (value or "",)) for key, value in (wire.match_labels or {}).items()}
    requirements.update(_label_requirement(item.read()) for item in wire.match_expressions or ())
    merged = {(item.key, item.operator) for item in requirements} if stored_once else ()
    for keys, operator in ((match_keys, "In"), (mismatch_keys, "NotIn")):
        for key in keys or ():
            if labels and key is not None and key in labels and (key, operator) not in merged:
                requirements.add(Requirement(key, operator, (labels[key],)))
    return LabelSelector(tuple(sorted(requirements, key=lambda item: (item.key, item.operator, item.values))))


def _label_requirement(requirement: Requirement) -> Requirement:
    """Return the requirement, or one that matches nothing if the scheduler cannot parse it. Gt and Lt are for node selectors only.

    The API server rejects such requirements today, but keeps them in older objects.
    """
    if requirement.valid and requirement.operator in _LABEL_OPERATORS:
        return requirement
    return Requirement(requirement.key, f"unknown: {requirement.operator}", requirement.values)
