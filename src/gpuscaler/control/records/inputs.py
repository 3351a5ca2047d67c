"""Decisions out of the bytes of :mod:`~gpuscaler.control.records.packing`."""

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from gpuscaler import __version__
from gpuscaler.control.records.records import Decision
from gpuscaler.control.records.wire import FORM, GONE, SHARED, Chunk, Form, Head, WirePod
from gpuscaler.model.cluster import HOMES, Cluster, Delta, Item
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Owner, Pod, PodOptions, PodSpec

#: The most bytes that are unpacked: a cluster of 300,000 pods has a tenth of it.
MOST = 2**31

_T = TypeVar("_T")


class InputsError(Exception):
    """Bytes that are not the inputs of a plan; the text says what was seen and what was expected."""


def unpacked(data: bytes) -> tuple[Decision, str]:
    """The decision behind ``data``, and the version that made it. Raises :class:`InputsError`."""
    try:
        frames, rest = _split(data, len(data))
        form = msgspec.msgpack.decode(next(frames, b""), type=Form)
        if form.form != FORM:
            raise InputsError(f"saw inputs of form {form.form} written by gpuscaler {form.version}, expected form {FORM}")
        found = _Found()
        found.take(frames)
        frames, _ = _split(rest, len(data))
        head = msgspec.msgpack.decode(next(frames, b""), type=Head)
        found.take(frames)
    except (zlib.error, msgspec.MsgspecError, LookupError) as error:
        raise InputsError(f"saw {len(data)} bytes that cannot be read ({error}), expected the inputs of a decision") from error
    cluster = Cluster().apply(Delta(upserts=(*found.others, *found.pods.values())), set_aside=head.set_aside)
    return Decision(head.id, head.at, head.text, cluster, head.state, head.policy, head.plan), form.version


def _split(data: bytes, size: int) -> tuple[Iterator[bytes], bytes]:
    """The frames of the stream at the beginning of ``data``, part of ``size`` bytes, and what follows it."""
    decompressor = zlib.decompressobj()
    whole = decompressor.decompress(data, MOST)
    if not decompressor.eof:
        raise InputsError(f"saw {size} bytes that end early, or are more than {MOST} unpacked; expected the inputs of a decision")
    return _frames(memoryview(whole)), decompressor.unused_data


def _frames(whole: memoryview) -> Iterator[bytes]:
    while whole:
        size = int.from_bytes(whole[:4])
        yield bytes(whole[4 : 4 + size])
        whole = whole[4 + size :]


class _Found:
    """What frames hold, one stream after the other."""

    def __init__(self) -> None:
        self.others: list[Item] = []
        self.pods: dict[str, Pod] = {}
        self._kinds: dict[str, type] = {kind.__name__: kind for kind in (*HOMES, Node)}
        self._shared: dict[str, tuple[type, list[Any]]] = {kind.__name__: (kind, []) for kind in SHARED}

    def take(self, frames: Iterable[bytes]) -> None:
        for frame in frames:
            chunk = msgspec.msgpack.decode(frame, type=Chunk)
            if chunk.kind in self._kinds:
                self.others += _decoded(chunk, self._kinds[chunk.kind])
            elif chunk.kind in self._shared:
                kind, items = self._shared[chunk.kind]
                items += _decoded(chunk, kind)
            elif chunk.kind == Pod.__name__:
                self._take_pods(_decoded(chunk, WirePod))
            elif chunk.kind == GONE:
                for key in _decoded(chunk, str):
                    del self.pods[key]
            else:
                raise InputsError(f"saw objects of kind {chunk.kind!r}, expected those that gpuscaler {__version__} knows")

    def _take_pods(self, wires: list[WirePod]) -> None:
        specs, labels, options, owners = (items for _, items in self._shared.values())
        for one in wires:
            pod = _pod(one, specs[one.spec], labels[one.labels], options=options[one.options], owner=owners[one.owner])
            self.pods[pod.key] = pod


def _decoded(chunk: Chunk, kind: type[_T]) -> list[_T]:
    return msgspec.msgpack.decode(chunk.items, type=list[kind], dec_hook=_hook)  # type: ignore[valid-type]  # a type made at run time


def _hook(kind: type, value: Any) -> Any:
    if kind is LabelSet:
        return LabelSet(value)
    raise NotImplementedError(kind)


def _pod(one: WirePod, spec: PodSpec, labels: LabelSet, *, options: PodOptions, owner: Owner) -> Pod:
    return Pod(
        namespace=one.namespace,
        name=one.name,
        spec=spec,
        labels=labels,
        uid=one.uid,
        node_name=one.node_name,
        nominated_node=one.nominated_node,
        phase=one.phase,
        created=one.created,
        deleted=one.deleted,
        started=one.started,
        unschedulable=one.unschedulable,
        unschedulable_since=one.unschedulable_since,
        owner=owner,
        options=options,
        warnings=one.warnings,
        checkpoint_requested=one.checkpoint_requested,
        checkpointed=one.checkpointed,
    )
