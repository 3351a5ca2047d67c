"""Windows: a machine that is not open yet opens for a moment, so that DaemonSets as they are shipped get their pods there.

The DaemonSet controller creates no pod on a node with a ``NoSchedule`` taint that the DaemonSet does not tolerate, and deletes none that is
there already (``nodeShouldRunDaemonPod`` in ``pkg/controller/daemon/daemon_controller.go``). NVIDIA's device plugin tolerates
``nvidia.com/gpu`` and little else, so that the GPUs of a machine with our taint would never show. So that taint comes off until the pods
exist, and is set again; a pod that has no node by then is bound here, since a binding asks for no toleration. No pod that asks for a GPU
can come meanwhile, for a window opens only while the node shows none. Nodes that register without our taint get it the same way.

Machines that are kept for large pods are closed for as long as they live. When a DaemonSet is new there, updated or restarted they open the
same way, whatever they show: a device plugin that is updated must not end with nodes that have none.
"""

from collections.abc import Iterator, Mapping, Set
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.accelerators import is_device
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import BIND, OFF, Policy
from gpuscaler.model.taints import Taint, untolerated
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.acts import Act, Bind, Close, Lift
from gpuscaler.planning.binding import steering_of
from gpuscaler.planning.keeping import ARRIVING_TAINT, CLOSING_TAINTS, KEPT_TAINT, is_closed, lifted
from gpuscaler.planning.membership import members
from gpuscaler.planning.reclaiming import Remark
from gpuscaler.planning.room import Room
from gpuscaler.planning.state.ledger import Ledger
from gpuscaler.planning.templates import daemon_sets, runs_on

#: The taint is off for so long at most, from when that shows.
OPEN_SECONDS = 10.0
#: A write that has not shown after so long is made again, or given up.
REPEAT_SECONDS = 5.0
#: A DaemonSet whose pod did not come is tried again after so long, and after twice as long each time, up to the second.
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 600.0
#: A machine whose taint should be off or on again, and is not, is not waited for any longer than this.
STUCK_SECONDS = 60.0
#: While a window is open, pods that come are looked for so often.
LOOK_SECONDS = 0.2

ARRIVING, KEPT = Taint(ARRIVING_TAINT), Taint(KEPT_TAINT)


class Attempt(Struct, frozen=True, gc=False):
    """A DaemonSet, by ``namespace/name``, whose pod did not come to a node ``times`` times; it is tried again at ``again``."""

    daemon: str
    times: int
    again: float
    why: str


class Window(Struct, frozen=True, gc=False):
    """What is known of one closed machine's node. Moments that were not yet are 0.

    ``opened`` is when the taint was to come off, ``seen`` when it was first seen to be off, ``closed`` when it was last to be set again;
    all of them are 0 while the node is closed. ``bound`` is when pods of DaemonSets were last bound to it. ``failed`` are DaemonSets whose
    pods did not come.
    """

    uid: str
    opened: float = 0.0
    seen: float = 0.0
    closed: float = 0.0
    bound: float = 0.0
    failed: tuple[Attempt, ...] = ()


class Site(Struct, frozen=True, gc=False):
    """The node of a machine of ``pool``, by its id, that is not open yet or ``kept`` for large pods."""

    node: Node
    pool: str
    instance: str
    kept: bool = False

    @property
    def is_harmless(self) -> bool:
        """Whether no pod that asks for a device can come while it is open, or it is kept, and stays so for as long as it lives."""
        node = self.node
        return self.kept or not node.ready or not any(amount and is_device(name) for name, amount in node.allocatable.items())


class Windows(Struct, frozen=True, gc=False):
    """``windows`` is what is remembered, by node; ``acts`` are to be carried out now, ``remarks`` are worth reporting."""

    windows: Mapping[str, Window]
    acts: tuple[Act, ...] = ()
    remarks: tuple[Remark, ...] = ()


