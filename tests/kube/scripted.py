"""An API server that gives scripted answers, one after the other."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests import objects

from gpuscaler.kube.client import Client
from gpuscaler.kube.decode import ObjectDecoder
from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.reflector import Batch, Pace, Reflector
from gpuscaler.kube.resources import PODS, Resource
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.kube.turns import DecodeLock
from gpuscaler.model.cluster import Item
from gpuscaler.model.decoding.interning import Interner

Json = dict[str, Any]
#: Instead of a piece: nothing more comes, and the connection stays open.
SILENCE = "silence"
#: Instead of a piece: the connection breaks.
BROKEN = "broken"


@dataclass
class Reply:
    """One answer. A number among ``pieces`` is a pause in seconds."""

    pieces: Iterable[bytes | float | str]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class Scripted:
    """A transport over ``replies``; when they are used up, every request is accepted and nothing comes."""

    def __init__(self, *replies: Reply | Exception) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        self.times: list[float] = []

    @property
    def watches(self) -> list[Mapping[str, str]]:
        return [request.query for request in self.requests if "watch" in request.query]

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        self.requests.append(request)
        self.times.append(asyncio.get_running_loop().time())
        reply = self.replies.pop(0) if self.replies else Reply([SILENCE])
        if isinstance(reply, Exception):
            raise reply
        yield Answer(reply.status, reply.headers, _pieces(reply.pieces))

    async def close(self) -> None:
        pass


async def _pieces(pieces: Iterable[bytes | float | str]) -> AsyncIterator[bytes]:
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
        elif piece == SILENCE:
            await asyncio.Event().wait()
        elif piece == BROKEN:
            raise Unreachable("the connection broke")
        else:
            await asyncio.sleep(float(piece))


def pod(name: str, *, node: str = "", version: int = 1, **status: Any) -> Json:
    """A small pod in the namespace ``team``."""
    metadata = {"namespace": "team", "uid": f"uid-{name}", "resourceVersion": str(version)}
    now = {"phase": "Running" if node else "Pending", **status}
    bound: Json = {"nodeName": node} if node else {}
    return objects.pod(name, metadata=metadata, status=now, **bound)


def waiting(name: str, *, version: int = 1) -> Json:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "2026-03-01T08:00:00Z"}
    return pod(name, version=version, conditions=[condition])


def event(kind: str, item: Json) -> bytes:
    return json.dumps({"type": kind, "object": item}, separators=(",", ":")).encode() + b"\n"


def bookmark(version: int, *, end: bool = False) -> bytes:
    annotations = {"annotations": {"k8s.io/initial-events-end": "true"}} if end else {}
    metadata = {"resourceVersion": str(version), **annotations}
    return event("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"containers": None}, "status": {}})


def listed(*items: Json, version: int = 100) -> bytes:
    """The beginning of a watch that lists ``items``."""
    return b"".join(event("ADDED", item) for item in items) + bookmark(version, end=True)


def page(*items: Json, version: int = 100, more: str = "") -> Reply:
    bare = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in items]
    metadata = {"resourceVersion": str(version), **({"continue": more} if more else {})}
    return Reply([json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": bare}).encode()])


def failure(status: int, reason: str = "", *, headers: Mapping[str, str] | None = None, **details: Any) -> Reply:
    return Reply([json.dumps(status_object(status, reason, **details)).encode()], status, headers or {})


def status_object(status: int, reason: str = "", **details: Any) -> Json:
    status_fields = {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": f"said {reason or status}"}
    return status_fields | ({"details": details} if details else {})


#: A server before streaming lists, as Kubernetes 1.33 words it.
NO_STREAMS = failure(422, "Invalid")


@dataclass
class ReceivedObjects:
    """Everything that a reflector passed on, merged."""

    batches: list[Batch] = field(default_factory=list)
    held: dict[str, Item] = field(default_factory=dict)
    aside: dict[str, str] = field(default_factory=dict)

    def receive(self, batch: Batch) -> None:
        self.batches.append(batch)
        for key, item in batch.changes.items():
            if item is None:
                self.held.pop(key, None)
            else:
                self.held[key] = item
        self.aside.update((skipped.object, skipped.reason) for skipped in batch.set_aside)

    @property
    def names(self) -> list[str]:
        return sorted(key.rpartition("/")[2] for key in self.held)


def reflector_of(server: Scripted, reflected: ReceivedObjects, resource: Resource = PODS, *, pace: Pace | None = None) -> Reflector:
    return Reflector(
        Client(server),
        resource,
        ObjectDecoder(resource, Interner()),
        reflected.receive,
        clock=asyncio.get_running_loop().time,
        random=Random(1),
        decode_lock=DecodeLock(),
        pace=pace or Pace(),
    )


async def reflect(
    server: Scripted, resource: Resource = PODS, *, seconds: float = 1.0, pace: Pace | None = None
) -> tuple[ReceivedObjects, Reflector]:
    """What a reflector has passed on after so many seconds with ``server``."""
    reflected = ReceivedObjects()
    reflector = reflector_of(server, reflected, resource, pace=pace)
    await run_for(reflector, seconds)
    return reflected, reflector


async def run_for(reflector: Reflector, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await reflector.run()
    except TimeoutError:
        return
