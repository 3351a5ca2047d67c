"""Converts the calls of the recorder to events. Pure: the same calls give the same events."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import NamedTuple

from gpuscaler.control.loop.cloud import OrderAnswer
from gpuscaler.control.loop.cluster_writes import Outcome
from gpuscaler.control.loop.ending import EndResult
from gpuscaler.control.records import costing
from gpuscaler.control.records.events import happening as kinds
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.words import (
    format_dollars,
    format_duration,
    format_forecast,
    format_forecast_and_price,
    format_names,
    format_offering,
    format_price_range,
)
from gpuscaler.lifecycle.actions import Checkpoint, Delete, Evict, Mark, OnPod
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.reconcile import Reconciliation
from gpuscaler.lifecycle.termination.node_pods import is_daemon
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import Owner, Pod
from gpuscaler.model.pools import Policy
from gpuscaler.model.quantities import format_count
from gpuscaler.model.well_known import ARRIVING_TAINT
from gpuscaler.planning.plans import Cut, Plan, Reason, unplaced_headline
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.boot_times import Forecast
from gpuscaler.planning.state.breaker_messages import WORDS
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import CLEARING, DRAINING, ENDING, OrderedMachine, Removal
from gpuscaler.planning.state.promises import Broken

#: Returns the forecast for the next machine of an offering.
ForecastLookup = Callable[[OfferingKey], Forecast]

#: What to do about nodes without gpuscaler's taint, where the cloud does not say more.
_TAINT_ADVICE = "configure the pool's nodes to register with the taint"


def plan_event(plan: Plan, now: float) -> HistoryEvent:
    """The event of a plan, in one line."""
    parts = []
    if plan.machines:
        pods = sum(len(machine.pods) for machine in plan.machines)
        parts.append(
            f"buys {format_count(len(plan.machines), 'machine')} at {costing.format_plan_price(plan.machines)} "
            f"for {format_count(pods, 'pod')}"
        )
    if plan.removals:
        saving = sum(removal.saving_per_hour for removal in plan.removals)
        parts.append(f"removes {format_count(len(plan.removals), 'node')}, saving {format_dollars(saving)}/h")
    if plan.unplaced:
        parts.append(f"cannot place {format_count(len(plan.unplaced), 'pod')}")
    return HistoryEvent(now, kinds.PLANNED, "; ".join(parts) or "nothing to do")


def cut_event(cut: Cut, plan: Plan, now: float) -> HistoryEvent:
    """The event of machines of one pool that the hard stop cut from a plan, for the pods that they were for."""
    pods = tuple(unplaced.pod for unplaced in plan.unplaced if any(reason.detail == cut.text for reason in unplaced.reasons))
    return HistoryEvent(now, kinds.STOPPED, cut.text, pods=pods, machines=cut.machines, cause=cut.pool)


def unplaced_event(reasons: tuple[Reason, ...], pods: tuple[str, ...], now: float) -> HistoryEvent:
    """The event of pods that are unplaced for the same reasons."""
    details = "; ".join(f"pool {reason.pool}: {reason.detail}" for reason in reasons) or "there is no pool"
    return HistoryEvent(now, kinds.UNPLACED, f"{unplaced_headline(reasons)}: {details}", pods=pods)


def order_event(
    order: ledger.Order, machines: tuple[OrderedMachine, ...], policy: Policy | None, outlook: ForecastLookup, now: float
) -> HistoryEvent:
    """The event of an order that is being sent, with its forecast and price."""
    key = order.offerings[0]
    possible_offerings = max((machine.meant for machine in machines), default=1)
    number = f"{order.count} x " if order.count > 1 else ""
    others = f" (or another of {possible_offerings} offerings, chosen by the cloud)" if possible_offerings > 1 else ""
    price = costing.format_ordered_price(machines[0], policy) if machines else format_price_range(0.0, 0.0)
    text = f"{number}{format_offering(key)} ordered{others}: {format_forecast_and_price(outlook(key), price)}"
    pods = tuple(pod for machine in machines for pod in machine.pods)
    return HistoryEvent(now, kinds.ORDERED, text, pods=pods, machines=order.count, offering=key, order=order.token)


class AnsweredOrder(NamedTuple):
    """An answer to an order, and what was known of the order before.

    ``granted`` are the machines that it had, by id, ``missing`` is how many it still lacked; ``departed`` are ids of machines that have
    left the ledger. A cloud may repeat in an answer what an earlier answer or its list has said already.
    """

    answer: OrderAnswer
    granted: Mapping[str, OfferingKey]
    missing: int
    departed: Set[str]

    @property
    def step(self) -> ledger.Answered | None:
        return next((step for step in self.answer.steps if isinstance(step, ledger.Answered)), None)

    @property
    def new_machines(self) -> Mapping[str, OfferingKey]:
        """The machines that were not known before, by id."""
        granted = self.step.granted if self.step is not None else ()
        return {instance: key for instance, key in granted if instance not in self.granted and instance not in self.departed}


def answered_order(answer: OrderAnswer, current: ledger.Ledger) -> AnsweredOrder:
    """An answer beside ``current``, the ledger before it."""
    machines = [machine for machine in current.coming if machine.order == answer.order.token]
    missing = sum(not machine.instance for machine in machines) if machines else answer.order.count
    granted = {machine.instance: machine.key for machine in machines if machine.instance}
    return AnsweredOrder(answer, granted, missing, current.departed_ids)


def answer_events(
    answered: AnsweredOrder, pods: tuple[str, ...], policy: Policy | None, outlook: ForecastLookup, now: float
) -> Iterator[HistoryEvent]:
    """The events of a cloud's answer. ``pods`` are those that the order was for."""
    answer, new_machines = answered.answer, answered.new_machines
    wanted, token = answer.order.offerings[0], answer.order.token
    for step in answer.steps:
        match step:
            case ledger.Answered():
                for instance, key in new_machines.items():
                    price = costing.price_of(policy, key) if len(answer.order.offerings) > 1 else None
                    text = (
                        f"machine {instance} granted: {format_offering(key)}{f', {format_dollars(price)}/h' if price is not None else ''}"
                    )
                    yield HistoryEvent(now, kinds.GRANTED, text, machine=instance, offering=key, order=token)
                for key in dict.fromkeys(key for key in new_machines.values() if key != wanted):
                    price = costing.price_of(policy, key) or 0.0
                    forecast = format_forecast_and_price(outlook(key), format_price_range(price, price))
                    text = f"{format_offering(key)} granted instead of {format_offering(wanted)}: {forecast}"
                    yield HistoryEvent(now, kinds.INSTEAD, text, pods=pods, offering=key, order=token)
            case ledger.Doubted():
                text = f"the answer to the order of {format_offering(wanted)} was lost: {answer.detail}"
                yield HistoryEvent(now, kinds.ANSWER_LOST, text, offering=wanted, order=token)
    for fate in answer.fates:
        if isinstance(fate, offering_events.Refused):
            waiting = () if fate.filled else pods
            yield HistoryEvent(
                now, kinds.REFUSED, describe_refusal(fate), pods=waiting, offering=fate.offering, order=token, cause=fate.cause
            )


