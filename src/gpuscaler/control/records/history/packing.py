"""Packs all inputs of a plan into bytes: planning again from them gives the same plan, on any machine.

Between two decisions little changes in a large cluster. The bytes of the previous decision are reused, and the changes since are appended:
the work grows with the changes.
"""

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import msgspec

from gpuscaler import __version__
from gpuscaler.control.records.events.records import Decision
from gpuscaler.control.records.history.wire import (
    FORMAT_VERSION,
    SHARED,
    DecisionRecord,
    FormatHeader,
    SharedObjects,
    WirePod,
    removed_kind,
)
from gpuscaler.model.cluster import HOMES, Cluster
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Owner, Pod, PodOptions, PodSpec

#: The number of objects encoded at a time, and the compression level: 3 takes a third of the time of 6 for a tenth more bytes.
AT_ONCE, LEVEL = 500, 3
#: All objects are written again once more than this share of them, and more than this number, was removed or added (a change is both).
CHANGED, FEW = 0.2, 1_000
#: How many pods are compared in one step.
ALIKE = 256

Tables = Mapping[type, SharedObjects]
Encode = Callable[[Any], bytes]
T = TypeVar("T")
#: A type, the keys of its objects that are gone, and its new or changed objects.
Difference = tuple[type, list[str], list[Any]]


class DeltaEncoder:
    """The bytes written so far, ``data``, and the objects in them, which are kept alive so that they can be compared by identity."""

    def __init__(self, cluster: Cluster) -> None:
        self._encode: Encode = msgspec.msgpack.Encoder().encode
        self._tables: Tables = {kind: SharedObjects() for kind in SHARED}
        self._pods: dict[str, Pod] = {}
        self._objects: dict[type, Mapping[str, Any]] = {kind: {} for kind in (*HOMES, Node)}
        self._size, self._changes = len(cluster.pods) + sum(map(len, self._objects_of(cluster).values())), 0
        self.data = compress([self._encode(FormatHeader(FORMAT_VERSION, __version__))])
        self._write(cluster, self._differences(cluster))

    def append_differences(self, cluster: Cluster) -> bool:
        """Append the differences of ``cluster``; False if there are so many that all objects should be written again."""
        differences = self._differences(cluster)
        self._changes += sum(len(removed) + len(changed) for _, removed, changed in differences)
        if self._changes > max(FEW, CHANGED * self._size):
            return False
        self._write(cluster, differences)
        return True

    def _objects_of(self, cluster: Cluster) -> dict[type, Mapping[str, Any]]:
        return {kind: cluster.nodes if kind is Node else getattr(cluster, HOMES[kind][0]) for kind in self._objects}

    def _differences(self, cluster: Cluster) -> list[Difference]:
        differences: list[Difference] = []
        for kind, after in self._objects_of(cluster).items():
            if after is not self._objects[kind]:
                differences.append((kind, *changed_objects(self._objects[kind], after)))
        if cluster.pods is not self._pods:
            differences.append((Pod, *changed_pods(self._pods, cluster.pods)))
        return differences

    def _write(self, cluster: Cluster, differences: Iterable[Difference]) -> None:
        frames: list[bytes] = []
        for kind, removed, changed in differences:
            frames += _encode_frames(removed_kind(kind), removed, self._encode)
            frames += (
                _encode_pods(changed, self._tables, self._encode) if kind is Pod else _encode_frames(kind.__name__, changed, self._encode)
            )
        if frames:
            self.data += compress(frames)
        self._objects, self._pods = self._objects_of(cluster), cluster.pods


def changed_objects(before: Mapping[str, T], after: Mapping[str, T]) -> tuple[list[str], list[T]]:
    """Keys that are gone, and objects that are new or changed; a changed object keeps its place, a new one comes last."""
    removed = [key for key in before if key not in after]
    changed = {key: item for key, item in after.items() if before.get(key) is not item}
    expected = dict.fromkeys(before)
    for key in removed:
        del expected[key]
    expected.update(dict.fromkeys(changed))
    return (removed, list(changed.values())) if list(expected) == list(after) else (list(before), list(after.values()))


