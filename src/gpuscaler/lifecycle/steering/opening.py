"""Opening machines: they register closed; the pods planned onto them are bound or left to their scheduler; then the machines open.

The outcome of every promise is recorded, so that no machine is bought again for pods that could not run on one of the same offering.
"""

from collections.abc import Mapping, Set
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.lifecycle.actions import Act, Close, Lift, Nominate
from gpuscaler.lifecycle.node_health.refusing_nodes import tried_in_vain
from gpuscaler.lifecycle.observed.promised_pods import Alike, describe_shortage, find_overtaken, has_room, pending_by_kind, pending_pods
from gpuscaler.lifecycle.registration.learning import LABELS_SECONDS
from gpuscaler.lifecycle.registration.registering import is_half_gang
from gpuscaler.lifecycle.steering.binding import PATIENCE_SECONDS, Binder, Binding, describe_opening
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node, first_label
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import OFF, Policy
from gpuscaler.model.well_known import INSTANCE_TYPE_LABELS, ZONE_LABELS
from gpuscaler.planning.capacity.pool_membership import Member, market_of, members
from gpuscaler.planning.feasibility.min_gpus import is_closed
from gpuscaler.planning.feasibility.nodes import admits, explain_selector
from gpuscaler.planning.plans import Placement
from gpuscaler.planning.state import node_refusals, promises
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.draft import Draft
from gpuscaler.planning.state.ledger.ledger import CLOSING, NOMINATING, OPEN, Ledger, OrderedMachine, Promise

#: Seconds after which a write that is not visible yet is repeated.
REPEAT_SECONDS = 5.0


class UnfitNode(Struct, frozen=True, gc=False):
    """``node``, whose machine was bought for ``pod``, does not match the pod's selector; ``why`` states the label and its value."""

    pod: str
    node: str
    why: str


class Steering(Struct, frozen=True, gc=False):
    """The result: ``steps`` are events for the ledger, ``outcomes`` for the record of promises; ``acts`` are carried out now.

    ``stray`` are pods that were bound to another node than the promised one, or whose room there was taken by other pods. ``suspected`` are
    pods that were not bound to the node that was opened for them, ``unfit`` pods whose node lacks a label that they select.
    """

    steps: tuple[ledger.Event, ...] = ()
    outcomes: tuple[promises.Kept | promises.Broken, ...] = ()
    suspected: tuple[node_refusals.Suspected, ...] = ()
    acts: tuple[Act, ...] = ()
    stray: tuple[str, ...] = ()
    unfit: tuple[UnfitNode, ...] = ()


def steer(
    ledger: Ledger,
    cluster: Cluster,
    policy: Policy,
    *,
    attempts: Mapping[str, float],
    messages: Mapping[str, str] | None = None,
    now: float,
    nominating: Set[str] = frozenset(),
    changing: Set[str] = frozenset(),
) -> Steering:
    """Decide which machines open, and which pods are bound or nominated.

    ``attempts`` is when kube-scheduler last failed to place a pod, by ``namespace/name``, and ``messages`` its message about that.
    ``nominating`` are pools where no pods are bound for now, ``changing`` nodes whose closing taint is being written.
    """
    opening = _Opening(ledger, cluster, policy, now, nominating)
    opening.changing = changing
    opening.attempts, opening.messages = attempts, messages or {}
    opening.arrive_all()
    for promise in opening.ledger.promises:
        opening.update_promise(promise)
    opening.withdraw_nominations()
    return Steering(
        tuple(opening.steps),
        tuple(opening.outcomes),
        tuple(opening.suspected),
        tuple(opening.acts),
        tuple(opening.stray),
        tuple(opening.unfit),
    )


