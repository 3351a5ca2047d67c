"""Sorts pending pods into demand, grouped into classes and gangs, and ignored pods, with the reason."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gpuscaler.model.accelerators import is_device
from gpuscaler.model.cluster import Bucket, ClassKey, Cluster
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import Pod, PodAffinityTerm, PodOptions, PodSpec
from gpuscaler.model.pools import Policy
from gpuscaler.model.selector_index import SelectorIndex
from gpuscaler.model.selectors import LabelSelector, NodeSelectorTerm
from gpuscaler.model.workloads import PodGroup
from gpuscaler.planning.plans import Ignored
from gpuscaler.planning.state import State


@dataclass(frozen=True)
class PodClass:
    """Pending pods that scheduling cannot tell apart. ``keys`` are their ``namespace/name``, sorted.

    ``announced`` is the number of further pods that their owners want but have not created yet: they influence the mix, and machines are
    bought for them once they exist. ``wishes`` are terms that every node for them must match although the scheduler does not require it.
    ``market_because`` says why the markets of ``options`` are not the pods' own now; empty when they are. Offerings in ``paused`` are not
    bought for them. ``beside_gpus`` says that other members of their gang request accelerators.
    """

    spec: PodSpec
    labels: LabelSet
    options: PodOptions
    keys: tuple[str, ...]
    announced: int = 0
    wishes: tuple[NodeSelectorTerm, ...] = ()
    market_because: str = ""
    paused: frozenset[OfferingKey] = frozenset()
    beside_gpus: bool = False

    @property
    def count(self) -> int:
        return len(self.keys)

    @cached_property
    def order(self) -> tuple[object, ...]:
        """Sort key: higher priority first, then the larger request; the rest makes the order independent of arrival."""
        requests = self.spec.requests
        accelerators = sum(amount for name, amount in requests.items() if "/" in name and not name.startswith("kubernetes.io/"))
        return (-self.spec.priority, -accelerators, -requests.get("cpu", 0), -requests.get("memory", 0), self.spec.digest, self.keys[0])


@dataclass(frozen=True)
class Gang:
    """Pods that are useful only together.

    ``nodes`` are the nodes of members that are already bound or nominated. The gang cannot start with fewer than ``size`` members.
    """

    name: str
    size: int
    topology: str
    classes: tuple[PodClass, ...]
    nodes: tuple[str, ...] = ()

    @property
    def running(self) -> int:
        return len(self.nodes)

    @property
    def count(self) -> int:
        return sum(pod_class.count for pod_class in self.classes)

    @property
    def priority(self) -> int:
        return max(pod_class.spec.priority for pod_class in self.classes)


@dataclass(frozen=True)
class Nominated:
    """Pending pods that the scheduler has nominated to an existing node."""

    pod_class: PodClass
    node: str


@dataclass(frozen=True)
class Demand:
    classes: tuple[PodClass, ...]
    gangs: tuple[Gang, ...]
    nominated: tuple[Nominated, ...]
    ignored: tuple[Ignored, ...]

    @property
    def all_classes(self) -> Iterator[PodClass]:
        """Yield the classes of all pods, gangs and nominated pods included."""
        yield from self.classes
        for gang in self.gangs:
            yield from gang.classes
        for promise in self.nominated:
            yield promise.pod_class


def collect_demand(cluster: Cluster, state: State, policy: Policy, now: float, *, live: bool = False) -> Demand:
    """Sort the unbound pods of ``cluster``. ``now`` is in seconds since the epoch.

    In a ``live`` cluster only pods that the scheduler has marked unschedulable are demand; a file may contain pods it never saw.
    """
    wanted: list[PodClass] = []
    nominated: list[Nominated] = []
    ignored: list[Ignored] = []
    coming = announcements(cluster)
    for key, bucket in cluster.unbound.items():
        pod = bucket.sample
        keys = bucket.keys
        if key.nominated and key.nominated in cluster.nodes and not pod.spec.gates and not key.terminating:
            held = tuple(name for name in keys if name not in state.broken_promises)
            nominated += [Nominated(pod_class(pod, held), key.nominated)] if held else []
            ignored += [Ignored(name, f"nominated to node {key.nominated}") for name in held]
            keys = keys_without(keys, held)
        reason = ignored_reason(key, pod, policy, live=live)
        if reason:
            ignored += [Ignored(name, reason) for name in keys]
            continue
        early = delayed_pods(bucket, now) if pod.options.scale_up_delay else ()
        ignored += [Ignored(name, f"waits for its pod-scale-up-delay of {pod.options.scale_up_delay:g} s") for name in early]
        ready = keys_without(keys, early)
        if ready:
            wanted.append(pod_class(pod, ready, coming.get(pod.owner.uid, 0)))
    ignored += [Ignored(key, "finished") for key in cluster.finished]
    merged = merge_classes(wanted, live_selectors(cluster, wanted))
    together = [pod_class for pod_class in merged if pod_class.options.gang and not is_basic(cluster, pod_class)]
    gangs = gather_gangs(cluster, together, nominated)
    apart = set(map(id, merged)) - set(map(id, together))
    return Demand(
        classes=tuple(sorted((pod_class for pod_class in merged if id(pod_class) in apart), key=lambda pod_class: pod_class.order)),
        gangs=gangs,
        nominated=tuple(sorted(nominated, key=lambda n: (n.node, n.pod_class.order))),
        ignored=tuple(sorted(ignored, key=lambda entry: entry.pod)),
    )


def asks_for_device(pod_class: PodClass) -> bool:
    """Whether the pods of a class request an accelerator or a part of one."""
    return any(amount > 0 and is_device(name) for name, amount in pod_class.spec.requests.items())


def pod_class(pod: Pod, keys: tuple[str, ...], announced: int = 0) -> PodClass:
    return PodClass(pod.spec, pod.labels, pod.options, keys, announced)


def announcements(cluster: Cluster) -> dict[str, int]:
    """The number of pods that owners want beyond the existing ones, by the owner's uid, for owners with pending pods.

    The owner's status counts the existing pods. A status that counts fewer pods than are pending is outdated and ignored.
    """
    waiting: dict[str, int] = {}
    for key, bucket in cluster.unbound.items():
        if key.owner.uid:
            waiting[key.owner.uid] = waiting.get(key.owner.uid, 0) + len(bucket.pods)
    if not waiting:
        return {}
    counts = {}
    for workload in cluster.workloads.values():
        if workload.uid in waiting and workload.replicas > workload.observed >= waiting[workload.uid] and not workload.suspended:
            counts[workload.uid] = workload.replicas - workload.observed
    return counts


def keys_without(keys: tuple[str, ...], excluded: tuple[str, ...]) -> tuple[str, ...]:
    if not excluded:
        return keys
    excluded_keys = set(excluded)
    return tuple(key for key in keys if key not in excluded_keys)


def ignored_reason(key: ClassKey, pod: Pod, policy: Policy, *, live: bool) -> str:
    """The reason that a class of unbound pods is ignored; empty when it is demand."""
    spec = pod.spec
    if key.terminating:
        return "is being deleted"
    if spec.gates:
        return f"has scheduling gates: {', '.join(spec.gates)}"
    if spec.scheduler_name not in policy.schedulers:
        return f"uses scheduler {spec.scheduler_name!r}; only pods of {', '.join(policy.schedulers)} are planned for"
    if spec.resource_claims:
        return "uses dynamic resource allocation (resource claims), which is not supported yet"
    if spec.priority < policy.priority_cutoff:
        return f"has priority {spec.priority}, below the cut-off {policy.priority_cutoff}: nothing is bought for expendable pods"
    if live and key.unschedulable is not True:
        return "has not been tried by the scheduler yet"
    if key.owner.kind == "DaemonSet":
        return "is a DaemonSet pod: it runs on existing machines and is no reason to buy one"
    return ""


def delayed_pods(bucket: Bucket, now: float) -> tuple[str, ...]:
    """The pods whose annotation still delays buying machines for them."""
    return tuple(key for key in bucket.keys if now - (pod := bucket.pods[key]).created < (pod.options.scale_up_delay or 0.0))


@dataclass(frozen=True)
class LiveSelector:
    """A selector that matches pending pods; :func:`covers` decides which namespaces it covers."""

    selector: LabelSelector
    namespaces: tuple[str, ...]
    namespace_selector: LabelSelector | None


def live_selectors(cluster: Cluster, classes: Iterable[PodClass]) -> tuple[LiveSelector, ...]:
    """Every selector of a pending or bound pod that could match the labels of a pending pod."""
    selectors: dict[tuple[LabelSelector, tuple[str, ...], LabelSelector | None], None] = {}
    specs = {user.spec.digest: user.spec for user in cluster.users.values()}
    specs.update((pod_class.spec.digest, pod_class.spec) for pod_class in classes)
    for spec in specs.values():
        for term in spec.affinity + spec.anti_affinity:
            if term.selector is not None:
                selectors[term.selector, term.namespaces, term.namespace_selector] = None
        for constraint in spec.spread:
            if constraint.selector is not None:
                selectors[constraint.selector, (spec.namespace,), None] = None
    return tuple(LiveSelector(*parts) for parts in selectors)


def covers(term: PodAffinityTerm | LiveSelector, namespace: str, cluster: Cluster) -> bool:
    """Whether a term covers the pods of ``namespace``.

    A namespace selector that an empty label set satisfies covers every namespace, as in kube-scheduler (see ``filters.peers.Query``).
    """
    if namespace in term.namespaces:
        return True
    selector = term.namespace_selector
    if selector is None:
        return False
    labels = cluster.namespaces.get(namespace)
    return selector.matches({}) or (labels is not None and selector.matches(labels.labels))


def merge_classes(classes: Sequence[PodClass], selectors: Sequence[LiveSelector]) -> list[PodClass]:
    """Join classes whose labels no selector tells apart.

    Pods of one template often differ by a label (a job's index, a StatefulSet's pod name) that no selector uses. The namespace needs no
    check: it is part of the specification's digest, so joined classes share it.
    """
    joined: dict[tuple[object, ...], list[PodClass]] = {}
    signatures: dict[LabelSet, tuple[int, ...]] = {}
    index = SelectorIndex(live.selector for live in selectors)
    for pod_class in classes:
        if pod_class.labels not in signatures:
            signatures[pod_class.labels] = tuple(
                n for n in index.candidates(pod_class.labels) if selectors[n].selector.matches(pod_class.labels)
            )
        joined.setdefault((pod_class.spec.digest, signatures[pod_class.labels], pod_class.options), []).append(pod_class)
    return [alike[0] if len(alike) == 1 else join_classes(alike) for alike in joined.values()]


def join_classes(alike: Sequence[PodClass]) -> PodClass:
    """Join several classes into one, with the labels of the class that has the first pod key."""
    first = min(alike, key=lambda pod_class: pod_class.keys[0])
    keys = tuple(sorted(key for pod_class in alike for key in pod_class.keys))
    return PodClass(first.spec, first.labels, first.options, keys, sum(pod_class.announced for pod_class in alike))


def group_of(cluster: Cluster, source: str, namespace: str, name: str) -> PodGroup | None:
    """The object that declares a gang. Pods of a native Workload append their replica of a group to the group's name."""
    own = name.rpartition("/")[0] if source == "workload" and name.count("/") > 1 else name
    return cluster.pod_groups.get(f"{source}/{namespace}/{own}")


