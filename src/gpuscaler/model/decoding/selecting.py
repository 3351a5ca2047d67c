"""Label selectors, node selectors and taints from the wire."""

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
    """A label selector with ``matchLabelKeys`` and ``mismatchLabelKeys`` of the pod with ``labels`` merged in.

    The API server merges them when it stores a pod, and refuses a selector that names such a key itself: a key that is there has been
    merged, with the label the pod had then. With ``stored_once`` false the present label is merged all the same, as kube-scheduler
    does for topology spread. A null selector stays null (it matches nothing) and is never merged into. Requirements are in one order
    and occur once, so that equal selectors are equal.
    """
    if wire is None:
        return None
    found = {Requirement(key, "In", (value or "",)) for key, value in (wire.match_labels or {}).items()}
    found.update(_label_requirement(item.read()) for item in wire.match_expressions or ())
    merged = {(item.key, item.operator) for item in found} if stored_once else ()
    for keys, operator in ((match_keys, "In"), (mismatch_keys, "NotIn")):
        for key in keys or ():
            if labels and key is not None and key in labels and (key, operator) not in merged:
                found.add(Requirement(key, operator, (labels[key],)))
    return LabelSelector(tuple(sorted(found, key=lambda item: (item.key, item.operator, item.values))))


def _label_requirement(requirement: Requirement) -> Requirement:
    """A requirement that matches nothing where the scheduler cannot read this one; Gt and Lt are for node selectors.

    The API server refuses such requirements today, and keeps them in objects from before it did.
    """
    if requirement.valid and requirement.operator in _LABEL_OPERATORS:
        return requirement
    return Requirement(requirement.key, f"unknown: {requirement.operator}", requirement.values)