def changed_pods(before: dict[str, Pod], after: dict[str, Pod]) -> tuple[list[str], list[Pod]]:
    """Keys of pods that are gone or changed, and pods to append: a cluster moves a pod that changes to the end."""
    added: list[Pod] = []
    for key, pod in reversed(after.items()):
        if before.get(key) is pod:
            break
        added.append(pod)
    removed = removed_pods(list(before.values()), list(islice(after.values(), len(after) - len(added))))
    return (list(before), list(after.values())) if removed is None else ([pod.key for pod in removed], added[::-1])


def removed_pods(before: list[Pod], after: list[Pod]) -> list[Pod] | None:
    """The pods of ``before`` that are not in ``after``; None if ``after`` has other pods or another order."""
    removed: list[Pod] = []
    position = after_position = 0
    while after_position < len(after):
        size = min(ALIKE, len(after) - after_position)
        if before[position : position + size] == after[after_position : after_position + size]:
            position, after_position = position + size, after_position + size
            continue
        while position < len(before) and before[position] is after[after_position]:
            position, after_position = position + 1, after_position + 1
        if position == len(before):
            return None
        removed.append(before[position])
        position += 1
    return removed + before[position:]


class Packer:
    """Packs decisions one after the other; may be called from any thread: a lock serializes the calls."""

    def __init__(self) -> None:
        self._base: DeltaEncoder | None = None
        self._lock = threading.Lock()

    def pack(self, decision: Decision) -> bytes:
        """The bytes of a decision's inputs and its plan."""
        with self._lock:
            # If this fails, the next decision cannot use the bytes written so far.
            base, self._base = self._base, None
            if base is None or not base.append_differences(decision.cluster):
                base = DeltaEncoder(decision.cluster)
            self._base = base
            return base.data + compress([_encode_record(decision)])


def pack_decision(decision: Decision) -> bytes:
    """The bytes of one decision's inputs and its plan, independent of others."""
    return Packer().pack(decision)


def compress(frames: Iterable[bytes]) -> bytes:
    """``frames`` as one compressed stream."""
    compressor = zlib.compressobj(LEVEL)
    pieces = []
    for frame in frames:
        pieces.append(compressor.compress(len(frame).to_bytes(4)))
        pieces.append(compressor.compress(frame))
    pieces.append(compressor.flush())
    return b"".join(pieces)


def _encode_record(decision: Decision) -> bytes:
    skipped = decision.cluster.set_aside
    return msgspec.msgpack.encode(
        DecisionRecord(decision.id, decision.at, decision.text, decision.policy, decision.state, decision.plan, skipped)
    )


def _encode_pods(pods: Iterable[Pod], tables: Tables, encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    source = iter(pods)
    while some := [_to_wire(pod, tables) for pod in islice(source, AT_ONCE)]:
        # Shared objects that were not written yet come before the pods that refer to them.
        for kind, table in tables.items():
            yield from _encode_frames(kind.__name__, table.take_new(), encode)
        yield from _encode_frames(Pod.__name__, some, encode)


def _encode_frames(kind: str, items: Iterable[Any], encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    source = iter(items)
    while some := list(islice(source, AT_ONCE)):
        yield encode([kind, some])


def _to_wire(pod: Pod, tables: Tables) -> WirePod:
    return WirePod(
        pod.namespace,
        pod.name,
        tables[PodSpec].intern(pod.spec),
        tables[LabelSet].intern(pod.labels),
        tables[PodOptions].intern(pod.options),
        tables[Owner].intern(pod.owner),
        pod.uid,
        pod.node_name,
        pod.nominated_node,
        pod.phase,
        pod.created,
        pod.deleted,
        pod.started,
        pod.unschedulable,
        pod.unschedulable_since,
        pod.warnings,
        pod.checkpoint_requested,
        pod.checkpointed,
        pod.ready,
        pod.reason,
        pod.unready_since,
        pod.ignored_findings,
    )
