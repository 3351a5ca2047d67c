"""The steps of a removal. The next step depends only on the cluster, the cloud's list and the ledger, so removals survive restarts."""

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

#: Seconds after which a write that is not visible yet is repeated. Evictions wait no longer than this for load balancers.
REPEAT_SECONDS = 5.0
#: How long a drain may take, in addition to the time for its pods to save their work, and how long a node may wait for its replacement, in
#: seconds; after that the node is opened again. The second time is longer than the time-outs of the replacement. Cluster Autoscaler tries
#: evictions for 2 minutes.
DRAIN_SECONDS, WAIT_SECONDS = 600.0, 2400.0
#: How long to wait until volumes are detached, in seconds. Kubernetes detaches them by force 6 minutes after their node is gone.
DETACH_SECONDS = 120.0
#: How long after a drain the node is checked once more, because the scheduler may have bound a pod just before it observed the taint; then
#: the machine is ended. And how long after a request to end a machine that still exists the request is repeated. Both in seconds.
SETTLE_SECONDS, END_SECONDS = 1.0, 60.0
#: How long the cloud's controller has to delete the Node of a machine that no longer exists, in seconds.
CLEAR_SECONDS = 60.0


class EndAnswered(Struct, frozen=True, gc=False):
    """The cloud ends a machine, or takes the next call to end it at ``again`` and says ``why``, as text."""

    again: float = 0.0
    why: str = ""


