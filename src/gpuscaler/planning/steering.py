"""Making plans come true: machines arrive closed, the pods that are planned on them are nominated, then they open.

kube-scheduler honours ``status.nominatedNodeName`` as a hint: it tries that node first and counts the pod there against others. A failed
attempt clears it, so it is written again while the promise stands. What became of every promise is told, so that a machine that did not
take its pods is not bought again for them.
"""

from collections.abc import Iterable, Iterator, Mapping, Set

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import NOMINATE, OFF, Policy
from gpuscaler.planning.acts import Act, Close, Lift, Nominate
from gpuscaler.planning.arrivals import foreign, is_half
from gpuscaler.planning.binding import BOUND_AT_ONCE, Binder, Binding, opens_for
from gpuscaler.planning.filters.nodes import admits, explain_selector
from gpuscaler.planning.keeping import ARRIVING_TAINT
from gpuscaler.planning.membership import members
from gpuscaler.planning.observing import LABELS_SECONDS
from gpuscaler.planning.opening import CALM_SECONDS, Line, calm, is_restless, waiting
from gpuscaler.planning.plans import Placement
from gpuscaler.planning.readiness import missing
from gpuscaler.planning.refusing import tried_in_vain
from gpuscaler.planning.roll import Roll
from gpuscaler.planning.state import ledger, promises, refusals
from gpuscaler.planning.state.events import Key
from gpuscaler.planning.state.ledger import CLOSING, NOMINATING, OPEN, Coming, Ledger, Promise
from gpuscaler.planning.yielding import falls_short, has_room, has_rules, overtaken

#: Writes that have not shown after so long are made again; after ``PATIENCE`` a machine whose turn it is opens without nominations.
REPEAT_SECONDS, PATIENCE_SECONDS = 5.0, 30.0
#: However long the line is, nobody waits longer for his turn.
LONGEST_SECONDS = 300.0
#: Nominations are written again much sooner: each scheduling attempt that fails clears one, and whoever is tried next takes the room. But
#: no sooner than all that are missing can have been written.
AGAIN_SECONDS, WRITE_SECONDS = 0.2, 0.03
#: The longer a pod has had its room and was not bound, the rarer its nomination is written again: after this share of that time.
RARER = 0.125


class Unfit(Struct, frozen=True, gc=False):
    """The node of a machine that was bought for ``pod`` is not what that selects by; ``why`` is the label, with what was seen."""

    pod: str
    node: str
    why: str


class Steering(Struct, frozen=True, gc=False):
    """``steps`` change the ledger, ``outcomes`` the promises, ``acts`` are to be carried out now.

    ``stray`` are pods that were bound to another node than the promised one, or whose room there is taken by others; ``suspected`` those
    that a node was opened for in vain, ``unfit`` those whose node lacks a label that they select by.
    """

    steps: tuple[ledger.Event, ...] = ()
    outcomes: tuple[promises.Kept | promises.Broken, ...] = ()
    suspected: tuple[refusals.Suspected, ...] = ()
    acts: tuple[Act, ...] = ()
    stray: tuple[str, ...] = ()
    unfit: tuple[Unfit, ...] = ()


def steer(
    book: Ledger,
    cluster: Cluster,
    policy: Policy,
    *,
    attempts: Mapping[str, float],
    said: Mapping[str, str] | None = None,
    tried: float = 0.0,
    now: float,
    roll: Roll | None = None,
    nominating: Set[str] = frozenset(),
) -> Steering:
    """What opens next. ``attempts`` tells when the scheduler last failed to place a pod, by ``namespace/name``, ``said`` its words then.

    ``tried`` is when any pod that waits was last seen to be tried. ``roll`` is that of ``cluster`` and the cloud's list. ``nominating`` are
    pools where no pods are bound for now.
    """
    wheel = _Wheel(book, cluster, policy, attempts, now)
    wheel.binder = Binder(cluster, policy, now, nominating)
    wheel.tried = tried
    wheel.said = said or {}
    for name in [machine.id for machine in book.coming if machine.ready]:
        # Those that opened before it may have changed who waits for it.
        wheel.arrive(next(machine for machine in wheel.book.coming if machine.id == name))
    wheel.take_turns()
    wheel.bind()
    for promise in wheel.book.promises:
        wheel.keep(promise)
    wheel.open_foreign(roll or Roll.of(cluster, None))
    wheel.release()
    return Steering(
        tuple(wheel.steps), tuple(wheel.outcomes), tuple(wheel.suspected), tuple(wheel.acts), tuple(wheel.stray), tuple(wheel.unfit)
    )


