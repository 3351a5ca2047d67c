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
from gpuscaler.planning.scale_down.blockers import health_guard
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


class RemovalFindings(Struct, frozen=True, gc=False):
    """``steps`` change the ledger, ``acts`` are to be carried out now, ``kept`` are nodes that stay after all, and why.

    ``given_up`` are those of them that were not drained in time: trying again at once would be no use.
    """

    steps: tuple[ledger.Event, ...] = ()
    acts: tuple[Act, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    given_up: tuple[GivenUp, ...] = ()


def continue_removals(
    ledger: Ledger,
    cluster: Cluster,
    inventory: Inventory | None,
    policy: Policy,
    *,
    now: float,
    late_pods_by_node: Mapping[str, str] | None = None,
    index: MachineIndex | None = None,
    held: str = "",
    unsafe: Mapping[OfferingKey, str] | None = None,
) -> RemovalFindings:
    """Return the next steps of all removals in progress. ``late_pods_by_node`` are nodes on which a last check found pods, as text.

    While a person holds removals, ``held`` is the reason: removals that can still be undone are undone, except for machines that the cloud
    takes. ``index`` is the index of ``cluster`` and ``inventory``, if the caller has one.
    """
    index = index or MachineIndex.of(cluster, inventory)
    removals = _Removals(ledger, cluster, policy, now, index)
    removals.listed_at = 0.0 if inventory is None else inventory.at
    removals.late_pods_by_node = late_pods_by_node or {}
    removals.unsafe = unsafe or {}
    removals.deliveries = () if inventory is None else inventory.deliveries
    removals.held = held
    halted = bool(ledger.leaving) and is_halted(ledger, index, policy)
    for removal in ledger.leaving:
        # A node that falls silent together with most others is not a broken machine.
        if (removal.forced and not removal.unready) or removal.step in (ENDING, CLEARING, REOPENING) or not halted:
            removals.advance(removal)
    removals.clean_up()
    return RemovalFindings(tuple(removals.steps), tuple(removals.acts), tuple(removals.kept), tuple(removals.given_up))


def is_halted(ledger: Ledger, index: MachineIndex, policy: Policy) -> bool:
    """Whether so many nodes are not Ready that evictions stop, too, until the cause is known."""
    promised = frozenset(machine.node for machine in ledger.coming if machine.node)
    return len(index.unready) > 3 and health_guard(index.nodes.values(), members(index.nodes, policy), promised) is not None


class _Removals(Draft):
    """One pass over machines that are being removed."""

    def __init__(self, ledger: Ledger, cluster: Cluster, policy: Policy, now: float, index: MachineIndex) -> None:
        super().__init__(ledger)
        self.begun = ledger.leaving
        self.cluster = cluster
        self.now = now
        self.index = index
        self.alive = None if index.listed.instances is None else index.listed.alive
        self.listed_at = 0.0
        self.objections = Objections(ledger, cluster, policy, now)
        self.prices = {offering.key: offering.price for offering in policy.offerings.values()} if ledger.leaving else {}
        self.acts: list[Act] = []
        self.kept: list[tuple[str, str]] = []
        self.given_up: list[GivenUp] = []
        self.late_pods_by_node: Mapping[str, str] = {}
        self.deliveries: tuple[Delivery, ...] = ()
        self.unsafe: Mapping[OfferingKey, str] = {}
        self.held = ""

    @cached_property
    def awaited_pods(self) -> frozenset[str]:
        """The pods that machines on their way are for."""
        return frozenset(pod for machine in self.ledger.coming for pod in machine.pods)

    def awaited_for(self, removal: Removal, node_pods: NodePods) -> Set[str]:
        """Return the pods of a node that machines on their way are for; a group usually launches a replacement for a machine it ends."""
        if not removal.ends:
            return frozenset()
        return (
            self.awaited_pods | {pod.key for pod in node_pods.missed}
            if removal.held and removal.offering.pool in self.delivering_pools
            else self.awaited_pods
        )

    @cached_property
    def delivering_pools(self) -> Set[str]:
        """Pools whose groups are launching machines by themselves, or have launched some that are not open yet."""
        unopened = {instance.pool for instance in self.index.nodeless} | {
            machine.key.pool for machine in self.ledger.coming if not machine.order
        }
        return unopened | {delivery.pool for delivery in self.deliveries if delivery.missing and not delivery.failing}

    @cached_property
    def attached(self) -> Mapping[str, Set[str]]:
        """The volumes of each node, computed once for all removals."""
        return attachments(self.cluster)

    def advance(self, removal: Removal) -> None:
        node = self.cluster.nodes.get(removal.node)
        if node is not None and node.provider_id != removal.instance:
            # A new machine has the same node name.
            node = None
        if (
            removal.ends
            and self.now > removal.ends
            and self.alive is not None
            and removal.instance not in self.alive
            and removal.step not in (ENDING, CLEARING)
        ):
            # It went as announced.
            self.enter_step(removal, ENDING)
        elif removal.step == ENDING:
            self.end(removal, node)
        elif removal.step == CLEARING:
            self.clear(removal, node)
        elif node is None or node.deleted:
            # The Node was deleted by someone else; the machine behind it is ended all the same.
            self.enter_step(removal, ENDING)
        elif removal.step == REOPENING:
            self.reopen(removal, node)
        elif reason := self.why_given_up(removal, node):
            self.keep(removal, node, reason)
        elif removal.step == MARKING:
            self.mark(removal, node)
        elif not is_marked(node) and not removal.forced:
            self.keep(removal, node, "the leaving taint was removed by someone else")
        elif removal.step == WAITING:
            self.wait(removal, node)
        elif removal.step == DRAINING:
            self.drain(removal, node)
        else:
            self.detach(removal, node)

    def why_given_up(self, removal: Removal, node: Node) -> str:
        """Return why a removal that can be undone has to be, as text; empty if it continues."""
        if removal.unready and node.ready:
            return "it is Ready again"
        return self.held if removal.unready or not removal.forced else ""

    def enter_step(self, removal: Removal, step: str) -> Removal:
        moved = self.in_step(removal, step)
        self.fold(ledger.RemovalUpdated(moved))
        return moved

    def in_step(self, removal: Removal, step: str) -> Removal:
        return replace(removal, step=step, since=self.now, tried=0.0, detail="")

    def save(self, removal: Removal) -> None:
        """Save what changed within a step."""
        if removal not in self.begun:
            self.fold(ledger.RemovalUpdated(removal))

    def mark(self, removal: Removal, node: Node) -> None:
        if is_marked(node) or (removal.forced and removal.tried and self.now >= removal.tried + REPEAT_SECONDS / 2):
            # A machine that the cloud takes does not wait for a slow API server.
            self.wait(self.enter_step(removal, WAITING), node)
        elif self.now >= removal.tried + REPEAT_SECONDS:
            self.save(replace(removal, tried=self.now))
            self.acts.append(Mark(node.name, removal.reason))

    def wait(self, removal: Removal, node: Node) -> None:
        """Check again, now that no new pods can come; then wait until the replacement of the node is open."""
        node_pods = residents(self.cluster, node, self.now)
        why = None if removal.forced else self.objections.before(removal, node, node_pods)
        if why is not None:
            self.keep(removal, node, why)
        elif removal.bereft or self.now >= removal.since + WAIT_SECONDS:
            self.keep(removal, node, "the replacement machine did not become ready in time")
        elif not removal.needs:
            self.drain(self.enter_step(removal, DRAINING), node)

    def drain(self, removal: Removal, node: Node) -> None:
        """Evict the remaining pods; a node that cannot be drained in time stays."""
        node_pods = residents(self.cluster, node, self.now)
        why = None if removal.forced else self.objections.during(removal, node, node_pods)
        if why is not None:
            self.keep(removal, node, why)
            return
        marked = is_marked(node)
        if not marked or EXCLUDE_LABEL not in node.labels:
            if self.now >= removal.tried + REPEAT_SECONDS:
                # A machine that the cloud takes does not wait for its taint; but without it an evicted pod may come back at once.
                self.acts.append(Exclude(node.name, removal.reason) if marked else Mark(node.name, removal.reason))
                removal = replace(removal, tried=self.now)
            if not removal.forced and self.now < removal.since + REPEAT_SECONDS:
                # Load balancers have to stop sending traffic before the first pod is evicted.
                self.save(removal)
                return
        if not (removal.forced or node.ready):
            self.hold(removal, node, node_pods, "it is not Ready, so it is unknown which pods run on it")
            return
        removal = self.with_extension(removal)
        effort = evict(removal, node_pods, self.now, self.awaited_for(removal, node_pods))
        removal = replace(removal, evictions=effort.evictions)
        if effort.done:
            self.detach(self.enter_step(removal, DETACHING), node)
        elif effort.idle and self.overdue(removal, effort.idle):
            first = f"pod {effort.idle[0].key} "
            names_pod = effort.held.startswith(first)
            self.hold(
                removal, node, node_pods, effort.held if names_pod else f"{first}is still there{': ' if effort.held else ''}{effort.held}"
            )
        else:
            self.acts += effort.acts
            refused = any(entry.why for entry in removal.evictions)
            self.save(
                replace(
                    removal,
                    detail=describe_delay(f"{effort.held}{self.cost(removal)}" if refused and effort.held else effort.held, node_pods),
                )
            )

    def with_extension(self, removal: Removal) -> Removal:
        """Have the cloud keep the machine until its pods are gone: they may take until its planned end."""
        if not removal.held or self.now < max(removal.at, removal.extended) + removal.held / 2:
            return removal
        self.acts.append(Extend(removal.instance, removal.node))
        return replace(removal, extended=self.now)

    def cost(self, removal: Removal) -> str:
        price = self.prices.get(removal.offering)
        return "" if price is None else f"; it costs ${price:.2f} an hour"

    def overdue(self, removal: Removal, pods: tuple[Pod, ...]) -> bool:
        return not removal.forced and self.now >= removal.since + DRAIN_SECONDS + max(
            (pod.options.grace or 0.0 for pod in pods), default=0.0
        )

    def hold(self, removal: Removal, node: Node, node_pods: NodePods, held: str) -> None:
        """Do nothing and note why; a node that is held for too long is opened again."""
        if self.overdue(removal, ()):
            why = f"it could not be drained within {DRAIN_SECONDS:g} s: {held}{self.cost(removal)}"
            self.given_up.append(GivenUp(node.name, removal.instance, removal.offering, why, self.now))
            self.keep(removal, node, why)
        else:
            self.save(replace(removal, detail=describe_delay(held, node_pods)))

    def detach(self, removal: Removal, node: Node) -> None:
        """Wait a limited time until volumes are detached; until then the removal can be undone."""
        node_pods = residents(self.cluster, node, self.now)
        if self.is_occupied_again(removal, node, node_pods):
            return
        volumes = unused(self.cluster, node, self.attached.get(node.name, frozenset()))
        until = min(removal.since + DETACH_SECONDS, removal.ends - MARGIN_SECONDS if removal.ends else removal.since + DETACH_SECONDS)
        if volumes and self.now < until:
            self.save(replace(removal, detail=f"volume {volumes[0]} is still attached to it"))
        else:
            self.end(replace(self.enter_step(removal, ENDING), detail=describe_delay("", node_pods)), node)

    def is_occupied_again(self, removal: Removal, node: Node, node_pods: NodePods) -> bool:
        """Whether a drained node is not empty any more: a new pod keeps the node, a returned pod is evicted again."""
        why = None if removal.forced else self.objections.during(removal, node, node_pods)
        if why is not None:
            self.keep(removal, node, why)
        elif not evict(removal, node_pods, self.now).done:
            self.enter_step(removal, DRAINING)
        else:
            return False
        return True

    def end(self, removal: Removal, node: Node | None) -> None:
        """End the machine, and verify that it is gone. Right before, the node is checked for the last time."""
        is_gone = self.alive is not None and removal.instance not in self.alive and self.listed_at > max(removal.since, removal.tried)
        if node is not None and not removal.forced and removal.node in self.late_pods_by_node:
            # Until the watch shows these pods the node looks idle, so it must not be closed again at once.
            self.given_up.append(GivenUp(node.name, removal.instance, removal.offering, self.late_pods_by_node[removal.node], self.now))
            self.keep(removal, node, self.late_pods_by_node[removal.node])
        elif removal.tried and is_gone:
            self.fold(ledger.Finished(removal.node) if node is None else ledger.RemovalUpdated(self.in_step(removal, CLEARING)))
        elif not removal.tried or self.now >= removal.tried + END_SECONDS:
            self.end_if_empty(removal, node)

    def end_if_empty(self, removal: Removal, node: Node | None) -> None:
        """Request the end of a machine without pods: the first time, and again if it still exists long after that.

        A machine that never opened is ended without these checks.
        """
        opened = removal.since > removal.at
        if opened and not removal.forced and removal.offering in self.unsafe:
            self.save(replace(removal, detail=self.unsafe[removal.offering]))
            return
        if (
            opened
            and node is not None
            and not node.deleted
            and self.is_occupied_again(removal, node, residents(self.cluster, node, self.now))
        ):
            return
        if node is None or removal.forced or removal.tried or not opened or self.now >= removal.since + SETTLE_SECONDS:
            self.ask_to_end(removal, node)
        else:
            self.save(removal)

    def ask_to_end(self, removal: Removal, node: Node | None) -> None:
        self.fold(ledger.RemovalUpdated(replace(removal, tried=self.now)))
        check_pods = node is not None and not removal.forced and removal.since > removal.at
        self.acts.append(End(removal.instance, removal.node, removal.reason, check_pods))

    def clear(self, removal: Removal, node: Node | None) -> None:
        """Delete the Node of a machine that is gone, if nothing else has."""
        if node is None:
            self.fold(ledger.Finished(removal.node))
        elif self.alive is not None and removal.instance in self.alive:
            self.enter_step(removal, ENDING)
        elif self.now >= max(removal.since + CLEAR_SECONDS, removal.tried + REPEAT_SECONDS) and not node.deleted:
            self.save(replace(removal, tried=self.now))
            self.acts.append(Clear(node.name, node.uid, "its machine is gone"))

    def keep(self, removal: Removal, node: Node, why: str) -> None:
        self.kept.append((removal.node, why))
        self.reopen(self.enter_step(removal, REOPENING), node)

    def reopen(self, removal: Removal, node: Node) -> None:
        if not is_marked(node) and node.labels.get(EXCLUDE_LABEL) != EXCLUDE_VALUE:
            self.fold(ledger.Finished(removal.node))
        elif self.now >= removal.tried + REPEAT_SECONDS:
            self.fold(ledger.RemovalUpdated(replace(removal, tried=self.now)))
            self.acts.append(Unmark(node.name, "its removal was given up"))

    def clean_up(self) -> None:
        """Remove our own leaving taints that belong to no removal: they are left from a lost memory.

        Taints of unlisted machines are not ours: another gpuscaler, which has other pools of this cluster, removes those.
        """
        under_way = {removal.node for removal in self.begun}
        for node in self.cluster.table.tainted(LEAVING_TAINT):
            if node.name not in under_way and node.name not in self.index.unlisted:
                self.acts.append(Unmark(node.name, "no removal of it is in progress"))


def is_marked(node: Node) -> bool:
    """Whether the node has our leaving taint, which keeps pods away."""
    return any(taint.key == LEAVING_TAINT for taint in node.taints)


def describe_delay(held: str, node_pods: NodePods) -> str:
    """Return what delays a step, and which pods are not waited for any more."""
    if not node_pods.stuck:
        return held
    first, more = node_pods.stuck[0], len(node_pods.stuck) - 1
    behind = f"pod {first.key}{f' and {more} more' if more else ''} should have ended more than {STUCK_AFTER:g} s ago"
    return f"{held}{'; ' if held else ''}{behind}: its kubelet does not answer, or a finalizer blocks it. The removal does not wait for it"
