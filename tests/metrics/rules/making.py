"""Short ways to make rules for tests."""

from typing import Any

import yaml

from gpuscaler.metrics.rules.reading import RuleSet, read_rules
from gpuscaler.metrics.rules.resources import Resources
from gpuscaler.metrics.rules.rule import Rule

RESOURCES = Resources()
POD, NODE, NAMESPACE, DEPLOYMENT = (RESOURCES.find(name) for name in ("pod", "node", "namespace", "deployment"))
OVERRIDES = {"pod": {"resource": "pod"}, "namespace": {"resource": "namespace"}, "node": {"resource": "node"}}
SUM = "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"


def entry(query: str = SUM, **more: Any) -> dict[str, Any]:
    """A valid rule; ``more`` replaces or adds keys."""
    return {"seriesQuery": "{pod!=''}", "resources": {"overrides": OVERRIDES}, "metricsQuery": query, **more}


def rule_set(*rules: dict[str, Any], external: tuple[dict[str, Any], ...] = ()) -> RuleSet:
    return read_rules(yaml.safe_dump({"rules": list(rules), "externalRules": list(external)}))


def a_rule(query: str = SUM, **more: Any) -> Rule:
    rules = rule_set(entry(query, **more))
    assert not rules.problems
    return rules.rules[0]


def series(name: str, *labels: str) -> dict[str, str]:
    return {"__name__": name, **dict.fromkeys(labels, "x")}