def promised_on(book: Ledger, cluster: Cluster, policy: Policy, placements: tuple[Placement, ...], now: float) -> tuple[ledger.Event, ...]:
    """Promises for pods that a plan places on closed nodes of pools that keep their machines for large pods."""
    kept = {pool.name for pool in policy.pools if pool.min_gpus_per_pod}
    busy = {one.node for one in book.promises} | {one.node for one in book.coming}
    wanted: dict[str, list[str]] = {}
    for placement in placements if kept else ():
        if placement.node in cluster.nodes and placement.node not in busy:
            wanted.setdefault(placement.node, []).append(placement.pod)
    found = members({name: cluster.nodes[name] for name in wanted}, policy)
    return tuple(
        ledger.Promised(Promise(name, member.offering.key, tuple(wanted[name]), now, closes=True))
        for name, member in found.items()
        if member.pool.name in kept and member.offering is not None
    )


class _Wheel:
    """One look at all that arrives; ``book`` runs ahead with the steps that were taken."""

    binder: Binder

    def __init__(self, book: Ledger, cluster: Cluster, policy: Policy, attempts: Mapping[str, float], now: float) -> None:
        self.book = book
        self.cluster = cluster
        self.policy = policy
        self.pools = {pool.name: pool for pool in policy.pools}
        self.attempts = attempts
        self.now = now
        self.said: Mapping[str, str] = {}
        self.tried = 0.0
        self.steps: list[ledger.Event] = []
        self.outcomes: list[promises.Kept | promises.Broken] = []
        self.suspected: list[refusals.Suspected] = []
        self.acts: list[Act] = []
        self.stray: list[str] = []
        self.unfit: list[Unfit] = []
        self.unready_gangs = {
            gang for one in book.coming if not one.ready for pod in one.pods if (gang := self.gang(pod)) and not self.is_bound(pod)
        }
        self.closed = {one.id for one in book.coming}
        #: The nodes that may open now, with those that each opens together with.
        self.line, self.turns = Line(book, cluster, now), dict[str, frozenset[str]]()
        self.bindings: Mapping[str, Binding] = {}
        unnamed = sum(pod.nominated_node != one.node for one in book.promises if one.nominated for pod in self.waiting(one.pods))
        self.again = min(AGAIN_SECONDS + WRITE_SECONDS * unnamed, REPEAT_SECONDS)

    def gang(self, pod: str) -> str:
        found = self.cluster.pods.get(pod)
        return found.gang if found is not None else ""

    def is_bound_at_once(self, pod: str) -> bool:
        """Whether a pod's gang is one that schedulers know, and not only we."""
        found = self.cluster.pods.get(pod)
        return found is not None and bool(found.options.gang) and found.options.gang_source in BOUND_AT_ONCE

    def is_bound(self, pod: str) -> bool:
        found = self.cluster.pods.get(pod)
        return found is not None and bool(found.node_name)

    def fold(self, step: ledger.Event) -> None:
        self.steps.append(step)
        self.book = ledger.step(self.book, step)

    # A machine of the ledger that is ready

    def arrive(self, machine: Coming) -> None:
        """Begin to open a ready machine, unless others must open before it; note when it is open."""
        node = self.cluster.nodes.get(machine.node)
        if node is None:
            return
        promise = next((one for one in self.book.promises if one.node == node.name), None)
        keeps = bool(self.pools[machine.key[0]].min_gpus_per_pod) if machine.key[0] in self.pools else False
        if promise is not None:
            if promise.step != NOMINATING:
                self.fold(ledger.Opened(machine.id))
            else:
                self.follow(machine, promise)
            return
        if is_closed(node) and self.held(machine):
            return
        if self.misses_labels(machine, node):
            return
        machine = next(one for one in self.book.coming if one.id == machine.id)
        waiting = self.seated(machine)
        if not is_closed(node) or (keeps and not waiting):
            # It never had our taint, somebody took it off, or it stays closed until large pods are planned onto it.
            if waiting:
                self.fold(ledger.Promised(Promise(node.name, machine.key, waiting, self.now, OPEN, self.now)))
            self.fold(ledger.Opened(machine.id))
        else:
            # One that was meant for nobody need not wait for its turn.
            called = 0.0 if machine.pods else self.now
            self.fold(ledger.Promised(Promise(node.name, machine.key, waiting, self.now, closes=keeps, called=called)))

    def misses_labels(self, machine: Coming, node: Node) -> bool:
        """Whether to wait for labels that promised pods select by. Where those do not come, the promises are broken before it opens."""
        unfit = [pod for pod in self.waiting(machine.pods) if not admits(pod.spec, node)]
        if not unfit:
            return False
        if self.now < machine.ready + LABELS_SECONDS and is_closed(node):
            return True
        for pod in unfit:
            why = explain_selector(pod.spec, node)
            self.unfit.append(Unfit(pod.key, node.name, why))
            self.outcomes.append(self.broken(machine.key, pod, node, why, certain=True))
        self.fold(ledger.Unfit(machine.id, tuple(pod.key for pod in unfit)))
        return False

    def follow(self, machine: Coming, promise: Promise) -> None:
        """Let the promise of a closed machine be what plans say by now: who was planned for it later, and who for another machine.

        A plan says nothing of pods whose nomination stands.
        """
        if promise.lifted:
            return
        elsewhere = {pod for one in self.book.coming if one.id != machine.id for pod in one.pods}
        mine = [pod for pod in self.waiting((*promise.pods, *machine.pods)) if pod.key not in elsewhere or pod.key in machine.pods]
        pods = tuple(dict.fromkeys(pod.key for pod in mine))
        if self.binds(promise):
            # Those that have come are still to be told of. One that could not have all its pods takes no new ones: it opens.
            came, late = (key for key in promise.pods if self.is_bound(key)), bool(promise.called)
            pods = tuple(dict.fromkeys((*came, *(key for key in pods if key in promise.pods or not late))))
            if set(pods) != set(promise.pods):
                self.fold(ledger.Promised(replace(promise, pods=pods, stood=0.0)))
        elif set(pods) != {pod.key for pod in self.waiting(promise.pods)} or (promise.pods and not pods):
            called = promise.called if pods and promise.pods else 0.0
            self.fold(ledger.Promised(replace(promise, pods=pods, since=promise.since if pods else self.now, called=called, stood=0.0)))

    def held(self, machine: Coming) -> bool:
        """Whether others must open first: what a plan's order says, machines of the same gangs that are not ready, or not to be had."""
        if is_half(machine, self.cluster):
            return True
        still = {one.id for one in self.book.coming if self.is_shut(one)}
        if any(one in still for one in machine.after if one != machine.id) and not self.binder.binds(machine.key[0], machine.pods):
            return True
        return bool(self.unready_gangs) and any(self.gang(pod.key) in self.unready_gangs for pod in self.waiting(machine.pods))

    def seated(self, machine: Coming) -> tuple[str, ...]:
        """The pods that still wait for a machine which is about to open: of those that are alike, the oldest of all come in first.

        Whoever has to make room for them waits for what they waited for, or is planned for anew.
        """
        pods = list(self.waiting(machine.pods))
        pairs = overtaken(pods, self.cluster, busy={pod for one in self.book.promises for pod in one.pods} | set(dict(self.book.broken)))
        if pairs:
            self.fold(ledger.Exchanged(machine.id, pairs))
        come = dict(pairs)
        return tuple(come.get(pod.key, pod.key) for pod in pods)

    def is_shut(self, machine: Coming) -> bool:
        """Whether a machine of the ledger is not being opened yet."""
        return not any(one.node == machine.node and one.step != NOMINATING for one in self.book.promises) if machine.node else True

    def waiting(self, pods: tuple[str, ...]) -> Iterator[Pod]:
        return waiting(pods, self.cluster)

    # Promises

    def keep(self, promise: Promise) -> None:
        node = self.cluster.nodes.get(promise.node)
        if node is None or node.deleted:
            self.fold(ledger.Redeemed(promise.node))
        elif promise.node in self.bindings:
            self.seat(promise, node, self.bindings[promise.node])
        elif promise.step == NOMINATING:
            self.nominate(promise, node)
        elif promise.step == OPEN:
            self.watch(promise, node)
        elif is_closed(node):
            self.fold(ledger.Redeemed(promise.node))
        elif self.now >= promise.nominated + REPEAT_SECONDS:
            self.fold(ledger.Promised(replace(promise, nominated=self.now)))
            self.acts.append(Close(node.name, "kept for large pods, and those that it was opened for have come"))

    def take_turns(self) -> None:
        """Whose turn it is to open: who is next in line, and all of their gangs', where a scheduler binds all members at once or none."""
        in_turn = tuple(one for one in self.book.promises if not self.binds(one))
        closed = [one for one in in_turn if one.step == NOMINATING]
        self.line = Line(replace(self.book, promises=in_turn), self.cluster, self.now)
        first = self.line.first() if closed else []
        gangs = {self.gang(pod) for one in first for pod in one.pods if self.is_bound_at_once(pod)}
        mates = [one for one in closed if gangs and any(self.gang(pod) in gangs for pod in one.pods)]
        together = frozenset(one.node for one in (*first, *mates))
        self.turns = dict.fromkeys(together, together)
        for one in closed:
            if self.is_overdue(one):
                self.turns.setdefault(one.node, frozenset((one.node,)))
        for one in closed:
            if (one.node in self.turns) != bool(one.called) and any(self.waiting(one.pods)):
                self.fold(ledger.Promised(replace(one, called=0.0, stood=0.0) if one.called else replace(one, called=self.now)))

    def binds(self, promise: Promise) -> bool:
        """Whether a machine is closed and opens once its pods are bound."""
        return promise.step == NOMINATING and self.binder.binds(promise.offering[0], promise.pods)

    def bind(self) -> None:
        """See which pods can be bound to machines that are ready and closed."""
        closed = [one for one in self.book.promises if self.binds(one)]
        if closed:
            meant = {pod for one in self.book.coming for pod in one.pods} | {pod for one in self.book.promises for pod in one.pods}
            self.bindings = self.binder.look(closed, meant, self.unready_gangs)

    def seat(self, promise: Promise, node: Node, found: Binding) -> None:
        """Bind the pods of a closed machine, and open it once that has shown."""
        if not is_closed(node):
            self.fold(ledger.Promised(replace(found.promise, step=OPEN, since=self.now)))
            self.opened(node.name)
            return
        for pod in filter(None, map(self.cluster.pods.get, promise.pods)):
            if pod.node_name:
                self.settle(promise, pod)
        self.acts += found.bind
        self.lose(promise, node, found.gone)
        after = replace(found.promise, called=self.now) if found.gone else found.promise
        if found.opens and promise.closes and not found.left:
            # It is kept for large pods, and has them: nobody else is to come.
            self.fold(ledger.Redeemed(node.name))
            self.opened(node.name)
            return
        if found.opens and self.now >= promise.lifted + REPEAT_SECONDS:
            left = [pod for pod in found.left if self.binder.steering(pod, promise.offering[0]) == NOMINATE]
            nominations = tuple(Nominate(pod.key, pod.uid, node.name) for pod in left)
            self.acts.append(Lift(node.name, opens_for(found.left, bool(promise.sent)), nominations))
            after = replace(after, lifted=self.now)
        if after != promise:
            self.fold(ledger.Promised(after))

    def lose(self, promise: Promise, node: Node, gone: Iterable[Pod]) -> None:
        """Pods that cannot come to a machine any more are planned for anew."""
        names = tuple(pod.key for pod in gone)
        for machine in self.book.coming:
            if names and machine.node == node.name:
                self.fold(ledger.Unfit(machine.id, names))
        for pod in gone:
            if short := falls_short(pod, node, self.cluster):
                self.outcomes.append(self.broken(promise.offering, pod, node, short))
            else:
                self.stray.append(pod.key)

    def is_overdue(self, promise: Promise) -> bool:
        """Whether a machine has waited for too long, be it for its turn or for nominations to show."""
        return (bool(promise.called) and self.now >= promise.called + PATIENCE_SECONDS) or self.now >= promise.since + LONGEST_SECONDS

    def nominate(self, promise: Promise, node: Node) -> None:
        """Write nominations, see that they stand, then lift the taint; all that when it is the machine's turn."""
        waiting = list(self.waiting(promise.pods))
        unnamed = [pod for pod in waiting if pod.nominated_node != node.name]
        overdue = self.is_overdue(promise)
        if not is_closed(node):
            self.fold(ledger.Promised(replace(promise, step=OPEN, since=self.now)))
            self.opened(node.name)
        elif node.name not in self.turns:
            return
        elif unnamed and not overdue:
            # While the scheduler goes through all who wait, it clears what is written, and begins anew for that.
            quiet = self.tried <= self.now - CALM_SECONDS or is_restless(promise, self.now)
            if quiet and self.now >= promise.nominated + self.again:
                self.acts += [Nominate(pod.key, pod.uid, node.name) for pod in unnamed]
                self.acts += self.behind(waiting)
                self.fold(ledger.Promised(replace(promise, nominated=self.now, stood=0.0)))
        elif self.now >= promise.lifted + REPEAT_SECONDS:
            stood = promise if promise.stood else replace(promise, stood=self.now)
            if overdue or self.is_calm(stood, waiting):
                # An attempt that failed since they were seen to stand has cleared them.
                again = [Nominate(pod.key, pod.uid, node.name) for pod in waiting]
                self.acts.append(Lift(node.name, opening(waiting), (*again, *self.behind(waiting))))
                stood = replace(stood, lifted=self.now)
            if stood is not promise:
                self.fold(ledger.Promised(stood))

    def behind(self, waiting: list[Pod]) -> list[Nominate]:
        """Nominations, to machines that are open, of pods that may come as soon as some of ``waiting`` have.

        They depend on these by spread or affinity, and so do others, which would take their room when tried before them.
        """
        spaces = {pod.namespace for pod in waiting}
        closed = {pod for one in self.book.promises if one.step == NOMINATING for pod in one.pods}
        found: list[Nominate] = []
        for one in self.book.promises if spaces else ():
            node = self.cluster.nodes.get(one.node)
            if one.step == OPEN and node is not None:
                left = [pod for pod in self.waiting(one.pods) if pod.namespace in spaces and pod.key not in closed and has_rules(pod)]
                found += [Nominate(pod.key, pod.uid, node.name) for pod in left if has_room((pod,), node, self.cluster)]
        return found

    def is_calm(self, promise: Promise, waiting: list[Pod]) -> bool:
        """Whether the scheduler has nothing to do with pods that others wait for, or has had it for too long; it has when one opens."""
        since = self.now - calm(promise, self.now)
        if waiting and promise.stood > since:
            return False
        if is_restless(promise, self.now):
            return True
        together = self.turns[promise.node]
        mates = [one for one in self.book.promises if one.node in together and one.node != promise.node and one.step == NOMINATING]
        for one in mates:
            pods = list(self.waiting(one.pods))
            if pods and (not 0.0 < one.stood <= since or any(pod.nominated_node != one.node for pod in pods)):
                return False
        return self.tried <= since and all(self.stirred(one) <= since for one in self.book.promises if one.node not in together)

    def stirred(self, promise: Promise) -> float:
        """When a machine last opened, or its pods had to be nominated."""
        return max(promise.lifted, promise.nominated, promise.since if promise.step == OPEN else 0.0)

    def opened(self, node: str) -> None:
        for machine in self.book.coming:
            if machine.node == node:
                self.fold(ledger.Opened(machine.id))

    def watch(self, promise: Promise, node: Node) -> None:
        """See which pods have come, and nominate again those whose nomination a failed attempt has cleared."""
        left, again = [], []
        due = promise.nominated + min(max(self.again, RARER * (self.now - promise.since)), REPEAT_SECONDS)
        # Who was planned for anew meanwhile is awaited there.
        elsewhere = {pod for one in self.book.promises if one.step == NOMINATING and one.node != node.name for pod in one.pods}
        for key in promise.pods:
            pod = self.cluster.pods.get(key)
            if pod is None or pod.finished or pod.deleted or key in elsewhere:
                continue
            if pod.node_name:
                self.settle(promise, pod)
            elif tried_in_vain(key, promise.since, attempts=self.attempts, now=self.now) and not self.line.awaits_others(pod, node.name):
                self.fold(ledger.Broken(key, node.name))
                self.suspected.append(refusals.Suspected(key, node.name, promise.since))
                self.outcomes.append(self.broken(promise.offering, pod, node, self.said.get(key, "")))
            elif not has_room((pod,), node, self.cluster):
                # Every nomination that is cleared wakes all pods that wait: to write it in vain spoils those of others.
                self.fold(ledger.Broken(key, node.name))
                if short := falls_short(pod, node, self.cluster):
                    self.outcomes.append(self.broken(promise.offering, pod, node, short))
                else:
                    self.stray.append(key)  # others came first
            else:
                left.append(key)
                if pod.nominated_node != node.name and self.now >= due and self.binder.steering(pod, promise.offering[0]) != OFF:
                    again.append(Nominate(pod.key, pod.uid, node.name))
        self.acts += again
        if not left:
            self.fulfil(promise)
        elif again or len(left) != len(promise.pods):
            self.fold(ledger.Promised(replace(promise, pods=tuple(left), nominated=self.now if again else promise.nominated)))

    def broken(self, offering: Key, pod: Pod, node: Node, why: str, *, certain: bool = False) -> promises.Broken:
        return promises.Broken(offering, pod.spec.digest, self.now, pod=pod.key, node=node.name, why=why, certain=certain)

    def settle(self, promise: Promise, pod: Pod) -> None:
        if pod.node_name == promise.node:
            self.outcomes.append(promises.Kept(promise.offering, pod.spec.digest, self.now))
        else:
            self.stray.append(pod.key)

    def fulfil(self, promise: Promise) -> None:
        """Nobody is awaited any more."""
        if promise.closes:
            self.fold(ledger.Promised(replace(promise, pods=(), step=CLOSING, since=self.now, nominated=self.now)))
            self.acts.append(Close(promise.node, "kept for large pods, and those that it was opened for have come"))
        else:
            self.fold(ledger.Redeemed(promise.node))

    def release(self) -> None:
        """Take back nominations that no node redeemed: they would hold room for pods that do not come."""
        for key, name in self.book.broken:
            pod = self.cluster.pods.get(key)
            if pod is None or pod.node_name or pod.finished or pod.nominated_node != name:
                self.fold(ledger.Mended(key))
            else:
                self.acts.append(Nominate(pod.key, pod.uid, ""))

    def open_foreign(self, roll: Roll) -> None:
        """Without a list, machines with our taint that other people bought are opened once they are ready; kept ones stay closed."""
        for node, member in foreign(self.cluster, self.book, self.policy, roll):
            if not member.pool.min_gpus_per_pod and missing(node, member.offering, member.pool) is None:
                self.acts.append(Lift(node.name, "it is ready, and no plan waits for it"))


def opening(waiting: list[Pod]) -> str:
    if not waiting:
        return "it is ready, and nobody waits for it"
    return f"it is ready, and {len(waiting)} {'pod is' if len(waiting) == 1 else 'pods are'} nominated to it"


def is_closed(node: Node) -> bool:
    """Whether our arriving taint keeps pods away."""
    return any(taint.key == ARRIVING_TAINT for taint in node.taints)
