"""Windows: a closed machine admits DaemonSet pods for a few seconds, so that DaemonSets need no toleration of our taint.

The DaemonSet controller creates no pod on a node with a ``NoSchedule`` taint that the DaemonSet does not tolerate, but does not delete
existing pods either (``nodeShouldRunDaemonPod`` in ``pkg/controller/daemon/daemon_controller.go``). NVIDIA's device plugin tolerates
``nvidia.com/gpu`` and little else, so the GPUs of a machine with our taint would never become visible. Therefore a cordon replaces the
taint until the pods of such DaemonSets are bound: all DaemonSet pods tolerate a cordon, and no other pod can be scheduled. Our taint stays
on the node with the effect PreferNoSchedule, which shows that the cordon is ours. Nodes that register without our taint get it in the same
way.

All other decisions treat the node as closed during its window, as it is before and after (:func:`as_closed`), and pods are bound to it.
"""

from collections.abc import Iterator, Mapping, Set
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.lifecycle.actions import Act, Close, OpenWindow
from gpuscaler.lifecycle.interruptions import Remark
from gpuscaler.lifecycle.steering.binding import steering_of
from gpuscaler.model.cluster import Cluster, Delta
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import OFF, Policy
from gpuscaler.model.taints import WINDOW_EFFECT, Taint, untolerated
from gpuscaler.model.well_known import ARRIVING_TAINT, CLOSING_TAINTS, KEPT_TAINT, UNSCHEDULABLE
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.capacity.node_templates import daemon_sets, runs_on
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.feasibility.min_gpus import is_closed
from gpuscaler.planning.state.ledger.ledger import NOMINATING, Ledger

#: How long a window is open at most, from when the cordon is visible, in seconds.
OPEN_SECONDS = 10.0
#: Seconds after which a write that is not visible yet is repeated.
REPEAT_SECONDS = 5.0
#: Pause before a window is opened again for a DaemonSet that got no pod; it doubles each time, up to the second value, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 600.0
#: How often new pods are checked while a window is open.
LOOK_SECONDS = 0.2

ARRIVING, KEPT = Taint(ARRIVING_TAINT), Taint(KEPT_TAINT)


class Attempt(Struct, frozen=True, gc=False):
    """A DaemonSet, as ``namespace/name``, that got no pod on a node in ``times`` windows, and ``why``; the next window is at ``again``."""

    daemon: str
    times: int
    again: float
    why: str


class Window(Struct, frozen=True, gc=False):
    """The state of the window of one closed node. Times of events that have not happened yet are 0.

    ``opened`` is when the window was requested, ``seen`` when it was first visible, ``closed`` when the end of the window was last
    requested; all three are 0 while there is no window. ``failed`` are DaemonSets that got no pod in a window.
    """

    uid: str
    opened: float = 0.0
    seen: float = 0.0
    closed: float = 0.0
    failed: tuple[Attempt, ...] = ()


class ClosedNode(Struct, frozen=True, gc=False):
    """The node of a machine of ``pool``, with the machine's id. The machine is not open yet, or it is ``kept`` for large pods."""

    node: Node
    pool: str
    instance: str
    kept: bool = False


class WindowFindings(Struct, frozen=True, gc=False):
    """``windows`` is the new memory, by node; ``acts`` are carried out now, ``remarks`` are reported."""

    windows: Mapping[str, Window]
    acts: tuple[Act, ...] = ()
    remarks: tuple[Remark, ...] = ()


def as_closed(cluster: Cluster) -> Cluster:
    """Return ``cluster`` with open windows shown as closed, except for :attr:`~gpuscaler.model.nodes.Node.in_window`.

    The node controller writes a taint for each cordon, and removes it a moment after the cordon is gone, or seconds after it at high load.
    Without a cordon it does not count, on any node: otherwise machines would be bought for the pods of one that has just opened.
    """
    tainted = {node.name: node for taint in (*CLOSING_TAINTS, UNSCHEDULABLE) for node in cluster.table.tainted(taint)}
    changed = tuple(closed for node in tainted.values() if (closed := _as_closed(node)) is not node)
    return cluster.apply(Delta(upserts=changed)) if changed else cluster


