"""The controller's recorder: turns the controller's calls into events, and hands each event to all sinks.

Nothing here raises into the loop or waits: a sink that fails is counted and logged, and the others still get the event.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import structlog
from msgspec.structs import replace

from gpuscaler.control.loop.cloud import OrderAnswer
from gpuscaler.control.loop.cluster_writes import Outcome
from gpuscaler.control.loop.ending import EndResult
from gpuscaler.control.process.pools import DiscoveredPools
from gpuscaler.control.records.events import happening as kinds
from gpuscaler.control.records.events import telling
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.findings import describe_released_pool
from gpuscaler.lifecycle.actions import Delete, Evict
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.reconcile import Reconciliation
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.owners import top_owner
from gpuscaler.model.pods import NO_OWNER, Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import Plan, Reason
from gpuscaler.planning.state import State
from gpuscaler.planning.state.boot_times import Forecast
from gpuscaler.planning.state.ledger import ledger

_LOG = structlog.get_logger(__name__)
#: For how many pods a turn reports why they are pending; the others follow in the next turns, so that no turn is delayed.
MAX_REASONS_PER_TURN = 200
#: How often the same failure is reported, in seconds.
FAILING_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan with all its inputs: planning again from them gives the same plan."""

    id: str
    at: float
    text: str
    cluster: Cluster
    state: State
    policy: Policy
    plan: Plan


class Sink:
    """Receives the records for which it overrides methods. It may raise, which does not affect other sinks, and must not wait."""

    __slots__ = ()

    def happened(self, what: HistoryEvent, /) -> None: ...

    def decided(self, decision: Decision, /) -> None:
        """Receive a plan that acts, or would act without a dry run."""

    def observed(self, seen: Reconciliation, /) -> None: ...

    def planned(self, plan: Plan, /) -> None:
        """Receive any plan."""


