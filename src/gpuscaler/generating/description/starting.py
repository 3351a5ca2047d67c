"""A first description, made from what exists: the pools of a file or an account, or the GPU nodes of a cluster."""

import re
from collections.abc import Iterable, Mapping
from itertools import chain, count
from typing import NamedTuple

from gpuscaler import catalogue
from gpuscaler.catalogue.zones import cloud_of, region_of
from gpuscaler.generating.description.naming import short_type
from gpuscaler.generating.description.settings import KOPS, TOOLS
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.yaml_text import render_yaml
from gpuscaler.model.labels import LabelSet, is_label_value, is_qualified_name
from gpuscaler.model.nodes import Node, first_label
from gpuscaler.model.offerings import ON_DEMAND, SPOT
from gpuscaler.model.pools import Pool
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import INSTANCE_TYPE_LABELS, MARKET_LABELS, POOL_LABEL, REGION_LABELS, ZONE_LABELS
from gpuscaler.settings.fields.pool_kinds import EFFECTS

#: Labels of these domains are set by Kubernetes, clouds, GPU vendors or autoscalers; no person has to name them.
_FOREIGN = re.compile(
    r"(.*\.)?(kubernetes\.io|k8s\.io|eks\.amazonaws\.com|k8s\.aws|kubernetes\.azure\.com|karpenter\.sh|karpenter\.azure\.com|nvidia\.com|"
    r"gpuscaler\.io|eksctl\.io|google\.com|csi\.aws\.com|csi\.azure\.com|agentpool|storageprofile|storagetier)(/.*)?"
)
#: Taints of the same kind, which the files set by themselves, or which no file sets: readiness, spot, gpuscaler's.
_FOREIGN_TAINT = re.compile(r"(node\.kubernetes\.io|node\.cloudprovider\.kubernetes\.io|gpuscaler\.io|kubernetes\.azure\.com)/.*")
#: Characters of a label or taint that a comment shows.
_SHOWN = 80
#: Labels with the name of a node's group: of gpuscaler, AKS, EKS, eksctl, kOps and Karpenter.
_GROUP_LABELS = (
    *(POOL_LABEL, "agentpool", "kubernetes.azure.com/agentpool", "eks.amazonaws.com/nodegroup", "alpha.eksctl.io/nodegroup-name"),
    *("kops.k8s.io/instancegroup", "karpenter.sh/nodepool"),
)
#: The provider's id of a node on Azure: ``azure:///subscriptions/ID/resourceGroups/…``.
_SUBSCRIPTION = re.compile(r"azure:///subscriptions/([0-9a-f-]{36})/.*", re.IGNORECASE)
#: Labels from which the cluster's name can be read.
_CLUSTER_LABELS = ("alpha.eksctl.io/cluster-name", "kubernetes.azure.com/cluster")


class Sighting(NamedTuple):
    """That a type is bought in a market and a zone ("" if unknown), in the pool of that name, with these sizes ("None": unknown)."""

    pool: str
    instance_type: str
    market: str
    zone: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    min: int = 0
    max: int | None = None


class Origin(NamedTuple):
    """What is known of the cluster itself; what is "" is derived, or left to the person."""

    cloud: str = ""
    cluster: str = ""
    region: str = ""
    resource_group: str = ""
    subscription: str = ""


def of_pools(pools: Iterable[Pool]) -> tuple[Sighting, ...]:
    """Return what the offerings of ``pools`` show. Reserved machines are left out: a group for them needs their reservation."""
    return tuple(
        Sighting(pool.name, offering.instance_type, offering.market, offering.zone, offering.labels, offering.taints, pool.min, pool.max)
        for pool in pools
        for offering in pool.offerings
        if offering.market in (SPOT, ON_DEMAND) and offering.gpus
    )


