"""Reads an account once, all regions concurrently. Nothing is changed; what cannot be read is named with the reason."""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.clouds.aws.api.remembering import AnswerCache
from gpuscaler.clouds.aws.discovery.pools import RegionData
from gpuscaler.clouds.aws.discovery.regions import RegionReader, Scope
from gpuscaler.clouds.aws.inspecting.details import read_details
from gpuscaler.clouds.aws.inspecting.groups import GROUP, document_of, find_groups, note_missing
from gpuscaler.clouds.aws.inspecting.identities import Account, read_pod_identities
from gpuscaler.clouds.aws.inspecting.inspection import AT_ONCE, Inspection
from gpuscaler.clouds.aws.inspecting.interruptions import read_queue
from gpuscaler.clouds.aws.inspecting.rights import add_denied, read_rights
from gpuscaler.clouds.protocol import CloudError

SETTINGS = "aws/Settings"


def inspect_account(
    calls: Calls,
    scope: Scope,
    *,
    regions: tuple[str, ...],
    now: Callable[[], float],
    machines: Collection[str] = (),
    queue_url: str = "",
    principal: str = "",
    accounts: Collection[Account] = (),
    eks: bool = True,
) -> Inspection:
    """Read the account. ``machines`` are the EC2 ids of the cluster's nodes.

    ``principal`` is the ARN of the role that the cluster's objects name for gpuscaler. EKS Pod Identity may give another one to its
    ServiceAccounts, ``accounts``, if the cluster may be one of ``eks``.
    """
    inspection = Inspection(calls)
    settings = {"Cluster": scope.cluster, "Groups": scope.groups, "Regions": regions, "QueueUrl": queue_url}
    inspection.add(SETTINGS, [settings])
    with ThreadPoolExecutor(max_workers=max(len(regions), 1), thread_name_prefix="aws-region") as outer:
        for read in outer.map(lambda region: _inspect_region(calls, region, scope, machines, now), regions):
            inspection.merge(read)
    if queue_url:
        read_queue(queue_url, regions, inspection)
    scaled: list[dict[str, Any]] = [document for document in inspection.documents[GROUP] if document["Scaled"]]
    arn = str(scaled[0].get("AutoScalingGroupARN") or "") if scaled else ""
    queues = inspection.documents.get("aws/Queue") or [{}]
    given = read_pod_identities(scope.cluster, regions, accounts, inspection) if eks else ""
    if regions:
        read_rights(
            calls,
            regions[0],
            cluster=scope.cluster,
            principal=given or principal,
            group=arn,
            queue=str(queues[0].get("QueueArn") or ""),
            inspection=inspection,
        )
    add_denied(calls, inspection)
    return inspection


def _inspect_region(calls: Calls, region: str, scope: Scope, machines: Collection[str], now: Callable[[], float]) -> Inspection:
    inspection = Inspection(calls)
    entries = inspection.pages(GROUP, "autoscaling", region, "DescribeAutoScalingGroups", "AutoScalingGroups", MaxRecords=100)
    if entries is None:
        return inspection
    found = find_groups(entries, region, scope, machines)
    related = [item.group for item in found if item.related and item.group is not None]
    data = RegionData(region)
    if related:
        with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix=f"aws-{region}") as workers:
            reader = RegionReader(region, calls, AnswerCache(), workers=workers, now=now, list_prices=False)
            try:
                data = reader.read_region_data(related, scope.cluster)
            except CloudError as error:
                inspection.miss(GROUP, error)
            note_missing(inspection, reader.notes)
    documents = [document_of(item, data) for item in found]
    inspection.add(GROUP, documents)
    read_details(region, documents, inspection, now=now())
    return inspection
