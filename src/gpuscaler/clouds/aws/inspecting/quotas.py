"""The quotas of vCPUs that count what groups buy, by family and market."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gpuscaler.clouds.aws.inspecting.inspection import Inspection

Json = Mapping[str, Any]

QUOTA = "aws/ServiceQuota"
#: Service Quotas' codes by the first letters of an instance family: on demand, spot. Source: Amazon EC2 endpoints and quotas, AWS General
#: Reference, 2026. An empty code: the quota is not listed there.
_QUOTAS: Final = {
    "dl": ("L-6E869C2A", "L-85EED4F7"),
    "f": ("L-74FC7D96", "L-88CF9481"),
    "g": ("L-DB2E81BA", "L-3819A6DF"),
    "gr": ("L-DB2E81BA", "L-3819A6DF"),
    "vt": ("L-DB2E81BA", "L-3819A6DF"),
    "inf": ("L-1945791B", "L-B5D1601B"),
    "p2": ("L-417A185B", "L-7212CCBC"),
    "p3": ("L-417A185B", "L-7212CCBC"),
    "p4": ("L-417A185B", "L-7212CCBC"),
    "p5": ("L-417A185B", "L-C4BD4855"),
    "p": ("L-417A185B", ""),
    "trn": ("L-2C3B7624", "L-6B0D517C"),
    "x": ("L-7295265B", "L-E3A00192"),
    **dict.fromkeys(("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"), ("L-1216C47A", "L-34B43A08")),
}

_FAMILY: Final = re.compile(r"([a-z]+)(\d?)")
#: How quotas are named by market, and the families in such a name. Source: Amazon EC2 User Guide, "Spot Instance quotas", 2026.
_NAMES: Final = {
    "spot": re.compile(r"All (.+) Spot Instance Requests"),
    "on-demand": re.compile(r"Running On-Demand (.+) instances"),
}
_FAMILY_NAME: Final = re.compile(r"\b[A-Z][A-Z]?[a-z]{0,2}\d?\b")


def quota_of(instance_type: str, market: str) -> str:
    """The code of the quota that counts the vCPUs of ``instance_type``; empty if it is not known."""
    family, series = _family(instance_type)
    codes = _QUOTAS.get(series) or _QUOTAS.get(family) or ("", "")
    return codes[market == "spot"]


def read_quotas(region: str, documents: Iterable[Json], inspection: Inspection) -> None:
    """Read the quotas that count what the groups ``documents`` may buy. A family without one that is known here is looked for by name."""
    used: dict[str, set[str]] = defaultdict(set)
    unknown: set[tuple[str, str]] = set()
    for document in documents:
        for instance_type, market in _bought(document):
            if code := quota_of(instance_type, market):
                used[code].add(f"{instance_type}/{market}")
            else:
                unknown.add((instance_type, market))
    for code, subjects in sorted(used.items()):
        reply = inspection.read(QUOTA, "service-quotas", region, "GetServiceQuota", ServiceCode="ec2", QuotaCode=code)
        if reply is not None:
            inspection.add(QUOTA, [{**(reply.get("Quota") or {}), "Counts": sorted(subjects)}], Region=region)
    if unknown:
        _read_by_name(region, unknown, inspection)


def _read_by_name(region: str, wanted: Iterable[tuple[str, str]], inspection: Inspection) -> None:
    quotas = inspection.pages(QUOTA, "service-quotas", region, "ListServiceQuotas", "Quotas", ServiceCode="ec2", MaxResults=100)
    if quotas is None:
        return
    named = {(market, family): quota for quota in quotas for market, family in _families(str(quota.get("QuotaName")))}
    for instance_type, market in sorted(wanted):
        family, series = _family(instance_type)
        quota = named.get((market, series.upper())) or named.get((market, family.upper()))
        if quota is None:
            inspection.note(QUOTA, f"Service Quotas lists none in {region} that counts {instance_type} of the market {market}")
        else:
            inspection.add(QUOTA, [{**quota, "Counts": [f"{instance_type}/{market}"]}], Region=region)


def _families(name: str) -> Iterator[tuple[str, str]]:
    """Market and families of a quota's name: "All P4, P3 and P2 Spot Instance Requests", "Running On-Demand G and VT instances"."""
    for market, pattern in _NAMES.items():
        if match := pattern.fullmatch(name):
            for family in _FAMILY_NAME.findall(match[1]):
                yield market, family


def _family(instance_type: str) -> tuple[str, str]:
    """The letters of an instance type's family, and these with the number of its series: p, p6."""
    match = _FAMILY.match(instance_type)
    return (match[1], match[1] + match[2]) if match is not None else ("", "")


def _bought(document: Json) -> Iterator[tuple[str, str]]:
    for option in document.get("Options") or ():
        for market in option["Markets"]:
            yield option["InstanceType"], market