def _as_closed(node: Node) -> Node:
    in_window = node.unschedulable and any(taint.key in CLOSING_TAINTS and taint.effect == WINDOW_EFFECT for taint in node.taints)
    if node.unschedulable and not in_window:
        return node
    taints = tuple(taint for taint in node.taints if taint.key != UNSCHEDULABLE)
    if in_window:
        taints = tuple(replace(taint, effect="NoSchedule") if taint.key in CLOSING_TAINTS else taint for taint in taints)
        return replace(node, taints=taints, unschedulable=False, in_window=True)
    return node if len(taints) == len(node.taints) else replace(node, taints=taints)


def observe(
    before: Mapping[str, Window], ledger: Ledger, cluster: Cluster, policy: Policy, *, unlisted: Set[str], now: float
) -> WindowFindings:
    """Open the windows that are due now, of machines of ``ledger`` and of kept machines, and end the ones that are over.

    ``unlisted`` nodes are not ours, except for those that have a window.
    """
    sites = _sites(ledger, cluster, policy, unlisted - before.keys())
    if not sites and not before:
        return WindowFindings(before)
    window_pass = _WindowPass(cluster, policy, now)
    windows: dict[str, Window] = {}
    for site in sites:
        after = window_pass.step(site, before.get(site.node.name))
        if after is not None:
            windows[site.node.name] = after
    return WindowFindings(before if windows == before else windows, tuple(window_pass.acts), tuple(window_pass.remarks))


def _sites(ledger: Ledger, cluster: Cluster, policy: Policy, unlisted: Set[str]) -> list[ClosedNode]:
    """Return the nodes of machines that are not open yet, and of kept ones. Nodes that a person has opened or cordoned are skipped."""
    leaving = {removal.node for removal in ledger.leaving}
    sites: dict[str, ClosedNode] = {}
    for machine in ledger.coming:
        node = cluster.nodes.get(machine.node)
        if node is not None and (not machine.ready or is_closed(node)):
            sites[node.name] = ClosedNode(node, machine.key.pool, machine.instance)
    for promise in ledger.promises:
        node = cluster.nodes.get(promise.node)
        if node is not None and promise.step == NOMINATING and is_closed(node):
            sites.setdefault(node.name, ClosedNode(node, promise.offering.pool, node.provider_id))
    opening = {promise.node for promise in ledger.promises if promise.step != NOMINATING or promise.taint_removed_at}
    kept = {node.name: node for node in cluster.table.tainted(KEPT_TAINT) if node.name not in sites}
    for name, member in members(kept, policy, unlisted).items() if kept else ():
        if member.pool.keeps_closed:
            sites[name] = ClosedNode(kept[name], member.pool.name, kept[name].provider_id)
    marked = (replace(site, kept=any(taint.key == KEPT_TAINT for taint in site.node.taints)) for site in sites.values())
    out = leaving | opening
    return sorted(
        (site for site in marked if site.node.name not in out and not site.node.unschedulable and not site.node.deleted),
        key=lambda site: site.node.name,
    )


def next_check(windows: Mapping[str, Window], now: float) -> float | None:
    """Return the next time at which a window may have to open or close although no node has changed; None if there is none."""
    moments = [
        now + LOOK_SECONDS if window.opened else min((each.again for each in window.failed), default=None) for window in windows.values()
    ]
    return min((max(at, now + LOOK_SECONDS) for at in moments if at is not None), default=None)


