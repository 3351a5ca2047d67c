"""Binding: pods are bound to their promised machine while it is still closed; after that the machine opens.

A binding needs no toleration, and kube-scheduler drops a bound pod from its queue, whichever scheduler bound it. So no other pod can take
the room of a promised pod, in whatever order machines become ready. Before a pod is bound it passes the same filters as in kube-scheduler,
which also count all earlier bindings of the pass. Pods that are left to their scheduler are nominated once, right before the machine opens.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.lifecycle.actions import Bind, Nominate
from gpuscaler.lifecycle.observed.promised_pods import pending_pods
from gpuscaler.lifecycle.registration.readiness import find_lack, is_divided
from gpuscaler.model.accelerators import count_accelerators, is_device
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import BIND, NOMINATE, Policy, Pool
from gpuscaler.model.well_known import LEAVING_TAINT
from gpuscaler.planning.feasibility import BETWEEN_PODS
from gpuscaler.planning.feasibility.min_gpus import with_closing_tolerations
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.feasibility.volumes.claims import ClaimReader
from gpuscaler.planning.state.ledger.ledger import Ledger, Promise

#: Seconds after which a binding that is not visible yet is sent again. If the first one did arrive, the API server refuses the second.
REPEAT_SECONDS = 5.0
#: How long the promise to a pod is kept while other pods must be bound first, or while its node is not ready, in seconds.
PATIENCE_SECONDS = 120.0
#: How long after all bindings are visible a machine opens, in seconds. kube-scheduler's own watch may be behind ours, and kube-scheduler
#: regards the room of a pod as free until it observes the binding. The pods already run during this time. Measured with
#: ``python -m benchmarks binding``: if the scheduler is up to one second behind, kubelets reject no pods; at two seconds they do.
MARGIN_SECONDS = 1.0
#: How long a machine stays closed after all its pods found places on other nodes, in seconds: a plan may assign other pods to it.
UNWANTED_SECONDS = 3.0
#: How long a machine stays closed while nominations are not visible yet, in seconds.
NOMINATED_SECONDS = 5.0
#: How long the pods of a pool are nominated instead of bound after a binding was refused, in seconds.
AGAIN_SECONDS = 600.0
#: Gangs that come from these sources are bound as a whole by their own scheduler.
BOUND_AT_ONCE = frozenset({"coscheduling", "volcano", "workload"})
#: Pods that are bound together or not at all, each with its node.
Unit = list[tuple[Pod, str]]


class Binding(Struct, frozen=True, gc=False):
    """The decision for one closed machine: its updated ``promise``, and ``acts``, the bindings and nominations of its pods.

    ``gone`` are pods that are planned again, because they cannot run there. ``left`` are pods that a scheduler binds once the machine is
    open. ``closed`` is why the machine does not open now, as text; empty if it opens.
    """

    promise: Promise
    acts: tuple[Bind | Nominate, ...] = ()
    gone: tuple[Pod, ...] = ()
    left: tuple[Pod, ...] = ()
    closed: str = ""


class BindingRefused(Struct, frozen=True, gc=False):
    """A binding to ``node`` was refused, and would be again; ``why`` is the reason. ``pool`` is empty if the ledger has the node's pool."""

    pod: str
    node: str
    why: str
    pool: str = ""


class Unbinding(Struct, frozen=True, gc=False):
    """No pods are bound to machines of a pool before ``until``; ``why`` is the reason for the refusal."""

    until: float
    why: str


def pools_without_binding(
    unbindings: Mapping[str, Unbinding], refused: Iterable[BindingRefused], ledger: Ledger, now: float
) -> Mapping[str, Unbinding]:
    """Return, by name, the pools whose pods are nominated for a while instead of bound, because bindings were refused."""
    pools = {promise.node: promise.offering.pool for promise in ledger.promises}
    reasons = ((refusal.pool or pools.get(refusal.node, ""), refusal.why) for refusal in refused)
    new = {pool: Unbinding(now + AGAIN_SECONDS, why) for pool, why in reasons if pool}
    old = {pool: unbinding for pool, unbinding in unbindings.items() if unbinding.until > now}
    return {**old, **new} if new or len(old) != len(unbindings) else unbindings


def steering_of(pool: Pool | None, policy: Policy, nominating: Set[str]) -> str:
    """Return the steering of pods without their own setting on machines of ``pool``. Bindings to ``nominating`` pools were refused."""
    if pool is None:
        return policy.steering
    return NOMINATE if pool.name in nominating else pool.steering or policy.steering


