"""Azure policies that deny what gpuscaler writes: their rules are evaluated as far as their conditions are about known fields."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpuscaler.doctor.checks.azure.account import AzurePool, AzureScaleSet, agent_pools, azure_check, scale_sets
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, Finding, Fix, Unchecked

POLICY, DEFINITION = "azure/PolicyAssignment", "azure/PolicyDefinition"
_SCALE_SET: Final = "microsoft.compute/virtualmachinescalesets"
_AGENT_POOL: Final = "microsoft.containerservice/managedclusters/agentpools"
_TAG: Final = re.compile(r"tags(?:\[\s*'?([^'\]]+)'?\s*\]|\.(.+))", re.IGNORECASE)
#: Stands for the value of a field that is not known.
_UNKNOWN: Final = object()


def find_denials(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D47: policies that deny the scale sets and node pools that are there, so that each change of them is refused."""
    subjects: list[tuple[str, AzurePool | AzureScaleSet, str]] = [
        (_SCALE_SET, scale_set, scale_set.group) for scale_set in scale_sets(evidence) if scale_set.adopted
    ]
    subjects += [(_AGENT_POOL, pool, pool.group) for pool in agent_pools(evidence) if pool.adopted]
    unclear: dict[str, None] = {}
    seen: set[tuple[str, str]] = set()
    for policy in evidence.of(POLICY):
        title = policy.text("displayName") or policy.text("name")
        for kind, machines, group in subjects:
            if group.lower() != policy.text("Group").lower():
                continue
            denied = _holds(policy.value("Rule"), _fields(kind, machines))
            if denied is None:
                unclear[title] = None
            elif denied and (title, machines.title) not in seen:
                seen.add((title, machines.title))
                yield Finding(
                    "D47",
                    CRITICAL,
                    machines.title,
                    "policy",
                    f"{title} denies it as it is",
                    "no policy that denies its changes",
                    "Azure refuses each change of its size with RequestDisallowedByPolicy, so no machine is bought",
                    Fix(advice=f"change what the policy denies, or exempt the resource group: az policy exemption create ({title})"),
                )
    for title in unclear:
        reason = "its conditions are about more than type, name, location, tags and size, which is all that is evaluated"
        yield Unchecked("D47", f"whether the policy {title} denies changes of pools", reason)


def _fields(kind: str, machines: AzurePool | AzureScaleSet) -> Mapping[str, Any]:
    """Values by the name of a field in lower case, without the resource type before it."""
    document = machines.document
    tags = document.pairs("properties", "tags") if kind == _AGENT_POOL else document.pairs("tags")
    size = next(iter(machines.sizes), _UNKNOWN)
    names = {"sku.name": size} if kind == _SCALE_SET else {"vmsize": size}
    own = {f"{kind}/{name}": value for name, value in names.items()}
    return {"type": kind, "name": machines.name, "location": machines.location, "tags": tags, **own}


def _holds(rule: Any, fields: Mapping[str, Any]) -> bool | None:
    """Whether a condition holds; None if that is not known."""
    if not isinstance(rule, Mapping):
        return None
    for word, stop in (("allof", False), ("anyof", True)):
        parts = next((value for key, value in rule.items() if key.lower() == word), None)
        if isinstance(parts, list):
            found = [_holds(part, fields) for part in parts]
            return stop if stop in found else None if None in found else not stop
    if "not" in rule:
        inner = _holds(rule["not"], fields)
        return None if inner is None else not inner
    name = rule.get("field")
    return _compare(_value(name, fields), rule) if isinstance(name, str) else None


def _value(name: str, fields: Mapping[str, Any]) -> Any:
    if match := _TAG.fullmatch(name):
        wanted = (match[1] or match[2]).lower()
        return next((value for key, value in fields["tags"].items() if key.lower() == wanted), None)
    return fields.get(name.lower(), _UNKNOWN)


def _compare(value: Any, rule: Mapping[str, Any]) -> bool | None:
    """The condition of ``rule`` about ``value``, in which case does not matter."""
    operator, wanted = next(((key.lower(), item) for key, item in rule.items() if key.lower() != "field"), ("", None))
    if value is _UNKNOWN or _is_expression(wanted):
        return None
    if operator == "exists":
        return (value is not None) == (str(wanted).lower() == "true")
    negative = operator.startswith("not")
    plain = operator.removeprefix("not")
    text = str(value if value is not None else "").lower()
    if plain == "equals" and not isinstance(wanted, list | Mapping):
        result = text == str(wanted).lower()
    elif plain == "in" and isinstance(wanted, list):
        result = text in [str(item).lower() for item in wanted]
    elif plain == "like" and isinstance(wanted, str):
        result = re.fullmatch(re.escape(wanted.lower()).replace(r"\*", ".*"), text) is not None
    else:
        return None
    return result != negative


def _is_expression(wanted: Any) -> bool:
    values = wanted if isinstance(wanted, list) else [wanted]
    return any(isinstance(value, str) and value.startswith("[") and not value.startswith("[[") for value in values)


CHECKS = (azure_check("D47", "policies that deny changes", (POLICY, DEFINITION), find_denials),)
