"""Label matchers of PromQL.

Source: prometheus-adapter v0.12, ``pkg/naming`` (``MetricsQuery``), read for behaviour.
"""

from collections.abc import Iterable

from gpuscaler.metrics.rules.gotemplate.formatting import quote
from gpuscaler.model.selectors import Requirement


class QueryError(ValueError):
    """A question that cannot be said in PromQL by this rule. The text says why."""


def named(label: str, names: Iterable[str]) -> str:
    """The matcher of objects by name; names of Kubernetes need no escaping but for dots, which the caller checks in the answer."""
    texts = tuple(names)
    return f"{label}{'=' if len(texts) < 2 else '=~'}{quote('|'.join(texts))}"


def required(requirement: Requirement) -> str:
    """The matcher of one requirement of a selector. Raises :class:`QueryError` for one that PromQL has no matcher for."""
    label, values = requirement.key, requirement.values
    match requirement.operator:
        case "In" if values:
            return named(label, values)
        case "NotIn" if values:
            return f"{label}{'!=' if len(values) == 1 else '!~'}{quote('|'.join(values))}"
        case "Exists" if not values:
            return f'{label}!=""'
        case "DoesNotExist" if not values:
            return f'{label}=""'
    raise QueryError(f"saw {label} {requirement.operator} {'|'.join(values)}, expected =, !=, in, notin, or whether the label is there")