def is_basic(cluster: Cluster, pod_class: PodClass) -> bool:
    """Whether a class belongs to a group of a native Workload that is scheduled pod by pod, so that it is not a gang."""
    if pod_class.options.gang_source != "workload":
        return False
    group = group_of(cluster, "workload", pod_class.spec.namespace, pod_class.options.gang)
    return group is not None and group.min_member == 0


def parallelism(cluster: Cluster, namespace: str, name: str) -> int:
    """The total parallelism of the Jobs with unbound pods in an annotated gang; 0 when no such Job is known."""
    jobs = {
        key.owner.uid
        for key, bucket in cluster.unbound.items()
        if key.owner.kind == "Job" and key.options.gang == name and bucket.sample.namespace == namespace
    }
    return sum(workload.replicas for workload in cluster.workloads.values() if workload.kind == "Job" and workload.uid in jobs)


def gather_gangs(cluster: Cluster, classes: Sequence[PodClass], nominated: Sequence[Nominated]) -> tuple[Gang, ...]:
    """Join the classes of each gang, and count members that are bound or nominated, so that the rest does not wait for them forever.

    The size of a gang comes from its group object or annotation, else from the parallelism of its Jobs, else it is the number of its pods.
    """
    by_name: dict[tuple[str, str, str], list[PodClass]] = {}
    for pod_class in classes:
        by_name.setdefault((pod_class.options.gang_source, pod_class.spec.namespace, pod_class.options.gang), []).append(pod_class)
    running = seated_members(cluster, nominated) if by_name else {}
    gangs = []
    for (source, namespace, name), members in by_name.items():
        group = group_of(cluster, source, namespace, name)
        running_members = running.get((source, namespace, name), [])
        required = max([pod_class.options.gang_size for pod_class in members] + [group.min_member if group is not None else 0])
        if not required and source == "annotation":
            required = parallelism(cluster, namespace, name)
        total = sum(pod_class.count for pod_class in members)
        if any(map(asks_for_device, members)):
            members = [pod_class if asks_for_device(pod_class) else replace(pod_class, beside_gpus=True) for pod_class in members]
        gangs.append(
            Gang(
                name=f"{namespace}/{name}",
                size=required or total + len(running_members),
                topology=members[0].options.gang_topology,
                classes=tuple(sorted(members, key=lambda pod_class: pod_class.order)),
                nodes=tuple(sorted(running_members)),
            )
        )
    return tuple(sorted(gangs, key=lambda gang: (-gang.priority, -gang.count, gang.name)))


def seated_members(cluster: Cluster, nominated: Sequence[Nominated]) -> dict[tuple[str, str, str], list[str]]:
    """The nodes of the bound and the ``nominated`` pods of each gang, one entry per pod."""
    nodes: dict[tuple[str, str, str], list[str]] = {}
    for promise in nominated:
        options = promise.pod_class.options
        if options.gang:
            nodes.setdefault((options.gang_source, promise.pod_class.spec.namespace, options.gang), []).extend(
                [promise.node] * promise.pod_class.count
            )
    for name, pods in cluster.on_node.items():
        for pod in pods.values():
            if pod.options.gang and not pod.deleted:
                nodes.setdefault((pod.options.gang_source, pod.namespace, pod.options.gang), []).append(name)
    return nodes
