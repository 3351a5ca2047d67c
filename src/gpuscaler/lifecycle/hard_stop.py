"""The hard stop: never are more machines on their way than the pending pods could need.

The planner counts the ordered machines and buys the missing ones. If the count were wrong, because of an unreadable answer or a bug, it
would buy for the same pods again and again, and limits that use the same count would not stop it. The hard stop therefore ignores
offerings, free capacity and prices, and only counts machines and pods. In each pool, the ordered machines that are not open yet, plus the
machines of the plan, may be at most:

- one for each pod that is pending for a machine of the pool, and one more;
- as many as the pool lacks of its minimum and its spare machines;
- one for each pod that moves to a replacement machine.

Machines beyond these numbers are dropped from the plan and reported. Ordered machines whose pods are gone, or whose gang is planned again
on other machines, do not count, because nothing is bought for those pods again.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set

from msgspec.structs import replace

from gpuscaler.lifecycle import scale_in_protection
from gpuscaler.lifecycle.registration.readiness import requested_resources
from gpuscaler.lifecycle.registration.unshown_resources import probed_resources
from gpuscaler.lifecycle.scale_in_protection import Guarding
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.plans import Cut, Plan, PlannedMachine, Reason, Unplaced
from gpuscaler.planning.result import purchases
from gpuscaler.planning.state.breakers import Breakers
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine

DEMAND, SPARE, REPLACEMENT = "demand", "spare", "replacement"
#: How many machines may be on their way in addition to one for each pod.
MORE = 1


def without_surplus(
    plan: Plan,
    cluster: Cluster,
    policy: Policy,
    *,
    ledger: Ledger,
    breakers: Breakers,
    now: float,
    unlisted: Set[str] = frozenset(),
    guarding: Guarding | None = None,
) -> Plan:
    """Return ``plan`` without the machines beyond what the pending pods could need, with a warning for each pool where some were dropped.

    ``unlisted`` nodes belong to no pool. ``guarding`` has the groups that balance zones and whose machines cannot be protected.
    """
    if not plan.machines:
        return plan
    dropped: dict[str, Cut] = {}
    for pool in policy.pools:
        if any(machine.pool == pool.name for machine in plan.machines):
            dropped |= _surplus(plan, pool, ledger, cluster, open_machines(pool, ledger, cluster, policy, unlisted))
    dropped |= _surplus_probes(plan, breakers, cluster, now)
    if guarding is not None:
        dropped |= scale_in_protection.unbalancing_machines(plan, guarding, policy)
    return drop_machines(plan, _with_gang_mates(plan, dropped, cluster), cluster) if dropped else plan


def open_machines(pool: Pool, ledger: Ledger, cluster: Cluster, policy: Policy, unlisted: Set[str]) -> int:
    """Return how many machines of ``pool`` are open; 0 for a pool without a minimum, where the number is not needed."""
    if not pool.min:
        return 0
    closed = {machine.node for machine in ledger.coming}
    memberships = members(cluster.nodes, policy, unlisted)
    return sum(name not in closed and member.pool.name == pool.name for name, member in memberships.items())


def count_allowed(plan: Plan, pool: Pool, ledger: Ledger, cluster: Cluster, open_now: int) -> Mapping[str, int]:
    """Return how many machines of ``pool`` may be on their way, including those of ``plan``, by purpose; ``open_now`` machines are open."""
    new = [machine for machine in plan.machines if machine.pool == pool.name]
    coming = {machine.id: machine for machine in ledger.coming if machine.key.pool == pool.name}
    keys = {key for machine in new for key in machine.pods} | {
        key for machine in coming.values() for key in (*machine.pods, *machine.bought_for)
    }
    keys |= {placement.pod for placement in plan.placements if placement.node in coming}
    moving = {move.pod for removal in plan.removals if removal.needs for move in removal.moves}
    moving |= {key for removal in ledger.leaving for key in removal.pods}
    return {
        DEMAND: sum(1 for key in keys if needs_place(key, ledger, cluster)) + MORE,
        SPARE: max(0, pool.min - open_now) + pool.spare.machines + pool.spare.gpus,
        REPLACEMENT: max(len(moving), len(ledger.leaving) + sum(bool(removal.needs) for removal in plan.removals)),
    }


def count_on_their_way(plan: Plan, pool: str, ledger: Ledger, cluster: Cluster) -> Mapping[str, int]:
    """Return how many ordered machines of ``pool`` are still needed, by purpose."""
    counts = {DEMAND: 0, SPARE: 0, REPLACEMENT: 0}
    taken_ids = {placement.node for placement in plan.placements} | {machine.id for machine in ledger.coming if machine.pods}
    needed = {name for removal in ledger.leaving for name in removal.needs}
    for machine in ledger.coming:
        if machine.key.pool != pool or not machine.order:
            continue
        if machine.purpose == REPLACEMENT and machine.id in needed:
            counts[REPLACEMENT] += 1
        elif machine.purpose == SPARE and machine.id not in taken_ids:
            counts[SPARE] += 1
        elif machine.id in taken_ids if machine.purpose in (SPARE, REPLACEMENT) else _is_wanted(machine, ledger, cluster):
            # A spare machine that pods take counts as demand.
            counts[DEMAND] += 1
    return counts


def needs_place(key: str, ledger: Ledger, cluster: Cluster) -> bool:
    """Whether a pod is pending, or runs on a node that is being removed."""
    pod = cluster.pods.get(key)
    if pod is None or pod.finished:
        return False
    return not pod.node_name or any(removal.node == pod.node_name for removal in ledger.leaving)


def _is_wanted(machine: OrderedMachine, ledger: Ledger, cluster: Cluster) -> bool:
    if machine.gang and not machine.pods:
        return False
    return any(needs_place(key, ledger, cluster) for key in machine.bought_for or machine.pods)


def _surplus(plan: Plan, pool: Pool, ledger: Ledger, cluster: Cluster, open_now: int) -> dict[str, Cut]:
    """Return the surplus machines of ``plan`` in ``pool``, by id; the last ones are dropped first."""
    allowed, coming = count_allowed(plan, pool, ledger, cluster, open_now), count_on_their_way(plan, pool.name, ledger, cluster)
    cuts: dict[str, Cut] = {}
    for purpose, bound in allowed.items():
        new = [machine.id for machine in plan.machines if (machine.pool, machine.purpose) == (pool.name, purpose)]
        excess = min(len(new), coming[purpose] + len(new) - bound)
        if excess > 0:
            text = (
                f"pool {pool.name}: {coming[purpose]} machines are on their way for {purpose} and the plan buys {len(new)} more, but at "
                f"most {bound} can be needed; {excess} of them are not ordered; this is a bug of gpuscaler or a cloud answer that it "
                f"cannot parse: check the machines of the pool, and report it"
            )
            cuts |= dict.fromkeys(new[len(new) - excess :], Cut(pool.name, excess, text))
    return cuts


def _surplus_probes(plan: Plan, breakers: Breakers, cluster: Cluster, now: float) -> dict[str, Cut]:
    """Return the machines beyond the first for pods that request a resource machines lacked: one machine tests whether it appears now."""
    tried: set[tuple[str, str]] = set()
    cuts: dict[str, Cut] = {}
    for machine in plan.machines if any(breaker.lacks for breaker in breakers.open) else ():
        for resource in probed_resources(breakers, machine.keys, requested_resources(machine.pods, cluster), now):
            if (machine.pool, resource) in tried:
                text = f"pool {machine.pool}: one machine has to show {resource} first, which earlier machines lacked"
                cuts[machine.id] = Cut(machine.pool, 1, text)
            tried.add((machine.pool, resource))
    return cuts


def _with_gang_mates(plan: Plan, dropped: Mapping[str, Cut], cluster: Cluster) -> Mapping[str, Cut]:
    """Return ``dropped`` plus all other machines of the same gangs: half a gang is of no use."""
    gangs = {gang: cut for machine in plan.machines if (cut := dropped.get(machine.id)) for gang in _gangs(machine.pods, cluster)}
    mates = {
        machine.id: cut
        for machine in plan.machines
        for gang in (_gangs(machine.pods, cluster) if gangs else ())
        if (cut := gangs.get(gang)) is not None
    }
    return {**mates, **dropped}


def _gangs(pods: Iterable[str], cluster: Cluster) -> Set[tuple[str, str]]:
    gang_pods = (cluster.pods.get(key) for key in pods)
    return {(pod.namespace, pod.options.gang) for pod in gang_pods if pod is not None and pod.options.gang}


def drop_machines(plan: Plan, dropped: Mapping[str, Cut], cluster: Cluster) -> Plan:
    """Return ``plan`` without the ``dropped`` machines, by id, and the removals that need them; their pods become unplaced."""
    machines = tuple(machine for machine in plan.machines if machine.id not in dropped)
    cost = math.fsum(machine.price_per_hour for machine in machines if machine.purpose == DEMAND)
    floor = min(plan.lower_bound_per_hour, cost)
    dropped_machines = [machine for machine in plan.machines if machine.id in dropped]
    cuts = {cut.text: cut for cut in dropped.values()}
    return replace(
        plan,
        machines=machines,
        purchases=purchases(machines),
        removals=tuple(removal for removal in plan.removals if dropped.keys().isdisjoint(removal.needs)),
        cost_per_hour=cost,
        lower_bound_per_hour=floor,
        gap=cost / floor - 1 if floor > 0 else 0.0,
        unplaced=tuple(sorted((*plan.unplaced, *_unplaced(dropped_machines, dropped, cluster)), key=lambda entry: entry.pod)),
        warnings=(*plan.warnings, *cuts),
        cut=tuple(cuts.values()),
    )


def _unplaced(machines: Sequence[PlannedMachine], dropped: Mapping[str, Cut], cluster: Cluster) -> Iterable[Unplaced]:
    for machine in machines:
        cut = dropped[machine.id]
        reasons = (Reason(cut.pool, "limit", cut.text),)
        yield from (Unplaced(key, reasons) for key in machine.pods if (pod := cluster.pods.get(key)) is None or not pod.node_name)