@dataclass(slots=True)
class Records:
    """Implements :class:`~gpuscaler.control.loop.controller.Recorder` over ``sinks``; ``latest`` is the latest state."""

    sinks: Sequence[Sink] = ()
    latest: Latest = field(default_factory=Latest)
    #: How often a sink failed or an event could not be made.
    failures: int = field(default=0, init=False)
    #: Whether there was an observation before: findings of the first one are not reported as new.
    _begun: bool = field(default=False, init=False)
    #: The memory of the last observation, with the orders and answers since; the next observation is compared with it.
    _seen: Memory = field(default_factory=Memory, init=False)
    #: The number of decisions over all restarts; observations bring the number of earlier processes in the memory.
    decisions: int = field(default=0, init=False)
    _orders: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    _decisions: dict[str, str] = field(default_factory=dict, init=False)
    _reported_reasons: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict, init=False)
    _last_decision: object = field(default=None, init=False)
    _unplaced_count: int = field(default=0, init=False)
    #: The pods that are or were on leaving nodes, by their uid; and the uids of those with a reported eviction.
    _residents: dict[str, Pod] = field(default_factory=dict, init=False)
    _evicted: set[str] = field(default_factory=set, init=False)
    #: The machines that the hard stop cut from the last plan, by pool.
    _reported_cut: tuple[tuple[str, int], ...] = field(default=(), init=False)
    _logged_errors: set[str] = field(default_factory=set, init=False)
    #: When each failure was last reported.
    _reported_failures: dict[str, float] = field(default_factory=dict, init=False)

    @property
    def decision_ids(self) -> Mapping[str, str]:
        """The ids of decisions that are being carried out, by the tokens of orders and the names of nodes."""
        return dict(self._decisions)

    def forget_observation(self) -> None:
        """Forget the last observation: another controller begins, and findings of its first observation are not reported as new."""
        self._begun, self._last_decision = False, None

    # Called by the controller

    def observed(self, seen: Reconciliation, cluster: Cluster, now: float, /) -> None:
        self._run_guarded("an observation", lambda: self._record_observation(seen, cluster, now))

    def planned(self, plan: Plan, cluster: Cluster, state: State, policy: Policy, now: float, /) -> None:
        self._run_guarded("a plan", lambda: self._record_plan(plan, cluster, state, policy, now))

    def sent(self, order: ledger.Order, machines: tuple[ledger.OrderedMachine, ...], memory: Memory, now: float, /) -> None:
        self._run_guarded("an order", lambda: self._record_order(order, machines, memory, now))

    def answered(self, answer: OrderAnswer, now: float, /) -> None:
        self._run_guarded("an answer", lambda: self._record_answer(answer, now))

    def acted(self, outcome: Outcome, now: float, /) -> None:
        self._run_guarded("an act", lambda: self._record_outcome(outcome, now))

    def ended(self, ended: EndResult, now: float, /) -> None:
        self._run_guarded("an end", lambda: self._emit(telling.end_event(ended, now)))

    def failed(self, what: str, error: BaseException, now: float, /) -> None:
        self._run_guarded("a failure", lambda: self._record_failure(f"{what}: {error}", now))

    def set_discovered_pools(self, discovered_pools: DiscoveredPools | None, /) -> None:
        """Set the source of discovered pools, None if there are only those of the file."""
        self.latest.discovered_pools = discovered_pools

    # Conversion to events

    def _record_failure(self, failure: str, now: float) -> None:
        self._reported_failures = {text: at for text, at in self._reported_failures.items() if 0.0 <= now - at < FAILING_SECONDS}
        if failure not in self._reported_failures:
            self._reported_failures[failure] = now
            self._emit(HistoryEvent(now, kinds.FAILED, failure))

    def _record_observation(self, reconciliation: Reconciliation, cluster: Cluster, now: float) -> None:
        latest, ledger = self.latest, reconciliation.memory.ledger
        before, self._seen = self._seen, reconciliation.memory
        self.decisions = max(self.decisions, reconciliation.memory.decisions)
        self._decisions = {**reconciliation.memory.decided, **self._decisions}
        # Forecasts from before this observation are those that were shown to people.
        granted = [machine for machine in ledger.coming if machine.granted]
        expected = {key: latest.forecast_for(key) for key in {machine.key for machine in granted if machine.id not in latest.forecasts}}
        latest.memory = reconciliation.memory
        latest.cluster, latest.observed_at, latest.unpooled = cluster, now, reconciliation.unpooled
        latest.unlisted = reconciliation.unlisted
        latest.lacks, latest.faults = reconciliation.arrivals.lacks, reconciliation.arrivals.faults
        released_before, latest.released_pools = {released.pool for released in latest.released_pools}, reconciliation.released_pools
        for what in (
            HistoryEvent(now, kinds.NOTICED, describe_released_pool(released))
            for released in reconciliation.released_pools
            if released.pool not in released_before
        ):
            self._emit(what)
        # A pod may be gone before its eviction is answered.
        leaving = {removal.node for removal in ledger.leaving}
        residents = {pod.uid: pod for name in leaving for pod in cluster.on_node.get(name, {}).values()}
        self._residents = {uid: pod for uid, pod in {**self._residents, **residents}.items() if pod.node_name in leaving}
        self._evicted &= self._residents.keys()
        if {removal.node for removal in before.ledger.leaving} != {removal.node for removal in ledger.leaving}:
            # A removal that was given up may be decided again in the same words.
            self._last_decision = None
        forecasts = {machine.id: latest.forecasts.get(machine.id) or expected[machine.key] for machine in granted}
        all_forecasts: dict[str, Forecast] = {**latest.forecasts, **forecasts}
        self._send_to_sinks("an observation", lambda sink: sink.observed(reconciliation))
        if self._begun:
            advice = latest.account.taint_advice
            for what in telling.observation_events(before, reconciliation, cluster, all_forecasts, now, taint_advice=advice):
                self._emit(what)
        self._begun = True
        latest.forecasts = forecasts
        alive = {machine.order for machine in ledger.coming} | {order.token for order in ledger.orders}
        self._orders = {token: pods for token, pods in self._orders.items() if token in alive}
        tokens_and_nodes = alive | {removal.node for removal in ledger.leaving}
        self._decisions = {name: decision for name, decision in self._decisions.items() if name in tokens_and_nodes}

    def _record_plan(self, plan: Plan, cluster: Cluster, state: State, policy: Policy, now: float) -> None:
        latest = self.latest
        latest.plan, latest.policy, latest.cluster, latest.planned_at, latest.decision = plan, policy, cluster, now, ""
        if state.consolidating:
            latest.consolidation_blockers, latest.consolidation_planned_at = {blocked.node: blocked for blocked in plan.blocked_nodes}, now
        self._send_to_sinks("a plan", lambda sink: sink.planned(plan))
        # On a dry run nothing is carried out, so each plan is the same and is recorded once.
        same = (plan.purchases, plan.removals, len(plan.unplaced))
        if same != self._last_decision:
            self._last_decision = same
            self._record_decision(plan, cluster, state, policy, now)
        self._report_cut(plan, now)
        self._report_unplaced(plan, now)

    def _report_cut(self, plan: Plan, now: float) -> None:
        """Report what the hard stop cut from a plan when that changes."""
        cut = tuple((cut.pool, cut.machines) for cut in plan.cut)
        if cut != self._reported_cut:
            for cut_machines in plan.cut:
                self._emit(telling.cut_event(cut_machines, plan, now))
        self._reported_cut = cut

    def _record_decision(self, plan: Plan, cluster: Cluster, state: State, policy: Policy, now: float) -> None:
        what = telling.plan_event(plan, now)
        left_out, self._unplaced_count = self._unplaced_count, len(plan.unplaced)
        if not (plan.machines or plan.removals):
            if plan.unplaced and len(plan.unplaced) != left_out:
                self._emit(what)
            return
        self.decisions += 1
        name = f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%S}-{self.decisions}"
        self.latest.decision = name
        self._decisions.update((removal.node, name) for removal in plan.removals)
        decision = Decision(name, now, what.text, cluster, state, policy, plan)
        self._send_to_sinks("a decision", lambda sink: sink.decided(decision))
        self._emit(HistoryEvent(now, kinds.PLANNED, what.text, decision=name))

    def _report_unplaced(self, plan: Plan, now: float) -> None:
        """Report why pods are unplaced when the reasons change."""
        before, self._reported_reasons = self._reported_reasons, {}
        fresh: dict[tuple[Reason, ...], list[str]] = {}
        # Pods of one class share their reasons.
        reason_keys: dict[int, tuple[tuple[str, str], ...]] = {}
        number = 0
        for unplaced in plan.unplaced:
            why = reason_keys.get(id(unplaced.reasons))
            if why is None:
                # Details contain amounts and times that change all the time; the words in excluded_by do not.
                why = reason_keys[id(unplaced.reasons)] = tuple((reason.pool, reason.excluded_by) for reason in unplaced.reasons)
            if before.get(unplaced.pod) != why:
                number += 1
                if number > MAX_REASONS_PER_TURN:
                    continue
                fresh.setdefault(unplaced.reasons, []).append(unplaced.pod)
            self._reported_reasons[unplaced.pod] = why
        for reasons, pods in fresh.items():
            self._emit(telling.unplaced_event(reasons, tuple(pods), now))

    def _record_order(self, order: ledger.Order, machines: tuple[ledger.OrderedMachine, ...], memory: Memory, now: float) -> None:
        # The next plan is another decision, even if it looks the same.
        self._last_decision = None
        # Pages must show ordered machines at once, and not only after the next observation.
        self.latest.memory = memory
        self._apply_to_ledger(ledger.Intended(order, machines))
        self._orders[order.token] = tuple(pod for machine in machines for pod in machine.pods)
        if self.latest.decision:
            self._decisions[order.token] = self.latest.decision
        self._emit(telling.order_event(order, machines, self.latest.policy, self.latest.forecast_for, now))

    def _record_answer(self, answer: OrderAnswer, now: float) -> None:
        token, policy, outlook = answer.order.token, self.latest.policy, self.latest.forecast_for
        answered = telling.answered_order(answer, self._seen.ledger)
        self._apply_to_ledger(*answer.steps)
        self._emit(telling.answer_summary_event(answered, policy, outlook, now))
        for what in telling.answer_events(answered, self._orders.get(token, ()), policy, outlook, now):
            self._emit(what)

    def _record_outcome(self, outcome: Outcome, now: float) -> None:
        self._emit(telling.failed_act_event(outcome, now))
        act = outcome.act
        if isinstance(act, Evict | Delete) and not (outcome.detail or outcome.gone or act.uid in self._evicted):
            # A pod that gets less time to end than it was first given is evicted twice.
            self._evicted.add(act.uid)
            pod = self._residents.get(act.uid)
            top = NO_OWNER if pod is None else top_owner(self.latest.cluster.workloads, pod.namespace, pod.owner)
            removal = next((removal for removal in self.latest.memory.ledger.leaving if removal.node == act.node), None)
            self._emit(telling.eviction_event(act, removal, pod, top, now))

    def _apply_to_ledger(self, *steps: ledger.Event) -> None:
        self._seen = replace(self._seen, ledger=ledger.fold_events(self._seen.ledger, steps))

    def _emit(self, event_draft: HistoryEvent | None) -> None:
        if event_draft is None:
            return
        decision = event_draft.decision or self._decisions.get(event_draft.order) or self._decisions.get(event_draft.node) or ""
        event = replace(event_draft, decision=decision)
        self._send_to_sinks(f"an event ({event.kind})", lambda sink: sink.happened(event))

    def _send_to_sinks(self, what: str, call: Callable[[Sink], None]) -> None:
        for sink in self.sinks:
            self._run_guarded(what, partial(call, sink))

    def _run_guarded(self, what: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # a record that cannot be kept must not stop the controller; it is counted and logged
            self.failures += 1
            kind = f"{what}: {type(error).__name__}"
            if kind not in self._logged_errors:
                # Logged once for each kind: the same error occurs in each turn.
                self._logged_errors.add(kind)
                _LOG.exception("a record was not kept", record=what)
