"""A model of Cluster Autoscaler, as a policy of a replay.

Source: kubernetes/autoscaler 1.35, ``cluster-autoscaler/core/static_autoscaler.go`` (the loop), ``clusterstate``, ``estimator``,
``expander``, ``core/scaledown``. Each offering of the pools is one node group, an Auto Scaling group of one type in one zone, which is how
its documentation says GPU groups should be made. What is modelled: the loop's interval; pods that fit existing or upcoming nodes are no
demand; new pods wait for company, longer with GPUs; one group per scale-up, chosen by the expander; time-outs, error signals, back-off;
empty nodes that were unneeded long enough go, a limited number at once, and none for a while after any scale-up. Interrupted spot machines
are drained at the notice, as the AWS Node Termination Handler does. Pods of traces count as annotated
``cluster-autoscaler.kubernetes.io/safe-to-evict: "false"``, as users of batch jobs are told to do: no node with pods is drained.
"""

import math
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from gpuscaler.clouds.markets import Key
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import Removal
from gpuscaler.simulation.autoscaler import Decisions, Intent, Moment, Pending, Purchase, Seen, View
from gpuscaler.simulation.peers.books import Backoff, BackoffSettings, Order, expect
from gpuscaler.simulation.peers.estimator import estimate
from gpuscaler.simulation.peers.expanders import LEAST_WASTE, Option, expander

NEVER = math.inf


class ClusterAutoscalerSettings(Struct, frozen=True, gc=False):
    """Cluster Autoscaler's own settings, in seconds, with its defaults.

    ``scan_interval``, ``expander``, ``max_node_provision_time``, ``scale_down_unneeded_time``, ``scale_down_delay_after_add`` and
    ``max_empty`` (``--max-scale-down-parallelism``) are flags; ``new_pods`` and ``new_gpu_pods`` are constants of its loop.
    ``error_signal`` is after what time the cloud's refusal reaches it (an Auto Scaling group's failed activity), None where only the
    time-out tells. ``gpu_label`` says whether nodes bear the cloud's label for GPUs, without which a node counts as ready before its device
    plugin is.
    """

    scan_interval: float = 10.0
    expander: str = LEAST_WASTE
    max_node_provision_time: float = 900.0
    scale_down_unneeded_time: float = 600.0
    scale_down_delay_after_add: float = 600.0
    max_empty: int = 10
    max_nodes_per_scaleup: int = 1000
    new_pods: float = 2.0
    new_gpu_pods: float = 30.0
    error_signal: float | None = None
    gpu_label: bool = True
    backoff: BackoffSettings = BackoffSettings()


