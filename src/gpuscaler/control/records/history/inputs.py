"""Reads decisions from the bytes of :mod:`~gpuscaler.control.records.history.packing`."""

import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar

import msgspec

from gpuscaler import __version__
from gpuscaler.control.records.events.records import Decision
from gpuscaler.control.records.history.wire import FORM, GONE, SHARED, Chunk, Form, Head, WirePod
from gpuscaler.model.cluster import HOMES, Cluster, Delta, Item
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Owner, Pod, PodOptions, PodSpec

#: The maximum number of bytes that are unpacked: a cluster of 300,000 pods needs a tenth of it.
MOST = 2**31

_T = TypeVar("_T")


class InputsError(Exception):
    """The bytes are not the inputs of a plan; the text says what was seen and what was expected."""


def unpack_decision(data: bytes) -> tuple[Decision, str]:
    """The decision in ``data``, and the version that wrote it. Raises :class:`InputsError`."""
    try:
        frames, rest = _split(data, len(data))
        form = msgspec.msgpack.decode(next(frames, b""), type=Form)
        if form.form != FORM:
            raise InputsError(f"saw inputs of form {form.form} written by gpuscaler {form.version}, expected form {FORM}")
        decoded_frames = _DecodedFrames()
        while True:
            frames, rest = _split(rest, len(data))
            if not rest:
                break
            decoded_frames.decode(frames)
        head = msgspec.msgpack.decode(next(frames, b""), type=Head)
    except (zlib.error, msgspec.MsgspecError, LookupError) as error:
        raise InputsError(f"saw {len(data)} bytes that cannot be read ({error}), expected the inputs of a decision") from error
    cluster = Cluster().apply(Delta(upserts=tuple(decoded_frames.items())), set_aside=head.set_aside)
    return Decision(head.id, head.at, head.text, cluster, head.state, head.policy, head.plan), form.version


def _split(data: bytes, size: int) -> tuple[Iterator[bytes], bytes]:
    """The frames of the stream at the beginning of ``data``, and the rest of the data; ``size`` is the total size for error messages."""
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


class _DecodedFrames:
    """The objects of the frames read so far."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, Item]] = {kind.__name__: {} for kind in (*HOMES, Node, Pod)}
        self._kinds: dict[str, tuple[type, str]] = {kind.__name__: (kind, key) for kind, (_, key) in HOMES.items()} | {
            "Node": (Node, "name")
        }
        self._shared: dict[str, tuple[type, list[Any]]] = {kind.__name__: (kind, []) for kind in SHARED}

    def items(self) -> Iterator[Item]:
        return chain.from_iterable(objects.values() for objects in self._objects.values())

    def decode(self, frames: Iterable[bytes]) -> None:
        for frame in frames:
            chunk = msgspec.msgpack.decode(frame, type=Chunk)
            if chunk.kind in self._kinds:
                kind, key = self._kinds[chunk.kind]
                objects: list[Any] = _decode_items(chunk, kind)
                self._objects[chunk.kind].update((getattr(item, key), item) for item in objects)
            elif chunk.kind in self._shared:
                kind, items = self._shared[chunk.kind]
                items += _decode_items(chunk, kind)
            elif chunk.kind == Pod.__name__:
                self._objects[chunk.kind].update((pod.key, pod) for pod in self._join_pods(_decode_items(chunk, WirePod)))
            elif (remaining := self._objects.get(chunk.kind.removeprefix(GONE))) is not None:
                for key in _decode_items(chunk, str):
                    del remaining[key]
            else:
                raise InputsError(f"saw objects of kind {chunk.kind!r}, expected those that gpuscaler {__version__} knows")

    def _join_pods(self, wires: list[WirePod]) -> Iterator[Pod]:
        specs, labels, options, owners = (items for _, items in self._shared.values())
        for pod in wires:
            yield _from_wire(pod, specs[pod.spec], labels[pod.labels], options=options[pod.options], owner=owners[pod.owner])


def _decode_items(chunk: Chunk, kind: type[_T]) -> list[_T]:
    return msgspec.msgpack.decode(chunk.items, type=list[kind], dec_hook=_hook)  # type: ignore[valid-type]  # a type made at run time


def _hook(kind: type, value: Any) -> Any:
    if kind is LabelSet:
        return LabelSet(value)
    raise NotImplementedError(kind)


def _from_wire(pod: WirePod, spec: PodSpec, labels: LabelSet, *, options: PodOptions, owner: Owner) -> Pod:
    return Pod(
        namespace=pod.namespace,
        name=pod.name,
        spec=spec,
        labels=labels,
        uid=pod.uid,
        node_name=pod.node_name,
        nominated_node=pod.nominated_node,
        phase=pod.phase,
        created=pod.created,
        deleted=pod.deleted,
        started=pod.started,
        unschedulable=pod.unschedulable,
        unschedulable_since=pod.unschedulable_since,
        owner=owner,
        options=options,
        warnings=pod.warnings,
        checkpoint_requested=pod.checkpoint_requested,
        checkpointed=pod.checkpointed,
        ready=pod.ready,
        reason=pod.reason,
    )
