"""Zone balance: machines of groups that balance their zones are bought in the zone with the fewest machines, at the same cost."""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering, Policy, Pool
from gpuscaler.planning.capacity.fallbacks import depends_on_others, holds, total_requests
from gpuscaler.planning.capacity.node_templates import Overhead
from gpuscaler.planning.capacity.pool_membership import Member
from gpuscaler.planning.plans import PlannedMachine
from gpuscaler.planning.state import State


def balance(
    machines: Sequence[PlannedMachine], cluster: Cluster, policy: Policy, state: State, members: Mapping[str, Member]
) -> tuple[PlannedMachine, ...]:
    """``machines`` of a plan, moved to the zones with the fewest machines that suit their pods at no higher price."""
    pools = {pool.name: pool for pool in policy.pools if pool.balances and (pool.chooser == "buyer" or pool.names_zone)}
    if not pools or not any(machine.pool in pools for machine in machines):
        return tuple(machines)
    counts = _standing(pools, cluster, state, members)
    overhead = Overhead(cluster)
    chosen: list[PlannedMachine] = []
    for machine in machines:
        pool = pools.get(machine.pool)
        if pool is None:
            chosen.append(machine)
            continue
        zones = [machine.zone, *sorted(zone for zone in counts[machine.pool] if zone != machine.zone)]
        moves = [moved for zone in zones if (moved := _move(machine, zone, pool, cluster, state, overhead=overhead)) is not None]
        best = min(moves, key=lambda moved: counts[machine.pool][moved.zone], default=machine)
        counts[machine.pool][best.zone] += 1
        chosen.append(best)
    return tuple(chosen)


def _standing(pools: Mapping[str, Pool], cluster: Cluster, state: State, members: Mapping[str, Member]) -> dict[str, Counter[str]]:
    counts = {name: Counter({offering.zone: 0 for offering in pool.offerings}) for name, pool in pools.items()}
    coming = {machine.node for machine in state.upcoming if machine.node}
    for name, member in members.items():
        if member.pool.name in counts and name not in coming and name not in state.disrupting and name in cluster.nodes:
            bought = cluster.nodes[name].bought
            zone = bought.zone if bought is not None else member.offering.zone if member.offering is not None else ""
            counts[member.pool.name][zone] += 1
    for machine in state.upcoming:
        if machine.pool in counts:
            counts[machine.pool][machine.zone] += 1
    return counts


def _move(machine: PlannedMachine, zone: str, pool: Pool, cluster: Cluster, state: State, *, overhead: Overhead) -> PlannedMachine | None:
    """``machine`` bought in ``zone``; None where its pods cannot go there, it costs more, or its offerings cannot be bought now."""
    if zone == machine.zone:
        return machine
    pods = [cluster.pods.get(key) for key in machine.pods]
    if machine.purpose == "replacement" or any(pod is None or depends_on_others(pod) for pod in pods):
        return None
    specs = [pod.spec for pod in pods if pod is not None]
    by_key = {offering.key: offering for offering in pool.offerings}
    wanted = {(choice.market, choice.instance_type) for choice in machine.choices} or {(machine.market, machine.instance_type)}
    offerings = [by_key.get(OfferingKey(pool.name, market, kind, zone)) for market, kind in wanted]
    refused = state.blocked_offerings | state.half_open_offerings | state.no_moves_to
    if any(
        offering is None or offering.key in refused or offering.count is not None or not _serves(offering, specs, overhead)
        for offering in offerings
    ):
        return None
    prices = {(offering.market, offering.instance_type): offering.price for offering in offerings if offering is not None}
    if any(price > by_key[OfferingKey(pool.name, market, kind, machine.zone)].price + 1e-9 for (market, kind), price in prices.items()):
        return None
    choices = tuple(replace(choice, zone=zone, price_per_hour=prices[choice.market, choice.instance_type]) for choice in machine.choices)
    return replace(machine, zone=zone, price_per_hour=prices[machine.market, machine.instance_type], choices=choices)


def _serves(offering: Offering, specs: Sequence[PodSpec], overhead: Overhead) -> bool:
    return holds(offering, total_requests(specs), overhead) and all(offering.admits(spec) for spec in specs)
