"""Topology labels of storage drivers, on machines that do not exist yet.

A driver's node plugin labels its node with the driver's own topology keys (CSI's NodeGetInfo), and volumes name these keys in their
affinity, as storage classes do in ``allowedTopologies``. The keys of the large clouds' drivers are known in advance
(:mod:`gpuscaler.catalogue.node_labels`); those of any other driver are read from the nodes that run it.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

from msgspec.structs import replace

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node, first_label
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.model.well_known import ARCH, HOSTNAME, REGION_LABELS, ZONE_LABELS

#: Location labels that the cloud controller sets on every node, although no driver names them.
_CLOUD_PLACES: Final = ("topology.k8s.aws/zone-id",)
#: Labels that every node template already has, or that are unique to a node.
_KNOWN: Final = frozenset((*ZONE_LABELS, *REGION_LABELS, HOSTNAME, ARCH, "kubernetes.io/os"))
#: The number of nodes that must show a value: a value on a single node may be the name of that node.
_AT_LEAST: Final = 2


def with_storage_places(policy: Policy, cluster: Cluster) -> Policy:
    """``policy`` with the topology labels of storage drivers on its offerings, as far as nodes of ``cluster`` show them by zone."""
    named = {key for csi_node in cluster.csi_nodes.values() for key in csi_node.topology_keys} - _KNOWN
    node_labels = _labels_by_zone(cluster.nodes.values(), (*sorted(named), *_CLOUD_PLACES))
    if not node_labels:
        return policy
    zone_keys = frozenset(
        key for _, key in node_labels if all(values == {zone} for (zone, other), (values, _) in node_labels.items() if other == key)
    )
    places = by_zone(node_labels)

    def labels_in(zone: str) -> Mapping[str, str]:
        return {**(dict.fromkeys(zone_keys, zone) if zone else {}), **places.get(zone, {})}

    pools = tuple(
        replace(pool, offerings=tuple(_with_labels(offering, labels_in(offering.zone)) for offering in pool.offerings))
        for pool in policy.pools
    )
    return policy if pools == policy.pools else replace(policy, pools=pools)


#: The values that nodes show, and the number of nodes that show one, by zone and key.
Seen = Mapping[tuple[str, str], tuple[Set[str], int]]


def _labels_by_zone(nodes: Iterable[Node], keys: Sequence[str]) -> Seen:
    labels: dict[tuple[str, str], tuple[set[str], int]] = {}
    for node in nodes:
        zone = first_label(node, ZONE_LABELS)
        for key in keys if zone else ():
            value = node.labels.get(key)
            if value:
                values, count = labels.get((zone, key), (set(), 0))
                labels[zone, key] = (values | {value}, count + 1)
    return labels


def by_zone(node_labels: Seen) -> Mapping[str, Mapping[str, str]]:
    """The labels that a new node of each zone gets: those on which several nodes of the zone agree, and those of the cloud controller.

    A key whose values differ within a zone, such as one with the node's name, does not predict the next node there.
    """
    labels: dict[str, dict[str, str]] = {}
    for (zone, key), (values, count) in sorted(node_labels.items()):
        if len(values) == 1 and (count >= _AT_LEAST or key in _CLOUD_PLACES):
            labels.setdefault(zone, {})[key] = min(values)
    return labels


def _with_labels(offering: Offering, labels: Mapping[str, str]) -> Offering:
    """``offering`` with those of ``labels`` that it does not have: labels that its pool declares take precedence."""
    new = {key: value for key, value in labels.items() if key not in offering.labels}
    return replace(offering, labels={**offering.labels, **new}) if new else offering
