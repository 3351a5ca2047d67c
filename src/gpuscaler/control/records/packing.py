"""Everything that a plan was made from, as bytes: planning again from them gives the same plan, on any machine.

Between two decisions few pods change in a large cluster, so that most of the bytes of the one before will do for the next.
"""

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from gpuscaler import __version__
from gpuscaler.control.records.records import Decision
from gpuscaler.control.records.wire import FORM, GONE, SHARED, Form, Head, Shared, WirePod
from gpuscaler.model.cluster import HOMES
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Owner, Pod, PodOptions, PodSpec

#: Objects that are encoded at a time, and how hard it is tried to make them small: 3 takes a third of the time of 6 for a tenth more bytes.
AT_ONCE, LEVEL = 500, 3
#: Pods are all written anew once more than this part of them has gone and come (a change is both), and more than so many.
CHANGED, FEW = 0.2, 1_000

Tables = Mapping[type, Shared]
Pods = Mapping[str, Pod]


class Base:
    """Pods as they were at some decision, and the bytes of them. They are kept alive, so that their identity tells them."""

    def __init__(self, pods: Pods) -> None:
        self.pods = pods
        self.tables: Tables = {kind: Shared() for kind in SHARED}
        encode = msgspec.msgpack.Encoder().encode
        self.data = compressed((encode(Form(FORM, __version__)), *_pods(pods.values(), self.tables, encode)))

    def difference(self, pods: Pods) -> tuple[list[str], list[Pod]] | None:
        """Keys of pods that are gone or changed, and pods that come after the others; None where these are many, or all in another order.

        A cluster puts a pod that changes behind the others.
        """
        before = self.pods
        put = [pod for key, pod in pods.items() if before.get(key) is not pod]
        gone = [key for key, pod in before.items() if pods.get(key) is not pod]
        if len(put) + len(gone) > max(FEW, CHANGED * len(before)):
            return None
        after = dict.fromkeys(before)
        for key in gone:
            del after[key]
        after.update(dict.fromkeys(pod.key for pod in put))
        return (gone, put) if list(after) == list(pods) else None


class Packer:
    """Packs one decision after the other; may be called from any thread, one waits for the other."""

    def __init__(self) -> None:
        self._base = Base({})
        self._lock = threading.Lock()

    def packed(self, decision: Decision) -> bytes:
        """The inputs of a decision, and its plan."""
        with self._lock:
            difference = self._base.difference(decision.cluster.pods)
            if difference is None:
                self._base, difference = Base(decision.cluster.pods), ([], [])
            return self._base.data + compressed(_frames(decision, self._base.tables, *difference))


def packed(decision: Decision) -> bytes:
    """The inputs of a decision, and its plan, by themselves."""
    return Packer().packed(decision)


def compressed(frames: Iterable[bytes]) -> bytes:
    """``frames`` as one stream."""
    compressor = zlib.compressobj(LEVEL)
    pieces = []
    for frame in frames:
        pieces.append(compressor.compress(len(frame).to_bytes(4)))
        pieces.append(compressor.compress(frame))
    pieces.append(compressor.flush())
    return b"".join(pieces)


def _frames(decision: Decision, tables: Tables, gone: list[str], put: list[Pod]) -> Iterator[bytes]:
    encode = msgspec.msgpack.Encoder().encode
    cluster = decision.cluster
    yield encode(Head(decision.id, decision.at, decision.text, decision.policy, decision.state, decision.plan, cluster.set_aside))
    for kind, (home, _) in HOMES.items():
        yield from _chunks(kind.__name__, getattr(cluster, home).values(), encode)
    yield from _chunks(Node.__name__, cluster.nodes.values(), encode)
    yield from _chunks(GONE, gone, encode)
    if put:
        yield from _pods(put, {kind: Shared(table) for kind, table in tables.items()}, encode)


def _pods(pods: Iterable[Pod], tables: Tables, encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    source = iter(pods)
    while some := [_wire(pod, tables) for pod in islice(source, AT_ONCE)]:
        # What they share comes before them, as far as it was not needed before.
        for kind, table in tables.items():
            yield from _chunks(kind.__name__, table.fresh(), encode)
        yield from _chunks(Pod.__name__, some, encode)


def _chunks(kind: str, items: Iterable[Any], encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    source = iter(items)
    while some := list(islice(source, AT_ONCE)):
        yield encode([kind, some])


def _wire(pod: Pod, tables: Tables) -> WirePod:
    return WirePod(
        pod.namespace,
        pod.name,
        tables[PodSpec].place(pod.spec),
        tables[LabelSet].place(pod.labels),
        tables[PodOptions].place(pod.options),
        tables[Owner].place(pod.owner),
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
    )
