"""Label selectors and node selectors, as the scheduler evaluates them.

Source: ``k8s.io/apimachinery/pkg/labels`` (label selectors) and
``k8s.io/component-helpers/scheduling/corev1/nodeaffinity`` (node selectors).
"""

from collections.abc import Mapping

from msgspec import Struct

Labels = Mapping[str, str]


class Requirement(Struct, frozen=True, gc=False):
    """One ``key operator values`` of a selector.

    ``operator`` is one of In, NotIn, Exists, DoesNotExist, Gt, Lt. A requirement that the API server
    would refuse (In without values, Gt with two values, …) is kept and matches nothing.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether ``labels`` satisfy this requirement; a missing key satisfies NotIn and DoesNotExist."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
            case _:
                return False

    def _compares(self, value: str | None) -> bool:
        if value is None or len(self.values) != 1:
            return False
        left, right = integer(value), integer(self.values[0])
        if left is None or right is None:
            return False
        return left > right if self.operator == "Gt" else left < right


def integer(text: str) -> int | None:
    """``text`` as Go's ``strconv.ParseInt(text, 10, 64)`` reads it, or None where that is an error."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isascii() or not digits.isdigit():
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


class LabelSelector(Struct, frozen=True, gc=False):
    """A ``metav1.LabelSelector``: all requirements must hold; none at all matches everything.

    ``matchLabels`` are stored as In requirements. A null selector is ``None`` where one is optional, and matches nothing.
    """

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)


class NodeSelectorTerm(Struct, frozen=True, gc=False):
    """One term of a node selector: expressions over labels and over fields (``metadata.name``), all of which must hold.

    A term with neither matches no node.
    """

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels, name: str) -> bool:
        if not self.expressions and not self.fields:
            return False
        fields = {"metadata.name": name}
        return all(r.matches(labels) for r in self.expressions) and all(r.matches(fields) for r in self.fields)


class NodeSelector(Struct, frozen=True, gc=False):
    """Terms of which one must hold. No terms match no node."""

    terms: tuple[NodeSelectorTerm, ...] = ()

    def matches(self, labels: Labels, name: str) -> bool:
        return any(term.matches(labels, name) for term in self.terms)
