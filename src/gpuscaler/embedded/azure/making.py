"""Contents for an account, made at once as if they had been there for long: groups, clusters, pools, scale sets; limits and troubles."""

from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

from gpuscaler.embedded.azure.account import Account
from gpuscaler.embedded.azure.aks import pools
from gpuscaler.embedded.azure.compute import capacity, interrupting, scale_sets
from gpuscaler.embedded.azure.hardware.refusals import Trouble
from gpuscaler.embedded.azure.state import AgentPool, Cluster, ReservationGroup, ResourceGroup, ScaleSet

SYSTEM_SIZE = "Standard_D4s_v5"


def create_group(
    account: Account, name: str, *, location: str = "", subscription: str = "", tags: Mapping[str, str] | None = None
) -> ResourceGroup:
    """A resource group, in the first subscription and location unless they are given."""
    group = ResourceGroup(subscription or account.subscriptions[0], name, location or account.locations[0], dict(tags or {}))
    return account.groups.setdefault((group.subscription.lower(), name.lower()), group)


def create_cluster(
    account: Account,
    name: str = "aks",
    group: str = "rg",
    *,
    location: str = "",
    subscription: str = "",
    system_count: int = 1,
    system_size: str = SYSTEM_SIZE,
    lockdown: bool = False,
    tags: Mapping[str, str] | None = None,
    **settings: Any,
) -> Cluster:
    """An AKS cluster with its node resource group and the system pool ``nodepool1``.

    With ``lockdown`` callers cannot write in the node resource group. ``settings`` are properties of the managed cluster.
    """
    home = create_group(account, group, location=location, subscription=subscription)
    node_group = f"MC_{group}_{name}_{home.location}"
    cluster = Cluster(home.subscription, home.name, name, home.location, node_group, f"{crc32(f'{group}/{name}'.encode()) % 10**8:08d}")
    cluster.settings, cluster.tags = dict(settings), dict(tags or {})
    nodes = create_group(account, node_group, location=home.location, subscription=home.subscription)
    nodes.managed_by, nodes.read_only_for_users = cluster.id, lockdown
    if lockdown:
        cluster.settings["nodeResourceGroupProfile"] = {"restrictionLevel": "ReadOnly"}
    home.clusters[name.lower()] = cluster
    if system_size:
        create_pool(account, cluster, "nodepool1", system_size, count=system_count, mode="System")
    return cluster


def create_pool(
    account: Account,
    cluster: Cluster,
    name: str,
    size: str | Mapping[str, int],
    *,
    count: int = 0,
    spot: bool = False,
    zones: Iterable[str] = (),
    labels: Mapping[str, str] | None = None,
    taints: Iterable[str] = (),
    mode: str = "User",
    **settings: Any,
) -> AgentPool:
    """An agent pool with ``count`` running machines.

    ``size`` is its size, or, for a pool of type VirtualMachines, the count of each size. ``settings`` are more of its properties.
    """
    wanted: dict[str, Any] = {"mode": mode, **settings}
    if labels:
        wanted["nodeLabels"] = dict(labels)
    if tuple(taints):
        wanted["nodeTaints"] = list(taints)
    if tuple(zones):
        wanted["availabilityZones"] = list(zones)
    if spot:
        wanted["scaleSetPriority"] = "Spot"
    if isinstance(size, str):
        pool = pools.make_pool(account, cluster, name, {**wanted, "vmSize": size})
        counts = {size.lower(): count}
    else:
        rows = [{"size": key, "count": number} for key, number in size.items()]
        wanted |= {"type": "VirtualMachines", "virtualMachinesProfile": {"scale": {"manual": rows}}}
        pool = pools.make_pool(account, cluster, name, wanted)
        counts = {key.lower(): number for key, number in size.items()}
    for part in pools.sets_of(account, cluster, pool):
        capacity.start_machines(account, part, counts[part.size.lower()])
    pool.count = sum(counts.values())
    return pool


