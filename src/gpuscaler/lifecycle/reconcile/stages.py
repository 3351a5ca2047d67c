"""The stages of a reconcile pass: each updates the memory and adds the acts that are due now.

:func:`reconcile` has no side effects: the caller saves its result first, and then carries out the acts. A stage gets the findings of the
earlier stages and the view that all stages share, and returns these findings together with its own.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Set
from functools import reduce

from msgspec.structs import replace

from gpuscaler.lifecycle import interruptions, node_events, scale_in_protection, termination
from gpuscaler.lifecycle.actions import Act
from gpuscaler.lifecycle.interruptions import Remark
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.node_health import refusing_nodes, unready
from gpuscaler.lifecycle.node_marks.kept_taint import update_kept_taints
from gpuscaler.lifecycle.node_marks.pool_label import labels_due
from gpuscaler.lifecycle.node_marks.soft_taints import update_soft_taints
from gpuscaler.lifecycle.observed.machine_index import MachineIndex, MachineIndexes
from gpuscaler.lifecycle.observed.promised_pods import crowded_machines
from gpuscaler.lifecycle.reconcile.facts import Facts, Reconciliation, View
from gpuscaler.lifecycle.reconcile.resending import orders_due, withdrawals_due
from gpuscaler.lifecycle.reconcile.stopped_buying import describe_uncounted, stopped_buying
from gpuscaler.lifecycle.registration.group_launches import note_missing, unordered_machines
from gpuscaler.lifecycle.registration.learning import learn_from_nodes
from gpuscaler.lifecycle.registration.registering import Arrivals, find_arrivals
from gpuscaler.lifecycle.registration.undescribed import find_unfamiliar
from gpuscaler.lifecycle.registration.unregistered import adopt_machines
from gpuscaler.lifecycle.released_pools import find_released_pools, remove_soft_taints
from gpuscaler.lifecycle.steering import opening, rejected_pods, windows
from gpuscaler.lifecycle.steering.binding import pools_without_binding
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.holds import REMOVING
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state import (
    boot_times,
    breakers,
    failed_removals,
    fruitless_purchases,
    idle_clocks,
    learned_templates,
    node_refusals,
    offering_events,
    promises,
)
from gpuscaler.planning.state.failed_removals import SparedNodes
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import SKEW_SECONDS
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine

#: One stage of a pass.
Stage = Callable[[Reconciliation, View], Reconciliation]


def reconcile(
    memory: Memory, cluster: Cluster, policy: Policy, facts: Facts, now: float, *, indexes: MachineIndexes | None = None
) -> Reconciliation:
    """Run all stages and return the new memory and the acts that are due now. ``indexes`` cache what does not change between passes.

    ``policy`` describes machines as tags and rules do, without what was learned from nodes.
    """
    indexes = indexes or MachineIndexes()
    held = facts.holds.sentence(REMOVING, now)
    # While removals are on hold no machine times out: overdue ones are ended after the hold.
    waits = replace(facts.waits, observed_until=-math.inf) if held else facts.waits
    view = View(memory, cluster, policy, facts, now, indexes, indexes.of(cluster, facts.inventory), waits, held)
    return reduce(lambda findings, stage: stage(findings, view), STAGES, Reconciliation(memory))


def with_findings(
    findings: Reconciliation,
    *,
    steps: Iterable[ledger.Event] = (),
    breaker_events: Iterable[offering_events.Event] = (),
    acts: Iterable[Act] = (),
    remarks: Iterable[Remark] = (),
    **remembered: object,
) -> Reconciliation:
    """Return ``findings`` with ``steps`` applied to the ledger, ``breaker_events`` to the breakers, and ``remembered`` fields replaced."""
    memory = findings.memory
    memory = replace(
        memory,
        ledger=ledger.fold_events(memory.ledger, steps),
        breakers=reduce(breakers.step, breaker_events, memory.breakers),
        **remembered,
    )
    return replace(findings, memory=memory, acts=(*findings.acts, *acts), remarks=(*findings.remarks, *remarks))


def adopt(findings: Reconciliation, view: View) -> Reconciliation:
    """Add machines of our pools that were not ordered here to the ledger."""
    adopted = adopt_machines(
        findings.memory.ledger,
        view.cluster,
        view.inventory,
        view.policy,
        waits=view.facts.waits,
        now=view.now,
        index=view.index,
        breakers=findings.memory.breakers,
    )
    return replace(with_findings(findings, steps=adopted), arrivals=Arrivals(adopted))


def guard(findings: Reconciliation, view: View) -> Reconciliation:
    """Protect busy machines from groups that even out their zones."""
    deliveries = view.inventory.deliveries if view.inventory is not None else ()
    protection = scale_in_protection.observe(
        findings.memory.guarding,
        findings.memory.ledger,
        view.cluster,
        view.policy,
        index=view.index,
        answers=view.facts.protection_answers,
        now=view.now,
        surplus={delivery.pool for delivery in deliveries if delivery.surplus},
    )
    return replace(with_findings(findings, acts=protection.acts, guarding=protection.guarding), protection=protection)


def register(findings: Reconciliation, view: View) -> Reconciliation:
    """Match ordered machines with their ids and nodes, and find the ones that are ready or have failed."""
    arrived = find_arrivals(
        findings.memory.ledger,
        view.cluster,
        view.inventory,
        view.policy,
        waits=view.waits,
        now=view.now,
        index=view.index,
        exposed=findings.protection.exposed,
        breakers=view.before.breakers,
    )
    findings = with_findings(findings, steps=arrived.steps)
    return replace(findings, arrivals=replace(arrived, steps=(*findings.arrivals.steps, *arrived.steps)))


def count_launched(findings: Reconciliation, view: View) -> Reconciliation:
    """Count machines that groups launch by themselves as on their way."""
    current = findings.memory.ledger
    steps: list[ledger.Event] = []
    if len(current.orders) < len(view.before.ledger.orders):
        # An order that has just ended may leave machines that belong to no order: the plan of this pass counts them.
        adopted = adopt_machines(current, view.cluster, view.inventory, view.policy, waits=view.facts.waits, now=view.now, index=view.index)
        noted = ledger.fold_events(current, adopted).unregistered
        steps.append(ledger.Noticed({**noted, **current.unregistered}))
    return with_findings(findings, steps=(*steps, *note_missing(current, view.inventory, view.now)))


def learn(findings: Reconciliation, view: View) -> Reconciliation:
    """Start to remove overdue machines, and learn from the machines that arrived."""
    arrived, now = findings.arrivals, view.now
    findings = with_findings(
        findings, steps=(termination.remove_overdue(overdue, now) for overdue in arrived.overdue), breaker_events=arrived.breaker_events
    )
    memory, ledger = findings.memory, findings.memory.ledger
    learned = _learn_from_ready(memory.learned, ledger, arrived, view.cluster, now)
    learned = learn_from_nodes(learned, ledger, view.policy, now, index=view.index, live_nodes=view.indexes.live_nodes)
    return with_findings(findings, boots=reduce(boot_times.step, arrived.arrived, memory.boots), learned=learned)


def interrupt(findings: Reconciliation, view: View) -> Reconciliation:
    """Handle machines that the cloud takes away, works on, or has taken away already."""
    facts, memory, index, now = (
        _without_foreign(view.facts, findings.memory.ledger, view.index.foreign),
        findings.memory,
        view.index,
        view.now,
    )
    maintenance_at, ends = _maintenance_times(memory.maintenance_at, facts, index), interruptions.update_ends(memory.ends, index.listed)
    on_nodes = node_events.observe(memory.node_events, index, _foreign_machines(memory.ledger, index.foreign), now, pages=facts.page_events)
    announced = interruptions.Announcements(
        {**on_nodes.taken_away_at, **facts.taken_away_at},
        {**on_nodes.maintenance_at, **maintenance_at},
        ends,
        {**on_nodes.why, **facts.why},
    )
    interrupted = interruptions.remove_interrupted(memory.ledger, view.cluster, view.policy, announced, now, index=index)
    unexpected = interruptions.unexpectedly_gone(view.before.ledger, facts.vanished, index)
    findings = with_findings(
        findings,
        steps=interrupted.steps,
        breaker_events=(*interrupted.breaker_events, *interruptions.reclaim_events((instance.key for instance in unexpected), now)),
        remarks=(*interruptions.describe_changes(index, unexpected, facts.announced, facts.maintenance_at), *on_nodes.remarks),
        maintenance_at=maintenance_at,
        ends=ends,
        node_events=on_nodes.reported,
    )
    return replace(findings, announced=announced)


def end_silent(findings: Reconciliation, view: View) -> Reconciliation:
    """Start to remove machines whose nodes have been not Ready for too long."""
    silent = unready.observe(
        findings.memory.unready,
        findings.memory.ledger,
        view.cluster,
        view.policy,
        announced=findings.announced,
        index=view.index,
        fresh=view.facts.fresh,
        stopped=view.removing_held,
        now=view.now,
    )
    return with_findings(findings, steps=silent.steps, remarks=silent.remarks, unready=silent.unready)


def process_answers(findings: Reconciliation, view: View) -> Reconciliation:
    """Process refused evictions, and Nodes whose machine no longer exists."""
    findings = with_findings(findings, steps=termination.record_refusals(findings.memory.ledger, view.facts.refused_evictions, view.now))
    ledger = replace(findings.memory.ledger, coming=view.before.ledger.coming)
    return with_findings(findings, steps=interruptions.remove_terminated(ledger, view.index, view.now))


def judge_bindings(findings: Reconciliation, view: View) -> Reconciliation:
    """Process refusals of bindings, by kubelets and by the API server."""
    memory = findings.memory
    admitted = rejected_pods.observe(memory.admissions, view.cluster, view.now)
    refused = (*view.facts.refused_bindings, *admitted.refused)
    findings = with_findings(
        findings, admissions=admitted.admissions, unbinding=pools_without_binding(memory.unbinding, refused, memory.ledger, view.now)
    )
    return replace(findings, turned_away=admitted.turned_away)


def open_windows(findings: Reconciliation, view: View) -> Reconciliation:
    """Open and close windows, in which closed machines admit DaemonSet pods."""
    memory = findings.memory
    window = windows.observe(memory.windows, memory.ledger, view.cluster, view.policy, unlisted=view.index.unlisted, now=view.now)
    return with_findings(findings, acts=window.acts, remarks=window.remarks, windows=window.windows)


def steer(findings: Reconciliation, view: View) -> Reconciliation:
    """Bind promised pods or leave them to their scheduler, open machines, and avoid nodes that do not take pods."""
    facts, memory, now = view.facts, findings.memory, view.now
    steering = opening.steer(
        memory.ledger,
        view.cluster,
        view.policy,
        attempts=facts.attempts,
        messages=facts.messages,
        now=now,
        nominating=memory.unbinding.keys(),
        changing=facts.changing,
    )
    refused = refusing_nodes.find_refusals(memory.refusals, view.cluster, attempts=facts.attempts, messages=facts.messages, now=now)
    findings = with_findings(
        findings,
        steps=steering.steps,
        acts=steering.acts,
        promises=reduce(promises.step, steering.outcomes, memory.promises),
        refusals=reduce(node_refusals.step, (*refused, *steering.suspected), memory.refusals),
    )
    findings = with_findings(findings, admissions=rejected_pods.record_sent(memory.admissions, steering.acts, findings.memory.ledger, now))
    return replace(
        findings,
        outcomes=steering.outcomes,
        stray=steering.stray,
        unfit=steering.unfit,
        refused=tuple(refusal for refusal in refused if isinstance(refusal, node_refusals.NodeRefused)),
    )


def mark(findings: Reconciliation, view: View) -> Reconciliation:
    """Set or remove our taints and labels of nodes."""
    cluster, policy, index, cached = view.cluster, view.policy, view.index, view.indexes.cached
    return with_findings(
        findings,
        acts=(
            *update_kept_taints(findings.memory.ledger, cluster, policy, index, view.inventory),
            *cached(update_soft_taints, cluster, policy, index.unlisted),
            *remove_soft_taints(cluster, view.inventory),
            *cached(labels_due, cluster, policy, index),
        ),
    )


def leave(findings: Reconciliation, view: View) -> Reconciliation:
    """Continue removals; none continues without fresh facts."""
    if not view.facts.fresh:
        return findings
    departure = termination.continue_removals(
        findings.memory.ledger,
        view.cluster,
        view.inventory,
        view.policy,
        now=view.now,
        late_pods_by_node=view.facts.late_pods_by_node,
        answers=view.facts.end_answers,
        index=view.index,
        held=view.removing_held,
        unsafe=findings.protection.unsafe,
    )
    clocks = idle_clocks.step(findings.memory.clocks, idle_clocks.IdleObservation(view.indexes.idle(view.cluster, view.now), view.now))
    spared = _update_sparing(findings.memory.spared, departure, view.index, view.now)
    return replace(with_findings(findings, steps=departure.steps, acts=departure.acts, clocks=clocks, spared=spared), kept=departure.kept)


def resend(findings: Reconciliation, view: View) -> Reconciliation:
    """Send orders and withdrawals again that may not have reached the cloud.

    The ledger is saved before that, which fails for a process that has lost the lease (I10).
    """
    current, now = findings.memory.ledger, view.now
    withdrawals, doubtful = withdrawals_due(current, now), orders_due(current, view.facts, now)
    steps: list[ledger.Event] = [ledger.Withdrawing(token, now) for token in withdrawals]
    steps += [ledger.Doubted(order.token, now) for order in doubtful]
    return replace(with_findings(findings, steps=steps), withdrawals=withdrawals, doubtful=doubtful)


def judge_purchases(findings: Reconciliation, view: View) -> Reconciliation:
    """Find purchases whose pods are still pending after their machines came."""
    ledger, index, now = findings.memory.ledger, view.index, view.now
    existing, ended = index.listed.alive.keys() | index.by_machine.keys(), {instance.id for instance in index.listed.ended}
    departed = fruitless_purchases.departed_machines(
        machines_after(view.before.ledger, findings.arrivals), ledger, existing, now, ended=ended
    )
    tried, verdicts = fruitless_purchases.judge_attempts(findings.memory.purchase_attempts, departed, view.cluster.pods, now)
    findings = with_findings(findings, breaker_events=verdicts, purchase_attempts=tried)
    return with_findings(findings, remarks=stopped_buying(view.before.breakers, findings.memory.breakers, now))


def conclude(findings: Reconciliation, view: View) -> Reconciliation:
    """Collect what is worth reporting about pools and machines at the end of the pass."""
    memory, index, inventory = findings.memory, view.index, view.inventory
    ledger, waits = memory.ledger, view.facts.waits
    unlisted = index.outside((-math.inf if inventory is None else inventory.at) - waits.lag - SKEW_SECONDS)
    return replace(
        with_findings(findings, unfamiliar=find_unfamiliar(memory.unfamiliar, ledger, view.policy, index)),
        unpooled=index.unpooled(view.policy, inventory.released_pools if inventory is not None else ()),
        released_pools=find_released_pools(ledger, view.cluster, inventory),
        crowded=crowded_machines(ledger, view.cluster, view.policy),
        unlisted=unlisted,
        listed=inventory is not None,
        uncounted=describe_uncounted(view.cluster, view.policy, unlisted) if inventory is None else "",
        unordered=unordered_machines(ledger, index, inventory, view.policy, waits=waits, now=view.now),
    )


STAGES: tuple[Stage, ...] = (
    adopt,
    guard,
    register,
    count_launched,
    learn,
    interrupt,
    end_silent,
    process_answers,
    judge_bindings,
    open_windows,
    steer,
    mark,
    leave,
    resend,
    judge_purchases,
    conclude,
)


def machines_after(current: Ledger, arrivals: Arrivals) -> tuple[OrderedMachine, ...]:
    """Return the machines of ``current`` with all that the pass learned about them, including those that it lost.

    A machine may get its id, become a node and be lost in one pass.
    """
    return ledger.fold_events(current, (step for step in arrivals.steps if not isinstance(step, ledger.Lost))).coming


def _without_foreign(facts: Facts, ledger: Ledger, foreign: Set[str]) -> Facts:
    """Return ``facts`` without announcements about ``foreign`` machines: several clusters may share the source of announcements.

    A machine of the ledger is ours even if the list does not have it yet.
    """
    foreign = _foreign_machines(ledger, foreign)
    taken_away_at, maintenance_at = (
        {name: at for name, at in times.items() if name not in foreign} for times in (facts.taken_away_at, facts.maintenance_at)
    )
    return replace(facts, taken_away_at=taken_away_at, maintenance_at=maintenance_at)


def _foreign_machines(ledger: Ledger, foreign: Set[str]) -> Set[str]:
    """Return ``foreign`` without machines of the ledger."""
    return foreign - {machine.instance for machine in ledger.coming} if foreign else foreign


def _maintenance_times(previous: Mapping[str, float], facts: Facts, index: MachineIndex) -> Mapping[str, float]:
    """Return when the cloud works on listed machines, by id. Announcements are remembered, because each may come only once, days before."""
    if not (previous or facts.maintenance_at):
        return previous
    listed = previous if facts.inventory is None else index.listed.by_id
    return {**{name: at for name, at in previous.items() if name in listed}, **facts.maintenance_at}


def _update_sparing(sparing: SparedNodes, departure: termination.RemovalFindings, index: MachineIndex, now: float) -> SparedNodes:
    for given_up in departure.given_up:
        sparing = failed_removals.step(sparing, given_up)
    return failed_removals.prune(sparing, index.by_machine, now) if sparing.nodes else sparing


def _learn_from_ready(
    learned: learned_templates.Learned, current: Ledger, arrivals: Arrivals, cluster: Cluster, now: float
) -> learned_templates.Learned:
    """Learn the actual resources of the nodes that became ready."""
    ready = {step.machine for step in arrivals.steps if isinstance(step, ledger.Ready)}
    for machine in current.coming:
        if machine.id in ready and machine.node in cluster.nodes:
            learned = learned_templates.step(
                learned, learned_templates.ReadyNode(machine.key, now, cluster.nodes[machine.node].allocatable)
            )
    return learned