def observe(
    before: Mapping[str, Window], book: Ledger, cluster: Cluster, policy: Policy, *, now: float, unbinding: Set[str] = frozenset()
) -> Windows:
    """Which machines of ``book``, and kept ones, open for pods of DaemonSets now, and which are closed again.

    ``unbinding`` are pools where bindings were refused: their machines stay open until kube-scheduler has bound the pods.
    """
    sites = _sites(before, book, cluster, policy)
    if not sites and not before:
        return Windows(before)
    look = _Look(cluster, policy, now, unbinding)
    found: dict[str, Window] = {}
    for site in sites:
        after = look.at(site, before.get(site.node.name))
        if after is not None:
            found[site.node.name] = after
    return Windows(before if found == before else found, tuple(look.acts), tuple(look.remarks))


def _sites(before: Mapping[str, Window], book: Ledger, cluster: Cluster, policy: Policy) -> list["Site"]:
    """The nodes to look at: those that are not ready, and those that are kept and that nothing else is under way with."""
    leaving = {one.node for one in book.leaving}
    coming = [one for one in book.coming if one.node in cluster.nodes and one.node not in leaving]
    found = [Site(cluster.nodes[one.node], one.key[0], one.instance) for one in coming if not one.ready]
    under_way = {one.node for one in coming} | {one.node for one in book.promises} | leaving
    kept = {node.name: node for node in cluster.table.tainted(KEPT_TAINT)}
    kept |= {name: cluster.nodes[name] for name, one in before.items() if one.opened and name in cluster.nodes}
    for name, member in members({name: kept[name] for name in kept.keys() - under_way}, policy).items() if kept else ():
        if member.pool.min_gpus_per_pod and not kept[name].deleted:
            found.append(Site(kept[name], member.pool.name, kept[name].provider_id, kept=True))
    return sorted(found, key=lambda one: one.node.name)


def ajar(windows: Mapping[str, Window], cluster: Cluster, now: float) -> frozenset[str]:
    """The nodes that are not closed again yet: whatever they show, they are not ready to open."""
    return frozenset(
        name
        for name, one in windows.items()
        if one.opened
        and now < one.opened + STUCK_SECONDS
        and not (one.seen and (node := cluster.nodes.get(name)) is not None and is_closed(node))
    )


def next_look(windows: Mapping[str, Window], now: float) -> float | None:
    """When something may be due by the passing of time alone."""
    moments = [now + LOOK_SECONDS if one.opened else min((each.again for each in one.failed), default=None) for one in windows.values()]
    return min((max(at, now + LOOK_SECONDS) for at in moments if at is not None), default=None)


def recalled(windows: Mapping[str, Window], now: float) -> Mapping[str, Window]:
    """``windows`` as they were read at ``now``: no moment is after that, and writes that were under way are made again at once."""

    def in_doubt(one: Window) -> Window:
        failed = tuple(replace(each, again=min(each.again, now + LONGEST_PAUSE)) for each in one.failed)
        latest = now if one.seen else now - REPEAT_SECONDS
        return replace(one, opened=min(one.opened, latest), seen=min(one.seen, now), closed=0.0, bound=0.0, failed=failed)

    return {name: in_doubt(one) for name, one in windows.items()}


