"""Objects that make planning fail: they are found by a bisecting search, skipped and reported, and used again when they change.

An unexpected error does not say which object caused it. Planning has no side effects, so it can be repeated without some of the objects:
first without the ones that changed since planning last succeeded, the latest first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TypeAlias

from msgspec import Struct

from gpuscaler.model.aside import Skipped, object_name
from gpuscaler.model.cluster import HOMES, Cluster, Delta, Item
from gpuscaler.model.pods import Pod
from gpuscaler.model.storage import PersistentVolumeClaim
from gpuscaler.model.workloads import DeviceObject, PodGroup, Workload

#: How many objects are found one by one. If there are more, their namespaces are skipped, or else all later objects, too.
ALONE = 4
#: The maximum number of attempts.
TRIALS = 80
#: Kinds besides pods that users with access to one namespace can write. Nodes and budgets are never left out: otherwise machines might
#: look unused, and protected pods might be evicted.
OTHERS: Mapping[str, type] = {kind.__name__: kind for kind in (PodGroup, Workload, PersistentVolumeClaim, DeviceObject)}

#: A function that raises an error if planning for a cluster fails.
Attempt: TypeAlias = Callable[[Cluster], object]
#: An object of a cluster: its type and its key.
Name: TypeAlias = tuple[type, str]


class Poison(Struct, frozen=True, gc=False):
    """An object that makes planning fail: its ``kind`` and ``key`` in the cluster, and the ``digest`` of its content when it did."""

    kind: str
    key: str
    digest: str
    reason: str


def remaining(poison: Sequence[Poison], cluster: Cluster) -> tuple[Poison, ...]:
    """Return the objects of ``poison`` that still exist unchanged."""
    return tuple(each for each in poison if (item := _item(cluster, _name(each))) is not None and digest(item) == each.digest)


def without_poison(cluster: Cluster, poison: Sequence[Poison]) -> Cluster:
    """Return ``cluster`` without the objects of ``poison``, recorded as skipped; a node with a skipped pod is kept, as always."""
    if not poison:
        return cluster
    aside = []
    for each in poison:
        name = _name(each)
        item = _item(cluster, name)
        node = item.node_name if isinstance(item, Pod) and not item.finished else ""
        aside.append(Skipped(object_name(*name), each.reason, node if name[0] is Pod else None))
    return cluster.apply(Delta(deletes=tuple(_name(each) for each in poison)), set_aside=aside)


def culprits(cluster: Cluster, before: Cluster | None, attempt: Attempt, reason: str) -> tuple[Poison, ...]:
    """Return objects of ``cluster`` without which ``attempt`` succeeds; empty if it fails even without all objects that may be left out.

    ``before`` is the last cluster for which the attempt succeeded.
    """
    search = _Search(cluster, attempt)
    for candidates in _suspects(cluster, before):
        if candidates and not search.fails(candidates):
            faulty = search.narrow(candidates)
            return tuple(Poison(kind.__name__, key, digest(_existing_item(cluster, (kind, key))), reason) for kind, key in faulty)
    return ()


def digest(item: Item) -> str:
    """Return a digest of the object's content, without what kube-scheduler and kubelets write to a pod."""
    content: object = item
    if isinstance(item, Pod):
        content = (item.spec.digest, sorted(item.labels.items()), item.options, item.owner, item.node_name)
    return blake2b(repr(content).encode(errors="replace"), digest_size=16).hexdigest()


def _suspects(cluster: Cluster, before: Cluster | None) -> Iterator[list[Name]]:
    """Yield lists of objects that may be left out, pending and changed ones first; each list is sorted by creation time."""
    pods = sorted(cluster.pods.values(), key=lambda pod: (pod.created, pod.key))
    previous = before.pods if before is not None else {}
    fresh = [pod for pod in pods if previous.get(pod.key) is not pod]
    for suspects in (fresh, pods) if len(fresh) < len(pods) else (pods,):
        yield [(Pod, pod.key) for pod in suspects if not pod.node_name and not pod.finished]
        yield [(Pod, pod.key) for pod in suspects]
    others = [(kind, key) for kind in OTHERS.values() for key in sorted(getattr(cluster, HOMES[kind][0]))]
    yield others
    yield [(Pod, pod.key) for pod in pods] + others


class _Search:
    """Attempts without some objects of ``cluster``, at most ``TRIALS`` of them."""

    def __init__(self, cluster: Cluster, attempt: Attempt) -> None:
        self._cluster, self._attempt = cluster, attempt
        self._trials = 0

    def fails(self, names: Iterable[Name]) -> bool:
        """Whether the attempt fails without the objects ``names``."""
        self._trials += 1
        try:
            self._attempt(self._cluster.apply(Delta(deletes=tuple(names))))
        except Exception:  # noqa: BLE001  # whichever error it is, an attempt without the right objects raises none
            return True
        return False

    def narrow(self, candidates: Sequence[Name]) -> list[Name]:
        """Return a small subset of ``candidates`` without which the attempt succeeds; without all ``candidates`` it succeeds."""
        rest, faulty = list(candidates), list[Name]()
        while self._trials < TRIALS and self.fails(faulty):
            prefix = self._longest_prefix(rest, faulty)
            if len(faulty) == ALONE:
                spaces = {_namespace(name) for name in faulty}
                crowd = [name for name in candidates if _namespace(name) in spaces]
                return crowd if len(crowd) < len(candidates) and not self.fails(crowd) else faulty + rest[prefix:]
            faulty.append(rest.pop(prefix))
        return faulty if self._trials < TRIALS else faulty + rest

    def _longest_prefix(self, rest: Sequence[Name], faulty: Sequence[Name]) -> int:
        """Return the largest number of ``rest``, counted from the oldest, with which the attempt still succeeds."""
        succeeds, fails = 0, len(rest)
        while fails - succeeds > 1:
            middle = (succeeds + fails) // 2
            if self.fails([*faulty, *rest[middle:]]):
                fails = middle
            else:
                succeeds = middle
        return succeeds


def _namespace(name: Name) -> str:
    return name[1].split("/", 1)[0]


def _name(poison: Poison) -> Name:
    return OTHERS.get(poison.kind, Pod), poison.key


def _item(cluster: Cluster, name: Name) -> Item | None:
    kind, key = name
    items: Mapping[str, Item] = cluster.pods if kind is Pod else getattr(cluster, HOMES[kind][0])
    return items.get(key)


def _existing_item(cluster: Cluster, name: Name) -> Item:
    item = _item(cluster, name)
    assert item is not None
    return item