def recalled(windows: Mapping[str, Window], now: float) -> Mapping[str, Window]:
    """Return ``windows`` after they were read at ``now``: without later times, and so that unconfirmed writes are repeated at once."""

    def in_doubt(window: Window) -> Window:
        failed = tuple(replace(each, again=min(each.again, now + LONGEST_PAUSE)) for each in window.failed)
        latest = now if window.seen else now - REPEAT_SECONDS
        return replace(window, opened=min(window.opened, latest), seen=min(window.seen, now), closed=0.0, failed=failed)

    return {name: in_doubt(window) for name, window in windows.items()}


def reports(windows: Mapping[str, Window]) -> Iterator[str]:
    """Report each DaemonSet without pods on machines that are not open yet, in one sentence."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for name, window in sorted(windows.items()):
        for attempt in window.failed:
            nodes.setdefault((attempt.daemon, attempt.why), []).append(name)
    for (daemon, why), names in sorted(nodes.items()):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield (
            f"DaemonSet {daemon} has no pod on node {names[0]}{more}, where it should run before the machine opens: {why}; retried "
            f"after 1 to 10 min; see its Events: kubectl describe daemonset"
        )


def describe_window(window: Window, now: float) -> Iterator[str]:
    """Describe the window of one node, in sentences that start with ``it``."""
    if window.opened:
        yield "it is cordoned by gpuscaler for a few seconds, so that DaemonSets that do not tolerate its taint get their pods there"
    for attempt in window.failed:
        again = f"in {(attempt.again - now) / 60:.0f} min" if attempt.again > now + 30.0 else "soon"
        times = "once" if attempt.times == 1 else f"{attempt.times} times"
        yield f"it has no pod of DaemonSet {attempt.daemon}, which was tried {times}: {attempt.why}; it is tried again {again}"


class _WindowPass:
    """One pass over all closed machines."""

    def __init__(self, cluster: Cluster, policy: Policy, now: float) -> None:
        self._cluster, self._policy, self._now = cluster, policy, now
        self._pools = {pool.name: pool for pool in policy.pools}
        daemons = [(workload, workload.template.tolerations) for workload in daemon_sets(cluster) if workload.template is not None]
        #: DaemonSets that cannot tolerate our arriving taint, and those that cannot tolerate the taint of kept machines.
        self._blocked = {
            kept: {
                key_of(workload): workload for workload, tolerations in daemons if untolerated((KEPT if kept else ARRIVING,), tolerations)
            }
            for kept in (False, True)
        }
        self.acts: list[Act] = []
        self.remarks: list[Remark] = []

    def step(self, site: ClosedNode, before: Window | None) -> Window | None:
        """Return the window of a node after this pass; None if there is nothing to do."""
        node = site.node
        window = before if before is not None and before.uid == node.uid else Window(node.uid)
        missing = self._missing_daemons(site)
        # A clock that was set back must not keep the window open for longer.
        opened, seen, closed = (min(at, self._now) for at in (window.opened, window.seen, window.closed))
        failed = tuple(attempt for attempt in window.failed if attempt.daemon in missing)
        window = Window(node.uid, opened, seen, closed, failed)
        due = sorted(missing.keys() - {attempt.daemon for attempt in failed if self._now < attempt.again})
        if node.in_window:
            after = self._step_open(site, window, missing, due)
        elif is_closed(node) or self._steering(site) != OFF:
            after = self._step_closed(site, window, due)
        else:
            return None
        return None if after == Window(node.uid) else after

    def _step_closed(self, site: ClosedNode, window: Window, due: list[str]) -> Window:
        """Request a window for a node that lacks DaemonSet pods; close a node that has none of our taints."""
        if window.opened and not window.seen and self._now < window.opened + REPEAT_SECONDS:
            return window
        window = Window(window.uid, closed=window.closed, failed=window.failed)
        if due:
            names = ", ".join(f"DaemonSet {name}" for name in due)
            self.acts.append(OpenWindow(site.node.name, f"until it has pods of {names}", kept=site.kept))
            return replace(window, opened=self._now, closed=0.0)
        return replace(window, closed=0.0) if is_closed(site.node) else self._close(site, window)

    def _step_open(self, site: ClosedNode, window: Window, missing: Mapping[str, str], due: list[str]) -> Window:
        """End the window once the node has its DaemonSet pods, or after a while."""
        window = replace(window, opened=window.opened or self._now, seen=window.seen or self._now)
        if due and not window.closed and self._now < window.seen + OPEN_SECONDS:
            return window
        return self._close(site, window if window.closed else self._failed(site, window, missing))

    def _close(self, site: ClosedNode, window: Window) -> Window:
        if window.closed and self._now < window.closed + REPEAT_SECONDS:
            return window
        why = "it is kept for large pods" if site.kept else "it is not open yet; it opens for the pods that it was bought for"
        self.acts.append(Close(site.node.name, why, kept=site.kept))
        return replace(window, closed=self._now)

    def _failed(self, site: ClosedNode, window: Window, missing: Mapping[str, str]) -> Window:
        """Record a failed window for the ``missing`` DaemonSets, each with the reason."""
        attempts = {attempt.daemon: attempt for attempt in window.failed}
        failed = []
        for name, why in sorted(missing.items()):
            before = attempts.get(name, Attempt(name, 0, 0.0, why))
            if self._now < before.again:
                failed.append(before)
                continue
            pause = min(FIRST_PAUSE * 2.0 ** min(before.times, 10), LONGEST_PAUSE)
            failed.append(Attempt(name, before.times + 1, self._now + pause, why))
            if not before.times:
                text = f"DaemonSet {name} has no pod on node {site.node.name}, which was cordoned for it: {why}"
                self.remarks.append(Remark(site.instance, site.node.name, f"{text}; tried again in {pause / 60:.0f} min"))
        return replace(window, failed=tuple(failed))

    def _missing_daemons(self, site: ClosedNode) -> dict[str, str]:
        """Return the DaemonSets that should have a pod on a node but have none that is bound, each with the reason.

        A DaemonSet whose pod is ending or has failed gets no other pod before that one is gone.
        """
        node, blocked = site.node, self._blocked[site.kept]
        if not blocked:
            return {}
        bare = replace(node, taints=tuple(taint for taint in node.taints if taint.key not in CLOSING_TAINTS))
        daemons = {owner_of(pod) for pod in self._cluster.on_node.get(node.name, {}).values() if pod.owner.kind == "DaemonSet"}
        waiting = {owner_of(pod): pod.key for pod in self._waiting.get(node.name, ())}
        missing = sorted(name for name, workload in blocked.items() if name not in daemons and runs_on(workload, bare))
        return {
            name: f"kube-scheduler has not bound pod {waiting[name]}" if name in waiting else "the DaemonSet controller created none"
            for name in missing
        }

    def _steering(self, site: ClosedNode) -> str:
        return steering_of(self._pools.get(site.pool), self._policy, frozenset())

    @cached_property
    def _waiting(self) -> Mapping[str, list[Pod]]:
        """Unbound DaemonSet pods, by the node that they are meant for."""
        pods: dict[str, list[Pod]] = {}
        for key, bucket in self._cluster.unbound.items():
            if key.owner.kind == "DaemonSet" and not key.terminating:
                for pod in bucket.pods.values():
                    for name in meant_for(pod):
                        pods.setdefault(name, []).append(pod)
        return pods


def key_of(daemon: Workload) -> str:
    return f"{daemon.namespace}/{daemon.name}"


def owner_of(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.owner.name}"


def meant_for(pod: Pod) -> Iterator[str]:
    """Yield the node that the DaemonSet controller created ``pod`` for: the required affinity names it in a field."""
    for term in pod.spec.node_affinity.terms if pod.spec.node_affinity is not None else ():
        for field in term.fields:
            if (field.key, field.operator) == ("metadata.name", "In"):
                yield from field.values