def still_closed(ledger: Ledger, cluster: Cluster, policy: Policy, *, nominating: Set[str], now: float) -> Mapping[str, str]:
    """Return, by node and as text, why ready machines of ``ledger`` are still closed, except for those that open now."""
    opening = _Opening(ledger, cluster, policy, now, nominating)
    ready = [
        machine for machine in ledger.coming if machine.ready and machine.node in cluster.nodes and is_closed(cluster.nodes[machine.node])
    ]
    held = {machine.node: opening.why_held(machine) or "it waits for node labels that its pods select by" for machine in ready}
    opening.arrive_all()
    shut = {node: binding.closed for node, binding in opening.bindings.items() if node in cluster.nodes and is_closed(cluster.nodes[node])}
    return {node: why for node, why in {**held, **shut}.items() if why}


def promised_on(
    current: Ledger, cluster: Cluster, policy: Policy, placements: tuple[Placement, ...], *, unlisted: Set[str], now: float
) -> tuple[ledger.Event, ...]:
    """Return promises for pods that a plan places on closed nodes of pools that keep their machines for large pods.

    ``unlisted`` nodes belong to no pool.
    """
    kept = {pool.name for pool in policy.pools if pool.keeps_closed}
    busy = {promise.node for promise in current.promises} | {machine.node for machine in current.coming}
    pods_on: dict[str, list[str]] = {}
    for placement in placements if kept else ():
        if placement.node in cluster.nodes and placement.node not in busy:
            pods_on.setdefault(placement.node, []).append(placement.pod)
    memberships = members({name: cluster.nodes[name] for name in pods_on}, policy, unlisted)
    return tuple(
        ledger.Promised(Promise(name, _key_of(cluster.nodes[name], member), tuple(pods_on[name]), now, closes_again=True))
        for name, member in memberships.items()
        if member.pool.name in kept
    )


def _key_of(node: Node, member: Member) -> OfferingKey:
    """Return the key of the offering of ``node``; where its pool no longer has such an offering, by the node's labels."""
    if member.offering is not None:
        return member.offering.key
    return OfferingKey(member.pool.name, market_of(node), first_label(node, INSTANCE_TYPE_LABELS), first_label(node, ZONE_LABELS))


