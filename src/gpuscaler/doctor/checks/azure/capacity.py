"""What a subscription may buy: sizes by location and zone, quotas, limits of pools."""

from collections.abc import Iterator, Mapping

from gpuscaler.doctor.checks.azure.account import (
    SKU,
    SPOT,
    USAGE,
    AzurePool,
    AzureScaleSet,
    adopted,
    agent_pools,
    az,
    azure_check,
    scale_sets,
)
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING, Finding, Fix
from gpuscaler.doctor.retirements import retirement_of

_NAMED = 3
#: Names of quotas of all sizes, on demand and spot.
_REGIONAL, _LOW_PRIORITY = "cores", "lowPriorityCores"

Group = AzurePool | AzureScaleSet
Skus = Mapping[tuple[str, str, str], Document]


def skus_of(evidence: Evidence) -> Skus:
    """Sizes by subscription, location and name in lower case."""
    return {(sku.text("Subscription"), sku.text("Location"), sku.text("Size").lower()): sku for sku in evidence.of(SKU)}


def find_not_offered(evidence: Evidence) -> Iterator[Finding]:
    """D16: sizes that are retired, or that the location does not offer to the subscription."""
    skus = skus_of(evidence)
    for group in adopted(evidence):
        reasons: dict[str, tuple[str, str]] = {}
        for size in group.sizes:
            retirement = retirement_of(size, evidence.now)
            sku = skus.get((*group.place, size.lower()))
            if retirement is not None:
                reasons[size] = (CRITICAL if retirement.over else WARNING, retirement.text)
            elif sku is not None:
                reasons[size] = _refusal(sku, group)
        bad = {size: reason for size, reason in reasons.items() if reason[0]}
        if bad:
            every = len(bad) == len(group.sizes) and all(severity == CRITICAL for severity, _ in bad.values())
            texts = list(dict.fromkeys(f"{size}, which {text}" for size, (_, text) in bad.items()))
            yield Finding(
                "D16",
                CRITICAL if every else WARNING,
                group.title,
                "vmSize" if isinstance(group, AzurePool) else "sku",
                "; ".join(texts[:_NAMED]),
                "a size that the location offers to the subscription, in the zones and the market of the pool",
                "no machine can be bought: Azure answers SkuNotAvailable" if every else "fewer machines can be bought, or soon none",
                Fix(
                    advice="request access to the size, or make a pool of another one or in other zones: "
                    f"{az('vm', 'list-skus', '--location', group.location, '--all', '--output', 'table', subscription=group.subscription)}"
                ),
            )


def _refusal(sku: Document, group: Group) -> tuple[str, str]:
    """(severity, why it cannot be bought); the severity is empty if it can."""
    code = sku.text("Reason")
    reason = f" ({code})" if code else ""
    if not sku.flag("Known"):
        return CRITICAL, f"{group.location} does not offer"
    if sku.flag("RestrictedEverywhere"):
        return CRITICAL, f"the subscription may not use in {group.location}{reason}"
    if group.markets == (SPOT,) and not sku.flag("Spot", default=True):
        return CRITICAL, "has no spot machines"
    closed = [zone for zone in group.zones if zone not in sku.texts("Zones") or zone in sku.texts("Restricted")]
    if closed:
        severity = CRITICAL if len(closed) == len(group.zones) else WARNING
        return severity, f"the subscription may not use in zone {', '.join(closed)} of {group.location}{reason}"
    return "", ""


def find_quotas(evidence: Evidence) -> Iterator[Finding]:
    """D17: quotas of vCPUs that allow no machine, or not as many as a pool may have."""
    skus = skus_of(evidence)
    needs: dict[tuple[str, str, str], list[tuple[Group, int, int]]] = {}
    maxima = {item.text("Name").lower(): item.whole("Max") for item in evidence.of("azure/PoolSetting") if item.has("Max")}
    for group in adopted(evidence):
        most = _maximum(group, maxima)
        for size in group.sizes:
            sku = skus.get((*group.place, size.lower()), Document({}))
            vcpus = sku.whole("VCpus")
            for market in group.markets if vcpus else ():
                for name in (_LOW_PRIORITY,) if market == SPOT else (sku.text("Family"), _REGIONAL):
                    needs.setdefault((*group.place, name.lower()), []).append((group, vcpus, most))
    for usage in evidence.of(USAGE):
        limit = usage.number("limit")
        wanted = needs.get((usage.text("Subscription"), usage.text("Location"), usage.text("name", "value").lower()), [])
        if limit is not None and wanted:
            yield from _quota(usage, limit, wanted)