def of_nodes(nodes: Iterable[Node]) -> tuple[Sighting, ...]:
    """Return what nodes with GPUs show. A node without a label for its market counts as on-demand."""
    sightings = []
    for node in nodes:
        type_ = catalogue.lookup(first_label(node, INSTANCE_TYPE_LABELS))
        if type_ is not None and type_.gpus:
            pool = first_label(node, _GROUP_LABELS)
            market = SPOT if SPOT in {MARKET_LABELS[key].get(node.labels.get(key, "")) for key in MARKET_LABELS} else ON_DEMAND
            zone = _label(node, ZONE_LABELS)
            sightings.append(Sighting(pool, type_.name, market, zone, node.labels, node.taints))
    return tuple(sightings)


def origin_of_nodes(nodes: Iterable[Node]) -> Origin:
    """Return what nodes show. On AKS, a label has the name of the node resource group, ``MC_GROUP_NAME_LOCATION``."""
    seen = tuple(nodes)
    name = next((value for node in seen if (value := _label(node, _CLUSTER_LABELS))), "")
    region = next((value for node in seen if (value := _label(node, REGION_LABELS))), "")
    subscription = next((found[1] for node in seen if (found := _SUBSCRIPTION.fullmatch(node.provider_id))), "")
    parts = name.split("_")
    if name.startswith("MC_") and len(parts) == 4:
        return Origin(cluster=parts[2], resource_group=parts[1], region=region, subscription=subscription)
    return Origin(cluster="" if name.startswith("MC_") else name, region=region, subscription=subscription)


def _label(node: Node, keys: tuple[str, ...]) -> str:
    """Return a label's value; "" for one that Kubernetes would refuse, since a file of nodes need not come from it."""
    value = first_label(node, keys)
    return value if is_label_value(value) else ""


def write_description(sightings: Iterable[Sighting], origin: Origin) -> str | None:
    """Return a description as text with comments; None if nothing with a GPU was seen in a cloud that files are written for."""
    sightings = tuple(sightings)
    refused = sorted({text for sighting in sightings for text in _refused(sighting)})
    seen = list(dict.fromkeys(map(_hashable, sightings)))
    known = [(sighting, type_) for sighting in seen if (type_ := catalogue.lookup(sighting.instance_type)) is not None and type_.gpus]
    cloud = origin.cloud or next((type_.cloud for _, type_ in known), "")
    usable = [sighting for sighting, type_ in known if type_.cloud == cloud]
    if cloud not in TOOLS or not usable:
        return None
    if cloud == "azure":
        region = origin.region or next((sighting.zone.rpartition("-")[0] for sighting in usable if "-" in sighting.zone), "")
        # Pools without zones of their own have those of the cluster.
        zones = sorted({_zone(sighting.zone, cloud) for sighting in usable})
        zones = [] if "" in zones else zones
    else:
        region = origin.region or next((region_of(sighting.zone, "") for sighting in usable if sighting.zone), "")
        zones = sorted({sighting.zone for sighting in usable if cloud_of(sighting.zone, origin.region) == "aws"})
    needed = {"resource_group": origin.resource_group, "subscription": origin.subscription} if cloud == "azure" else {}
    missing = [key for key, found in needed.items() if not found]
    cluster: dict[str, Tree] = {
        "name": origin.cluster or because("The name was not found: replace this one.", "my-cluster"),
        "region": region or because("The region was not found: replace this one.", "us-east-1" if cloud == "aws" else "eastus"),
        **({"zones": zones} if zones else {}),
        "create": because(
            "The cluster exists: only groups and what belongs to them are written, and its version of Kubernetes is not needed."
            + "".join(f" The {key.replace('_', ' ')} was not found: add {key}: …." for key in missing),
            value=False,
        ),
        **({"resource_group": origin.resource_group} if origin.resource_group else {}),
        **({"subscription": origin.subscription} if origin.subscription else {}),
    }
    tree: dict[str, Tree] = {"cloud": cloud, **({"tool": KOPS} if cloud == "aws" and "." in origin.cluster else {}), "cluster": cluster}
    tree["gpu_pools"] = because(
        "Instance types that are bought alike are one pool. A group is written for each type, market and zone."
        + (" Where max is missing, it was not found, and is 10." if any(sighting.max is None for sighting in usable) else "")
        + (f" Kubernetes would refuse these, so they are left out: {'; '.join(refused)}." if refused else ""),
        list(_pools(usable, zones, cloud)),
    )
    return render_yaml([tree], explain=True)