def reports(windows: Mapping[str, Window]) -> Iterator[str]:
    """A sentence for each DaemonSet whose pods did not come to machines that are not open yet."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for name, window in sorted(windows.items()):
        for one in window.failed:
            nodes.setdefault((one.daemon, one.why), []).append(name)
    for (daemon, why), names in sorted(nodes.items()):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield (
            f"DaemonSet {daemon} has no pod on node {names[0]}{more}, where it should run before the machine opens: {why}; tried again "
            f"after 1 to 10 min; look at its Events: kubectl describe daemonset"
        )


def explained(window: Window, now: float) -> Iterator[str]:
    """What people want to know of one node that opens for a moment, in sentences that go on from ``it``."""
    if window.opened:
        yield "it opens for seconds, so that DaemonSets which do not tolerate our taint get their pods there"
    for one in window.failed:
        again = f"in {(one.again - now) / 60:.0f} min" if one.again > now + 30.0 else "soon"
        yield f"it has no pod of DaemonSet {one.daemon}, which was tried {one.times} times: {one.why}; it is tried again {again}"


class _Look:
    """One look at all machines that are not open yet."""

    def __init__(self, cluster: Cluster, policy: Policy, now: float, unbinding: Set[str]) -> None:
        self._cluster, self._policy, self._now, self._unbinding = cluster, policy, now, unbinding
        self._pools = {pool.name: pool for pool in policy.pools}
        daemons = [(one, one.template.tolerations) for one in daemon_sets(cluster) if one.template is not None]
        #: DaemonSets that our taint keeps away, and those that the taint of kept machines does.
        self._blocked = {
            kept: {key_of(one): one for one, tolerations in daemons if untolerated((KEPT if kept else ARRIVING,), tolerations)}
            for kept in (False, True)
        }
        #: Whether pods without a node fit where they are meant for, beside each other.
        self._admitted: dict[str, bool] = {}
        self.acts: list[Act] = []
        self.remarks: list[Remark] = []

    def at(self, site: Site, before: Window | None) -> Window | None:
        """What is remembered of a node; nothing where there is nothing to do."""
        node = site.node
        if before is None or before.uid != node.uid:
            before = Window(node.uid)
        bare = replace(node, taints=tuple(taint for taint in node.taints if taint.key not in CLOSING_TAINTS))
        wanted = {key for key, one in self._blocked[site.kept].items() if runs_on(one, bare)}
        before = replace(before, failed=tuple(one for one in before.failed if one.daemon in wanted))
        if is_closed(node):
            after = self._closed(site, before, wanted)
        elif before.opened or self._steering(site) != OFF:
            after = self._open(site, before, wanted)
        else:
            return None
        return None if after == Window(node.uid) else after

    def _closed(self, site: Site, window: Window, wanted: Set[str]) -> Window:
        """Open a closed node where pods of DaemonSets are missing, and bind those that are there."""
        if window.opened and not window.seen and self._now < window.opened + REPEAT_SECONDS:
            return window
        window = self._bind(site, replace(window, opened=0.0, seen=0.0, closed=0.0), wanted)
        missing = self._missing(site, wanted)
        window = replace(window, failed=tuple(one for one in window.failed if one.daemon in missing))
        paused = {one.daemon for one in window.failed if self._now < one.again}
        due = sorted(missing.keys() - paused)
        if not due or not site.is_harmless:
            return window
        names = ", ".join(f"DaemonSet {name}" for name in due)
        self.acts.append(Lift(site.node.name, f"for seconds, until it has pods of {names}"))
        return replace(window, opened=self._now)

    def _open(self, site: Site, window: Window, wanted: Set[str]) -> Window:
        """Close a node once it has the pods of its DaemonSets, or after a while."""
        opened = window.opened or self._now
        window = replace(window, opened=opened, seen=window.seen or self._now)
        missing = self._missing(site, wanted)
        due = {name for name in missing if all(name != one.daemon for one in window.failed if self._now < one.again)}
        if due and site.is_harmless and self._now < window.seen + OPEN_SECONDS:
            return window
        if window.closed and self._now < window.closed + REPEAT_SECONDS:
            return self._bind(site, window, wanted)
        if not window.closed:
            window = self._failed(site, window, missing)
        why = "it is kept for large pods" if site.kept else "it is not ready yet, and opens for the pods that it was bought for"
        self.acts.append(Close(site.node.name, why, kept=site.kept))
        return self._bind(site, replace(window, closed=self._now), wanted)

    def _failed(self, site: Site, window: Window, missing: Mapping[str, str]) -> Window:
        """Remember the DaemonSets in ``missing``, each with the reason. All others have come."""
        known = {one.daemon: one for one in window.failed}
        failed = []
        for name, why in sorted(missing.items()):
            before = known.get(name, Attempt(name, 0, 0.0, why))
            pause = min(FIRST_PAUSE * 2.0**before.times, LONGEST_PAUSE)
            failed.append(Attempt(name, before.times + 1, self._now + pause, why))
            if not before.times:
                text = f"DaemonSet {name} has no pod on node {site.node.name}, which opened for it: {why}"
                self.remarks.append(Remark(site.instance, site.node.name, f"{text}; tried again in {pause / 60:.0f} min"))
        return replace(window, failed=tuple(failed))

    def _missing(self, site: Site, wanted: Set[str]) -> dict[str, str]:
        """The DaemonSets that have no pod on a node, or one that only kube-scheduler can bind, each with the reason."""
        here, found = self._here(site.node), dict[str, str]()
        for name in wanted:
            pod = here.get(name)
            if pod is None:
                found[name] = "the DaemonSet controller made none"
            elif not (pod.node_name or self._binds(site, pod)):
                found[name] = f"pod {pod.key} is not bound there, and there may be no room for it"
        return found

    def _bind(self, site: Site, window: Window, wanted: Set[str]) -> Window:
        """Bind the pods of the DaemonSets ``wanted`` on a node which keeps kube-scheduler from binding them.

        Anybody who may create a pod may write that a DaemonSet owns it: what is of none that should run there is not bound.
        """
        taint = KEPT if site.kept else ARRIVING
        ours = [pod for pod in self._waiting.get(site.node.name, ()) if owner_of(pod) in wanted]
        unbound = [pod for pod in ours if untolerated((taint,), pod.spec.tolerations) and self._binds(site, pod)]
        if not unbound:
            return replace(window, bound=0.0)
        if window.bound and self._now < window.bound + REPEAT_SECONDS:
            return window
        self.acts += [Bind(pod.key, pod.uid, site.node.name) for pod in unbound]
        return replace(window, bound=self._now)

    def _binds(self, site: Site, pod: Pod) -> bool:
        """Whether we may bind ``pod``, and the filters admit it."""
        if self._steering(site) != BIND or pod.spec.scheduler_name not in self._policy.bind_schedulers or pod.spec.gates:
            return False
        if pod.key not in self._admitted:
            row = self._room.table.row[site.node.name]
            self._admitted[pod.key] = bool(self._room.admitting(lifted(pod.spec), pod.labels, slice(row, row + 1))[0])
            if self._admitted[pod.key]:
                self._room.place(pod.spec, pod.labels, row)
        return self._admitted[pod.key]

    def _steering(self, site: Site) -> str:
        return steering_of(self._pools.get(site.pool), self._policy, self._unbinding)

    def _here(self, node: Node) -> dict[str, Pod]:
        """The pods of DaemonSets on a node, or meant for it, by the DaemonSet."""
        pods = (*self._waiting.get(node.name, ()), *self._cluster.on_node.get(node.name, {}).values())
        return {owner_of(pod): pod for pod in pods if pod.owner.kind == "DaemonSet" and not pod.deleted}

    @cached_property
    def _waiting(self) -> Mapping[str, list[Pod]]:
        """Pods of DaemonSets without a node, by the node that they are meant for."""
        found: dict[str, list[Pod]] = {}
        for key, bucket in self._cluster.unbound.items():
            if key.owner.kind == "DaemonSet" and not key.terminating:
                for pod in bucket.pods.values():
                    for name in meant_for(pod):
                        found.setdefault(name, []).append(pod)
        return found

    @cached_property
    def _room(self) -> Room:
        return Room.of(self._cluster)


def key_of(daemon: Workload) -> str:
    return f"{daemon.namespace}/{daemon.name}"


def owner_of(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.owner.name}"


def meant_for(pod: Pod) -> Iterator[str]:
    """The node that the DaemonSet controller made ``pod`` for: it names it in the required affinity, by a field."""
    for term in pod.spec.node_affinity.terms if pod.spec.node_affinity is not None else ():
        for field in term.fields:
            if (field.key, field.operator) == ("metadata.name", "In"):
                yield from field.values
