"""What surrounds the groups of a region: scaling policies, scheduled actions, refreshes, subnets, images, keys, quotas."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gpuscaler.clouds.aws.discovery.regions import MAX_VALUES, chunks
from gpuscaler.clouds.aws.inspecting.changes import read_changes, read_refreshes
from gpuscaler.clouds.aws.inspecting.inspection import Inspection
from gpuscaler.clouds.aws.inspecting.keys import read_keys
from gpuscaler.clouds.aws.inspecting.quotas import read_quotas

Json = Mapping[str, Any]

POLICY, SCHEDULED, SUBNET, IMAGE = (
    "aws/ScalingPolicy",
    "aws/ScheduledAction",
    "aws/Subnet",
    "aws/Image",
)


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
    read_quotas(region, ours, inspection)


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