def _hashable(sighting: Sighting) -> Sighting:
    """Return the sighting with the labels and taints that a person has to name."""
    labels = {key: value for key, value in sighting.labels.items() if not _FOREIGN.fullmatch(key) and _is_valid(key, value)}
    taints = tuple(taint for taint in sighting.taints if not _FOREIGN_TAINT.fullmatch(taint.key) and _is_valid_taint(taint))
    return sighting._replace(labels=LabelSet(sorted(labels.items())), taints=tuple(sorted(taints, key=str)))


def _is_valid(key: str, value: str) -> bool:
    """Whether Kubernetes accepts key and value of a label or taint."""
    return is_qualified_name(key) and is_label_value(value)


def _is_valid_taint(taint: Taint) -> bool:
    return _is_valid(taint.key, taint.value) and taint.effect in EFFECTS


def _refused(sighting: Sighting) -> Iterable[str]:
    """Yield the labels and taints that Kubernetes would not accept; their beginnings, if they are long."""
    yield from (f"label {key}={value}"[:_SHOWN] for key, value in sighting.labels.items() if not _is_valid(key, value))
    yield from (f"taint {taint}"[:_SHOWN] for taint in sighting.taints if not _is_valid_taint(taint))


def _pools(sightings: list[Sighting], zones: list[str], cloud: str) -> Iterable[Tree]:
    by_type: dict[tuple[str, str, Mapping[str, str], tuple[Taint, ...]], list[Sighting]] = {}
    for sighting in sightings:
        by_type.setdefault((_stem(sighting.pool), sighting.instance_type, sighting.labels, sighting.taints), []).append(sighting)
    # Types that are bought alike are one pool.
    pools: dict[str, dict[str, Tree]] = {}
    for (stem, instance_type, labels, taints), group in by_type.items():
        markets = [market for market in (SPOT, ON_DEMAND) if any(sighting.market == market for sighting in group)]
        own_zones = sorted({_zone(sighting.zone, cloud) for sighting in group} - {""})
        sizes = [sighting.max for sighting in group if sighting.max]
        pool: dict[str, Tree] = {
            "markets": markets,
            **({"zones": own_zones} if own_zones and own_zones != zones else {}),
            **({"min": most} if (most := max(sighting.min for sighting in group)) else {}),
            **({"max": max(sizes)} if sizes else {}),
            **({"labels": dict(labels)} if labels else {}),
            "taints": [str(taint) for taint in taints] or because("No taint: pods that need no GPU may take these machines, too.", []),
        }
        missing = {(market, zone) for market in markets for zone in own_zones} - {(at.market, _zone(at.zone, cloud)) for at in group}
        key = repr((stem, pool, sorted(missing)))
        entry = pools.setdefault(key, {"name": stem, "types": [], **pool, "missing": sorted(missing)})
        entry["types"].append(instance_type)
    names = set[str]()
    for entry in pools.values():
        missing_groups = [f"{market} in zone {zone}" for market, zone in entry.pop("missing")]
        entry["name"] = _unique(entry["name"] or short_type(entry["types"][0]), names)
        yield because(f"There is no group yet for {', '.join(missing_groups)}; one is written.", entry) if missing_groups else entry


def _zone(zone: str, cloud: str) -> str:
    """Return a zone as descriptions name it: on Azure its number, "" for none."""
    if cloud == "azure":
        number = zone.rpartition("-")[2]
        return number if number in {"1", "2", "3"} else ""
    return zone


def _stem(group: str) -> str:
    """Return the name of the pool that a group belongs to: ``train-g5-xlarge-spot-a`` belongs to ``train``, if its name says so."""
    name = re.sub("[^a-z0-9]+", "-", group.lower()).strip("-")
    return re.sub(r"(-(spot|on-demand|ondemand))?(-([a-z]|z[0-9]))?$", "", name)[:40].strip("-")


def _unique(name: str, taken: set[str]) -> str:
    unique = next(candidate for candidate in chain([name], (f"{name}-{number}" for number in count(2))) if candidate not in taken)
    taken.add(unique)
    return unique
