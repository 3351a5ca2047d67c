"""The steps of a removal. The next step depends only on the cluster, the cloud's list and the ledger, so it survives a restart."""

from collections.abc import Mapping, Set
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.lifecycle.actions import Act, Clear, End, Exclude, Extend, Mark, Unmark
from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.lifecycle.termination.eviction import MARGIN_SECONDS, evict
from gpuscaler.lifecycle.termination.last_checks import Objections
from gpuscaler.lifecycle.termination.node_pods import NodePods, residents
from gpuscaler.lifecycle.termination.volumes import attachments, unused
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Delivery, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.model.well_known import EXCLUDE_LABEL, EXCLUDE_VALUE, LEAVING_TAINT
from gpuscaler.planning.capacity.idle import STUCK_AFTER
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.scale_down.blockers import unhealthy
from gpuscaler.planning.state.failed_removals import GivenUp
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.draft import Draft
from gpuscaler.planning.state.ledger.entries import CLEARING, DETACHING, DRAINING, ENDING, MARKING, REOPENING, WAITING, Removal
from gpuscaler.planning.state.ledger.ledger import Ledger

#: A write that has not shown after this time is repeated. Evictions then no longer wait for a write that concerns load balancers.
REPEAT_SECONDS = 5.0
#: How long a drain may take, in addition to the time that its pods take to save their work, and how long a node may wait for its
#: replacement; after that the node is opened again. The wait is longer than the time after which a missing machine is given up. Cluster
#: Autoscaler tries evictions for 2 minutes.
DRAIN_SECONDS, WAIT_SECONDS = 600.0, 2400.0
#: How long volumes may take to be detached. Kubernetes itself detaches one by force 6 minutes after its node is gone.
DETACH_SECONDS = 120.0
#: How long after a node became empty it is checked once more before its machine is ended: the scheduler may have bound a pod just before it
#: saw the taint. And how long after a failed end it is requested again.
SETTLE_SECONDS, END_SECONDS = 1.0, 60.0
#: How long the cloud's controller has to delete the Node of a machine that is gone.
CLEAR_SECONDS = 60.0


