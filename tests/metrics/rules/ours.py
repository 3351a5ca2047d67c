"""The result of our code for a case, in the format of the oracle's answer."""

from typing import Any

from gpuscaler.metrics.rules.matchers import QueryError
from gpuscaler.metrics.rules.reading import read_rules
from gpuscaler.metrics.rules.resources import Resource
from gpuscaler.metrics.rules.rule import Rule
from gpuscaler.model.reading.errors import SettingsError
from gpuscaler.model.selector_text import SelectorError, parse_selector

Json = dict[str, Any]


def answer(case: Json) -> Json:
    resources = {
        (resource["Group"], resource["Plural"]): Resource(
            resource["Plural"], resource["Singular"], resource["Group"], resource["Namespaced"]
        )
        for resource in case["Known"]
    }
    try:
        rules = read_rules(case["Config"])
    except SettingsError as error:
        return {"refused": str(error)}
    if rules.problems:
        return {"refused": str(rules.problems)}
    (rule,) = (*rules.rules, *rules.external)
    results = [_found(rule, series) for series in case["Series"]]
    return {"found": results, "queries": [_query(rule, ask, resources[ask["Group"], ask["Resource"]]) for ask in case["Asks"]]}


def _found(rule: Rule, series: Json) -> Json:
    name = series["Name"]
    resources = sorted(resource.text for resource in rule.labelling.resources(series["Labels"]))
    return {"taken": rule.accepts(name), "name": rule.pattern.expand(rule.name_as, name), "resources": resources}


def _query(rule: Rule, ask: Json, resource: Resource) -> str | None:
    try:
        selector = parse_selector(ask["Selector"]).requirements
        if ask["External"]:
            return rule.external_query(ask["Series"], namespace=ask["Namespace"], selector=selector)
        return rule.query(ask["Series"], resource=resource, namespace=ask["Namespace"], names=ask["Names"], selector=selector)
    except (QueryError, SelectorError):
        return None


def differences(case: Json, theirs: Json, ours: Json) -> list[str]:
    """The differences between the two answers to a case; empty if they agree."""
    if "refused" in theirs or "refused" in ours:
        both = "refused" in theirs and "refused" in ours
        return [] if both else [f"theirs {theirs.get('refused', 'taken')}, ours {ours.get('refused', 'taken')}"]
    differing: list[str] = []
    for series, their, our in zip(case["Series"], theirs["found"], ours["found"], strict=True):
        # In our answer, a resource that two labels name is listed once.
        their["resources"] = sorted(set(their["resources"]))
        if their != our:
            differing.append(f"series {series}: theirs {their}, ours {our}")
    for ask, their, our in zip(case["Asks"], theirs["queries"], ours["queries"], strict=True):
        if their != our:
            differing.append(f"question {ask}: theirs {their!r}, ours {our!r}")
    return differing
