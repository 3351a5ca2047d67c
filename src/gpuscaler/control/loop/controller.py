"""The control loop: observe, save, act, and plan when a plan is due, one after the other.

Nothing is decided here: ``planning`` returns decisions as data, and gets their results. The order makes restarts harmless: the memory is
saved before anything is sent, and each write and call checks the fence first.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from gpuscaler.clouds.protocol import Provider
from gpuscaler.control.loop.alarm import SOON_SECONDS, Alarm
from gpuscaler.control.loop.attempts import Attempts
from gpuscaler.control.loop.awaiting import InventoryWait
from gpuscaler.control.loop.cloud import Cloud
from gpuscaler.control.loop.cluster_writes import ClusterWriter, Outcome
from gpuscaler.control.loop.ending import EndCall, describe_unseen_pod
from gpuscaler.control.loop.failing import STOPPING, Failures
from gpuscaler.control.loop.holding import HoldWatcher
from gpuscaler.control.loop.recorder import Recorder
from gpuscaler.control.loop.store import MemoryStore, UnreadableError
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.turns import yield_to_loop
from gpuscaler.lifecycle import quarantine
from gpuscaler.lifecycle.actions import ON_MACHINES, Act, Bind, End, Evict, Extend, Label, Protect
from gpuscaler.lifecycle.hard_stop import without_surplus
from gpuscaler.lifecycle.memory import Memory, breakers_of, recalled, state_of
from gpuscaler.lifecycle.node_health import device_plugins
from gpuscaler.lifecycle.observed.machine_index import MachineIndexes
from gpuscaler.lifecycle.pacing import NORMAL, Consolidation, Pace, next_change
from gpuscaler.lifecycle.purchase_intents import place_orders
from gpuscaler.lifecycle.reconcile import Facts, Reconciliation, is_urgent, reconcile
from gpuscaler.lifecycle.registration.registering import Waits
from gpuscaler.lifecycle.registration.unshown_resources import without_broken_promises
from gpuscaler.lifecycle.steering import windows
from gpuscaler.lifecycle.steering.binding import BindingRefused
from gpuscaler.lifecycle.termination import EndAnswered, EvictionRefused
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.holds import ACTIVITIES, BUYING, REMOVING, Holds
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod, PodSpec
from gpuscaler.model.pools import Policy
from gpuscaler.model.scheduled_events import ScheduledEvent
from gpuscaler.planning.capacity.storage_labels import with_storage_places
from gpuscaler.planning.planner import Planner
from gpuscaler.planning.result import without_removals
from gpuscaler.planning.scale_up import markets
from gpuscaler.planning.state import State, breakers, learned_templates, offering_events, promises
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.ledger import known_offerings

__all__ = ["FRESH_PICTURE", "Controller"]

#: The interval of turns while machines are about to open, in seconds: whether bindings and nominations show in the cluster.
OPENING_SECONDS = 0.2
#: The pause after the saved memory could not be read or written, in seconds.
RETRY_SECONDS = 1.0
#: How recently the cluster and the cloud's list must have been confirmed to be fresh, in seconds. API servers confirm a quiet watch once a
#: minute.
FRESH_PICTURE, FRESH_LIST = 120.0, 45.0
#: How old an observation may be, in seconds, to act and plan on it. Saving takes longer than this only if the API server is unreachable.
MAX_OBSERVATION_AGE = 30.0

#: The stages of a turn.
OBSERVING, ACTING, PLANNING = "observing the cluster", "acting", "planning"
#: The pause before the next turn after a plan has failed, in seconds: orders and removals in progress do not wait for a plan.
PAUSE_OBSERVING = 0.5
#: How many of the objects that planning fails with are reported individually.
MAX_REPORTED = 20


def _not_repeatable(_cluster: Cluster) -> None:
    """The attempt of a stage that cannot be repeated with fewer objects."""


def planning_weight(spec: PodSpec) -> int:
    """The cost of planning for a pod, relative to a pod without any rules."""
    terms = spec.node_affinity.terms if spec.node_affinity is not None else ()
    rules = len(spec.affinity) + len(spec.anti_affinity) + len(spec.spread) + len(spec.host_ports) + len(spec.volumes)
    return 1 + rules + (len(terms) + len(spec.tolerations) + len(spec.requests)) // 8


class Controller:
    """Drives one cloud for one cluster, as long as :meth:`run` runs.

    ``picture`` must be running. ``now`` is the wall clock in seconds since the epoch. ``client`` is fenced and, on a dry run, withholds
    writes; with ``dry_run`` nothing is changed in the cloud either, and plans only go to ``recorder``. ``attempts`` has the time of the
    scheduler's last failed attempt for each pod, and must be running. ``hold_watcher`` knows the holds; without one there are none.
    ``page_events`` returns the scheduled events of nodes, by name, that are not on the nodes themselves.
    """

    def __init__(
        self,
        *,
        picture: Picture,
        client: Client,
        provider: Provider,
        store: MemoryStore,
        policy: Policy,
        recorder: Recorder,
        now: Callable[[], float],
        attempts: Attempts,
        pace: Pace = NORMAL,
        dry_run: bool = False,
        hold_watcher: HoldWatcher | None = None,
        page_events: Callable[[], Mapping[str, ScheduledEvent]] = dict,
    ) -> None:
        self.memory = Memory()
        self.plans = 0
        self._unreadable = ""
        self._picture, self._store, self._recorder = picture, store, recorder
        self._now, self._attempts, self._dry_run = now, attempts, dry_run
        self._alarm, self._hold_watcher, self._page_events = Alarm(pace), hold_watcher, page_events
        self._client, self._actor = client, ClusterWriter(client)
        self._cloud = Cloud(provider, now=now, fence=client.fence, wake=self._alarm.wake)
        self._policy = policy
        self._planner, self._machine_indexes = Planner(policy), MachineIndexes()
        self._acting: set[asyncio.Task[list[Outcome]]] = set()
        self._labelling: asyncio.Task[list[Outcome]] | None = None
        self._refused_evictions: list[EvictionRefused] = []
        self._refused_bindings: list[BindingRefused] = []
        self._late_pods_by_node: dict[str, str] = {}
        self._end_answers: dict[str, EndAnswered] = {}
        self._failure: BaseException | None = None
        self.failures = Failures(self._alarm.wake)
        #: The facts of the last observation if it failed. Facts that are reported only once are passed to the next observation as well.
        self._unprocessed_facts: Facts | None = None
        #: The current computation and its cluster, to be repeated without some of its objects.
        self._stage = OBSERVING
        self._attempt: tuple[Cluster, quarantine.Attempt] = (Cluster(), _not_repeatable)
        self._planned: Cluster | None = None
        self._no_plan_before = 0.0
        self._crowded: frozenset[str] = frozenset()
        self._inventory_wait = InventoryWait()
        self._began = 0.0
        self._version = 0
        self._nodes_at: int | None = None
        #: The nodes of the last observation.
        self._nodes: Mapping[str, Node] = {}
        #: When consolidation was last considered, and for which version of the cluster.
        self._consolidation, self._consolidated_version = Consolidation(), -1

    @property
    def trouble(self) -> str:
        """Why the controller cannot begin, or what fails now, for people; empty if nothing is wrong."""
        return "; ".join(filter(None, (self._unreadable, self.failures.trouble)))

    @property
    def cloud(self) -> Cloud:
        return self._cloud

    def set_policy(self, policy: Policy) -> None:
        """Use ``policy`` from the next plan on; offerings that were paused until their configuration changes are tried again."""
        if policy != self._policy:
            next_breakers, next_promises = self.memory.breakers, self.memory.promises
            for change in markets.changed_pools(self._policy, policy, self._now()):
                next_breakers, next_promises = breakers.step(next_breakers, change), promises.forgive(next_promises, change.pool)
            self._policy, self.memory = policy, replace(self.memory, breakers=next_breakers, promises=next_promises)
            self._alarm.plan_by(self._time())

    def plan_soon(self) -> None:
        """Make a plan due: something that plans depend on has changed outside of the cluster's objects."""
        self._alarm.plan_by(self._time())

    def turn_soon(self) -> None:
        """Make a turn due now: something that removals depend on has changed outside of the cluster's objects."""
        self._alarm.wake()

    def set_pace(self, pace: Pace) -> None:
        """Use ``pace`` from the next turn on."""
        self._alarm.pace = pace
        self._alarm.wake()

    async def run(self) -> None:
        """Lead until cancelled. Raises an error if another process leads, or if the saved memory has another version."""
        unlisten = self._picture.listen(self._alarm.note_changes)
        try:
            await self._run()
        finally:
            unlisten()

    async def _load_memory(self) -> Memory:
        """Load the saved memory; retried while the API server does not answer, or until a person has repaired the ConfigMap."""
        while True:
            try:
                memory = await self._store.load()
            except (ApiError, Unreachable, UnreadableError) as error:
                self._unreadable = str(error)
                self._recorder.failed("the memory could not be read", error, self._now())
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._unreadable = ""
                return memory

    async def _run(self) -> None:
        memory, self._began = await self._load_memory(), self._now()
        self.memory = recalled(memory, self._began)
        watching = asyncio.get_running_loop().create_task(self._cloud.watch())
        watching.add_done_callback(self._end_on_failed_watch)
        try:
            while not self._picture.synced:
                self._alarm.turn_at(self._time() + SOON_SECONDS)
                await self._alarm.wait()
            while True:
                await self._alarm.wait()
                await self._turn_or_report()
        finally:
            watching.cancel()
            for task in self._acting:
                task.cancel()
            await asyncio.gather(watching, *self._acting, return_exceptions=True)
            await self.failures.close()
            await self._cloud.close()

    def _time(self) -> float:
        return self._alarm.time()

    # One turn

    async def _turn_or_report(self) -> None:
        try:
            await self.turn()
        except (ApiError, Unreachable) as error:
            # Nothing was done that is not saved: the next turn starts again from the memory.
            self._recorder.failed("the memory could not be written", error, self._now())
            self._alarm.turn_at(self._time() + RETRY_SECONDS)
        except STOPPING:
            raise
        except Exception as error:  # noqa: BLE001  # one unexpected object must not end the loop
            self._handle_error(error)

    def _handle_error(self, error: Exception) -> None:
        """Report an unexpected error, and try again later. Decisions that were not saved are discarded."""
        stage = self._stage
        error_text, pause = self.failures.note(stage, error)
        self._recorder.failed(f"{stage} failed", error, self._now())
        # State that an error left half done is computed again.
        self._planner, self._machine_indexes, self._consolidated_version = Planner(self._policy), MachineIndexes(), -1
        until = self._time() + pause
        if stage == PLANNING:
            self._no_plan_before = until
            self._alarm.plan_by(until)
        self._alarm.turn_at(until if stage != PLANNING else self._time() + PAUSE_OBSERVING)
        cluster, attempt = self._attempt
        if self.failures.is_search_due(stage) and attempt is not _not_repeatable:
            self.failures.search(cluster, self._planned, attempt, error_text)

    def _without_poison(self, cluster: Cluster) -> Cluster:
        """``cluster`` without the objects that planning fails with; objects that have changed since are included again."""
        poison = quarantine.remaining(self.memory.poison, cluster)
        if poisons := self.failures.take_poison():
            poison = (*poison, *poisons)
            self._no_plan_before = 0.0
            self._alarm.plan_by(self._time())
            for item in poisons[:MAX_REPORTED]:
                self._recorder.failed(f"{item.kind} {item.key} is skipped", ValueError(item.reason), self._now())
        if poison != self.memory.poison:
            self.memory = replace(self.memory, poison=poison)
        return quarantine.without_poison(cluster, poison)

    def _with_devices(self, cluster: Cluster) -> Cluster:
        """``cluster`` with the devices of nodes while their device plugin restarts, and with nodes in their window as closed nodes."""
        cluster = windows.as_closed(cluster)
        away = device_plugins.observe(self.memory.absent_devices, self._nodes, cluster, self._now())
        self._nodes = cluster.nodes
        if away is not self.memory.absent_devices:
            self.memory = replace(self.memory, absent_devices=away)
        return device_plugins.as_before(cluster, away, self._now())

    async def turn(self) -> None:
        """Observe, save, act; then plan if a plan is due."""
        started = self._alarm.begin_turn()
        self._picture.set_offerings(self._cloud.inventory, known_offerings(self.memory.ledger))
        self._stage, self._attempt = OBSERVING, (Cluster(), _not_repeatable)
        taken = await self._picture.take()
        self._version, self._nodes_at, self._alarm.nodes = taken.version, taken.nodes_at, taken.cluster.nodes
        cluster = self._with_devices(self._without_poison(taken.cluster))
        # A turn takes long: the event loop runs other tasks between its parts, so that they are not delayed.
        await yield_to_loop()
        if self._failure is not None:
            raise self._failure
        refused = self._take_answers()
        if self._hold_watcher is not None and self.memory.ledger.leaving:
            await self._hold_watcher.poll()
        now = self._now()
        facts = self._unprocessed_facts = self._collect_facts(now)
        memory, policy = self.memory, self._policy
        self._attempt = cluster, lambda some: reconcile(memory, some, policy, facts, now, indexes=MachineIndexes())
        reconciliation = reconcile(memory, cluster, policy, facts, now, indexes=self._machine_indexes)
        self._unprocessed_facts = None
        self.failures.succeeded(OBSERVING)
        self._stage, self._attempt = ACTING, (cluster, _not_repeatable)
        urgent = refused or is_urgent(reconciliation, self.memory, self._crowded)
        self.memory, self._crowded = reconciliation.memory, reconciliation.crowded
        self._recorder.observed(reconciliation, cluster, now)
        self.memory = replace(self.memory, decided=self._recorder.decision_ids)
        await yield_to_loop()
        if not self._dry_run and not await self._act_in_time(reconciliation, cluster, started):
            return
        self.failures.succeeded(ACTING)
        list_wanted = self._inventory_wait.observe(cluster.nodes, reconciliation.announced.taken_away_at, facts.inventory, now)
        if list_wanted or self._inventory_wait.is_due(facts.inventory, now):
            self._cloud.refresh_soon()
        self._cloud.read_often(reconciliation.protection.soon)
        if self._alarm.plans.take(started, urgent=urgent):
            if self._time() < self._no_plan_before:
                self._alarm.plan_by(self._no_plan_before)
            elif self._inventory_wait.must_wait(facts.inventory, self._now()):
                self._alarm.plan_by(self._time() + RETRY_SECONDS)
            elif not self.failures.searching:
                self._stage = PLANNING
                await self._plan(cluster, reconciliation)
                self._planned = cluster
                self.failures.succeeded(PLANNING)
        self._set_awaited()

    def _take_answers(self) -> bool:
        """Apply the cloud's answers to the memory; True if anything was refused, so that another offering should be tried at once."""
        answers, ended, withdrawn = self._cloud.take_answers()
        now = self._now()
        refused = False
        for answer in answers:
            next_breakers = self.memory.breakers
            for fate in answer.fates:
                next_breakers = breakers.step(next_breakers, fate)
                refused = refused or isinstance(fate, offering_events.Refused)
            self.memory = replace(self.memory, ledger=ledger.fold_events(self.memory.ledger, answer.steps), breakers=next_breakers)
            self._recorder.answered(answer, now)
        for end_result in ended:
            self._recorder.ended(end_result, now)
            if end_result.held:
                self._late_pods_by_node[end_result.node] = end_result.detail
            elif not end_result.detail:
                self._end_answers[end_result.node] = EndAnswered()
            elif end_result.wait:
                self._end_answers[end_result.node] = EndAnswered(now + end_result.wait, end_result.detail)
        confirmed = map(ledger.Withdrawn, withdrawn)
        self.memory = replace(self.memory, ledger=ledger.fold_events(self.memory.ledger, confirmed))
        return refused

    def _collect_facts(self, now: float) -> Facts:
        provider = self._cloud.provider
        announced, vanished = self._cloud.take_announcements()
        refused_evictions, self._refused_evictions = tuple(self._refused_evictions), []
        refused_bindings, self._refused_bindings = tuple(self._refused_bindings), []
        late_pods_by_node, self._late_pods_by_node = self._late_pods_by_node, {}
        end_answers, self._end_answers = self._end_answers, {}
        if self._unprocessed_facts is not None:
            announced, vanished = (*self._unprocessed_facts.announced, *announced), (*self._unprocessed_facts.vanished, *vanished)
            refused_evictions, late_pods_by_node = (
                (*self._unprocessed_facts.refused_evictions, *refused_evictions),
                {**self._unprocessed_facts.late_pods_by_node, **late_pods_by_node},
            )
            end_answers = {**self._unprocessed_facts.end_answers, **end_answers}
            refused_bindings = (*self._unprocessed_facts.refused_bindings, *refused_bindings)
        return Facts(
            inventory=self._cloud.inventory,
            attempts=self._attempts,
            messages=self._attempts.messages,
            taken_away_at=self._cloud.taken_away_at,
            maintenance_at=self._cloud.maintenance_at,
            why=self._cloud.why,
            page_events=self._page_events(),
            protection_answers=self._cloud.take_protection_answers(),
            announced=announced,
            vanished=vanished,
            refused_evictions=refused_evictions,
            refused_bindings=refused_bindings,
            late_pods_by_node=late_pods_by_node,
            end_answers=end_answers,
            holds=self._holds,
            changing=self._actor.nodes_in_change(self._nodes_at),
            # While an object is skipped that other objects depend on, nothing is removed.
            fresh=self._is_fresh(now) and all(each.kind == Pod.__name__ for each in self.memory.poison),
            waits=Waits(
                register=self._alarm.pace.register,
                ready=self._alarm.pace.ready,
                lag=provider.read_lag,
                keeps_tokens=provider.keeps_tokens,
                began=self._began,
                observed_until=now - self._picture.stale_for(self._time()),
            ),
        )

    @property
    def _holds(self) -> Holds:
        return self._hold_watcher.holds if self._hold_watcher is not None else Holds()

    async def _is_newly_held(self, held: Holds, now: float) -> bool:
        """Whether a hold came into force since the plan was made."""
        if self._hold_watcher is None:
            return False
        await self._hold_watcher.poll()
        return any(self._holds.of(activity, now) is not None and held.of(activity, now) is None for activity in ACTIVITIES)

    def _is_fresh(self, now: float) -> bool:
        """Whether the data that removals depend on is complete and recent (I4)."""
        return self._picture.stale_for(self._time()) <= FRESH_PICTURE and self._cloud.is_fresh(now, within=FRESH_LIST)

    async def _act_in_time(self, reconciliation: Reconciliation, cluster: Cluster, started: float) -> bool:
        """Save an observation and act on it; False if saving took so long that the cluster must be observed again first.

        The API server was unreachable meanwhile: pods may have gone, groups may have launched machines, and the observation is out of date.
        """
        await self._store.save(self.memory)
        if self._time() > started + MAX_OBSERVATION_AGE:
            self._alarm.plan_by(self._time())
            return False
        self._act(reconciliation, cluster)
        return True

    def _act(self, reconciliation: Reconciliation, cluster: Cluster) -> None:
        ends = []
        for act in reconciliation.acts:
            if isinstance(act, End):
                known_uids = frozenset(pod.uid for pod in cluster.on_node.get(act.node, {}).values())
                check = partial(describe_unseen_pod, self._client, act.node, known_uids) if act.look else None
                ends.append(EndCall(act.instance, act.node, check))
            elif isinstance(act, Extend):
                self._cloud.extend(act.instance)
            elif isinstance(act, Protect):
                self._cloud.protect(act)
        self._cloud.end(ends)
        self._cloud.track_orders(self.memory.ledger)
        for withdrawal in self.memory.ledger.withdrawals:
            if withdrawal.token in reconciliation.withdrawals:
                self._cloud.withdraw(withdrawal)
        for order in reconciliation.doubtful:
            self._cloud.buy(order)
        others: list[Act] = [act for act in reconciliation.acts if not isinstance(act, ON_MACHINES) and not isinstance(act, Label)]
        if others:
            self._acting.add(self._carry_out(others))
        # Labels are written beside the rest: nothing depends on them.
        labels = [act for act in reconciliation.acts if isinstance(act, Label)]
        if labels and (self._labelling is None or self._labelling.done()):
            self._labelling = self._carry_out(labels)
            self._acting.add(self._labelling)

    def _carry_out(self, acts: Sequence[Act]) -> asyncio.Task[list[Outcome]]:
        task = asyncio.get_running_loop().create_task(self._actor.carry_out(acts))
        task.add_done_callback(self._record_outcomes)
        return task

    def _end_on_failed_watch(self, task: asyncio.Task[None]) -> None:
        """End the loop with the error that ended the cloud's watch: without a list no machine can arrive or leave."""
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
            self._alarm.wake()

    def _record_outcomes(self, task: asyncio.Task[list[Outcome]]) -> None:
        self._acting.discard(task)
        if task.cancelled():
            return
        if (failure := task.exception()) is not None:
            if isinstance(failure, Exception) and not isinstance(failure, STOPPING):
                # The next observation derives the remaining acts again.
                self.failures.note(ACTING, failure)
                self._recorder.failed(f"{ACTING} failed", failure, self._now())
            else:
                self._failure = failure
                self._alarm.wake()
            return
        for outcome in task.result():
            self._recorder.acted(outcome, self._now())
            act = outcome.act
            if outcome.detail and isinstance(act, Evict):
                self._refused_evictions.append(
                    EvictionRefused(act.node, act.pod, act.uid, outcome.detail, outcome.budget, outcome.retry_after)
                )
            elif isinstance(act, Bind) and outcome.lasting:
                self._refused_bindings.append(BindingRefused(act.pod, act.node, outcome.detail))

    async def _plan(self, cluster: Cluster, reconciliation: Reconciliation) -> None:
        """Make a plan from the observation ``reconciliation``, save its intents, and send its orders."""
        now = self._now()
        policy, unshown = without_broken_promises(
            learned_templates.corrected_policy(self._policy, self.memory.learned),
            self.memory.breakers,
            cluster,
            now,
            unlisted=reconciliation.unlisted,
        )
        policy = with_storage_places(policy, cluster)
        if policy != self._planner.policy:
            self._planner, self._consolidated_version = Planner(policy), -1
        state = state_of(self.memory, policy, now)
        held = self._holds
        state = replace(
            state,
            consolidating=self._begin_consolidation(state),
            unlisted=reconciliation.unlisted,
            listed=reconciliation.listed,
            upcoming=(*state.upcoming, *reconciliation.unordered),
            buying_held=held.sentence(BUYING, now) or reconciliation.uncounted,
            removing_held=held.sentence(REMOVING, now),
        )
        began, memory = self._time(), self.memory

        def attempt(some: Cluster) -> object:
            return place_orders(memory, Planner(policy).plan(some, state, now, live=True), some, policy, state=state, now=now)

        self._attempt = cluster, attempt
        if self._is_small(cluster):
            plan = self._planner.plan(cluster, state, now, live=True)
        else:
            plan = await asyncio.to_thread(self._planner.plan, cluster, state, now, live=True)
        self.plans += 1
        plan = replace(plan, warnings=(*plan.warnings, *unshown), solve_seconds=round(self._time() - began, 6))
        if not self._is_fresh(self._now()) or any(each.kind != Pod.__name__ for each in self.memory.poison):
            plan = without_removals(plan)
        memory = self.memory
        plan = without_surplus(
            plan,
            cluster,
            policy,
            ledger=memory.ledger,
            breakers=memory.breakers,
            now=now,
            unlisted=state.unlisted,
            guarding=memory.guarding,
        )
        await yield_to_loop()
        if (plan.machines or plan.removals) and await self._is_newly_held(held, now):
            self._alarm.plan_by(self._time())
            return
        self._recorder.planned(plan, cluster, state, policy, now)
        if (change := next_change(cluster, breakers_of(self.memory, policy, now), now)) is not None:
            self._alarm.plan_by(self._time() + max(0.0, change - now))
        if self._dry_run:
            return
        memory_with_orders, orders = place_orders(self.memory, plan, cluster, policy, state=state, now=now)
        # People and histories refer to the ids of decisions: the next process must not number from the start again.
        memory_with_orders = replace(memory_with_orders, decisions=max(memory_with_orders.decisions, self._recorder.decisions))
        if memory_with_orders != self.memory:
            await self._store.save(memory_with_orders)
            self.memory = memory_with_orders
        for order in orders:
            machines = tuple(machine for machine in memory_with_orders.ledger.coming if machine.order == order.token)
            self._recorder.sent(order, machines, memory_with_orders, now)
            self._cloud.buy(order)
        if memory_with_orders.ledger.leaving or memory_with_orders.ledger.promises:
            # New decisions begin at once.
            self._alarm.turn_by(self._time())

    def _is_small(self, cluster: Cluster) -> bool:
        """Whether a plan for ``cluster`` is quick enough to be made on the event loop."""
        pace = self._alarm.pace
        if len(cluster.nodes) + len(cluster.pods) > pace.inline:
            return False
        return sum(planning_weight(bucket.sample.spec) * len(bucket.pods) for bucket in cluster.unbound.values()) <= pace.inline_pods

    def _begin_consolidation(self, state: State) -> bool:
        """Whether consolidation is due in the next plan."""
        now, unsettled, changed = self._time(), state.no_moves_to, self._version != self._consolidated_version
        if not (self._is_fresh(self._now()) and self._consolidation.is_due(unsettled, now, self._alarm.pace, changed=changed)):
            return False
        self._consolidation, self._consolidated_version = Consolidation(now, unsettled), self._version
        return True

    def _set_awaited(self) -> None:
        """Set the objects whose changes cause a turn at once, and make a turn due soon while written changes are expected to show."""
        ledger_now = self.memory.ledger
        nodes = (
            {machine.node for machine in ledger_now.coming if machine.node}
            | {promise.node for promise in ledger_now.promises}
            | {removal.node for removal in ledger_now.leaving}
        )
        pods = {pod for promise in ledger_now.promises for pod in promise.pods} | {
            pod for removal in ledger_now.leaving for pod in removal.pods
        }
        coming = {machine.id for machine in ledger_now.coming}
        self._alarm.awaited = frozenset(nodes | pods | coming)
        if (due := windows.next_check(self.memory.windows, now := self._now())) is not None:
            self._alarm.turn_by(self._time() + due - now)
        if ledger_now.promises or ledger_now.leaving:
            opening = any(promise.step == ledger.NOMINATING for promise in ledger_now.promises)
            self._alarm.turn_by(self._time() + (OPENING_SECONDS if opening else 1.0))