class RemovalFindings(Struct, frozen=True, gc=False):
    """``steps`` are events for the ledger, ``acts`` are carried out now, ``kept`` are nodes whose removal was given up, and why.

    ``given_up`` are those kept nodes whose removal failed, so that it is not tried again at once.
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
    answers: Mapping[str, EndAnswered] | None = None,
    index: MachineIndex | None = None,
    held: str = "",
    unsafe: Mapping[OfferingKey, str] | None = None,
) -> RemovalFindings:
    """Return the next steps of all removals in progress.

    ``late_pods_by_node`` are nodes where the final API read found pods missing from the watch, with a description. ``answers`` are the
    cloud's answers to calls to end the machines of nodes. ``held`` is the reason for a hold on removals, empty without one: during a hold,
    removals that can be undone are undone, except for machines that the cloud takes away. ``index`` is the index of ``cluster`` and
    ``inventory``, if the caller has one.
    """
    index = index or MachineIndex.of(cluster, inventory)
    removals = _Removals(ledger, cluster, policy, now, index)
    removals.listed_at = 0.0 if inventory is None else inventory.at
    removals.late_pods_by_node = late_pods_by_node or {}
    removals.answers = answers or {}
    removals.unsafe = unsafe or {}
    removals.deliveries = () if inventory is None else inventory.deliveries
    removals.held = held
    halted = bool(ledger.leaving) and is_halted(ledger, index, policy)
    for removal in ledger.leaving:
        # If most nodes are not Ready at once, the machine of this one is probably not the cause.
        if (removal.forced and not removal.unready) or removal.step in (ENDING, CLEARING, REOPENING) or not halted:
            removals.advance(removal)
    removals.clean_up()
    return RemovalFindings(tuple(removals.steps), tuple(removals.acts), tuple(removals.kept), tuple(removals.given_up))


def is_halted(ledger: Ledger, index: MachineIndex, policy: Policy) -> bool:
    """Whether so many nodes are not Ready at once that removals pause: the cause is probably none of the machines."""
    promised = frozenset(machine.node for machine in ledger.coming if machine.node)
    return len(index.unready) > 3 and health_guard(index.nodes.values(), members(index.nodes, policy, index.unlisted), promised) is not None


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
        self.answers: Mapping[str, EndAnswered] = {}
        self.deliveries: tuple[Delivery, ...] = ()
        self.unsafe: Mapping[OfferingKey, str] = {}
        self.held = ""

    @cached_property
    def awaited_pods(self) -> frozenset[str]:
        """The pods for which ordered machines are meant."""
        return frozenset(pod for machine in self.ledger.coming for pod in machine.pods)

    def awaited_for(self, removal: Removal, node_pods: NodePods) -> Set[str]:
        """Return the pods of a node whose new machine is on its way; a group usually launches a replacement for a machine that it ends."""
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
            # The cloud has ended the machine, as announced.
            self.enter_step(removal, ENDING)
        elif removal.step == ENDING:
            self.end(removal, node)
        elif removal.step == CLEARING:
            self.clear(removal, node)
        elif node is None or node.deleted:
            # The Node was deleted by something else; its machine is ended all the same.
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
        """Return why a removal must be given up, as text; empty if it continues."""
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
            # The removal of a machine that the cloud takes away does not wait for a slow API server.
            self.wait(self.enter_step(removal, WAITING), node)
        elif self.now >= removal.tried + REPEAT_SECONDS:
            self.save(replace(removal, tried=self.now))
            self.acts.append(Mark(node.name, removal.reason))

    def wait(self, removal: Removal, node: Node) -> None:
        """Check the node again, now that its taint keeps new pods off; then wait until its replacement is open."""
        node_pods = residents(self.cluster, node, self.now)
        why = None if removal.forced else self.objections.before(removal, node, node_pods)
        if why is not None:
            self.keep(removal, node, why)
        elif removal.bereft or self.now >= removal.since + WAIT_SECONDS:
            self.keep(removal, node, "the replacement machine did not become ready in time")
        elif not removal.needs:
            self.drain(self.enter_step(removal, DRAINING), node)

    def drain(self, removal: Removal, node: Node) -> None:
        """Evict the remaining pods; a node that cannot be drained in time is kept."""
        node_pods = residents(self.cluster, node, self.now)
        why = None if removal.forced else self.objections.during(removal, node, node_pods)
        if why is not None:
            self.keep(removal, node, why)
            return
        marked = is_marked(node)
        if not marked or EXCLUDE_LABEL not in node.labels:
            if self.now >= removal.tried + REPEAT_SECONDS:
                # Without the taint an evicted pod may return at once, but a machine that the cloud takes away cannot wait for it.
                self.acts.append(Exclude(node.name, removal.reason) if marked else Mark(node.name, removal.reason))
                removal = replace(removal, tried=self.now)
            if not removal.forced and self.now < removal.since + REPEAT_SECONDS:
                # Load balancers get time to stop sending traffic before the first pod is evicted.
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
        """Ask the cloud, each time half of the delay is over, to end the machine later, until its pods are gone."""
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
        """Do nothing and note why, ``held``; if this takes too long, give up the removal."""
        if self.overdue(removal, ()):
            why = f"it could not be drained within {DRAIN_SECONDS:g} s: {held}{self.cost(removal)}"
            self.given_up.append(GivenUp(node.name, removal.instance, removal.offering, why, self.now))
            self.keep(removal, node, why)
        else:
            self.save(replace(removal, detail=describe_delay(held, node_pods)))

    def detach(self, removal: Removal, node: Node) -> None:
        """Wait for a limited time until volumes are detached; the removal can still be given up."""
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
        """Whether a drained node has pods again. For a new pod the removal is given up; pods that returned are evicted again."""
        why = None if removal.forced else self.objections.during(removal, node, node_pods)
        if why is not None:
            self.keep(removal, node, why)
        elif not evict(removal, node_pods, self.now).done:
            self.enter_step(removal, DRAINING)
        else:
            return False
        return True

    def end(self, removal: Removal, node: Node | None) -> None:
        """End the machine and verify that it is gone; right before that, check the node for the last time."""
        is_gone = self.alive is not None and removal.instance not in self.alive and self.listed_at > max(removal.since, removal.tried)
        if node is not None and not removal.forced and removal.node in self.late_pods_by_node:
            # Until the watch shows these pods, the node looks idle: its removal must not begin again at once.
            self.given_up.append(GivenUp(node.name, removal.instance, removal.offering, self.late_pods_by_node[removal.node], self.now))
            self.keep(removal, node, self.late_pods_by_node[removal.node])
        elif removal.tried and is_gone:
            self.fold(ledger.Finished(removal.node) if node is None else ledger.RemovalUpdated(self.in_step(removal, CLEARING)))
        elif (answer := self.answers.get(removal.node)) is not None and (answer.again or removal.again):
            self.save(replace(removal, again=answer.again, detail=answer.why))
        elif not removal.tried or self.now >= (removal.again if removal.again > removal.tried else removal.tried + END_SECONDS):
            self.end_if_empty(removal, node)

    def end_if_empty(self, removal: Removal, node: Node | None) -> None:
        """Ask the cloud to end a machine whose node has no pods, and ask again if the machine still exists long after that.

        A machine that never opened is ended without checks.
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
        """Delete the Node of a machine that no longer exists, if nothing else has deleted it."""
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
        """Remove leaving taints that belong to no removal, for example because the state ConfigMap was lost.

        Nodes of unlisted machines are skipped: another gpuscaler that manages other pools of this cluster removes their taints.
        """
        under_way = {removal.node for removal in self.begun}
        for node in self.cluster.table.tainted(LEAVING_TAINT):
            if node.name not in under_way and node.name not in self.index.unlisted:
                self.acts.append(Unmark(node.name, "no removal of it is in progress"))


def is_marked(node: Node) -> bool:
    """Whether the node has our leaving taint, which keeps pods away."""
    return any(taint.key == LEAVING_TAINT for taint in node.taints)


def describe_delay(held: str, node_pods: NodePods) -> str:
    """Return what delays a step, and which pods the removal no longer waits for."""
    if not node_pods.stuck:
        return held
    first, more = node_pods.stuck[0], len(node_pods.stuck) - 1
    behind = f"pod {first.key}{f' and {more} more' if more else ''} should have ended more than {STUCK_AFTER:g} s ago"
    return f"{held}{'; ' if held else ''}{behind}: its kubelet does not answer, or a finalizer blocks it. The removal does not wait for it"