class ClusterAutoscaler:
    """See the module. A pool's ``max`` bounds its groups together, its ``min`` what scale-down leaves of it."""

    name = "cluster-autoscaler"
    steers = False

    def __init__(self, policy: Policy, settings: ClusterAutoscalerSettings | None = None, *, seed: int = 0) -> None:
        self._settings = settings or ClusterAutoscalerSettings()
        self._pools = {pool.name: pool for pool in policy.pools}
        self._groups = {offering.key: offering for pool in policy.pools for offering in pool.offerings}
        self._choose = expander(self._settings.expander, seed=seed)
        self._backoff = Backoff(self._settings.backoff)
        self._orders: dict[str, Order] = {}
        self._asked = 0
        #: Until when the machines of a raised group are expected.
        self._expected: dict[Key, float] = {}
        self._unneeded: dict[str, float] = {}
        self._interrupted: list[str] = []
        self._last_scale_up = -NEVER
        self._began: float | None = None
        self._last_loop = -NEVER
        self._ask_at: float | None = None

    def start(self) -> tuple[tuple[Key, int], ...]:
        """Nothing: Cluster Autoscaler does not raise a group to its minimum (``--enforce-node-group-min-size`` is off)."""
        return ()

    @property
    def ask_at(self) -> float | None:
        return self._ask_at

    def noticed(self, moment: Moment, view: View) -> None:  # noqa: ARG002  # the loop looks for itself
        if self._began is None:
            self._began = moment.now
        for answer in moment.answers:
            order = self._orders[answer.purchase]
            order.missing -= len(answer.machines)
            order.refused |= bool(answer.refusals)
            if order.missing <= 0:
                del self._orders[answer.purchase]
        self._interrupted += [notice.machine.id for notice in moment.notices]
        news = (moment.arrived, moment.evicted, moment.answers, moment.registered, moment.opened, moment.idled, moment.notices, moment.lost)
        if any(news) or moment.given_back:
            tick = self._tick(moment.now)
            self._ask_at = tick if self._ask_at is None else min(tick, self._ask_at)

    def decide(self, view: View, now: float) -> Decisions:
        """One loop."""
        self._last_loop = now
        machines = list(view.seen())
        removals = [Removal(name, "interrupted: drained at the notice") for name in self._interrupted if view.node(name) is not None]
        self._interrupted.clear()
        self._backoff.forget(now)
        withdrawals, late = self._follow_up(machines, now)
        removals += [Removal(seen.machine.id, "did not register in time") for seen in late]
        gone = {removal.node for removal in removals}
        machines = [seen for seen in machines if seen.machine.id not in gone]
        unhelped, used = self._unhelped(view, machines)
        wake = [self._next_deadline(now)]
        purchase = None
        young = self._too_new(unhelped, now)
        if young is not None:
            wake.append(young)
        elif unhelped:
            purchase = self._scale_up(unhelped, machines, now)
            wake += self._back_offs(now)
        if purchase is not None:
            self._last_scale_up = now
            wake.append(now + self._settings.scan_interval)
        elif young is None:
            empty, next_removal = self._scale_down(machines, used, now)
            removals += empty
            wake.append(next_removal)
        at = min(wake)
        self._ask_at = None if at == NEVER else self._tick(at)
        return Decisions(withdrawals=tuple(withdrawals), purchases=(purchase,) if purchase else (), removals=tuple(removals))

    def _tick(self, at: float) -> float:
        """The first loop at or after ``at`` that has not run yet."""
        assert self._began is not None, "loops begin with the first news"
        interval = self._settings.scan_interval
        # Sums of times are rounded: a loop a microsecond early would find that nothing is due yet.
        at = max(at, self._last_loop + interval / 2)
        return self._began + math.ceil((at - self._began) / interval - 1e-6) * interval

    # What was asked

    def _follow_up(self, machines: list[Seen], now: float) -> tuple[list[str], list[Seen]]:
        """Settle scale-ups that are done, failed or late. Returns orders to withdraw and machines to give up."""
        rules = self._settings
        upcoming = self._upcoming(machines)
        for group, until in list(self._expected.items()):
            if not upcoming[group]:
                del self._expected[group]
                self._backoff.clear(group)
            elif until < now:
                del self._expected[group]
                self._backoff.fail(group, now)
        withdrawn = []
        for order in list(self._orders.values()):
            signalled = rules.error_signal is not None and order.refused and order.asked + rules.error_signal <= now
            if signalled or order.asked + rules.max_node_provision_time < now:
                del self._orders[order.id]
                withdrawn.append(order.id)
            if signalled:
                self._backoff.fail(order.group, now)
                self._expected.pop(order.group, None)
        late = [seen for seen in machines if seen.registered is None and seen.bought + rules.max_node_provision_time < now]
        return withdrawn, late

    def _upcoming(self, machines: Iterable[Seen]) -> Counter[Key]:
        """How many machines of each group are expected and not ready."""
        upcoming: Counter[Key] = Counter()
        for order in self._orders.values():
            upcoming[order.group] += order.missing
        for seen in machines:
            if not self._ready(seen):
                upcoming[seen.offering.key] += 1
        return upcoming

    def _ready(self, seen: Seen) -> bool:
        return seen.ready is not None or (seen.registered is not None and not self._settings.gpu_label)

    def _next_deadline(self, now: float) -> float:
        """When something that was asked for is settled at the latest."""
        rules = self._settings
        # A moment later: time-outs are over after their time, not at it.
        deadlines = [until + 0.001 for until in self._expected.values()]
        for order in self._orders.values():
            deadlines.append(order.asked + rules.max_node_provision_time + 0.001)
            if rules.error_signal is not None and order.refused:
                deadlines.append(order.asked + rules.error_signal)
        return min((at for at in deadlines if at > now), default=NEVER)

    # Scale-up

    def _unhelped(self, view: View, machines: list[Seen]) -> tuple[list[tuple[Pending, int]], set[str]]:
        """Pending pods (and how many of them) that no existing or upcoming node takes; and the nodes that the others would go to."""
        pending = view.pending()
        if not pending:
            return [], set()
        room = view.room()
        for seen in machines:
            if not self._ready(seen):
                expect(room, seen)
        for order in self._orders.values():
            for number in range(order.missing):
                room.add(f"{order.id}/{number}", self._groups[order.group])
        used: set[str] = set()
        unhelped = []
        for group in sorted(pending, key=lambda group: (-group.spec.priority, group.oldest, group.pods[0])):
            placed = 0
            while placed < len(group.pods) and (node := room.first(group.spec)) is not None:
                room.place(group.spec, node)
                used.add(node)
                placed += 1
            if placed < len(group.pods):
                unhelped.append((group, len(group.pods) - placed))
        return unhelped, used

    def _too_new(self, unhelped: list[tuple[Pending, int]], now: float) -> float | None:
        """Until when it waits for more pods to come before it buys for these; None when they are old enough."""
        if not unhelped:
            return None
        oldest = [(group.oldest if left == len(group.pods) else group.newest, group.spec) for group, left in unhelped]
        until = min(at for at, _ in oldest) + self._settings.new_pods
        with_gpus = [at for at, spec in oldest if any("/" in name and amount for name, amount in spec.requests.items())]
        if with_gpus:
            until = max(until, min(with_gpus) + self._settings.new_gpu_pods)
        return until if until > now else None

    def _scale_up(self, unhelped: list[tuple[Pending, int]], machines: list[Seen], now: float) -> Purchase | None:
        pods: dict[str, tuple[PodSpec, int]] = {}
        for group, left in unhelped:
            known = pods.get(group.spec.digest, (group.spec, 0))
            pods[group.spec.digest] = (group.spec, known[1] + left)
        sizes = Counter(seen.offering.pool for seen in machines)
        for order in self._orders.values():
            sizes[order.group[0]] += order.missing
        options = []
        for key, offering in self._groups.items():
            limit = self._pools[offering.pool].max
            most = self._settings.max_nodes_per_scaleup if limit is None else limit - sizes[offering.pool]
            if most > 0 and self._backoff.until(key, now) is None:
                option = estimate(offering, tuple(pods.values()), most=min(most, self._settings.max_nodes_per_scaleup))
                if option is not None:
                    options.append(option)
        return self._order(self._choose(options), now) if options else None

    def _order(self, option: Option, now: float) -> Purchase:
        self._asked += 1
        group, name = option.offering.key, f"scale-up-{self._asked}"
        self._orders[name] = Order(name, group, option.count, now)
        self._expected[group] = now + self._settings.max_node_provision_time
        number = sum(count for _, count in option.pods)
        intents = tuple(Intent(f"{name}#{one}") for one in range(1, option.count + 1))
        return Purchase(name, (group,), standing=True, intents=intents, why=f"{number} pending pods fit no node")

    def _back_offs(self, now: float) -> list[float]:
        """When groups that are backed off may be asked again."""
        ends = (self._backoff.until(group, now) for group in self._groups)
        return [end + 0.001 for end in ends if end is not None]

    # Scale-down

    def _scale_down(self, machines: list[Seen], used: set[str], now: float) -> tuple[list[Removal], float]:
        """Nodes to remove now, and when the next may follow."""
        rules = self._settings
        empty = [seen for seen in machines if self._ready(seen) and not seen.pods and not seen.closed and seen.node not in used]
        self._unneeded = {seen.node: self._unneeded.get(seen.node, now) for seen in empty}
        allowed = self._last_scale_up + rules.scale_down_delay_after_add
        sizes = Counter(seen.offering.pool for seen in machines if seen.registered is not None)
        removals: list[Removal] = []
        following = NEVER
        for seen in sorted(empty, key=lambda seen: (self._unneeded[seen.node], seen.node)):
            due = max(self._unneeded[seen.node] + rules.scale_down_unneeded_time, allowed)
            if due > now + 0.001:
                following = min(following, due)
            elif len(removals) == rules.max_empty:
                following = min(following, now + rules.scan_interval)
            elif sizes[seen.offering.pool] > self._pools[seen.offering.pool].min:
                sizes[seen.offering.pool] -= 1
                removals.append(Removal(seen.node, f"empty for {now - self._unneeded[seen.node]:.0f} s"))
        return removals, following
