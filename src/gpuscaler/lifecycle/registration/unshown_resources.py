"""Resources that the machines of an offering should have but do not show: such resources are not promised to pods.

If the device plug-in of a network adapter such as EFA does not run, pods that do not request the adapter can still run on the machines. So
machines are still bought, but not for pods that request it, which would wait for one machine after the other. If GPUs are not shown, no
more such machines are bought.
"""

from collections.abc import Iterable, Mapping, Set

from msgspec.structs import replace

from gpuscaler.model.accelerators import is_device
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.model.well_known import ARRIVING_TAINT
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.state.breakers import Breaker, Breakers, has_enough_strikes, is_open, withholds
from gpuscaler.planning.state.ledger.ledger import Ledger
from gpuscaler.planning.state.offering_events import LACKING

#: Age at which an open node should show all its resources, in seconds: as long as a new node may take to become ready.
SHOWN_SECONDS = 900.0

#: Resources by pool and instance type.
Unshown = Mapping[tuple[str, str], frozenset[str]]


def find_unshown(cluster: Cluster, policy: Policy, now: float, *, unlisted: Set[str]) -> Unshown:
    """Return, by pool and instance type, the promised extended resources other than accelerators that no open node shows.

    ``unlisted`` nodes belong to no pool.
    """
    if not any(extended_resources(offering) for offering in policy.offerings.values()):
        return {}
    shown: dict[tuple[str, str], set[str]] = {}
    lacks: dict[tuple[str, str], set[str]] = {}
    for name, member in members(cluster.nodes, policy, unlisted).items():
        node, offering = cluster.nodes[name], member.offering
        opened = node.ready and not node.deleted and all(taint.key != ARRIVING_TAINT for taint in node.taints)
        if offering is None or not opened or not (promised := extended_resources(offering)):
            continue
        kind = (offering.pool, offering.instance_type)
        has = {resource for resource in promised if node.allocatable.get(resource)}
        shown.setdefault(kind, set()).update(has)
        if now >= node.created + SHOWN_SECONDS:
            lacks.setdefault(kind, set()).update(promised - has)
    missing = {kind: frozenset(resources - shown[kind]) for kind, resources in lacks.items()}
    return {kind: resources for kind, resources in missing.items() if resources}


def extended_resources(offering: Offering) -> frozenset[str]:
    """Return the extended resources of an offering that are not accelerators."""
    return frozenset(name for name, amount in offering.allocatable.items() if amount and "/" in name and not is_device(name))


def without_broken_promises(
    policy: Policy, breakers: Breakers, cluster: Cluster, now: float, *, unlisted: Set[str]
) -> tuple[Policy, tuple[str, ...]]:
    """Return ``policy`` without resources that machines do not show, and a sentence for each type whose open nodes do not show one.

    ``unlisted`` nodes belong to no pool.
    """
    lacks = find_unshown(cluster, policy, now, unlisted=unlisted)
    stops = [breaker for breaker in breakers.open if withholds(breaker) and has_enough_strikes(breaker) and is_open(breaker, now)]
    if not (lacks or stops):
        return policy, ()

    def without_unshown_resources(offering: Offering) -> Offering:
        absent = lacks.get((offering.pool, offering.instance_type), frozenset())
        absent |= {breaker.lacks for breaker in stops if breaker.target.covers(offering.key)}
        if absent.isdisjoint(offering.allocatable):
            return offering
        return replace(offering, allocatable={name: amount for name, amount in offering.allocatable.items() if name not in absent})

    pools = tuple(replace(pool, offerings=tuple(map(without_unshown_resources, pool.offerings))) for pool in policy.pools)
    remarks = tuple(
        f"pool {pool}: no open node of type {instance_type} shows {', '.join(sorted(resources))}, although its machines "
        f"should have it; nothing is bought for pods that request it; check whether its device plugin runs there"
        for (pool, instance_type), resources in sorted(lacks.items())
    )
    return replace(policy, pools=pools), remarks


def shows_no_gpus(breakers: Breakers, key: OfferingKey) -> Breaker | None:
    """Return the breaker for ``key`` that was opened because several machines in a row never showed their GPUs; None without one."""
    return next(
        (
            breaker
            for breaker in breakers.open
            if breaker.cause == LACKING and has_enough_strikes(breaker) and not withholds(breaker) and breaker.target.covers(key)
        ),
        None,
    )


def unproven_machines(ledger: Ledger, breakers: Breakers) -> frozenset[str]:
    """Return the machines, by id, that no pod should wait for: they were not ordered here, and their type never shows its GPUs.

    A group launches such machines again and again to reach its minimum. gpuscaler orders a machine of this type only now and then, as a
    test.
    """
    return frozenset(
        machine.id for machine in ledger.coming if not (machine.order or machine.ready) and shows_no_gpus(breakers, machine.key)
    )


def probed_resources(breakers: Breakers, keys: Iterable[OfferingKey], requested: frozenset[str], now: float) -> frozenset[str]:
    """Return those resources of ``requested`` for which a machine of ``keys`` is a test, because earlier machines did not show them."""
    keys = tuple(keys)
    return frozenset(
        breaker.lacks
        for breaker in breakers.open
        if withholds(breaker)
        and has_enough_strikes(breaker)
        and not is_open(breaker, now)
        and breaker.lacks in requested
        and any(map(breaker.target.covers, keys))
    )