class Binder:
    """One pass over the machines that are ready but closed, for ``cluster`` at ``now``.

    ``nominating`` are pools whose pods are nominated because bindings were refused, ``leaving`` the nodes that are being removed.
    """

    def __init__(
        self, cluster: Cluster, policy: Policy, now: float, nominating: Set[str] = frozenset(), leaving: Set[str] = frozenset()
    ) -> None:
        self._leaving = leaving
        self._cluster, self._policy, self._now = cluster, policy, now
        self._nominating = nominating
        self._pools = {pool.name: pool for pool in policy.pools}
        self._offerings = policy.offerings
        self._placed: set[str] = set()
        #: What closed nodes lack for their promises, as text.
        self._lacking: Mapping[str, str] = {}
        self._room_left: Room | None = None

    def steering(self, pod: Pod, pool: str) -> str:
        """Return the steering of a pod on machines of ``pool``: the most specific setting applies.

        A pod is not bound if its scheduler does more for it than choose a node.
        """
        namespace = self._cluster.namespaces.get(pod.namespace)
        steering = pod.options.steering or (namespace.steering if namespace is not None else "")
        steering = steering or steering_of(self._pools.get(pool), self._policy, self._nominating)
        return NOMINATE if steering == BIND and (pool in self._nominating or not self._is_simple(pod)) else steering

    def _is_simple(self, pod: Pod) -> bool:
        """Whether the only task of the pod's scheduler is to choose its node."""
        spec = pod.spec
        if spec.scheduler_name not in self._policy.bind_schedulers or spec.gates or spec.resource_claims:
            return False
        if _is_whole(pod):
            return False
        return not (spec.volumes and self._claims.read(spec).delayed)

    def decide(self, promises: Iterable[Promise], promised: Set[str], unready: Set[str]) -> Mapping[str, Binding]:
        """Decide about each of ``promises``, all of closed machines; the result is by node.

        ``promised`` are the pods of all promises and ordered machines, ``unready`` the gangs with pods whose machine is not ready yet.
        """
        line = sorted(promises, key=lambda promise: (promise.since, promise.node))
        self._lacking = {promise.node: lacks for promise in line if (lacks := self._describe_lack(promise))}
        ready = {promise.node for promise in line} - self._lacking.keys()
        for promise in line:
            for pod in self._sent_pods(promise):
                self._place(pod, promise.node)
        bound = [(pod, promise.node) for promise in line if promise.node in ready for pod in self._important_pods(promise, promised)]
        units = _units((pod, promise.node) for promise in line for pod in self._unplaced(promise))
        promised_here = {key for promise in line if promise.node in ready for key in promise.pods}
        short = self._incomplete_gangs({pod.gang for unit in units for pod, _ in unit} - {""}, promised_here)
        complete = [unit for unit in units if unit[0][0].gang not in unready | short and all(node in ready for _, node in unit)]
        bound += self._bindable(complete)
        refused = {pod.key for unit in units for pod, _ in unit if pod.gang not in unready} - self._placed
        bindings = {
            promise.node: self._decide_one(promise, [pod for pod, node in bound if node == promise.node], refused) for promise in line
        }
        # Gangs that their scheduler binds as a whole: their machines open together.
        late = {pod.gang: binding.closed for binding in bindings.values() if binding.closed for pod in binding.left if _is_whole(pod)}
        late |= dict.fromkeys(unready, "one of its machines is not ready")
        for node, binding in bindings.items():
            why = next((f"it opens together with all of gang {pod.gang}: {late[pod.gang]}" for pod in binding.left if pod.gang in late), "")
            bindings[node] = replace(binding, closed=binding.closed or why or self._pod_that_could_take_room(node, binding, promised))
        return bindings

    def _pod_that_could_take_room(self, node: str, binding: Binding, promised: Set[str]) -> str:
        """Return, as text, which pod planned on another node could take the free room of a node whose own pods are bound.

        The places of pods with spread or affinity rules depend on each other. On another node than planned, such a pod may make the places
        of the next ones inadmissible, and one more machine would be bought. What these rules admit changes with each binding, so this
        check ignores them. It keeps a machine closed only if none of its pods is left to a scheduler; its bound pods already run.
        """
        if binding.left or binding.promise.closes_again or not self._pods_with_rules or node not in self._room.table.row:
            return ""
        row = self._room.table.row[node]
        for bucket in self._pods_with_rules:
            pod = next((pod for key, pod in bucket.items() if key in promised and key not in self._placed), None)
            if pod is None:
                continue
            passes = self._room.verdict(with_closing_tolerations(pod.spec), pod.labels).passes
            if all(passed[row] for name, passed in passes.items() if name not in BETWEEN_PODS):
                return f"pod {pod.key} is planned on another node and could take the free room here, so that other pods would have none"
        return ""

    @cached_property
    def _pods_with_rules(self) -> Sequence[Mapping[str, Pod]]:
        """Pending pods with spread or affinity rules, by class."""
        samples = ((bucket.sample.spec, bucket.pods) for key, bucket in self._cluster.unbound.items() if not key.terminating)
        return [pods for spec, pods in samples if spec.affinity or spec.anti_affinity or any(rule.hard for rule in spec.spread)]

    def _incomplete_gangs(self, gangs: Set[str], promised: Set[str]) -> set[str]:
        """Return those of ``gangs`` that are incomplete. Pods that run or have run count, and pods ``promised`` to ready machines."""
        if not gangs:
            return set()
        members, size = Counter[str](), Counter[str]()
        for pod in self._cluster.pods.values():
            if pod.options.gang and (gang := pod.gang) in gangs:
                size[gang] = max(size[gang], pod.options.gang_size)
                runs = pod.node_name and not pod.deleted and pod.phase != "Failed"
                members[gang] += bool(runs) or pod.key in promised
        return {gang for gang in gangs if members[gang] < size[gang]}

    def _describe_lack(self, promise: Promise) -> str:
        """Return, as text, what a node lacks for its promise, or "". Pods that are bound while a device plugin restarts fail for good."""
        node, offering = self._cluster.nodes.get(promise.node), self._offerings.get(promise.offering)
        if node is None:
            return "its Node is gone"
        if any(taint.key == LEAVING_TAINT for taint in node.taints) or node.name in self._leaving:
            return "it is being removed"
        what = find_lack(node, offering, self._pools.get(promise.offering.pool))
        return "" if what is None or is_divided(what, node, offering) else what.words

    def _bound_here(self, promise: Promise) -> list[Pod]:
        """Return the pending pods of a machine that we bind, the most important first."""
        pods = pending_pods(promise.pods, self._cluster)
        ours = [pod for pod in pods if self.steering(pod, promise.offering.pool) == BIND]
        return sorted(ours, key=lambda pod: -pod.spec.priority)

    def _sent_pods(self, promise: Promise) -> list[Pod]:
        """Return the pods whose binding was sent a moment ago and is not visible yet."""
        fresh = self._now < promise.nominated + REPEAT_SECONDS
        return [pod for pod in self._bound_here(promise) if fresh and pod.key in promise.sent]

    def _unplaced(self, promise: Promise) -> list[Pod]:
        return [pod for pod in self._bound_here(promise) if pod.key not in self._placed]

    def _important_pods(self, promise: Promise, promised: Set[str]) -> Iterator[Pod]:
        """Yield unpromised pods with a higher priority than some pods of the machine, which take the room of those pods.

        Once a pod has no room, other pods of the same namespace with the same spec are not tried.
        """
        due, pool = self._unplaced(promise), self._pools.get(promise.offering.pool)
        if not due or due[-1].spec.priority >= self._most_important:
            return
        offering = self._offerings.get(promise.offering)
        min_gpus = pool.min_gpus_on(offering.gpus) if pool is not None and offering is not None else 0
        row, trial = self._room.table.row[promise.node], self._room.copy()
        for unpromised in self._unpromised_pods:
            while unpromised and (unpromised[0].key in promised or unpromised[0].key in self._placed):
                unpromised.popleft()
            if not unpromised:
                continue
            spec = unpromised[0].spec
            if spec.priority <= due[-1].spec.priority:
                return
            while due[0].spec.priority >= spec.priority:
                first = due.pop(0)
                if self._admits(trial, first, row):
                    trial.place(first.spec, first.labels, row)
            if count_accelerators(spec.requests) < min_gpus or self.steering(unpromised[0], promise.offering.pool) != BIND:
                continue
            while unpromised and self._admits(trial, unpromised[0], row):
                pod = unpromised.popleft()
                if pod.key not in promised and pod.key not in self._placed:
                    trial.place(spec, pod.labels, row)
                    self._place(pod, promise.node)
                    yield pod

    @cached_property
    def _unpromised_pods(self) -> Sequence[deque[Pod]]:
        """Pending pods outside gangs, grouped by namespace and spec, the most important and oldest first."""
        pods_by_kind: dict[tuple[str, str, str], list[Pod]] = {}
        for key, bucket in self._cluster.unbound.items():
            sample = bucket.sample
            if key.unschedulable and not (key.terminating or key.nominated or sample.gang):
                pods_by_kind.setdefault((sample.namespace, sample.spec.digest, sample.options.steering), []).extend(bucket.pods.values())
        kinds = [deque(sorted(pods, key=lambda pod: (pod.created, pod.key))) for pods in pods_by_kind.values()]
        return sorted(kinds, key=lambda pods: (-pods[0].spec.priority, pods[0].created, pods[0].key))

    @cached_property
    def _most_important(self) -> int:
        """The highest priority of any pending pod."""
        return max((bucket.sample.spec.priority for key, bucket in self._cluster.unbound.items() if key.unschedulable), default=0)

    def _bindable(self, units: list[Unit]) -> Unit:
        """Return the pods of ``units`` that may be bound now, each unit as a whole. Placing one unit may make another admissible."""
        bindable: Unit = []
        remaining, before = units, -1
        while remaining and len(remaining) != before:
            before = len(remaining)
            still = []
            for unit in remaining:
                if self._fits(unit):
                    bindable += unit
                else:
                    still.append(unit)
            remaining = still
        return bindable

    def _fits(self, unit: Unit) -> bool:
        """Whether the filters admit all pods of ``unit`` one after the other; if so, the pods are placed."""
        trial = self._room.copy() if len(unit) > 1 else self._room
        remaining, before = unit, len(unit) + 1
        while remaining and len(remaining) < before:
            # One pod of a gang may make another admissible.
            before, still = len(remaining), []
            for pod, node in remaining:
                row = trial.table.row[node]
                if self._admits(trial, pod, row):
                    trial.place(pod.spec, pod.labels, row)
                else:
                    still.append((pod, node))
            remaining = still
        if remaining:
            return False
        self._room_left = trial
        self._placed |= {pod.key for pod, _ in unit}
        return True

    def _place(self, pod: Pod, node: str) -> None:
        if node in self._room.table.row:
            self._room.place(pod.spec, pod.labels, self._room.table.row[node])
        self._placed.add(pod.key)

    @staticmethod
    def _admits(room: Room, pod: Pod, row: int) -> bool:
        return bool(room.admitting(with_closing_tolerations(pod.spec), pod.labels, slice(row, row + 1))[0])

    def _decide_one(self, promise: Promise, bound: Sequence[Pod], refused: Set[str]) -> Binding:
        pool, node = promise.offering.pool, self._cluster.nodes.get(promise.node)
        bind = tuple(Bind(pod.key, pod.uid, promise.node, _devices(node)) for pod in bound) if node is not None else ()
        late = self._now >= promise.since + PATIENCE_SECONDS
        kept_away = (pod for pod in pending_pods(promise.pods, self._cluster) if pod.key in refused)
        is_complete = promise.node not in self._lacking
        rejected = tuple(pod for pod in kept_away if late or (is_complete and not self._has_room(pod, promise.node)))
        names = dict.fromkeys((*promise.pods, *(pod.key for pod in bound)))
        pods = [pod for pod in pending_pods(names, self._cluster) if pod not in rejected]
        left = tuple(pod for pod in pods if self.steering(pod, pool) != BIND)
        if bind:
            # All bindings are sent again when the oldest one that is not visible yet is due.
            since = promise.nominated if self._sent_pods(promise) else self._now
            promise = replace(promise, nominated=since, sent=tuple(pod.key for pod in pods if pod.key in self._placed))
        promise = replace(promise, pods=tuple(pod.key for pod in pods))
        if len(left) < len(pods):
            return Binding(
                replace(promise, pods_ready_at=0.0),
                bind,
                rejected,
                left,
                self._why_unbound([pod for pod in pods if pod not in left], promise),
            )
        return self._left_to_schedulers(promise if promise.pods_ready_at else replace(promise, pods_ready_at=self._now), rejected, left)

    def _left_to_schedulers(self, promise: Promise, rejected: tuple[Pod, ...], left: tuple[Pod, ...]) -> Binding:
        """Decide about a machine to which no pod will be bound any more: nominate the remaining pods, then open it."""
        nominated = [pod for pod in left if self.steering(pod, promise.offering.pool) == NOMINATE]
        begins, why = promise.pods_ready_at, ""
        if promise.sent:
            begins, why = begins + MARGIN_SECONDS, "its pods are bound; kube-scheduler gets a moment to observe that"
        elif not (promise.pods or promise.abandoned_at):
            begins, why = begins + UNWANTED_SECONDS, "no pod waits for it any more, but the next plan may assign pods to it"
        if lacks := self._lacking.get(promise.node, "") if self._now < promise.since + PATIENCE_SECONDS and left else "":
            return Binding(replace(promise, pods_ready_at=0.0), (), rejected, left, lacks)
        if self._now < begins:
            return Binding(promise, (), rejected, left, why)
        if nominated and promise.nominated < begins:
            acts = tuple(Nominate(pod.key, pod.uid, promise.node) for pod in nominated)
            return Binding(replace(promise, nominated=self._now), acts, rejected, left, _unseen(nominated))
        unseen = [pod for pod in nominated if pod.nominated_node != promise.node]
        patient = self._now < promise.nominated + NOMINATED_SECONDS
        return Binding(promise, (), rejected, left, _unseen(unseen) if unseen and patient else "")

    def _why_unbound(self, pods: Sequence[Pod], promise: Promise) -> str:
        """Return, as text, why ``pods``, which gpuscaler binds, are not bound yet."""
        if pods[0].key in promise.sent:
            return f"the binding of pod {pods[0].key} was sent but is not visible yet"
        if promise.node in self._lacking:
            return self._lacking[promise.node]
        if pods[0].gang:
            return f"gang {pods[0].gang} is bound once the ready machines have room for all of it"
        name, why = self.obstacle(pods[0], promise.node)
        return f"pod {pods[0].key} is not admitted yet: {why} ({name})" if name else f"pod {pods[0].key} is bound next"

    def obstacle(self, pod: Pod, node: str) -> tuple[str, str]:
        """Return the first filter that rejects a pod on a node, and the reason; both are empty if the filters admit the pod."""
        row = self._room.table.row.get(node)
        return self._room.reason(with_closing_tolerations(pod.spec), pod.labels, row) if row is not None else ("", "")

    def admits(self, pod: Pod, node: str) -> bool:
        """Whether the filters admit a pod to a node now."""
        row = self._room.table.row.get(node)
        return row is not None and self._admits(self._room, pod, row)

    def _has_room(self, pod: Pod, node: str) -> bool:
        """Whether the node has the requested resources of a pod, in addition to those of all pods bound and placed there."""
        row = self._room.table.row.get(node)
        return row is not None and bool(self._room.verdict(with_closing_tolerations(pod.spec), pod.labels).passes["NodeResourcesFit"][row])

    @cached_property
    def _claims(self) -> ClaimReader:
        return ClaimReader(self._cluster)

    @property
    def _room(self) -> Room:
        """The free room on nodes without what bound and placed pods use; computed on demand, because few passes need it."""
        if self._room_left is None:
            self._room_left = Room.of(self._cluster)
        return self._room_left


def _units(due: Iterable[tuple[Pod, str]]) -> list[Unit]:
    """Group the pods of each gang, on whichever machines; every other pod is a unit by itself."""
    units: dict[str, Unit] = {}
    for pod, node in due:
        units.setdefault(f"gang {pod.gang}" if pod.gang else pod.key, []).append((pod, node))
    return list(units.values())


def _is_whole(pod: Pod) -> bool:
    """Whether a pod's scheduler binds its whole gang at once, or none of it."""
    return bool(pod.options.gang) and pod.options.gang_source in BOUND_AT_ONCE


def _unseen(pods: Sequence[Pod]) -> str:
    return f"the nomination of pod {pods[0].key} was written but is not visible yet"


def _devices(node: Node) -> Mapping[str, int]:
    """Return the devices of a node. Pods are bound to it only as long as it still has them."""
    return {name: amount for name, amount in node.allocatable.items() if amount and is_device(name)}


def describe_opening(left: Sequence[Pod], bound: bool) -> str:
    """Return why a machine opens, as text."""
    if left:
        return f"it is ready, and {len(left)} {'pod is' if len(left) == 1 else 'pods are'} left to the scheduler"
    return "it is ready, and its pods are bound" if bound else "no pod waits for it"
