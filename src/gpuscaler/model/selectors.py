"""Label selectors and node selectors, as the scheduler evaluates them.

Source: ``k8s.io/apimachinery/pkg/labels`` (label selectors) and
``k8s.io/component-helpers/scheduling/corev1/nodeaffinity`` (node selectors).
"""

import re
from collections.abc import Mapping

from msgspec import Struct

Labels = Mapping[str, str]

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Requirement(Struct, frozen=True, gc=False):
    """A ``key operator values`` of a selector.

    ``operator`` is one of In, NotIn, Exists, DoesNotExist, Gt, Lt. A requirement that the API server would reject (In without values, Gt
    with two values, …) is kept and matches nothing.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether ``labels`` satisfy this requirement; a missing key satisfies NotIn and DoesNotExist."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return bool(self.values) and value not in self.values
            case "Exists":
                return not self.values and value is not None
            case "DoesNotExist":
                return not self.values and value is None
            case "Gt" | "Lt":
                return self._compares(value)
            case _:
                return False

    @property
    def valid(self) -> bool:
        """Whether the scheduler can parse it: a valid label key, valid label values, and as many values as the operator needs.

        Source: ``labels.NewRequirement``. A node selector term with an invalid requirement matches no node.
        """
        match self.operator:
            case "In" | "NotIn":
                counted = bool(self.values)
            case "Exists" | "DoesNotExist":
                counted = not self.values
            case "Gt" | "Lt":
                counted = len(self.values) == 1 and parse_integer(self.values[0]) is not None
            case _:
                counted = False
        return counted and is_label_key(self.key) and all(not value or _NAME.fullmatch(value) for value in self.values)

    def _compares(self, value: str | None) -> bool:
        if value is None or len(self.values) != 1:
            return False
        left, right = parse_integer(value), parse_integer(self.values[0])
        if left is None or right is None:
            return False
        return left > right if self.operator == "Gt" else left < right


def is_label_key(key: str) -> bool:
    """Whether ``key`` is a name of up to 63 characters, optionally after a domain and a slash."""
    domain, slash, name = key.rpartition("/")
    return bool(_NAME.fullmatch(name)) and (not slash or bool(_DOMAIN.fullmatch(domain)))


def parse_integer(text: str) -> int | None:
    """Parse ``text`` like Go's ``strconv.ParseInt(text, 10, 64)``; None instead of an error."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isascii() or not digits.isdigit() or len(digits.lstrip("0")) > 19:
        return None
    number = int(text[:1].strip("0123456789") + (digits.lstrip("0") or "0"))
    return number if -(2**63) <= number < 2**63 else None


class LabelSelector(Struct, frozen=True, gc=False):
    """A ``metav1.LabelSelector``: all requirements must hold; an empty one matches everything.

    ``matchLabels`` are stored as In requirements. A null selector is ``None`` and matches nothing.
    """

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels) -> bool:
        # Called millions of times: most requirements depend on a single label.
        for requirement in self.requirements:
            if requirement.operator == "In":
                if labels.get(requirement.key) not in requirement.values:
                    return False
            elif not requirement.matches(labels):
                return False
        return True

    @property
    def valid(self) -> bool:
        """Whether the scheduler can parse it: all requirements are valid, and none compares numbers."""
        return all(requirement.operator not in ("Gt", "Lt") and requirement.valid for requirement in self.requirements)


class NodeSelectorTerm(Struct, frozen=True, gc=False):
    """A term of a node selector: expressions over labels and fields (``metadata.name``), all of which must hold.

    A term with neither matches no node.
    """

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels, name: str) -> bool:
        if not (self.expressions or self.fields) or not all(requirement.valid for requirement in self.expressions):
            return False
        fields = {"metadata.name": name}
        return all(r.matches(labels) for r in self.expressions) and all(r.matches(fields) for r in self.fields)


class NodeSelector(Struct, frozen=True, gc=False):
    """A node selector: one of its terms must hold. Without terms it matches no node."""

    terms: tuple[NodeSelectorTerm, ...] = ()

    def matches(self, labels: Labels, name: str) -> bool:
        return any(term.matches(labels, name) for term in self.terms)