class _Opening(Draft):
    """One pass over ready machines and promises."""

    def __init__(self, ledger: Ledger, cluster: Cluster, policy: Policy, now: float, nominating: Set[str]) -> None:
        super().__init__(ledger)
        self.cluster, self.policy, self.now = cluster, policy, now
        self.pools = {pool.name: pool for pool in policy.pools}
        self.binder = Binder(cluster, policy, now, nominating, {removal.node for removal in ledger.leaving})
        self.bindings: Mapping[str, Binding] = {}
        self.changing: Set[str] = frozenset()
        self.attempts: Mapping[str, float] = {}
        self.messages: Mapping[str, str] = {}
        self.outcomes: list[promises.Kept | promises.Broken] = []
        self.suspected: list[node_refusals.Suspected] = []
        self.acts: list[Act] = []
        self.stray: list[str] = []
        self.unfit: list[UnfitNode] = []
        #: Pods that are promised a machine, or whose nomination failed.
        self.busy = {pod for promise in ledger.promises for pod in promise.pods} | set(dict(ledger.broken))
        still_to_come = [machine for machine in ledger.coming if not machine.ready]
        self.unready_gangs = {pod.gang for machine in still_to_come for pod in pending_pods(machine.pods, cluster)} - {""}

    @cached_property
    def pending(self) -> Mapping[Alike, list[Pod]]:
        return pending_by_kind(self.cluster)

    def fold(self, event: ledger.Event) -> None:
        super().fold(event)
        if isinstance(event, ledger.Promised):
            self.busy.update(event.promise.pods)

    def is_unsettled(self, node: Node) -> bool:
        """Whether a node admits pods, but perhaps not after the writes under way.

        If it were treated as open, a taint that comes later would stay. If it were treated as closed, others could take the room of pods
        that are bound to it.
        """
        return not is_closed(node) and node.name in self.changing

    # Ready machines of the ledger

    def arrive_all(self) -> None:
        """Make promises for ready machines, and decide about the closed ones."""
        for name in [machine.id for machine in self.ledger.coming if machine.ready]:
            # The step of an earlier machine may have changed the pods of this one.
            self.arrive(next(machine for machine in self.ledger.coming if machine.id == name))
        closed = [promise for promise in self.ledger.promises if promise.step == NOMINATING]
        if closed:
            promised = {pod for machine in self.ledger.coming for pod in machine.pods} | {
                pod for promise in self.ledger.promises for pod in promise.pods
            }
            self.bindings = self.binder.decide(closed, promised, self.unready_gangs)

    def arrive(self, machine: OrderedMachine) -> None:
        """Make a promise for a ready machine, unless its pods wait for other machines; record when it is open."""
        node = self.cluster.nodes.get(machine.node)
        if node is None or self.is_unsettled(node):
            return
        promise = next((promise for promise in self.ledger.promises if promise.node == node.name), None)
        keeps = machine.key.pool in self.pools and self.pools[machine.key.pool].keeps_closed
        if promise is not None:
            if promise.step != NOMINATING:
                self.fold(ledger.Opened(machine.id))
            else:
                self.follow_plans(machine, promise)
            return
        if is_closed(node) and self.why_held(machine):
            return
        if self.misses_labels(machine, node):
            return
        machine = next(ordered for ordered in self.ledger.coming if ordered.id == machine.id)
        seated = self.choose_pods(machine)
        if not is_closed(node) or (keeps and not seated):
            # The node never had our taint, or a person removed it, or it stays closed until large pods are planned onto it.
            if seated:
                self.fold(ledger.Promised(Promise(node.name, machine.key, seated, self.now, OPEN)))
            self.fold(ledger.Opened(machine.id))
        else:
            # A machine that was meant for no pod opens at once.
            abandoned_at = 0.0 if machine.pods else self.now
            self.fold(ledger.Promised(Promise(node.name, machine.key, seated, self.now, closes_again=keeps, abandoned_at=abandoned_at)))

    def misses_labels(self, machine: OrderedMachine, node: Node) -> bool:
        """Whether to wait for labels that promised pods select. If they do not come, the promises are broken before the machine opens."""
        unfit = [pod for pod in pending_pods(machine.pods, self.cluster) if not admits(pod.spec, node)]
        if not unfit:
            return False
        if self.now < machine.ready + LABELS_SECONDS and is_closed(node):
            return True
        for pod in unfit:
            why = explain_selector(pod.spec, node)
            self.unfit.append(UnfitNode(pod.key, node.name, why))
            self.outcomes.append(self.broken_event(machine.key, pod, node, why, certain=True))
        self.fold(ledger.Unfit(machine.id, tuple(pod.key for pod in unfit)))
        return False

    def follow_plans(self, machine: OrderedMachine, promise: Promise) -> None:
        """Update the promise of a closed machine to the newest plan, which may put other pods on it, or its pods on another machine.

        Plans do not include pods with a valid nomination.
        """
        if promise.taint_removed_at:
            return
        elsewhere = {pod for ordered in self.ledger.coming if ordered.id != machine.id for pod in ordered.pods}
        own_pods = [
            pod for pod in pending_pods((*promise.pods, *machine.pods), self.cluster) if pod.key not in elsewhere or pod.key in machine.pods
        ]
        pods = tuple(dict.fromkeys(pod.key for pod in own_pods))
        # Bound pods stay until their outcome is recorded. A machine that could not get one of its pods takes no new pods: it opens.
        bound = [pod.key for pod in filter(None, map(self.cluster.pods.get, promise.pods)) if pod.node_name]
        pods = tuple(dict.fromkeys((*bound, *(key for key in pods if key in promise.pods or not promise.abandoned_at))))
        if set(pods) != set(promise.pods):
            self.fold(ledger.Promised(replace(promise, pods=pods, pods_ready_at=0.0)))

    def why_held(self, machine: OrderedMachine) -> str:
        """Return, as text, why a ready machine must not open yet: the other pods of its gang have no room, or no ready machines."""
        if is_half_gang(machine, self.cluster):
            return f"there is no room for the other pods of gang {machine.gang}"
        gangs = (pod.gang for pod in pending_pods(machine.pods, self.cluster))
        return next((f"other machines of gang {gang} are not ready" for gang in gangs if gang in self.unready_gangs), "")

    def choose_pods(self, machine: OrderedMachine) -> tuple[str, ...]:
        """Return the pods for a machine that is about to open: its pending pods, unless older, identical pods are pending.

        An older pod takes the place of a younger one. The younger pod gets the older pod's machine, or is planned again.
        """
        pods = list(pending_pods(machine.pods, self.cluster))
        pairs = find_overtaken(pods, self.pending, busy=self.busy)
        if pairs:
            self.fold(ledger.Exchanged(machine.id, pairs))
        come = dict(pairs)
        return tuple(come.get(pod.key, pod.key) for pod in pods)

    # Promises

    def update_promise(self, promise: Promise) -> None:
        node = self.cluster.nodes.get(promise.node)
        if node is None or node.deleted:
            self.fold(ledger.PromiseFulfilled(promise.node))
        elif promise.step == NOMINATING and self.is_unsettled(node):
            return
        elif promise.node in self.bindings:
            self.bind_or_open(promise, node, self.bindings[promise.node])
        elif promise.step == OPEN:
            self.check_arrivals(promise, node)
        elif is_closed(node):
            self.fold(ledger.PromiseFulfilled(promise.node))
        elif self.now >= promise.nominated + REPEAT_SECONDS:
            self.fold(ledger.Promised(replace(promise, nominated=self.now)))
            self.acts.append(Close(node.name, "it is kept for large pods, and the pods that it was opened for are bound", kept=True))

    def bind_or_open(self, promise: Promise, node: Node, binding: Binding) -> None:
        """Bind the pods of a closed machine, nominate the ones that are left to a scheduler, and open the machine once this is visible."""
        if not is_closed(node):
            opened = replace(promise, step=OPEN, since=self.now)
            self.fold(ledger.Promised(opened))
            self.note_opened(node.name)
            self.check_arrivals(opened, node)
            return
        for pod in filter(None, map(self.cluster.pods.get, promise.pods)):
            if pod.node_name:
                self.record_outcome(promise, pod)
        self.acts += binding.acts
        for pod in binding.gone:
            self.plan_again(promise, node, pod)
        after = replace(binding.promise, abandoned_at=self.now) if binding.gone else binding.promise
        if not (after.pods or binding.acts) and any(is_half_gang(machine, self.cluster) for machine in self.machines_of(node)):
            # If it opened, a pod of an incomplete gang would run alone there. After a while the machine may get other pods of the gang, or
            # it is ended. The promise does not end at once, because a plan might put the same pods there again and again.
            late = self.now >= promise.since + PATIENCE_SECONDS
            self.fold(ledger.PromiseFulfilled(node.name) if late else ledger.Promised(after))
            return
        if not binding.closed and promise.closes_again and not binding.left:
            # The machine is kept for large pods and has its pods: no other pod may run there.
            self.fold(ledger.PromiseFulfilled(node.name))
            self.note_opened(node.name)
            return
        if not binding.closed and self.now >= promise.taint_removed_at + REPEAT_SECONDS:
            self.acts.append(Lift(node.name, describe_opening(binding.left, bool(promise.sent))))
            after = replace(after, taint_removed_at=self.now)
        if after != promise:
            self.fold(ledger.Promised(after))

    def machines_of(self, node: Node) -> list[OrderedMachine]:
        """Return the machine of the ledger that belongs to a node, if there is one."""
        return [machine for machine in self.ledger.coming if machine.node == node.name]

    def plan_again(self, promise: Promise, node: Node, pod: Pod) -> None:
        """Have a pod planned again that can no longer run on its promised machine."""
        for machine in self.machines_of(node):
            self.fold(ledger.Unfit(machine.id, (pod.key,)))
        self.fold(ledger.Broken(pod.key, node.name))
        name, why = self.binder.obstacle(pod, node.name)
        if short := describe_shortage(pod, node, self.cluster) or (why if name == "TaintToleration" else ""):
            self.outcomes.append(self.broken_event(promise.offering, pod, node, short))
        else:
            self.stray.append(pod.key)

    def note_opened(self, node: str) -> None:
        for machine in self.ledger.coming:
            if machine.node == node:
                self.fold(ledger.Opened(machine.id))

    def check_arrivals(self, promise: Promise, node: Node) -> None:
        """Check which pods are bound to an open machine. If something else opened it, its pods have not been nominated yet: do it now."""
        unbound: list[Pod] = []
        # A pod that has been promised another machine is expected there.
        elsewhere = {pod for other in self.ledger.promises if other.step == NOMINATING and other.node != node.name for pod in other.pods}
        for pod in filter(None, map(self.cluster.pods.get, promise.pods)):
            if pod.finished or pod.deleted or pod.key in elsewhere:
                continue
            in_vain = tried_in_vain(pod.key, promise.since, attempts=self.attempts, now=self.now)
            if pod.node_name:
                self.record_outcome(promise, pod)
            elif not has_room((pod,), node, self.cluster) or (in_vain and not self.binder.admits(pod, node.name)):
                self.plan_again(promise, node, pod)  # other pods came first
            elif in_vain:
                self.fold(ledger.Broken(pod.key, node.name))
                self.suspected.append(node_refusals.Suspected(pod.key, node.name, promise.since))
                self.outcomes.append(self.broken_event(promise.offering, pod, node, self.messages.get(pod.key, "")))
            else:
                unbound.append(pod)
        if not unbound:
            self.fulfil(promise)
            return
        if not promise.nominated:
            nominated = (pod for pod in unbound if self.binder.steering(pod, promise.offering.pool) != OFF)
            self.acts += [Nominate(pod.key, pod.uid, node.name) for pod in nominated]
        after = replace(promise, pods=tuple(pod.key for pod in unbound), nominated=promise.nominated or self.now)
        if after != promise:
            self.fold(ledger.Promised(after))

    def broken_event(self, offering: OfferingKey, pod: Pod, node: Node, why: str, *, certain: bool = False) -> promises.Broken:
        return promises.Broken(offering, pod.spec.digest, self.now, pod=pod.key, node=node.name, why=why, certain=certain)

    def record_outcome(self, promise: Promise, pod: Pod) -> None:
        if pod.node_name == promise.node:
            self.outcomes.append(promises.Kept(promise.offering, pod.spec.digest, self.now))
        else:
            self.stray.append(pod.key)

    def fulfil(self, promise: Promise) -> None:
        """End a promise that no pending pod is left for."""
        if promise.closes_again:
            self.fold(ledger.Promised(replace(promise, pods=(), step=CLOSING, since=self.now, nominated=self.now)))
            self.acts.append(Close(promise.node, "it is kept for large pods, and the pods that it was opened for are bound", kept=True))
        else:
            self.fold(ledger.PromiseFulfilled(promise.node))

    def withdraw_nominations(self) -> None:
        """Clear the nominations of pods that were not bound: a nomination would reserve room for a pod that does not come."""
        for key, name in self.ledger.broken:
            pod = self.cluster.pods.get(key)
            if pod is None or pod.node_name or pod.finished or pod.nominated_node != name:
                self.fold(ledger.BrokenPromiseCleared(key))
            else:
                self.acts.append(Nominate(pod.key, pod.uid, ""))