def describe_refusal(fate: offering_events.Refused) -> str:
    """A sentence about a refused offering, with the cloud's reason."""
    detail = f" ({fate.detail})" if fate.detail else ""
    return f"{format_offering(fate.offering)} refused: {WORDS.get(fate.cause, fate.cause)}{detail}"


def answer_summary_event(answered: AnsweredOrder, policy: Policy | None, outlook: ForecastLookup, now: float) -> HistoryEvent | None:
    """The event of an answer: all grants so far and the refusals, counted in one line; None if the answer has neither."""
    answer, step = answered.answer, answered.step
    refusals = list(dict.fromkeys(describe_refusal(fate) for fate in answer.fates if isinstance(fate, offering_events.Refused)))
    if step is None or not (step.granted or refusals):
        return None
    granted = {**answered.granted, **dict(step.granted)}
    parts = []
    for key, number in Counter(granted.values()).items():
        price = costing.price_of(policy, key)
        each = f", {format_dollars(price)}/h{' each' if number > 1 else ''}" if price is not None else ""
        parts.append(f"{number} x {format_offering(key)}{each}, {format_forecast(outlook(key))}")
    if step.pending:
        parts.append(f"{step.pending} more accepted, ids follow")
    short = answered.missing - len(answered.new_machines) - step.pending
    parts += [f"{short} not granted: {refusals[0]}", *refusals[1:]] if short > 0 and refusals else refusals
    text = f"{len(granted)} of {format_count(answer.order.count, 'machine')} granted: {'; '.join(parts)}"
    cause = next((fate.cause for fate in answer.fates if isinstance(fate, offering_events.Refused)), "") if short > 0 else ""
    return HistoryEvent(now, kinds.ANSWERED, text, offering=answer.order.offerings[0], order=answer.order.token, cause=cause)


