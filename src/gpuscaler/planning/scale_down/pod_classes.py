"""Groups running pods into classes: pods of one class have the same protection and fit the same nodes, so each class is checked once."""

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from gpuscaler.model.accelerators import DIVISIBLE
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node, first_label
from gpuscaler.model.pods import Pod, PodOptions, PodSpec
from gpuscaler.model.well_known import ARCH, ZONE_LABELS
from gpuscaler.planning.capacity.gpu_products import own_product
from gpuscaler.planning.capacity.idle import leaves_with_machine


@dataclass(frozen=True)
class Origin:
    """Properties of its node that a pod may rely on, so that a new node must have them too.

    Architecture: the images run there. ``bare``: the node has no accelerators, so its pods are not moved to a node with accelerators: they
    would prevent its removal once its accelerators are unused. Zone and GPU product: only for gangs. ``domain``: node labels, with their
    values, that must stay the same because rules of this or other pods count by them.
    """

    arch: str = ""
    bare: bool = True
    zone: str | None = None
    product: str | None = None
    domain: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, eq=False)
class RunningClass:
    """Pods that are identical for scale-down. ``order`` sorts classes independently of the order of objects."""

    spec: PodSpec
    labels: LabelSet
    options: PodOptions
    owner_kind: str
    origin: Origin

    @cached_property
    def order(self) -> tuple[object, ...]:
        return (self.spec.digest, sorted(self.labels.items()), self.owner_kind, repr(self.options), repr(self.origin))

    @property
    def restarts(self) -> bool:
        """Whether a disruption loses work: a Job's pod or a member of a gang."""
        return self.owner_kind == "Job" or bool(self.options.gang)


#: The pods of one node, by class. Tuples of pods, since the garbage collector need not scan them again.
Load = dict[RunningClass, tuple[Pod, ...]]

#: Running classes by content.
Classes = MutableMapping[tuple[object, ...], RunningClass]


class Residents(NamedTuple):
    """The pods of a node.

    ``load``: pods to move, by class; ``going``: those of them that are terminating; ``attached``: pods that leave with the machine.
    ``ages``: the passing of time alone may change what protects these pods, or which of them count.
    """

    load: Load
    going: tuple[Pod, ...]
    attached: tuple[Pod, ...]
    ages: bool


class Grouping:
    """Groups pods into classes. Interned parts are compared by identity first: 80,000 pods take about 50 ms.

    ``known`` are existing classes by content; new ones are added.
    """

    def __init__(self, cluster: Cluster, now: float, running_classes: Classes) -> None:
        self._cluster = cluster
        self._now = now
        self._by_content = running_classes
        self._plain: dict[tuple[str, bool], tuple[Origin, dict[tuple[object, ...], RunningClass]]] = {}
        self._timed: set[RunningClass] = set()

    def load(self, node: Node) -> Residents:
        """The pods on ``node``, sorted by what its removal does to them."""
        load: Load = {}
        going: list[Pod] = []
        attached: list[Pod] = []
        has = (node.labels.get(ARCH, "amd64"), is_bare(node))
        if has not in self._plain:
            self._plain[has] = (Origin(*has), {})
        plain, identity = self._plain[has]
        for pod in self._cluster.on_node.get(node.name, {}).values():
            # Read once, compared by identity: the loop runs for every pod of the cluster.
            running_class = identity.get((id(pod.spec), id(pod.labels), id(pod.options), pod.owner.kind))
            if running_class is None or pod.deleted:
                if leaves_with_machine(pod, self._now):
                    attached.append(pod)
                    continue
                if pod.deleted:
                    going.append(pod)
                running_class = self._class_of(pod, node, plain)
            pods = load.get(running_class)
            load[running_class] = (pod,) if pods is None else (*pods, pod)
        ages = bool(going) or not self._timed.isdisjoint(load) or any(pod.deleted or is_timed(pod.options) for pod in attached)
        return Residents(load, tuple(going), tuple(attached), ages)

    def _class_of(self, pod: Pod, node: Node, plain: Origin) -> RunningClass:
        origin = plain
        if pod.options.gang and pod.options.gang_topology != "any":
            origin = replace(plain, zone=first_label(node, ZONE_LABELS), product=own_product(node))
        content = (pod.spec.digest, pod.labels, pod.options, pod.owner.kind, origin)
        running_class = self._by_content.get(content)
        if running_class is None:
            running_class = RunningClass(pod.spec, pod.labels, pod.options, pod.owner.kind, origin)
            self._by_content[content] = running_class
        if is_timed(pod.options):
            self._timed.add(running_class)
        if origin is plain:
            # The cluster keeps the parts alive, so their id() is not reused while this object is in use.
            self._plain[plain.arch, plain.bare][1][id(pod.spec), id(pod.labels), id(pod.options), pod.owner.kind] = running_class
        return running_class


def pods_of(load: Load) -> Iterable[Pod]:
    """The pods of a load."""
    return chain.from_iterable(load.values())


def is_timed(options: PodOptions) -> bool:
    """Whether a pod with ``options`` is protected for a time."""
    return not isinstance(options.do_not_disrupt, bool)


def is_bare(node: Node) -> bool:
    """Whether a node has no accelerators."""
    return not any(node.allocatable.get(name) for name in DIVISIBLE)


def first_key(pods: Iterable[Pod]) -> str:
    """The key of the first pod by name, which stands for several pods in a message."""
    return min(pod.key for pod in pods)
