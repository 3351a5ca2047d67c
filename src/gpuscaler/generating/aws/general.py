"""Groups of machines without GPUs, for everything but GPU work: one for each size, whatever the number of their types."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuscaler import catalogue
from gpuscaler.generating.description.naming import short_type
from gpuscaler.generating.description.resolved import Description

#: Configuration of the add-on vpc-cni (EKS user guide, "Set up your cluster for Kubernetes network policies", 2026-11-26). It is text.
NETWORK_POLICIES: Mapping[str, str] = {"enableNetworkPolicy": "true"}
WHY_NETWORK_POLICIES = "Without this, the cluster accepts NetworkPolicies and ignores them: those of the teams, and gpuscaler's own."
#: The control plane needs subnets in two zones at least.
_LEAST_ZONES = 2
_GIB_OF_CPU = {"c": 2, "m": 4, "r": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralGroup:
    """Machines of one size, on demand, in all zones of the cluster. Nothing scales them."""

    name: str
    types: tuple[str, ...]
    zones: tuple[str, ...]


def general_groups(description: Description) -> Iterator[GeneralGroup]:
    """Yield the groups of ``general_types``. Types share a group only if their machines are equal in size: AWS chooses among them."""
    by_size: dict[object, list[str]] = {}
    for name in dict.fromkeys(description.general_types):
        by_size.setdefault(_size(name) or name, []).append(name)
    for types in by_size.values():
        name = "general" if len(by_size) == 1 else f"general-{short_type(types[0])}"
        yield GeneralGroup(name=name, types=tuple(types), zones=cluster_zones(description))


def unused_networks(description: Description) -> tuple[str, ...]:
    """Return what to know of types with Elastic Fabric Adapters, which no tool's files set up.

    eksctl's ``efaEnabled`` (0.215.0) is not used: its device plugin tolerates neither the taints of GPU nodes nor gpuscaler's, and it puts
    each group into a cluster placement group, where spot machines are harder to get.
    """
    types = dict.fromkeys(group.instance_type.name for group in description.groups if group.instance_type.efa)
    if not types:
        return ()
    text = (
        f"{', '.join(types)}: Elastic Fabric Adapters are not set up, so pods of several machines talk by TCP, which slows large training "
        "down. To use them, add network interfaces of the type `efa` to the launch templates and install AWS's device plugin for EFA with "
        "tolerations of all taints of the groups. Neither are capacity reservations or local disks"
    )
    return (text,)


def cluster_zones(description: Description) -> tuple[str, ...]:
    """Return the zones of the cluster, without those that only a pool names."""
    region = description.cluster.region
    return description.cluster.zones or (f"{region}a", f"{region}b")


def control_plane_zones(description: Description) -> list[str]:
    """Return the zones of the cluster and of all pools; two at least, even if one has no machines."""
    zones = sorted({*cluster_zones(description), *(group.zone for group in description.groups)})
    spare = (f"{description.cluster.region}{letter}" for letter in "abc")
    return sorted([*zones, *(zone for zone in spare if zone not in zones)][: max(_LEAST_ZONES, len(zones))])


def architecture(group: GeneralGroup) -> str:
    """Return the architecture of a group's machines, as the catalogue calls it; amd64 if neither catalogue nor name tells."""
    size = _size(group.types[0])
    return size[0] if size else "amd64"


def _size(name: str) -> tuple[str, int, int] | None:
    """Return architecture, CPUs and MiB of a type's machines.

    For types that the catalogue does not have, EC2's naming tells them: c, m and r of the fifth generation and later have 2, 4 and 8 GiB
    for each of their CPUs (c5n has more), of which xlarge has four.
    """
    known = catalogue.lookup(name)
    if known is not None:
        return known.arch, known.vcpu, known.memory_mib
    parts = re.fullmatch(r"(?!c5n\.)([cmr])[5-9]([a-z]*)\.(?:(large)|([0-9]*)xlarge)", name)
    if parts is None:
        return None
    cpus = 2 if parts[3] else 4 * int(parts[4] or 1)
    return "arm64" if "g" in parts[2] else "amd64", cpus, cpus * _GIB_OF_CPU[parts[1]] * 1024