def _maximum(group: Group, maxima: Mapping[str, int]) -> int:
    """The largest size of a pool by the run file, else by its tag; 0 if there is none."""
    tag = group.tags.get("max", "") if isinstance(group, AzureScaleSet) else ""
    return maxima.get(group.name.lower(), int(tag) if tag.isascii() and tag.isdecimal() and len(tag) < 7 else 0)


def _quota(usage: Document, limit: float, needs: list[tuple[Group, int, int]]) -> Iterator[Finding]:
    none = [group.name for group, vcpus, _ in needs if limit < vcpus]
    few = none or [group.name for group, vcpus, most in needs if limit < vcpus * most]
    if not few:
        return
    wanted = max(vcpus * max(most, 1) for _, vcpus, most in needs)
    name, place = usage.text("name", "value"), usage.text("Location")
    scope = f"/subscriptions/{usage.text('Subscription')}/providers/Microsoft.Compute/locations/{place}"
    kind = "lowPriority" if name == _LOW_PRIORITY else "dedicated"
    value = ("--limit-object", f"value={wanted}", "--resource-type", kind)
    names = ", ".join(dict.fromkeys(few[:_NAMED])) + (f" and {len(few) - _NAMED} more" if len(few) > _NAMED else "")
    yield Finding(
        "D17",
        CRITICAL if none else WARNING,
        f"Quota {place}/{name}",
        usage.text("name", "localizedValue") or "vCPUs",
        f"{limit:g} vCPUs",
        f"at least {wanted}",
        f"{names}: not even one machine can be bought" if none else f"{names}: the maximum size cannot be reached",
        Fix((az("quota", "update", "--resource-name", name, "--scope", scope, *value),), "quotas of GPUs may need a support request"),
    )


def find_sizes(evidence: Evidence) -> Iterator[Finding]:
    """D25: pools of GPUs that are never empty, or can never grow."""
    systems = [pool for pool in agent_pools(evidence) if pool.is_word("System", "mode")]
    for pool in systems:
        if pool.adopted and pool.has_gpus:
            others = any(other.cluster == pool.cluster and other.name != pool.name and not other.has_gpus for other in systems)
            yield Finding(
                "D25",
                WARNING,
                pool.title,
                "mode",
                "System",
                "User",
                "AKS keeps at least one machine of a system pool, so one with GPUs is always paid for, and system pods run there",
                Fix((pool.update("--mode", "User"),))
                if others
                else Fix(advice="add a system pool without GPUs, then set the mode of this one to User: AKS needs a system pool"),
            )
    for scale_set in scale_sets(evidence):
        if scale_set.adopted and not scale_set.agent_pool and scale_set.has_gpus:
            yield from _tags(scale_set)


def _tags(scale_set: AzureScaleSet) -> Iterator[Finding]:
    least, most = scale_set.tags.get("min", "0"), scale_set.tags.get("max", "1")
    if most.strip("0") == "" and most:
        effect = "no machine can be bought in the scale set"
        fix = Fix(advice=f"raise it: {scale_set.tag('max', 'NUMBER')}")
        yield Finding("D25", CRITICAL, scale_set.title, "tags[max]", most, "as many machines as may be needed", effect, fix)
    if least.isdecimal() and least.strip("0"):
        yield Finding(
            "D25",
            INFO,
            scale_set.title,
            "tags[min]",
            least,
            "0, if the pool shall be empty while no pod needs it",
            "its machines are paid for even if nothing runs on them",
            Fix((scale_set.tag("min", "0"),)),
        )


CHECKS = (
    azure_check("D16", "sizes that locations offer", (SKU,), find_not_offered),
    azure_check("D17", "quotas of vCPUs", (SKU, USAGE), find_quotas),
    azure_check("D25", "sizes of pools", (), find_sizes),
)
