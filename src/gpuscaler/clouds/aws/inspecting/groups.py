"""Auto Scaling groups of a region: each as AWS describes it, with what its tags, its launch templates and its instance types mean."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from gpuscaler.catalogue import InstanceType
from gpuscaler.clouds.aws.api.groups import Group, GroupError, Reply, group_of, tags_of
from gpuscaler.clouds.aws.discovery.ownership import EKS, EKS_NODEGROUP, Ownership, decide_ownership
from gpuscaler.clouds.aws.discovery.pools import LaunchOption, RegionData, launch_options_of, markets_of
from gpuscaler.clouds.aws.discovery.regions import Scope
from gpuscaler.clouds.aws.inspecting.inspection import Inspection
from gpuscaler.clouds.discovery.hints import hints_of
from gpuscaler.clouds.inspected import plain
from gpuscaler.clouds.protocol import CloudError
from gpuscaler.model.taints import Taint

GROUP, TEMPLATE, TYPE, OFFERING, SPOT_PRICE = (
    "aws/AutoScalingGroup",
    "aws/LaunchTemplateVersion",
    "aws/InstanceType",
    "aws/InstanceTypeOffering",
    "aws/SpotPrice",
)
#: How notes about a region begin that a :class:`~gpuscaler.clouds.aws.discovery.regions.RegionReader` makes, and the kind that is missing.
_NOTES = {
    "launch": TEMPLATE,
    "versions of launch templates": TEMPLATE,
    "types by requirements": TEMPLATE,
    "images": TEMPLATE,
    "zones of instance types": OFFERING,
    "instance type": TYPE,
    "spot prices": SPOT_PRICE,
    "node groups": "aws/Nodegroup",
}


class Found(NamedTuple):
    """A group, as AWS describes it and decoded (None if it cannot be), and whether it belongs to the cluster.

    ``member`` means that a node of the cluster is one of its machines.
    """

    entry: Reply
    group: Group | None
    reason: str
    ownership: Ownership
    member: bool

    @property
    def related(self) -> bool:
        """Whether more than its description is worth reading."""
        return self.group is not None and bool(self.ownership.source or self.ownership.lacks or self.ownership.tag or self.member)


def find_groups(entries: Iterable[Reply], region: str, scope: Scope, machines: Collection[str]) -> list[Found]:
    """All groups of ``entries``; ``machines`` are the EC2 ids of the cluster's nodes."""
    found = []
    for entry in entries:
        ownership = decide_ownership(
            str(entry.get("AutoScalingGroupName")),
            tags_of(entry),
            cluster=scope.cluster,
            named=scope.groups,
            extra=scope.tags,
            exclude=scope.exclude,
        )
        member = any(instance.get("InstanceId") in machines for instance in entry.get("Instances") or ())
        try:
            group, reason = group_of(entry, region), ""
        except GroupError as error:
            group, reason = None, str(error)
        found.append(Found(entry, group, reason, ownership, member))
    return found


def note_missing(inspection: Inspection, notes: Mapping[str, str]) -> None:
    """Say what a pass over the region could not read."""
    for subject, reason in notes.items():
        kind = next((kind for start, kind in _NOTES.items() if subject.startswith(start)), "")
        if kind:
            inspection.miss(kind, CloudError("unknown", reason))


def document_of(found: Found, data: RegionData) -> dict[str, Any]:
    """The group with these fields of our own, beside those of AWS.

    ``Ownership`` is what its tags say, ``Member`` whether it has nodes of the cluster, ``Scaled`` whether it is a pool. ``TagMistakes`` are
    tags that are ignored. ``Options`` are the instance types that it may launch with what is known of them; without them ``Incomplete``
    says why. ``NodeTaints`` are the taints that its nodes really register with, as far as that is known.
    """
    ownership, group = found.ownership, found.group
    document: dict[str, Any] = {
        **plain(found.entry),
        "Region": data.region,
        "Tags": tags_of(found.entry),
        "Ownership": {
            "Source": ownership.source,
            "Reason": ownership.reason,
            "Foreign": ownership.foreign,
            "Cluster": ownership.cluster,
            "Tag": ownership.tag,
            "Lacks": list(ownership.lacks),
        },
        "Member": found.member,
        "Scaled": False,
    }
    if group is None or not found.related:
        return {**document, "Incomplete": found.reason or "the group does not belong to the cluster"}
    hints = hints_of(group.tags)
    document["TagMistakes"] = [{"Key": key.key, "Value": key.value, "Expected": key.expected} for key in hints.mistakes]
    document["Suspended"] = list(group.suspended)
    try:
        options = launch_options_of(group, data)
    except GroupError as error:
        return {**document, "Scaled": bool(ownership.source) and ownership.source != EKS, "Incomplete": str(error)}
    document["Options"] = [_option(group, option, data) for option in options]
    document["NodeTaints"] = [_taint(taint) for taint in _registered_taints(group, options, data)]
    # EKS puts Cluster Autoscaler's tags on every managed node group: see the discovery.
    has_devices = any(data.types[option.instance_type].gpus > 0 for option in options if option.instance_type in data.types)
    document["Scaled"] = bool(ownership.source) and (ownership.source != EKS or has_devices)
    return document


def _option(group: Group, option: LaunchOption, data: RegionData) -> dict[str, Any]:
    launch, kind = option.launch, data.types.get(option.instance_type)
    zones = data.offered.get(option.instance_type)
    spot = {zone: price.price for (name, zone), price in data.tariff.spot.items() if name == option.instance_type}
    return {
        "InstanceType": option.instance_type,
        "Weight": option.weight,
        "Image": launch.image,
        "Source": launch.source,
        "Markets": list(markets_of(group, launch)),
        "SpotMaxPrice": launch.spot_max_price,
        "SpotPrices": spot,
        "Outdated": launch.outdated,
        "DiskKeys": list(launch.disk_keys),
        "DefaultKey": launch.default_key,
        "RootHasKey": launch.root_has_key,
        "MetadataHops": launch.metadata_hops,
        "Zones": None if zones is None else sorted(zones),
        **_size(kind),
    }


def _size(kind: InstanceType | None) -> dict[str, Any]:
    if kind is None:
        return {"Known": False}
    return {"Known": True, "VCpus": kind.vcpu, "Gpus": kind.gpus, "GpuModel": kind.gpu_karpenter_name or kind.gpu_product}


def _registered_taints(group: Group, options: Iterable[LaunchOption], data: RegionData) -> tuple[Taint, ...]:
    nodegroup = data.nodegroups.get(group.name) if EKS_NODEGROUP in group.tags else None
    taints = [*(nodegroup.taints if nodegroup is not None else ())]
    for option in options:
        taints += option.launch.taints or ()
    return tuple(dict.fromkeys(taints))


def _taint(taint: Taint) -> dict[str, str]:
    return {"key": taint.key, "value": taint.value, "effect": taint.effect}
