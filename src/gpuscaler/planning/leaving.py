"""Giving a machine back in steps: close it, look again, wait for what replaces it, evict its pods, end it by its id.

Until the machine is being ended every step can be undone: the node is opened again and nothing is lost.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import ALIVE, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.acts import Act, End, Evict, Mark, Unmark
from gpuscaler.planning.arrivals import Overdue
from gpuscaler.planning.membership import members
from gpuscaler.planning.plans import Removal
from gpuscaler.planning.scale_down.blockers import LEAVING_TAINT, Blocker, Protection, unhealthy, unread
from gpuscaler.planning.scale_down.idle import leaves_with_machine
from gpuscaler.planning.scale_down.running import Grouping
from gpuscaler.planning.state import ledger
from gpuscaler.planning.state.ledger import DRAINING, ENDING, MARKING, REOPENING, WAITING, Leaving, Ledger

#: A write that has not shown after so long is made again; an eviction that was refused is tried again this often. Cluster Autoscaler tries
#: evictions for 2 minutes.
REPEAT_SECONDS, EVICTION_SECONDS = 5.0, 10.0
#: A node that cannot be emptied within this time is opened again; so is one that waits as long for what replaces it. Longer than it takes
#: a machine to be given up that does not come.
DRAIN_SECONDS, WAIT_SECONDS = 600.0, 2400.0
#: How long ending a machine may take before it is asked for again.
END_SECONDS = 60.0


class Departure(Struct, frozen=True, gc=False):
    """``steps`` change the ledger, ``acts`` are to be carried out now, ``kept`` are nodes that stay after all, and why."""

    steps: tuple[ledger.Event, ...] = ()
    acts: tuple[Act, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()


def begin(
    book: Ledger, cluster: Cluster, policy: Policy, removals: tuple[Removal, ...], *, names: Mapping[str, str], now: float
) -> list[ledger.Event]:
    """Removals that a plan decided, for the ledger. ``names`` are the ledger's names of the plan's machines."""
    under_way = {one.node for one in book.leaving}
    coming = {one.node for one in book.coming if one.node}
    nodes = {one.node: cluster.nodes[one.node] for one in removals if one.node in cluster.nodes}
    found = members(nodes, policy)
    alike = Counter(node.provider_id for node in cluster.nodes.values()) if nodes else Counter()
    steps: list[ledger.Event] = []
    for removal in removals:
        node = nodes.get(removal.node)
        if node is None or node.name in under_way or node.name in coming or not node.provider_id or node.name not in found:
            continue
        if alike[node.provider_id] > 1:
            # To end the machine of one node would end what runs on the other (I4).
            continue
        steps.append(
            ledger.Left(
                Leaving(
                    node=node.name,
                    instance=node.provider_id,
                    offering=offering.key
                    if (offering := found[node.name].offering) is not None
                    else (found[node.name].pool.name, "", "", ""),
                    reason=removal.reason,
                    at=now,
                    since=now,
                    pods=tuple(move.pod for move in removal.moves),
                    needs=tuple(names[needed] for needed in removal.needs if needed in names),
                )
            )
        )
    return steps


def give_up(overdue: Overdue, now: float) -> ledger.Left:
    """The removal of a machine that never opened: nothing runs there, so it is ended at once."""
    one = overdue.machine
    return ledger.Left(
        Leaving(
            node=one.node or one.instance, instance=one.instance, offering=one.key, reason=overdue.reason, at=now, since=now, step=ENDING
        )
    )


def take_leave(book: Ledger, cluster: Cluster, inventory: Inventory | None, policy: Policy, *, now: float) -> Departure:
    """The next steps of all removals under way."""
    door = _Door(book, cluster, inventory, policy, now)
    halted = bool(book.leaving) and is_halted(book, cluster, policy)
    for one in book.leaving:
        if one.forced or one.step in (ENDING, REOPENING) or not halted:
            door.go_on(one)
    door.clean_up()
    return Departure(tuple(door.steps), tuple(door.acts), tuple(door.kept))


def is_halted(book: Ledger, cluster: Cluster, policy: Policy) -> bool:
    """Whether so many nodes are not Ready that nobody is evicted, either, until it is known what is the matter."""
    nodes = cluster.nodes.values()
    promised = frozenset(one.node for one in book.coming if one.node)
    return sum(not node.ready for node in nodes) > 3 and unhealthy(nodes, members(cluster.nodes, policy), promised) is not None


class _Door:
    def __init__(self, book: Ledger, cluster: Cluster, inventory: Inventory | None, policy: Policy, now: float) -> None:
        self.book = book
        self.cluster = cluster
        self.policy = policy
        self.now = now
        self.alive = None if inventory is None else {one.id for one in inventory.instances if one.state in ALIVE}
        self.listed_at = 0.0 if inventory is None else inventory.at
        self.unread_somewhere, self.unread_here = unread(cluster)
        self.steps: list[ledger.Event] = []
        self.acts: list[Act] = []
        self.kept: list[tuple[str, str]] = []

    def go_on(self, one: Leaving) -> None:
        node = self.cluster.nodes.get(one.node)
        if one.step == ENDING:
            self.end(one, node)
        elif node is None or node.deleted:
            # Somebody else removed the Node; the machine behind it is ended all the same.
            self.go(one, ENDING)
        elif one.step == REOPENING:
            self.reopen(one, node)
        elif one.step == MARKING:
            self.mark(one, node)
        elif not is_marked(node) and not one.forced:
            self.keep(one, node, "somebody has taken our taint off it")
        elif one.step == WAITING:
            self.wait(one, node)
        else:
            self.drain(one, node)

    def go(self, one: Leaving, step: str) -> Leaving:
        moved = replace(one, step=step, since=self.now, tried=0.0)
        self.steps.append(ledger.Left(moved))
        return moved

    def mark(self, one: Leaving, node: Node) -> None:
        if is_marked(node):
            self.wait(self.go(one, WAITING), node)
        elif self.now >= one.tried + REPEAT_SECONDS:
            self.steps.append(ledger.Left(replace(one, tried=self.now)))
            self.acts.append(Mark(node.name, one.reason))

    def wait(self, one: Leaving, node: Node) -> None:
        """Look again, now that nobody else comes; then wait until what replaces the node is open."""
        why = self.objection(one, node)
        if why is not None:
            self.keep(one, node, why)
        elif one.bereft or self.now >= one.since + WAIT_SECONDS:
            self.keep(one, node, "what replaces it did not come")
        elif not one.needs:
            self.drain(self.go(one, DRAINING), node)

    def objection(self, one: Leaving, node: Node) -> str | None:
        """Why the node should stay, seen now: pods that were not there when it was decided, or that may not be moved."""
        if one.forced:
            return None
        if node.scale_down_disabled or node.do_not_disrupt:
            return "an annotation of the node asks for it"
        residents = self.residents(node)
        new = sorted(pod.key for pod in residents if pod.key not in one.pods)
        if new:
            return f"pod {new[0]} came to it meanwhile"
        promised = [key for promise in self.book.promises if promise.node == node.name for key in promise.pods]
        if promised:
            return f"pod {promised[0]} is promised to it"
        blocker = self.unread(node) or Protection(self.cluster, self.policy, self.now).blocker(
            Grouping(self.cluster, self.now, {}).load(node)
        )
        return None if blocker is None else blocker.detail

    def unread(self, node: Node) -> Blocker | None:
        """A pod that cannot be read and that runs there, or may."""
        return self.unread_here.get(node.name) or self.unread_somewhere

    def residents(self, node: Node) -> list[Pod]:
        here = self.cluster.on_node.get(node.name, {})
        return sorted((pod for pod in here.values() if not leaves_with_machine(pod, self.now)), key=lambda pod: pod.key)

    def drain(self, one: Leaving, node: Node) -> None:
        """Evict what is left; a node that does not get empty stays."""
        left = self.residents(node)
        unread = None if one.forced or left else self.unread(node)
        if unread is not None:
            self.keep(one, node, unread.detail)
        elif not left:
            self.end(self.go(one, ENDING), node)
        elif self.now >= one.since + DRAIN_SECONDS and not one.forced:
            self.keep(
                one, node, f"pod {left[0].key} could not be evicted within {DRAIN_SECONDS:g} s{': ' if one.detail else ''}{one.detail}"
            )
        elif (why := self.protected(one, node, left)) is not None:
            self.keep(one, node, why)
        elif self.now >= one.tried + EVICTION_SECONDS:
            self.steps.append(ledger.Left(replace(one, tried=self.now)))
            self.acts += [Evict(pod.key, pod.uid, node.name, pod.options.grace) for pod in left if not pod.deleted]

    def protected(self, one: Leaving, node: Node, left: list[Pod]) -> str | None:
        """Whom an annotation protects that was written since it was decided (I6), in words."""
        if one.forced:
            return None
        if node.scale_down_disabled or node.do_not_disrupt:
            return "an annotation of the node asks for it"
        for pod in left:
            options = pod.options
            if options.do_not_drain or options.safe_to_evict is False or options.do_not_disrupt is True:
                return f"an annotation of pod {pod.key} protects it"
        return None

    def end(self, one: Leaving, node: Node | None) -> None:
        """End the machine, and see that it is gone."""
        gone = self.alive is not None and one.instance not in self.alive and self.listed_at > one.since
        if gone and node is None:
            self.steps.append(ledger.Finished(one.node))
        elif not gone and self.now >= one.tried + END_SECONDS:
            self.steps.append(ledger.Left(replace(one, tried=self.now)))
            self.acts.append(End(one.instance, one.node, one.reason))

    def keep(self, one: Leaving, node: Node, why: str) -> None:
        self.kept.append((one.node, why))
        self.reopen(self.go(one, REOPENING), node)

    def reopen(self, one: Leaving, node: Node) -> None:
        if not is_marked(node):
            self.steps.append(ledger.Finished(one.node))
        elif self.now >= one.tried + REPEAT_SECONDS:
            self.steps.append(ledger.Left(replace(one, tried=self.now)))
            self.acts.append(Unmark(node.name, "its removal was given up"))

    def clean_up(self) -> None:
        """Our own taints that no removal stands behind are left from a time that nobody remembers: they come off."""
        under_way = {one.node for one in self.book.leaving}
        for node in self.cluster.table.tainted(LEAVING_TAINT):
            if node.name not in under_way:
                self.acts.append(Unmark(node.name, "no removal of it is under way"))


def is_marked(node: Node) -> bool:
    """Whether our leaving taint keeps pods away."""
    return any(taint.key == LEAVING_TAINT for taint in node.taints)
