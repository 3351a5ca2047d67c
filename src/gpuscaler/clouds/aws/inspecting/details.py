"""What surrounds the groups of a region: scaling policies, scheduled actions, refreshes, subnets, images, keys, quotas."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from gpuscaler.clouds.aws.discovery.regions import MAX_VALUES, chunks
from gpuscaler.clouds.aws.inspecting.changes import read_changes, read_refreshes
from gpuscaler.clouds.aws.inspecting.inspection import Inspection
from gpuscaler.clouds.aws.inspecting.keys import read_keys

Json = Mapping[str, Any]

POLICY, SCHEDULED, SUBNET, IMAGE, QUOTA = (
    "aws/ScalingPolicy",
    "aws/ScheduledAction",
    "aws/Subnet",
    "aws/Image",
    "aws/ServiceQuota",
)
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


def quota_of(instance_type: str, market: str) -> str:
    """The code of the quota that counts the vCPUs of ``instance_type``; empty if it is not known."""
    match = _FAMILY.match(instance_type)
    letters, number = (match[1], match[2]) if match is not None else ("", "")
    codes = _QUOTAS.get(f"{letters}{number}") or _QUOTAS.get(letters) or ("", "")
    return codes[market == "spot"]


def read_details(region: str, documents: Collection[Json], inspection: Inspection, *, now: float) -> None:
    """Read what concerns the groups ``documents`` that are scaled or have nodes of the cluster."""
    ours = [document for document in documents if document.get("Scaled") or document.get("Member")]
    names = {str(document["AutoScalingGroupName"]) for document in ours}
    if not names:
        return

    def of_groups(kind: str, operation: str, key: str) -> None:
        entries = inspection.pages(kind, "autoscaling", region, operation, key, MaxRecords=100)
        inspection.add(kind, (entry for entry in entries or () if entry.get("AutoScalingGroupName") in names), Region=region)

    of_groups(POLICY, "DescribePolicies", "ScalingPolicies")
    of_groups(SCHEDULED, "DescribeScheduledActions", "ScheduledUpdateGroupActions")
    read_changes(region, names, inspection, now=now)
    # A refresh of a group without machines has nothing to do.
    read_refreshes(region, {str(document["AutoScalingGroupName"]) for document in ours if document.get("Instances")}, inspection)
    _read_subnets(region, ours, inspection)
    _read_images(region, ours, inspection)
    read_keys(region, ours, inspection)
    _read_quotas(region, ours, inspection)


def _read_subnets(region: str, documents: Iterable[Json], inspection: Inspection) -> None:
    idents = {ident.strip() for document in documents for ident in str(document.get("VPCZoneIdentifier") or "").split(",")} - {""}
    for batch in chunks(sorted(idents), MAX_VALUES):
        ask = [{"Name": "subnet-id", "Values": batch}]
        entries = inspection.pages(SUBNET, "ec2", region, "DescribeSubnets", "Subnets", Filters=ask)
        inspection.add(SUBNET, entries or (), Region=region)


def _read_images(region: str, documents: Iterable[Json], inspection: Inspection) -> None:
    images = {str(option["Image"]) for document in documents for option in document.get("Options") or ()}
    for batch in chunks(sorted(image for image in images if image.startswith("ami-")), MAX_VALUES):
        ask = [{"Name": "image-id", "Values": batch}]
        entries = inspection.pages(IMAGE, "ec2", region, "DescribeImages", "Images", Filters=ask, IncludeDeprecated=True)
        if entries is not None:
            found = {entry.get("ImageId") for entry in entries}
            inspection.add(IMAGE, entries, Region=region)
            inspection.add(IMAGE, ({"ImageId": image, "State": "missing"} for image in batch if image not in found), Region=region)


def _read_quotas(region: str, documents: Iterable[Json], inspection: Inspection) -> None:
    used: dict[str, set[str]] = defaultdict(set)
    for document in documents:
        for instance_type, market in _bought(document):
            used[quota_of(instance_type, market)].add(f"{instance_type}/{market}")
    for code, subjects in sorted(used.items()):
        if not code:
            continue
        reply = inspection.read(QUOTA, "service-quotas", region, "GetServiceQuota", ServiceCode="ec2", QuotaCode=code)
        if reply is not None:
            inspection.add(QUOTA, [{**(reply.get("Quota") or {}), "Counts": sorted(subjects)}], Region=region)


def _bought(document: Json) -> Iterator[tuple[str, str]]:
    for option in document.get("Options") or ():
        for market in option["Markets"]:
            yield option["InstanceType"], market
