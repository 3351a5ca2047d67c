"""Label matchers of PromQL.

Source: prometheus-adapter v0.12, ``pkg/naming`` (``MetricsQuery``), read for behaviour.
"""

from collections.abc import Iterable

from gpuscaler.metrics.rules.gotemplate.formatting import quote
from gpuscaler.model.selectors import Requirement


class QueryError(ValueError):
    """A request that this rule cannot express in PromQL. The text says why."""


def name_matcher(label: str, names: Iterable[str]) -> str:
    """The matcher for objects by name. Kubernetes names need no escaping except for dots, for which the caller checks the answer."""
    texts = tuple(names)
    return f"{label}{'=' if len(texts) < 2 else '=~'}{quote('|'.join(texts))}"


def requirement_matcher(requirement: Requirement) -> str:
    """The matcher for one requirement of a selector. Raises :class:`QueryError` if PromQL has no such matcher."""
    label, values = requirement.key, requirement.values
    match requirement.operator:
        case "In" if values:
            return name_matcher(label, values)
        case "NotIn" if values:
            return f"{label}{'!=' if len(values) == 1 else '!~'}{quote('|'.join(values))}"
        case "Exists" if not values:
            return f'{label}!=""'
        case "DoesNotExist" if not values:
            return f'{label}=""'
    raise QueryError(f"saw {label} {requirement.operator} {'|'.join(values)}, expected =, !=, in, notin, or whether the label is there")
