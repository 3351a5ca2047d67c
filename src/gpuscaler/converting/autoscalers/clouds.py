"""Where the groups of an autoscaler are: the mappings ``aws`` and ``azure`` of the run file, and the limits of named groups."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpuscaler.converting.autoscalers.draft import Draft, UnusableError, whole
from gpuscaler.converting.autoscalers.flags import Flag
from gpuscaler.model.labels import label_value_of

_REGION: Final = re.compile(r"[a-z]{2,4}(-[a-z]+)+-[0-9]")
#: The registry of an account in a region, from which EKS serves the images of its programs.
_REGISTRY: Final = re.compile(r"[0-9]{12}\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com")
UUID: Final = re.compile("[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
RESOURCE_GROUP: Final = re.compile(r"[\w().-]{0,89}[\w()-]")
_CLUSTER: Final = re.compile("[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
#: The resource group of the nodes of an AKS cluster: of its own group, name and location, which may all contain underscores but the last.
_NODE_GROUP: Final = re.compile(r"MC_(?P<both>.+)_(?P<location>[a-z0-9]+)", re.IGNORECASE)
#: The scale set of an agent pool of AKS.
_AKS_SET: Final = re.compile(r"aks-(?P<pool>[a-z0-9]{1,12})-[0-9]{8}-vmss(?P<suffix>[0-9a-z]*)")
_DISCOVERY: Final = "k8s.io/cluster-autoscaler/"
_OWNER: Final = "kubernetes.io/cluster/"
NO_REGION, NO_SUBSCRIPTION, NO_GROUP = "us-east-1", "00000000-0000-0000-0000-000000000000", "REPLACE-ME"
_NO_CLUSTER: Final = "REPLACE-ME"
#: Variables that say where the groups are, by what they say.
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_NODE_GROUPS: Final = ("AZURE_NODE_RESOURCE_GROUP", "ARM_RESOURCE_GROUP")
_CLUSTERS: Final = ("CLUSTER_NAME", "AZURE_CLUSTER_NAME", "ARM_CLUSTER_NAME")
_OWN_GROUPS: Final = ("ARM_CLUSTER_RESOURCE_GROUP", "ARM_RESOURCE_GROUP")
_SUBSCRIPTIONS: Final = ("ARM_SUBSCRIPTION_ID", "AZURE_SUBSCRIPTION_ID", "SUBSCRIPTION_ID")
VARIABLES: Final = frozenset((*_REGIONS, *_NODE_GROUPS, *_CLUSTERS, *_OWN_GROUPS, *_SUBSCRIPTIONS))


@dataclass(frozen=True, slots=True)
class Places:
    """What a container says about its account: its variables whose values are known, and its image."""

    variables: Mapping[str, str] = field(default_factory=dict)
    image: str = ""

    def first(self, names: Iterable[str], pattern: re.Pattern[str]) -> str:
        """The first of the variables that has a value of that form."""
        return next((value for name in names if pattern.fullmatch(value := self.variables.get(name, "").strip())), "")


def begin(draft: Draft, places: Places, *, cluster: str) -> None:
    """Write what is known before any group is: the cluster and its regions, or subscription and resource groups."""
    if draft.cloud == "aws":
        registry = _REGISTRY.match(places.image)
        region = places.first(_REGIONS, _REGION)
        set_aws(draft, cluster, [region or (registry["region"] if registry else "")])
    else:
        group = places.first(_NODE_GROUPS, RESOURCE_GROUP)
        name = places.first(_CLUSTERS, _CLUSTER) or cluster
        own = places.first(_OWN_GROUPS, RESOURCE_GROUP)
        own = "" if own == group else own
        set_azure(
            draft,
            places.first(_SUBSCRIPTIONS, UUID),
            group,
            name,
            own,
        )


def set_aws(draft: Draft, cluster: str, regions: Iterable[str]) -> None:
    """Write the mapping ``aws``."""
    valid = list(dict.fromkeys(region.strip() for region in regions if _REGION.fullmatch(region.strip())))
    if cluster.strip():
        _set_cluster(draft, cluster.strip())
    if not valid:
        draft.check(f"no region is named; {NO_REGION} stands in its place: write the regions of the groups in aws.regions")
    draft.account["regions"] = valid or [NO_REGION]


def _set_cluster(draft: Draft, cluster: str) -> None:
    if Flag("", cluster).is_placeholder:
        draft.check(f"the name of the cluster is {cluster}: write the one in the tags of its groups in aws.cluster")
    draft.account["cluster"] = cluster


def set_azure(draft: Draft, subscription: str, group: str, cluster: str, own_group: str) -> None:
    """Write the mapping ``azure``; ``group`` has the machines, and ``own_group`` the cluster itself, if it is of AKS."""
    entry: dict[str, Any] = {"id": subscription.lower() or NO_SUBSCRIPTION}
    if not subscription:
        draft.check(f"no subscription is named; {NO_SUBSCRIPTION} stands in its place: write the id in azure.subscriptions")
    name, resource_group = _aks_cluster(group, cluster, own_group)
    if name:
        entry["cluster"] = {"name": name, "resource_group": resource_group}
        draft.notes.append(
            f"the AKS cluster {name} in {resource_group} is taken from the names of its resource groups; correct it if it is another"
        )
    else:
        entry["resource_groups"] = [group or NO_GROUP]
        if not group:
            draft.check(
                f"no resource group is named; {NO_GROUP} stands in its place: write that of the scale sets, "
                "or with AKS cluster: {name: …, resource_group: …}"
            )
    draft.account["subscriptions"] = [entry]


def _aks_cluster(group: str, cluster: str, own_group: str) -> tuple[str, str]:
    """(name, resource group) of the AKS cluster whose nodes are in ``group``; empty if it has none, or if it is unclear."""
    if own_group and _CLUSTER.fullmatch(cluster):
        return cluster, own_group
    match = _NODE_GROUP.fullmatch(group)
    if match is None:
        return "", ""
    before, _, last = match["both"].rpartition("_")
    if cluster and match["both"].lower().endswith(f"_{cluster.lower()}"):
        before, last = match["both"][: -len(cluster) - 1], match["both"][-len(cluster) :]
    elif "_" in before:
        return "", ""
    valid = RESOURCE_GROUP.fullmatch(before) and _CLUSTER.fullmatch(last)
    return (last, before) if valid else ("", "")


def name_group(draft: Draft, flag: Flag, group: str, *, least: int, most: int) -> None:
    """Write a group that was named, with its limits."""
    if Flag("", group).is_placeholder:
        draft.check(f"{flag} is not carried over: the name of the group is filled in elsewhere")
        return
    if draft.cloud == "aws":
        names: list[str] = draft.account.setdefault("groups", [])
    else:
        if match := _AKS_SET.fullmatch(group):
            group = match["pool"]
        names = draft.account["subscriptions"][0].setdefault("pools", [])
    if group not in names:
        names.append(group)
    pool = label_value_of(group, "group")
    if draft.groups.setdefault(pool, group) != group:
        draft.pools.pop(pool, None)
        names_of_both = f"the groups {draft.groups[pool]} and {group} would both be the pool {pool}"
        draft.check(f"{names_of_both}: their min and max are left out; write them below the names that gpuscaler pools prints")
        return
    draft.pools[pool] = {"min": least, "max": most}
    where = "aws.groups" if draft.cloud == "aws" else "pools of the subscription"
    draft.carried(flag, f"{group} in {where}, and the pool {pool} with min: {least} and max: {most}")


def discover(draft: Draft, flag: Flag) -> None:
    """Write a search for groups by their tags. Raises :class:`UnusableError`."""
    kind, _, rest = flag.value.partition(":")
    expected = {"aws": "asg", "azure": "label"}[draft.cloud]
    if kind != expected or not rest:
        raise UnusableError(f"expected {expected}:tag=…")
    tags: dict[str, str | None] = {}
    options: dict[str, str] = {}
    for item in rest.removeprefix("tag=").split(","):
        key, equals, value = item.strip().partition("=")
        if draft.cloud == "azure" and key in ("min", "max") and equals:
            options[key] = value
        elif key:
            tags[key] = value if equals else None
    if not tags:
        raise UnusableError("expected the keys of tags")
    if draft.cloud == "aws":
        _discover_groups(draft, flag, tags)
    else:
        _discover_scale_sets(draft, flag, tags, options)


def _discover_groups(draft: Draft, flag: Flag, tags: dict[str, str | None]) -> None:
    cluster = next((key.removeprefix(_DISCOVERY) for key in tags if key.startswith(_DISCOVERY) and key != f"{_DISCOVERY}enabled"), "")
    owner = next((key.removeprefix(_OWNER) for key in tags if key.startswith(_OWNER)), "")
    before = draft.account.get("cluster", "")
    if (cluster or owner) and not before:
        _set_cluster(draft, cluster or owner)
    elif cluster and cluster != before:
        draft.check(f"{flag} names the cluster {cluster} beside {before}: one run file is for one cluster")
    draft.carried(flag, f"aws.cluster: {draft.account.get('cluster', '')}" if cluster or owner else "aws.tags")
    own = {f"{_DISCOVERY}enabled", f"{_DISCOVERY}{cluster}"}
    found_by_cluster = own <= tags.keys()
    others = {key: value for key, value in tags.items() if key not in own}
    if found_by_cluster:
        if others:
            draft.check(
                f"groups without {', '.join(others)} are adopted, too, if they have the two tags of the cluster: list them in aws.exclude"
            )
        draft.check("managed node groups of EKS without accelerators are not adopted: name them in aws.groups")
        return
    valued = {key: value for key, value in others.items() if value}
    if valued and "tags" not in draft.account:
        draft.account["tags"] = valued
    if cluster or not valued:
        draft.check(
            f"groups are found by two tags, {_DISCOVERY}enabled and {_DISCOVERY}CLUSTER: add the one that is missing, "
            "or name the groups in aws.groups"
        )
    elif len(valued) < len(others):
        lacking = ", ".join(key for key in others if key not in valued)
        draft.check(f"aws.tags has no entry for {lacking}, since it needs a value: groups with the other tags are adopted")


def _discover_scale_sets(draft: Draft, flag: Flag, tags: dict[str, str | None], options: Mapping[str, str]) -> None:
    entry = draft.account["subscriptions"][0]
    valued = {key: value for key, value in tags.items() if value}
    for key, value in valued.items():
        if Flag("", value).is_placeholder:
            draft.check(f"the tag {key} has the value {value}: write the one of the scale sets in tags of the subscription")
    if valued and "tags" not in entry:
        # AKS's own node group is searched with the cluster, and tags need a group to search.
        entry["tags"] = valued
        entry.setdefault("resource_groups", [NO_GROUP])
        if entry["resource_groups"] == [NO_GROUP]:
            draft.check("tags of scale sets are searched in resource_groups: write the resource group of the machines there")
    if len(valued) < len(tags):
        draft.check(
            f"tags of the subscription have no entry for {', '.join(key for key in tags if key not in valued)}, since they need a value"
        )
    for key in ("min", "max"):
        if key in options:
            draft.every[key] = whole(options[key])
    if draft.every.get("min", 0) > draft.every.get("max", draft.every.get("min", 0)):
        del draft.every["min"]
    draft.carried(flag, "tags of the subscription" + ("".join(f", {key}: {value} of every pool" for key, value in options.items())))


def finish(draft: Draft) -> None:
    """Note what would be found nowhere."""
    if draft.cloud == "aws" and not draft.account.get("cluster"):
        draft.account["cluster"] = _NO_CLUSTER
        draft.check(
            f"no name of the cluster is given; {_NO_CLUSTER} stands in its place: write the one in the tags of its groups in aws.cluster"
        )
    draft.account = {
        key: draft.account[key] for key in ("cluster", "regions", "groups", "tags", "exclude", "subscriptions") if key in draft.account
    }