class Departure(Struct, frozen=True, gc=False):
    """``steps`` change the ledger, ``acts`` are to be carried out now, ``kept`` are nodes that stay after all, and why.

    ``given_up`` are those of them that were not drained in time: trying again at once would be no use.
    """

    steps: tuple[ledger.Event, ...] = ()
    acts: tuple[Act, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    given_up: tuple[GivenUp, ...] = ()


def take_leave(
    book: Ledger,
    cluster: Cluster,
    inventory: Inventory | None,
    policy: Policy,
    *,
    now: float,
    unseen: Mapping[str, str] | None = None,
    roll: MachineIndex | None = None,
    held: str = "",
    unsafe: Mapping[OfferingKey, str] | None = None,
) -> Departure:
    """Return the next steps of all removals in progress. ``unseen`` are nodes on which a last check found pods, as text.

    While a person holds removals, ``held`` is the reason: removals that can still be undone are undone, except for machines that the cloud
    takes. ``roll`` is the index of ``cluster`` and ``inventory``, if the caller has one.
    """
    roll = roll or MachineIndex.of(cluster, inventory)
    removals = _Removals(book, cluster, policy, now, roll)
    removals.listed_at = 0.0 if inventory is None else inventory.at
    removals.unseen = unseen or {}
    removals.unsafe = unsafe or {}
    removals.deliveries = () if inventory is None else inventory.deliveries
    removals.held = held
    halted = bool(book.leaving) and is_halted(book, roll, policy)
    for one in book.leaving:
        # A node that falls silent together with most others is not a broken machine.
        if (one.forced and not one.unready) or one.step in (ENDING, CLEARING, REOPENING) or not halted:
            removals.go_on(one)
    removals.clean_up()
    return Departure(tuple(removals.steps), tuple(removals.acts), tuple(removals.kept), tuple(removals.given_up))


def is_halted(book: Ledger, roll: MachineIndex, policy: Policy) -> bool:
    """Whether so many nodes are not Ready that evictions stop, too, until the cause is known."""
    promised = frozenset(one.node for one in book.coming if one.node)
    return len(roll.unready) > 3 and unhealthy(roll.nodes.values(), members(roll.nodes, policy), promised) is not None


class _Removals(Draft):
    """One pass over machines that are being removed."""

    def __init__(self, book: Ledger, cluster: Cluster, policy: Policy, now: float, roll: MachineIndex) -> None:
        super().__init__(book)
        self.begun = book.leaving
        self.cluster = cluster
        self.now = now
        self.roll = roll
        self.alive = None if roll.listed.instances is None else roll.listed.alive
        self.listed_at = 0.0
        self.objections = Objections(book, cluster, policy, now)
        self.prices = {one.key: one.price for one in policy.offerings.values()} if book.leaving else {}
        self.acts: list[Act] = []
        self.kept: list[tuple[str, str]] = []
        self.given_up: list[GivenUp] = []
        self.unseen: Mapping[str, str] = {}
        self.deliveries: tuple[Delivery, ...] = ()
        self.unsafe: Mapping[OfferingKey, str] = {}
        self.held = ""

    @cached_property
    def awaited(self) -> frozenset[str]:
        """The pods that machines on their way are for."""
        return frozenset(pod for one in self.book.coming for pod in one.pods)

    def awaited_for(self, one: Removal, found: NodePods) -> Set[str]:
        """Return the pods of a node that machines on their way are for; a group usually launches a replacement for a machine it ends."""
        if not one.ends:
            return frozenset()
        return self.awaited | {pod.key for pod in found.missed} if one.held and one.offering.pool in self.delivered else self.awaited

    @cached_property
    def delivered(self) -> Set[str]:
        """Pools whose groups are launching machines by themselves, or have launched some that are not open yet."""
        unopened = {one.pool for one in self.roll.nodeless} | {one.key.pool for one in self.book.coming if not one.order}
        return unopened | {one.pool for one in self.deliveries if one.missing and not one.failing}

    @cached_property
    def attached(self) -> Mapping[str, Set[str]]:
        """The volumes of each node, computed once for all removals."""
        return attachments(self.cluster)

    def go_on(self, one: Removal) -> None:
        node = self.cluster.nodes.get(one.node)
        if node is not None and node.provider_id != one.instance:
            # A new machine has the same node name.
            node = None
        if (
            one.ends
            and self.now > one.ends
            and self.alive is not None
            and one.instance not in self.alive
            and one.step not in (ENDING, CLEARING)
        ):
            # It went as announced.
            self.go(one, ENDING)
        elif one.step == ENDING:
            self.end(one, node)
        elif one.step == CLEARING:
            self.clear(one, node)
        elif node is None or node.deleted:
            # The Node was deleted by someone else; the machine behind it is ended all the same.
            self.go(one, ENDING)
        elif one.step == REOPENING:
            self.reopen(one, node)
        elif reason := self.why_given_up(one, node):
            self.keep(one, node, reason)
        elif one.step == MARKING:
            self.mark(one, node)
        elif not is_marked(node) and not one.forced:
            self.keep(one, node, "the leaving taint was removed by someone else")
        elif one.step == WAITING:
            self.wait(one, node)
        elif one.step == DRAINING:
            self.drain(one, node)
        else:
            self.detach(one, node)

    def why_given_up(self, one: Removal, node: Node) -> str:
        """Return why a removal that can be undone has to be, as text; empty if it continues."""
        if one.unready and node.ready:
            return "it is Ready again"
        return self.held if one.unready or not one.forced else ""

    def go(self, one: Removal, step: str) -> Removal:
        moved = self.moved(one, step)
        self.fold(ledger.Left(moved))
        return moved

    def moved(self, one: Removal, step: str) -> Removal:
        return replace(one, step=step, since=self.now, tried=0.0, detail="")

    def note(self, one: Removal) -> None:
        """Save what changed within a step."""
        if one not in self.begun:
            self.fold(ledger.Left(one))

    def mark(self, one: Removal, node: Node) -> None:
        if is_marked(node) or (one.forced and one.tried and self.now >= one.tried + REPEAT_SECONDS / 2):
            # A machine that the cloud takes does not wait for a slow API server.
            self.wait(self.go(one, WAITING), node)
        elif self.now >= one.tried + REPEAT_SECONDS:
            self.note(replace(one, tried=self.now))
            self.acts.append(Mark(node.name, one.reason))

    def wait(self, one: Removal, node: Node) -> None:
        """Check again, now that no new pods can come; then wait until the replacement of the node is open."""
        found = residents(self.cluster, node, self.now)
        why = None if one.forced else self.objections.before(one, node, found)
        if why is not None:
            self.keep(one, node, why)
        elif one.bereft or self.now >= one.since + WAIT_SECONDS:
            self.keep(one, node, "the replacement machine did not become ready in time")
        elif not one.needs:
            self.drain(self.go(one, DRAINING), node)

    def drain(self, one: Removal, node: Node) -> None:
        """Evict the remaining pods; a node that cannot be drained in time stays."""
        found = residents(self.cluster, node, self.now)
        why = None if one.forced else self.objections.during(one, node, found)
        if why is not None:
            self.keep(one, node, why)
            return
        marked = is_marked(node)
        if not marked or EXCLUDE_LABEL not in node.labels:
            if self.now >= one.tried + REPEAT_SECONDS:
                # A machine that the cloud takes does not wait for its taint; but without it an evicted pod may come back at once.
                self.acts.append(Exclude(node.name, one.reason) if marked else Mark(node.name, one.reason))
                one = replace(one, tried=self.now)
            if not one.forced and self.now < one.since + REPEAT_SECONDS:
                # Load balancers have to stop sending traffic before the first pod is evicted.
                self.note(one)
                return
        if not (one.forced or node.ready):
            self.hold(one, node, found, "it is not Ready, so it is unknown which pods run on it")
            return
        one = self.extended(one)
        effort = evict(one, found, self.now, self.awaited_for(one, found))
        one = replace(one, evictions=effort.evictions)
        if effort.done:
            self.detach(self.go(one, DETACHING), node)
        elif effort.idle and self.overdue(one, effort.idle):
            first = f"pod {effort.idle[0].key} "
            told = effort.held.startswith(first)
            self.hold(one, node, found, effort.held if told else f"{first}is still there{': ' if effort.held else ''}{effort.held}")
        else:
            self.acts += effort.acts
            refused = any(entry.why for entry in one.evictions)
            self.note(replace(one, detail=said(f"{effort.held}{self.cost(one)}" if refused and effort.held else effort.held, found)))

    def extended(self, one: Removal) -> Removal:
        """Have the cloud keep the machine until its pods are gone: they may take until its planned end."""
        if not one.held or self.now < max(one.at, one.extended) + one.held / 2:
            return one
        self.acts.append(Extend(one.instance, one.node))
        return replace(one, extended=self.now)

    def cost(self, one: Removal) -> str:
        price = self.prices.get(one.offering)
        return "" if price is None else f"; it costs ${price:.2f} an hour"

    def overdue(self, one: Removal, pods: tuple[Pod, ...]) -> bool:
        return not one.forced and self.now >= one.since + DRAIN_SECONDS + max((pod.options.grace or 0.0 for pod in pods), default=0.0)

    def hold(self, one: Removal, node: Node, found: NodePods, held: str) -> None:
        """Do nothing and note why; a node that is held for too long is opened again."""
        if self.overdue(one, ()):
            why = f"it could not be drained within {DRAIN_SECONDS:g} s: {held}{self.cost(one)}"
            self.given_up.append(GivenUp(node.name, one.instance, one.offering, why, self.now))
            self.keep(one, node, why)
        else:
            self.note(replace(one, detail=said(held, found)))

    def detach(self, one: Removal, node: Node) -> None:
        """Wait a limited time until volumes are detached; until then the removal can be undone."""
        found = residents(self.cluster, node, self.now)
        if self.turned_back(one, node, found):
            return
        volumes = unused(self.cluster, node, self.attached.get(node.name, frozenset()))
        until = min(one.since + DETACH_SECONDS, one.ends - MARGIN_SECONDS if one.ends else one.since + DETACH_SECONDS)
        if volumes and self.now < until:
            self.note(replace(one, detail=f"volume {volumes[0]} is still attached to it"))
        else:
            self.end(replace(self.go(one, ENDING), detail=said("", found)), node)

    def turned_back(self, one: Removal, node: Node, found: NodePods) -> bool:
        """Whether a drained node is not empty any more: a new pod keeps the node, a returned pod is evicted again."""
        why = None if one.forced else self.objections.during(one, node, found)
        if why is not None:
            self.keep(one, node, why)
        elif not evict(one, found, self.now).done:
            self.go(one, DRAINING)
        else:
            return False
        return True

    def end(self, one: Removal, node: Node | None) -> None:
        """End the machine, and verify that it is gone. Right before, the node is checked for the last time."""
        gone = self.alive is not None and one.instance not in self.alive and self.listed_at > max(one.since, one.tried)
        if node is not None and not one.forced and one.node in self.unseen:
            # Until the watch shows these pods the node looks idle, so it must not be closed again at once.
            self.given_up.append(GivenUp(node.name, one.instance, one.offering, self.unseen[one.node], self.now))
            self.keep(one, node, self.unseen[one.node])
        elif one.tried and gone:
            self.fold(ledger.Finished(one.node) if node is None else ledger.Left(self.moved(one, CLEARING)))
        elif not one.tried or self.now >= one.tried + END_SECONDS:
            self.end_if_empty(one, node)

    def end_if_empty(self, one: Removal, node: Node | None) -> None:
        """Request the end of a machine without pods: the first time, and again if it still exists long after that.

        A machine that never opened is ended without these checks.
        """
        opened = one.since > one.at
        if opened and not one.forced and one.offering in self.unsafe:
            self.note(replace(one, detail=self.unsafe[one.offering]))
            return
        if opened and node is not None and not node.deleted and self.turned_back(one, node, residents(self.cluster, node, self.now)):
            return
        if node is None or one.forced or one.tried or not opened or self.now >= one.since + SETTLE_SECONDS:
            self.ask_to_end(one, node)
        else:
            self.note(one)

    def ask_to_end(self, one: Removal, node: Node | None) -> None:
        self.fold(ledger.Left(replace(one, tried=self.now)))
        look = node is not None and not one.forced and one.since > one.at
        self.acts.append(End(one.instance, one.node, one.reason, look))

    def clear(self, one: Removal, node: Node | None) -> None:
        """Delete the Node of a machine that is gone, if nothing else has."""
        if node is None:
            self.fold(ledger.Finished(one.node))
        elif self.alive is not None and one.instance in self.alive:
            self.go(one, ENDING)
        elif self.now >= max(one.since + CLEAR_SECONDS, one.tried + REPEAT_SECONDS) and not node.deleted:
            self.note(replace(one, tried=self.now))
            self.acts.append(Clear(node.name, node.uid, "its machine is gone"))

    def keep(self, one: Removal, node: Node, why: str) -> None:
        self.kept.append((one.node, why))
        self.reopen(self.go(one, REOPENING), node)

    def reopen(self, one: Removal, node: Node) -> None:
        if not is_marked(node) and node.labels.get(EXCLUDE_LABEL) != EXCLUDE_VALUE:
            self.fold(ledger.Finished(one.node))
        elif self.now >= one.tried + REPEAT_SECONDS:
            self.fold(ledger.Left(replace(one, tried=self.now)))
            self.acts.append(Unmark(node.name, "its removal was given up"))

    def clean_up(self) -> None:
        """Remove our own leaving taints that belong to no removal: they are left from a lost memory.

        Taints of unlisted machines are not ours: another gpuscaler, which has other pools of this cluster, removes those.
        """
        under_way = {one.node for one in self.begun}
        for node in self.cluster.table.tainted(LEAVING_TAINT):
            if node.name not in under_way and node.name not in self.roll.unlisted:
                self.acts.append(Unmark(node.name, "no removal of it is in progress"))


def is_marked(node: Node) -> bool:
    """Whether the node has our leaving taint, which keeps pods away."""
    return any(taint.key == LEAVING_TAINT for taint in node.taints)


def said(held: str, found: NodePods) -> str:
    """Return what delays a step, and which pods are not waited for any more."""
    if not found.stuck:
        return held
    first, more = found.stuck[0], len(found.stuck) - 1
    behind = f"pod {first.key}{f' and {more} more' if more else ''} should have ended more than {STUCK_AFTER:g} s ago"
    return f"{held}{'; ' if held else ''}{behind}: its kubelet does not answer, or a finalizer blocks it. The removal does not wait for it"
