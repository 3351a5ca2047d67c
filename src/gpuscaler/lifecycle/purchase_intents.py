"""Turn a plan into orders and removals, which are saved before any request is sent."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce

from msgspec.structs import replace

from gpuscaler.lifecycle import termination
from gpuscaler.lifecycle.hard_stop import without_surplus
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.node_health import device_plugins, refusing_nodes
from gpuscaler.lifecycle.registration.readiness import requested_resources
from gpuscaler.lifecycle.registration.unshown_resources import probed_resources
from gpuscaler.lifecycle.steering import opening
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import Plan, PlannedMachine
from gpuscaler.planning.state import State, breakers, node_refusals, offering_events
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.ledger import Ledger, Order, OrderedMachine


def place_orders(
    memory: Memory, plan: Plan, cluster: Cluster, policy: Policy, *, state: State, now: float
) -> tuple[Memory, tuple[Order, ...]]:
    """Return ``memory`` with the orders and removals of ``plan``, and the orders to send once the memory is saved.

    Machines of the plan beyond what the pending pods could need are dropped (see :mod:`~gpuscaler.lifecycle.hard_stop`).
    """
    current = memory.ledger
    plan = without_surplus(
        plan, cluster, policy, ledger=current, breakers=memory.breakers, now=now, unlisted=state.unlisted, guarding=memory.guarding
    )
    coming_ids = {machine.id for machine in current.coming}
    pods_of: dict[str, list[str]] = defaultdict(list)
    for placement in plan.placements:
        if placement.node in coming_ids:
            pods_of[placement.node].append(placement.pod)
    current = ledger.step(current, ledger.Planned({machine: tuple(pods) for machine, pods in pods_of.items()}))
    current = ledger.fold_events(current, opening.promised_on(current, cluster, policy, plan.placements, unlisted=state.unlisted, now=now))
    intents, names = _intents(current, plan, cluster, now)
    current = ledger.fold_events(current, intents)
    current = ledger.fold_events(
        current,
        termination.begin_removals(current, cluster, policy, plan.removals, names=names, unlisted=state.unlisted, now=now),
    )
    orders = tuple(intended.order for intended in intents)
    known_breakers = reduce(breakers.step, probe_events(plan, state, now), memory.breakers)
    for machine in plan.machines:
        requested = requested_resources(machine.pods, cluster)
        if probed_resources(memory.breakers, machine.keys, requested, now):
            known_breakers = breakers.step(known_breakers, offering_events.Asked(machine.keys[0], now, requested))
    closed = (
        {promise.node for promise in current.promises}
        | {machine.node for machine in current.coming}
        | {removal.node for removal in current.leaving}
    )
    # kube-scheduler does not use a node while its device plugin restarts; this does not count as a refusal of the node.
    closed |= device_plugins.coming_back(memory.absent_devices, now)
    expected = node_refusals.step(memory.refusals, refusing_nodes.expected_bindings(cluster, plan.placements, closed, now))
    return replace(memory, ledger=current, breakers=known_breakers, refusals=expected), orders


def group_requests(plan: Plan) -> Mapping[tuple[OfferingKey, ...], Sequence[PlannedMachine]]:
    """Group the machines that ``plan`` buys by the offerings requested for them: there is one order for each group."""
    groups: dict[tuple[OfferingKey, ...], list[PlannedMachine]] = defaultdict(list)
    for machine in plan.machines:
        groups[machine.requested].append(machine)
    return groups


def probe_events(plan: Plan, state: State, now: float) -> tuple[offering_events.Asked, ...]:
    """Return the half-open offerings that ``plan`` requests, without fallbacks, which the cloud may never try."""
    keys = {key for machine in plan.machines for key in machine.keys} & state.half_open_offerings
    return tuple(offering_events.Asked(key, now) for key in sorted(keys))


def _intents(current: Ledger, plan: Plan, cluster: Cluster, now: float) -> tuple[list[ledger.Intended], Mapping[str, str]]:
    """Return an order for each set of offerings requested by ``plan``, and the ledger's ids of its machines, by their ids in the plan."""
    groups = group_requests(plan)
    # The time keeps tokens distinct even if the ledger, which has the serial number, was lost.
    tokens = [f"gpuscaler-{now:.0f}-{current.serial + number}" for number in range(len(groups))]
    names = {
        machine.id: f"{token}-{place}"
        for token, machines in zip(tokens, groups.values(), strict=True)
        for place, machine in enumerate(machines)
    }
    intents = [
        ledger.Intended(
            Order(token, keys[0].pool, keys, len(machines), at=now, since=now),
            tuple(
                OrderedMachine(
                    id=names[machine.id],
                    order=token,
                    offerings=keys,
                    price=machine.price_per_hour,
                    asked=now,
                    meant=len(machine.keys),
                    purpose=machine.purpose,
                    pods=machine.pods,
                    gang=_gang_of(machine.pods, cluster),
                    bought_for=machine.pods,
                )
                for machine in machines
            ),
        )
        for token, (keys, machines) in zip(tokens, groups.items(), strict=True)
    ]
    return intents, names


def _gang_of(pods: tuple[str, ...], cluster: Cluster) -> str:
    """Return the gang that all of ``pods`` are members of; empty if there is none."""
    gang_pods = (cluster.pods.get(key) for key in pods)
    gangs = {pod.gang if pod is not None else "" for pod in gang_pods}
    return gangs.pop() if len(gangs) == 1 else ""
