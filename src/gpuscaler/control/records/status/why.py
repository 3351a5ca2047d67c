"""Explains why a pod is pending or runs on its node, and why a node exists, stays or is removed: current facts, then past events."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from gpuscaler.control.records import costing
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.status.held import blocked_nodes
from gpuscaler.control.records.status.removals import describe_eviction, describe_removal_progress
from gpuscaler.control.records.status.status import StatusEntry, closed_reasons, describe_closed_machine, describe_ordered_machine
from gpuscaler.control.records.words import format_dollars, format_duration, format_names, format_offering
from gpuscaler.lifecycle.node_health.unready import describe_unready
from gpuscaler.lifecycle.steering.windows import describe_window
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.quantities import format_count
from gpuscaler.planning.capacity.idle import leaves_with_machine
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.plans import unplaced_headline
from gpuscaler.planning.scale_down.decide import NOT_NOW
from gpuscaler.planning.scale_down.disruption import Disruption
from gpuscaler.planning.state.idle_clocks import idle_seconds
from gpuscaler.planning.state.ledger.ledger import NOMINATING, OrderedMachine


class Explanation(Struct, frozen=True):
    """An explanation of ``subject``, ``pod NS/NAME`` or ``node NAME``; ``known`` says whether it exists or has events.

    ``now`` are sentences about the present, ``happened`` are the past events, the oldest first.
    """

    subject: str
    known: bool
    now: tuple[str, ...]
    happened: tuple[StatusEntry, ...] = ()
    at: float = 0.0


def why_pod(latest: Latest, key: str, history: Sequence[HistoryEvent], now: float) -> Explanation:
    """Explain the pod ``namespace/name``."""
    pod = latest.cluster.pods.get(key)
    lines = tuple(_describe_pod(latest, pod, key, now)) if pod is not None else ("there is no such pod now",)
    return Explanation(f"pod {key}", pod is not None or bool(history), lines, _history_entries(history), now)


def why_node(latest: Latest, name: str, history: Sequence[HistoryEvent], now: float) -> Explanation:
    """Explain the node ``name``, or the machine with that id if it is no node yet."""
    node = latest.cluster.nodes.get(name)
    machine = next((machine for machine in latest.memory.ledger.coming if name in (machine.node, machine.instance) and name), None)
    lines = tuple(_describe_node(latest, node, name, machine, now))
    is_known = node is not None or machine is not None or bool(history)
    return Explanation(f"node {name}", is_known, lines or ("there is no such node now",), _history_entries(history), now)


def _history_entries(history: Sequence[HistoryEvent]) -> tuple[StatusEntry, ...]:
    return tuple(StatusEntry(event.kind, event.text, event.at, event.decision) for event in history)


def _describe_pod(latest: Latest, pod: Pod, key: str, now: float) -> Iterator[str]:
    ledger, plan = latest.memory.ledger, latest.plan
    yield from (f"could not be parsed completely: {warning}" for warning in pod.warnings)
    if pod.finished:
        yield f"it has ended ({pod.phase})"
        return
    leaving = next((removal for removal in ledger.leaving if removal.node == pod.node_name), None)
    if pod.node_name:
        yield f"it is on node {pod.node_name}" + (f", which is leaving: {leaving.reason}" if leaving is not None else "")
        yield from describe_eviction(leaving, pod, now) if leaving is not None else ()
        return
    if pod.deleted:
        yield "it is being deleted"
        return
    yield from _describe_waiting_pod(latest, key, now)
    for entry in plan.unplaced:
        if entry.pod == key:
            yield f"{unplaced_headline(entry.reasons)}:"
            yield from (f"  pool {reason.pool}: {reason.excluded_by}: {reason.detail}" for reason in entry.reasons)
            pools = {reason.pool for reason in entry.reasons}
            lessons = (lesson for lesson in latest.memory.learned.lessons if lesson.pool in pools)
            yield from (f"  pool {lesson.pool}: {word}" for lesson in lessons for word in lesson.shown.words)
            yield from () if entry.reasons else ("  there is no pool",)
    # A promised pod is always ignored as demand: the promise is reported above.
    promised = any(key in promise.pods for promise in ledger.promises)
    yield from (f"it is ignored: {ignored.reason}" for ignored in plan.ignored if ignored.pod == key and not promised)
    if not latest.planned_at:
        yield "no plan has been made yet"
    elif pod.unschedulable_since and pod.unschedulable_since > latest.planned_at:
        yield "it became unschedulable after the newest plan; the next plan includes it"


def _describe_waiting_pod(latest: Latest, key: str, now: float) -> Iterator[str]:
    ledger, plan = latest.memory.ledger, latest.plan
    names = {machine.id: machine for machine in ledger.coming}
    placements = {placement.pod: placement.node for placement in plan.placements}
    for machine in ledger.coming:
        if key in machine.pods:
            yield f"{describe_ordered_machine(machine, latest, now)}; {costing.format_ordered_price(machine, latest.policy)}"
            return
    for promise in ledger.promises:
        if key in promise.pods:
            closed = promise.step == NOMINATING
            opened = "is open, waiting for kube-scheduler to bind the pod"
            step = describe_closed_machine(promise.node, closed_reasons(latest, now)) if closed else opened
            yield f"node {promise.node} is promised to it and {step}"
            return
    if key in placements:
        ordered_machine = names.get(placements[key])
        place = describe_ordered_machine(ordered_machine, latest, now) if ordered_machine is not None else f"node {placements[key]}"
        yield f"it fits on {place}; kube-scheduler will bind it"
    for planned_machine in plan.machines:
        if key in planned_machine.pods and not any(machine.order for machine in ledger.coming):
            yield f"the newest plan buys {format_offering(planned_machine.key)} for it, at {costing.format_plan_price([planned_machine])}"


def _describe_node(latest: Latest, node: Node | None, name: str, machine: OrderedMachine | None, now: float) -> Iterator[str]:
    ledger = latest.memory.ledger
    leaving = next((removal for removal in ledger.leaving if removal.node == name), None)
    if machine is not None:
        yield (
            f"{describe_ordered_machine(machine, latest, now)}; {costing.format_ordered_price(machine, latest.policy)}, "
            f"bought for {format_count(len(machine.pods), 'pod')}"
        )
    if leaving is not None:
        yield from describe_removal_progress(leaving, now)
    if node is None:
        return
    yield from (f"could not be parsed completely: {warning}" for warning in node.warnings)
    promise = next((promise for promise in ledger.promises if promise.node == name), None)
    if promise is not None:
        yield f"it is kept for {format_count(len(promise.pods), 'pod')} that it was opened for: {format_names(promise.pods)}"
        if machine is None and promise.step == NOMINATING:
            yield f"it {describe_closed_machine(name, closed_reasons(latest, now))}"
    if name in latest.unlisted:
        listed = node.provider_id or "a machine for it"
        if latest.inventory() is None:
            yield f"it belongs to no pool as far as is known: the cloud has not listed {listed} or any other machine yet; it is left alone"
        else:
            yield f"it belongs to no pool: the cloud does not list {listed}; it is never removed"
        return
    member = members({name: node}, latest.policy, latest.unlisted).get(name) if latest.policy is not None else None
    if member is None:
        yield "it belongs to no pool of the settings: it is never removed"
        return
    kind = (
        f"{format_offering(member.offering.key)} at {format_dollars(member.offering.price)}/h"
        if member.offering is not None
        else "a machine"
    )
    yield f"it is {kind} of pool {member.pool.name}"
    yield from _describe_fault(latest, node)
    yield from (
        describe_unready(silence, latest.policy, now) for silence in latest.memory.unready.nodes if silence.node == name and latest.policy
    )
    if (window := latest.memory.windows.get(name)) is not None:
        yield from describe_window(window, now)
    if machine is None and leaving is None:
        yield from _describe_kept_node(latest, name, now)


def _describe_fault(latest: Latest, node: Node) -> Iterator[str]:
    inventory = latest.inventory()
    for instance in inventory.instances if inventory is not None and node.provider_id else ():
        if instance.id == node.provider_id and instance.fault:
            yield f"the cloud reports a fault of its machine: {instance.fault}"


def _describe_kept_node(latest: Latest, name: str, now: float) -> Iterator[str]:
    pods = [pod for pod in latest.cluster.on_node.get(name, {}).values() if not leaves_with_machine(pod, now)]
    # Most plans do not consider consolidation, but the pods that keep the node can be found here.
    unchecked = any(blocked.node == name and blocked.detail == NOT_NOW.detail for blocked in latest.plan.blocked_nodes)
    leaving = frozenset(removal.node for removal in latest.memory.ledger.leaving)
    blocker = Disruption(latest.cluster, leaving).blocker(pods) if unchecked else None
    if blocker is not None:
        yield f"it stays: {blocker.word}: {blocker.detail}"
    else:
        yield from (f"it stays: {blocked.blocker}: {blocked.detail}" for blocked in blocked_nodes(latest, now) if blocked.node == name)
    if pods:
        keys = tuple(sorted(pod.key for pod in pods))
        yield f"{format_count(len(pods), 'pod')} {'runs' if len(pods) == 1 else 'run'} there: {format_names(keys)}"
    else:
        idle = idle_seconds(latest.memory.clocks, now).get(name)
        yield f"idle{'' if idle is None else f' for {format_duration(idle)}'}: only DaemonSet, static and expendable pods run on it"