def observation_events(
    before: Memory,
    reconciliation: Reconciliation,
    cluster: Cluster,
    forecasts: Mapping[str, Forecast],
    now: float,
    *,
    taint_advice: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[HistoryEvent]:
    """The events of an observation. ``forecasts`` were made when machines were granted, by the ledger's names.

    ``taint_advice`` is the cloud's about nodes of a pool that register without gpuscaler's taint, by pool.
    """
    machines = _ledger_machines(before, reconciliation)
    yield from _arrival_events(machines, reconciliation, cluster, forecasts, now, taint_advice=taint_advice)
    yield from _unfamiliar_machine_events(before, reconciliation, now)
    yield from _opened_and_lost_events(machines, reconciliation, cluster, now)
    yield from _removal_events(before, reconciliation, now)
    for remark in reconciliation.remarks:
        yield HistoryEvent(now, kinds.NOTICED, remark.text, node=remark.node, machine=remark.machine)
    for rejected_pod in reconciliation.turned_away:
        text = (
            f"pod {rejected_pod.pod} was bound to node {rejected_pod.node}, and the kubelet rejected it: {rejected_pod.reason}; "
            "the pod has failed for good"
        )
        yield HistoryEvent(now, kinds.TURNED_AWAY, text, pods=(rejected_pod.pod,), node=rejected_pod.node, uid=rejected_pod.uid)
    for unfit_node in reconciliation.unfit:
        text = (
            f"node {unfit_node.node} was bought for pod {unfit_node.pod} and does not admit the pod: {unfit_node.why}; no "
            "other like it is bought for the pod"
        )
        yield HistoryEvent(now, kinds.BROKEN, text, pods=(unfit_node.pod,), node=unfit_node.node)
    # The ledger also has the broken promises of nominated pods.
    broken = dict.fromkeys(set(reconciliation.memory.ledger.broken) - set(before.ledger.broken), "")
    broken |= {
        (outcome.pod, outcome.node): outcome.why
        for outcome in reconciliation.outcomes
        if isinstance(outcome, Broken) and not outcome.certain
    }
    for (pod, node), why in sorted(broken.items()):
        text = f"node {node} was meant for pod {pod}, which did not run there{f': {why}' if why else ''}; the pod is planned again"
        yield HistoryEvent(now, kinds.BROKEN, text, pods=(pod,), node=node)


def _ledger_machines(before: Memory, seen: Reconciliation) -> Mapping[str, OrderedMachine]:
    """The machines of the ledger by its names, updated by the observation: a machine may get its id, become a node and open in one."""
    learned = ledger.fold_events(before.ledger, (step for step in seen.arrivals.steps if not isinstance(step, ledger.Lost)))
    return {machine.id: machine for machine in (*before.ledger.coming, *learned.coming)}


def _missing_taint_events(machine: OrderedMachine, node: Node | None, advice: str, now: float) -> Iterator[HistoryEvent]:
    """The event of a node that has registered without gpuscaler's taint: other pods may have been scheduled on it."""
    if node is not None and not any(taint.key == ARRIVING_TAINT for taint in node.taints):
        text = (
            f"node {node.name} of pool {machine.key.pool} registered without the taint {ARRIVING_TAINT}:NoSchedule: other pods may be "
            f"scheduled there before the pods that the node was bought for; {advice}"
        )
        yield HistoryEvent(now, kinds.NOTICED, text, node=node.name, machine=machine.instance, offering=machine.key)


def _arrival_events(
    machines: Mapping[str, OrderedMachine],
    seen: Reconciliation,
    cluster: Cluster,
    forecasts: Mapping[str, Forecast],
    now: float,
    *,
    taint_advice: Mapping[str, str],
) -> Iterator[HistoryEvent]:
    closed = {machine.id for machine in seen.memory.ledger.coming}
    for step in seen.arrivals.steps:
        match step:
            case ledger.Found(machine=machine, instance=instance, offering=key) if machine in machines:
                text = f"machine {instance} granted: {format_offering(key)}, as the cloud's list shows"
                yield HistoryEvent(now, kinds.GRANTED, text, machine=instance, offering=key, order=machines[machine].order)
            case ledger.Adopted(machine=ordered):
                text = (
                    f"machine {ordered.instance} ({format_offering(ordered.key)}) has no node and was not ordered by this controller; "
                    "it counts as an ordered machine"
                )
                yield HistoryEvent(now, kinds.NOTICED, text, machine=ordered.instance, offering=ordered.key)
            case ledger.Faulted(machine=machine, since=since) if since and machine in machines and machine in seen.arrivals.faults:
                ordered = machines[machine]
                text = (
                    f"the cloud reports a fault of machine {ordered.instance} ({format_offering(ordered.key)}), which is not a node yet: "
                    f"{seen.arrivals.faults[machine]}"
                )
                yield HistoryEvent(now, kinds.NOTICED, text, machine=ordered.instance, offering=ordered.key, order=ordered.order)
            case ledger.Registered(machine=machine, node=node) if machine in machines:
                ordered = machines[machine]
                text = (
                    f"machine {ordered.instance} registered as node {node}, {format_duration(now - (ordered.began or now))} after its grant"
                )
                yield HistoryEvent(
                    now, kinds.REGISTERED, text, node=node, machine=ordered.instance, offering=ordered.key, order=ordered.order
                )
                if machine in closed:
                    advice = taint_advice.get(ordered.key.pool, _TAINT_ADVICE)
                    yield from _missing_taint_events(ordered, cluster.nodes.get(node), advice, now)
            case ledger.Ready(machine=machine) if machine in machines:
                ordered = machines[machine]
                seconds = now - (ordered.began or now)
                forecast = forecasts.get(machine)
                late = None if forecast is None else seconds - forecast.typical
                comparison = "" if forecast is None else f" (forecast: {format_duration(forecast.typical)})"
                yield HistoryEvent(
                    now,
                    kinds.READY,
                    f"node {ordered.node} became ready {format_duration(seconds)} after the cloud granted its machine{comparison}",
                    node=ordered.node,
                    machine=ordered.instance,
                    offering=ordered.key,
                    order=ordered.order,
                    late=late,
                    seen=forecast is not None and forecast.seen > 0,
                )
    for token in seen.arrivals.unfilled:
        yield HistoryEvent(now, kinds.UNFILLED, f"order {token} was not filled in time; the rest of it is withdrawn", order=token)


def _unfamiliar_machine_events(before: Memory, seen: Reconciliation, now: float) -> Iterator[HistoryEvent]:
    """The events of machines that were granted with an offering outside their pool."""
    coming = {machine.instance: machine for machine in seen.memory.ledger.coming if machine.instance}
    for machine, key in seen.memory.unfamiliar.items():
        if machine not in before.unfamiliar:
            ordered = coming.get(machine)
            pods, node = (ordered.pods, ordered.node) if ordered is not None else ((), "")
            text = (
                f"machine {machine} of pool {key.pool} is {format_offering(key)}, which the pool does not offer; it counts as the most "
                f"expensive machine that it may be, and nothing more is bought in the pool while it exists; end it, or add the offering to "
                f"the pool"
            )
            yield HistoryEvent(now, kinds.UNFAMILIAR, text, pods=pods, node=node, machine=machine, offering=key)


def _opened_and_lost_events(
    machines: Mapping[str, OrderedMachine], seen: Reconciliation, cluster: Cluster, now: float
) -> Iterator[HistoryEvent]:
    """The events of machines that left the ledger: open or lost. Those without an id were refused, which is reported already."""
    coming_ids = {machine.id for machine in seen.memory.ledger.coming}
    lost = {step.machine for step in seen.arrivals.steps if isinstance(step, ledger.Lost)}
    overdue = {overdue.machine.id: overdue.reason for overdue in seen.arrivals.overdue}
    interrupted = {removal.instance for removal in seen.memory.ledger.leaving if removal.forced}
    for machine in machines.values():
        if machine.id in coming_ids or not machine.instance:
            continue
        if machine.id in lost or machine.id in overdue or machine.instance in interrupted or machine.node not in cluster.nodes:
            why = overdue.get(machine.id) or ("the cloud takes it away" if machine.instance in interrupted else "it ended before it opened")
            text = f"machine {machine.instance} ({format_offering(machine.key)}) is lost: {why}"
            yield HistoryEvent(
                now,
                kinds.LOST,
                text,
                pods=machine.pods,
                node=machine.node,
                machine=machine.instance,
                offering=machine.key,
                order=machine.order,
            )
        else:
            pods = f" for {format_names(machine.pods)}" if machine.pods else ""
            text = f"node {machine.node} is open{pods}"
            yield HistoryEvent(
                now,
                kinds.OPENED,
                text,
                pods=machine.pods,
                node=machine.node,
                machine=machine.instance,
                offering=machine.key,
                order=machine.order,
            )


def _removal_events(before: Memory, seen: Reconciliation, now: float) -> Iterator[HistoryEvent]:
    removals = {removal.node: removal for removal in before.ledger.leaving}
    going = {removal.node: removal for removal in seen.memory.ledger.leaving}
    kept_reasons = dict(seen.kept)
    for node, why in seen.kept:
        yield _removal_event(going.get(node) or removals.get(node), node, kinds.KEPT, f"node {node} is not removed after all: {why}", now)
    for node, removal in going.items():
        earlier = removals.get(node)
        if earlier is None:
            moved = f"; {format_count(len(removal.pods), 'pod')} must move first" if removal.pods else ""
            ends = f"; its machine ends in {format_duration(removal.ends - now)}" if removal.ends else ""
            yield _removal_event(removal, node, kinds.DECIDED, f"node {node} will be removed: {removal.reason}{ends}{moved}", now)
        if removal.detail and (earlier is None or earlier.detail != removal.detail):
            yield _removal_event(removal, node, kinds.HELD, f"the removal of node {node} waits: {removal.detail}", now)
        if removal.step == DRAINING and removal.pods and (earlier is None or earlier.step != DRAINING):
            yield _removal_event(removal, node, kinds.DRAINING, f"the pods of node {node} are evicted: {removal.reason}", now)
        if removal.step == ENDING and (earlier is None or earlier.step != ENDING):
            yield _removal_event(removal, node, kinds.ENDING, f"the machine of node {node} is ended: {removal.reason}", now)
    for node, removal in removals.items():
        if node not in going and node not in kept_reasons and removal.step in (ENDING, CLEARING):
            yield _removal_event(removal, node, kinds.REMOVED, f"node {node} is gone: {removal.reason}", now)


def _removal_event(removal: Removal | None, node: str, kind: str, text: str, now: float) -> HistoryEvent:
    if removal is None:
        return HistoryEvent(now, kind, text, node=node)
    return HistoryEvent(now, kind, text, node=node, machine=removal.instance, offering=removal.offering)


def failed_act_event(outcome: Outcome, now: float) -> HistoryEvent | None:
    """The event of an act's outcome; None for successful nominations and evictions, which show on the pods, and for repeated failures."""
    act = outcome.act
    if isinstance(act, Checkpoint) and not outcome.detail:
        text = f"save your work within {format_duration(act.seconds)}: node {act.node} is being removed"
        return HistoryEvent(now, kinds.CHECKPOINT, text, pods=(act.pod,), node=act.node)
    if not outcome.detail:
        return (
            HistoryEvent(now, kinds.MARKED, f"node {act.node} is closed to new pods: {act.reason}", node=act.node)
            if isinstance(act, Mark)
            else None
        )
    if outcome.budget or not outcome.tried:
        # A PodDisruptionBudget that blocks is no failure: the removal shows what it waits for. Acts that were not tried failed before.
        return None
    what = re.sub(r"(?<!^)(?=[A-Z])", " ", type(act).__name__).lower()
    pods = (act.pod,) if isinstance(act, OnPod) else ()
    return HistoryEvent(now, kinds.ACTED, f"{what} failed: {outcome.detail}", pods=pods, node=act.node)


def eviction_event(act: Evict | Delete, removal: Removal | None, pod: Pod | None, top: Owner, now: float) -> HistoryEvent | None:
    """The event of a pod that was evicted, or deleted because its machine ends first; None for pods of DaemonSets.

    ``top`` is the pod's topmost owner.
    """
    if pod is not None and is_daemon(pod):
        return None
    text = f"pod {act.pod} was evicted from node {act.node}{eviction_reason(act.pod, removal)}"
    return HistoryEvent(now, kinds.EVICTED, text, pods=(act.pod,), node=act.node, uid=act.uid, owner=top)


def eviction_reason(pod: str, removal: Removal | None) -> str:
    """The end of a sentence: where an evicted pod will go, and why its node is removed."""
    if removal is None:
        return ""
    if removal.forced or removal.unready:
        return f": its machine is taken away: {removal.reason}"
    if pod not in removal.pods:
        return f", which is being removed: {removal.reason}"
    node = dict(zip(removal.pods, removal.to, strict=False)).get(pod)
    where = f"node {node}" if node else "a machine that was bought for it"
    return f" to move it to {where}; the node is being removed: {removal.reason}"


def end_event(ended: EndResult, now: float) -> HistoryEvent | None:
    # The status of a removal says what it waits for; it is no failure.
    if not ended.detail or ended.wait:
        return None
    text = f"machine {ended.instance} could not be ended: {ended.detail}"
    return HistoryEvent(now, kinds.ACTED, text, node=ended.node, machine=ended.instance)