def create_scale_set(
    account: Account,
    group: str,
    name: str,
    size: str,
    *,
    count: int = 0,
    spot: bool = False,
    zones: Iterable[str] = (),
    tags: Mapping[str, str] | None = None,
    flexible: bool = False,
    eviction: str = "Delete",
    properties: Mapping[str, Any] | None = None,
    subscription: str = "",
) -> ScaleSet:
    """A self-managed scale set with ``count`` running machines; ``properties`` are merged into its own."""
    home = create_group(account, group, subscription=subscription)
    profile: dict[str, Any] = {"osProfile": {"computerNamePrefix": name}}
    if spot:
        profile |= {"priority": "Spot", "evictionPolicy": eviction, "billingProfile": {"maxPrice": -1}}
    body: dict[str, Any] = {
        "location": home.location,
        "tags": dict(tags or {}),
        "sku": {"name": size},
        "properties": {
            "orchestrationMode": "Flexible" if flexible else "Uniform",
            "virtualMachineProfile": profile,
            **({} if flexible else {"overprovision": False}),
            **(properties or {}),
        },
    }
    if tuple(zones):
        body["zones"] = list(zones)
    scale_set = scale_sets.create(account, home.subscription, home.name, name, body)
    scale_sets.add(account, scale_set)
    capacity.start_machines(account, scale_set, count)
    return scale_set


def create_reservation_group(
    account: Account, group: str, name: str, reserved: Mapping[tuple[str, str], int], *, subscription: str = ""
) -> ReservationGroup:
    """A capacity reservation group with a reservation for each (size, zone number, "" for none)."""
    home = create_group(account, group, subscription=subscription)
    made = ReservationGroup(home.subscription, home.name, name, home.location)
    made.zones = tuple(sorted({zone for _, zone in reserved if zone}))
    for number, ((size, zone), count) in enumerate(reserved.items()):
        reservation: dict[str, Any] = {"name": f"{name}-{number}", "sku": {"name": size, "capacity": count}}
        if zone:
            reservation["zones"] = [zone]
        made.reservations[reservation["name"].lower()] = reservation
    home.reservation_groups[name.lower()] = made
    return made


def set_limit(account: Account, machines: int | None, *, market: str = "", size: str = "", zone: str = "", code: str = "") -> None:
    """Each market (of a size in a zone) that matches has ``machines`` machines (None: unlimited).

    Spot machines beyond are evicted with their notice, requests beyond fail with ``code``.
    ``market`` is ``spot`` or ``on-demand``, ``zone`` is such as ``eastus-1`` (``eastus-0``: not zonal) or a location; "" matches all. A
    ``code`` of "" stands for AllocationFailed, or ZonalAllocationFailed in a zone.
    """
    limits = account.hardware.markets.limits
    limits.pop((market, size, zone), None)
    if machines is not None:
        limits[market, size, zone] = (machines, code)
    account.hardware.core.check_markets(account.time)
    account.advance()


def add_trouble(account: Account, code: str, **fields: Any) -> Trouble:
    """Let machines fail with ``code``; ``fields`` are those of :class:`~gpuscaler.embedded.azure.hardware.refusals.Trouble`."""
    trouble = Trouble(code, **fields)
    account.hardware.troubles.append(trouble)
    return trouble


def set_quota(account: Account, name: str, limit: int, *, location: str = "", subscription: str = "") -> None:
    """Set a quota in vCPUs; ``name`` is a family such as ``StandardNCADSA100v4Family``, ``cores`` or ``lowPriorityCores``."""
    key = ((subscription or account.subscriptions[0]).lower(), location or account.locations[0], name.lower())
    account.limits[key] = limit


def restrict(account: Account, size: str, zones: Iterable[str] = (), *, location: str = "", subscription: str = "") -> None:
    """Restrict a size in Resource SKUs, in some zones or in the whole location, and refuse it with SkuNotAvailable."""
    where, numbers = location or account.locations[0], tuple(zones)
    account.restrictions[(subscription or account.subscriptions[0]).lower(), where, size.lower()] = numbers
    for zone in [f"{where}-{number}" for number in numbers] or [where]:
        add_trouble(account, "SkuNotAvailable", size=size, zone=zone)


def evict(account: Account, scale_set: ScaleSet, key: str, *, notice: float = 30.0) -> None:
    """Evict the machine ``key`` (instance id or name) of a spot scale set ``notice`` seconds from now, announced if that is above 0."""
    interrupting.evict(account, scale_set, scale_set.machines[key], notice=notice)
    account.advance()
