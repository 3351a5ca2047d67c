"""Warnings for people: stopped removals, machines of unknown pools, nodes with fewer devices than their instance type has."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuscaler.control.records.words import format_duration, format_names
from gpuscaler.lifecycle.observed.machine_index import Unpooled
from gpuscaler.lifecycle.released_pools import ReleasedPool
from gpuscaler.lifecycle.steering.binding import Unbinding
from gpuscaler.model.accelerators import ACCELERATORS
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.quantities import format_count
from gpuscaler.model.well_known import ARRIVING_TAINT
from gpuscaler.planning.capacity.pool_membership import Member
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine

#: A node that is closed for longer than a machine takes to open is reported, in seconds.
CLOSED_SECONDS = 900.0


def describe_findings(plan: Plan, cluster: Cluster, members: Mapping[str, Member], unpooled: Iterable[Unpooled] = ()) -> Iterator[str]:
    """A sentence for each finding; ``members`` has the pools of nodes, ``unpooled`` are machines of unknown pools."""
    halted = next((blocked.detail for blocked in plan.blocked_nodes if blocked.blocker == "unhealthy"), None)
    if halted is not None:
        yield halted
    for unknown_pool in unpooled:
        yield (
            f"pool {unknown_pool.pool}: the cloud lists {format_count(unknown_pool.machines, 'machine')} of it for this cluster "
            f"({unknown_pool.machine}{', …' if unknown_pool.machines > 1 else ''}), expected pools of the settings; its machines are not "
            f"counted, opened or removed; "
            f"add the pool, or remove this cluster's name from its machines if they do not belong to the cluster"
        )
    short: dict[str, list[str]] = defaultdict(list)
    for name, member in members.items():
        offering, shown = member.offering, cluster.nodes[name].allocatable
        if offering is None:
            continue
        for device in ACCELERATORS:
            most = offering.allocatable.get(device, 0)
            if 0 < shown.get(device, 0) < most:
                short[f"{shown[device]} of {most} {device} that a {offering.instance_type} has"].append(name)
    for shortage, names in short.items():
        yield (
            f"{format_nodes(names)} {'shows' if len(names) == 1 else 'show'} {shortage}; plans use the shown number; "
            f"check the driver's log on the node for a failed device, and replace the machine"
        )


def describe_released_pool(released: ReleasedPool) -> str:
    """A sentence about a pool that is no longer managed."""
    machines = (
        f"{format_count(released.coming, 'machine')} starting, {released.leaving} leaving, gpuscaler's taints on "
        f"{format_count(released.tainted, 'node')}"
    )
    return (
        f"pool {released.pool} is no longer managed. Work in progress is finished ({machines}), and nothing new is started; "
        f"gpuscaler pools prints why; if it does not list the pool, name it in the cloud's settings to have it managed"
    )


def describe_faulty_machines(ledger: Ledger, faults: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each pool with machines that are not nodes yet and of which the cloud reports ``faults``, by the ledger's names."""
    faulty: dict[str, list[OrderedMachine]] = defaultdict(list)
    for machine in ledger.coming:
        if machine.id in faults:
            faulty[machine.key.pool].append(machine)
    for pool, machines in faulty.items():
        first = machines[0]
        what = f"{len(machines)} machines that are not nodes yet, such as" if len(machines) > 1 else "a machine that is not a node yet,"
        yield f"pool {pool}: the cloud reports a fault of {what} {first.instance}: {faults[first.id]}"


def describe_unbound_pools(pools: Mapping[str, Unbinding], now: float) -> Iterator[str]:
    """A sentence for each pool with pods that are nominated because bindings were refused."""
    for name, unbinding in pools.items():
        if now < unbinding.until:
            advice = (
                "grant the right create on pods/binding, or set steering: nominate"
                if "cannot create" in unbinding.why
                else "see its Events"
            )
            yield (
                f"pool {name}: its pods are nominated and not bound for another {format_duration(unbinding.until - now)}: "
                f"{unbinding.why}; {advice}"
            )


def describe_closed_nodes(cluster: Cluster, members: Mapping[str, Member], ledger: Ledger, now: float) -> Iterator[str]:
    """Describe nodes that have been closed by our taint for a long time and that nothing is going to open.

    ``members`` has the pools of nodes.
    """
    under_way = (
        {machine.node for machine in ledger.coming}
        | {promise.node for promise in ledger.promises}
        | {removal.node for removal in ledger.leaving}
    )
    closed_nodes: dict[str, list[Node]] = defaultdict(list)
    for node in cluster.table.tainted(ARRIVING_TAINT):
        member = members.get(node.name)
        kept = member is not None and member.pool.keeps_closed
        if node.name in under_way or kept or now < node.created + CLOSED_SECONDS:
            continue
        closed_nodes[
            "the cloud lists it in no pool of the settings" if member is None else f"it is a machine of pool {member.pool.name}"
        ].append(node)
    for reason, nodes in closed_nodes.items():
        first, verb = nodes[0], "is" if len(nodes) == 1 else "are"
        yield (
            f"{format_nodes([node.name for node in nodes])} {verb} closed by the taint {ARRIVING_TAINT}, and gpuscaler neither opens "
            f"nor removes {'it' if len(nodes) == 1 else 'them'}: "
            f"{reason} ({first.provider_id or 'it has no spec.providerID'}); remove the taint, or have its pool managed"
        )


def format_nodes(names: Sequence[str]) -> str:
    """``node a``, or ``5 nodes, a, b, c and 2 more``."""
    return f"node {names[0]}" if len(names) == 1 else f"{len(names)} nodes, {format_names(tuple(names))}"
