"""Carrying acts out on the cluster: our own taints, nominations, evictions. What came of each is returned; nothing is tried twice here."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Conflict, Forbidden, NotFound, Unreachable
from gpuscaler.kube.eviction import Evicted, GoneAlready, Overlapping, Refused
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.lifecycle.actions import (
    ON_MACHINES,
    Act,
    Ajar,
    Bind,
    Checkpoint,
    Clear,
    Close,
    Delete,
    Discourage,
    Evict,
    Exclude,
    Label,
    Lift,
    Mark,
    Nominate,
    OnPod,
    Unmark,
)
from gpuscaler.lifecycle.node_marks.soft_taints import SOFT, SOFT_TAINTS
from gpuscaler.model.options import CHECKPOINT_REQUESTED
from gpuscaler.model.taints import AJAR
from gpuscaler.model.well_known import ARRIVING_TAINT, CLOSING_TAINTS, EXCLUDE_LABEL, EXCLUDE_VALUE, KEPT_TAINT, LEAVING_TAINT, POOL_LABEL

#: So many writes are under way at once.
ABREAST = 16
#: How often a taint is tried when another program changes the node at the same moment.
ATTEMPTS = 4
#: How long what is forbidden is not tried, at first and at most, in seconds: rights come back when a person gives them.
REST_SECONDS, LONGEST_REST = 10.0, 120.0
#: How admission webhooks and policies say that they forbid this one write; what they say of one object holds for no other.
POLICY = ("denied the request", "denied request")
#: What an API server, and admission webhooks, answer that they will answer again: it is what is asked that they do not take.
LASTING = frozenset({400, 403, 405, 422})
SOFT_KEYS, CLOSING = frozenset(taint.key for taint in SOFT_TAINTS), frozenset(CLOSING_TAINTS)


class Outcome(Struct, frozen=True, gc=False):
    """What came of an act. ``detail`` is empty when it was done, else why it was not, in words.

    ``budget`` says that a PodDisruptionBudget, or more than one, stood against an eviction; ``retry_after`` are seconds to wait.
    ``tried`` says whether anything was asked at all: what was forbidden a moment ago is not. ``gone`` says that a pod was gone before,
    ``lasting`` that the same would be refused again.
    """

    act: Act
    detail: str = ""
    retry_after: float = 0.0
    budget: bool = False
    tried: bool = True
    gone: bool = False
    lasting: bool = False


class Rest(Struct, frozen=True, gc=False):
    """Acts of one kind are not tried before ``until``, on the event loop's clock, for ``pause`` seconds, for what was ``said``."""

    until: float
    pause: float
    said: str


class WireTaint(msgspec.Struct, omit_defaults=True):
    key: str
    effect: str = ""
    value: str = ""
    time_added: str | None = msgspec.field(default=None, name="timeAdded")


class WireSpec(msgspec.Struct):
    taints: list[WireTaint] | None = None
    unschedulable: bool | None = None


class WireMetadata(msgspec.Struct):
    name: str = ""
    version: str = msgspec.field(default="", name="resourceVersion")
    deleted: str | None = msgspec.field(default=None, name="deletionTimestamp")
    labels: dict[str, str] | None = None


class WireStatus(msgspec.Struct):
    allocatable: dict[str, Any] | None = None


class WireNode(msgspec.Struct):
    metadata: WireMetadata = msgspec.field(default_factory=WireMetadata)
    spec: WireSpec = msgspec.field(default_factory=WireSpec)
    status: WireStatus = msgspec.field(default_factory=WireStatus)


#: What is to be patched of a node that looks like this; nothing where it is as it should be.
Change = Callable[[WireNode], dict[str, Any]]


class Actor:
    """Carries out acts on nodes and pods. Those on machines (:data:`~gpuscaler.lifecycle.actions.ON_MACHINES`) are the cloud's."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(ABREAST)
        #: Labels are for people, and never in the way of anything else. What is forbidden is said of the first node, and not of each.
        self._one_slot = asyncio.Semaphore(1)
        #: Machines that are taken back are marked before anything else is done: their pods have two minutes, or half a one.
        self._at_once, self._slots_at_once = client.at_once(), asyncio.Semaphore(ABREAST)
        #: What was decided last of each subject, and has not begun.
        self._decided: dict[tuple[object, ...], Act] = {}
        #: Nodes that are being read: all pods that are bound to one are decided by one answer.
        self._reading: dict[str, asyncio.Task[WireNode]] = {}
        #: What was forbidden, by the kind of act and the namespace.
        self._resting: dict[tuple[type, str], Rest] = {}
        self._how: Mapping[type, Callable[[Any], Awaitable[str | Outcome]]] = {
            Nominate: self._nominate,
            Bind: self._bind,
            Lift: lambda act: self._write(act.node, _closing(None)),
            Close: lambda act: self._write(act.node, _closing(WireTaint(KEPT_TAINT if act.kept else ARRIVING_TAINT, "NoSchedule"))),
            Ajar: lambda act: self._write(act.node, _closing(WireTaint(KEPT_TAINT if act.kept else ARRIVING_TAINT, AJAR))),
            Mark: lambda act: self._write(act.node, _taint(LEAVING_TAINT, present=True), client=self._at_once),
            Unmark: lambda act: self._write(act.node, _unmarked),
            Discourage: lambda act: self._write(act.node, _taints(SOFT_KEYS, [WireTaint(key, SOFT) for key in act.taints])),
            Label: lambda act: self._write(act.node, _labelled(act.pool)),
            Exclude: self._exclude,
            Checkpoint: self._checkpoint,
            Evict: self._evict,
            Delete: self._delete,
            Clear: self._clear,
        }

    async def carry_out(self, acts: Iterable[Act]) -> list[Outcome]:
        """Do all of ``acts``, side by side; one that fails does not stop the others. What a fence raises goes through.

        What waits for its turn already does not wait twice, and is not begun where it was decided otherwise since: of both nothing comes
        back.
        """
        mine = [act for act in acts if not isinstance(act, ON_MACHINES)]
        new = [act for act in mine if (before := self._decided.get(_subject(act))) is None or _what(act) != _what(before)]
        self._decided |= {_subject(act): act for act in new}
        return [one for one in await asyncio.gather(*map(self._in_turn, new)) if one is not None]

    async def _in_turn(self, act: Act) -> Outcome | None:
        async with self._slots_of(act):
            if self._decided.get(_subject(act)) is not act:
                return None
            # What has begun and gets no answer is no reason not to try again.
            del self._decided[_subject(act)]
            return await self._done(act)

    async def _done(self, act: Act) -> Outcome:
        kind = (type(act), act.pod.split("/", 1)[0] if isinstance(act, OnPod) else "")
        now, rest = asyncio.get_running_loop().time(), self._resting.get(kind)
        if rest is not None and now < rest.until:
            return Outcome(act, rest.said, rest.until - now, tried=False)
        try:
            found = await self._how[type(act)](act)
        except Forbidden as error:
            if any(words in str(error) for words in POLICY):
                return Outcome(act, str(error), lasting=True)
            pause = REST_SECONDS if rest is None else min(2 * rest.pause, LONGEST_REST)
            self._resting[kind] = Rest(now + pause, pause, str(error))
            return Outcome(act, str(error), pause, lasting=True)
        except ApiError as error:
            return Outcome(act, str(error), error.retry_after or 0.0, lasting=error.status in LASTING)
        except Unreachable as error:
            return Outcome(act, str(error))
        self._resting.pop(kind, None)
        return found if isinstance(found, Outcome) else Outcome(act, found)

    def _slots_of(self, act: Act) -> asyncio.Semaphore:
        return self._slots_at_once if isinstance(act, Mark) else self._one_slot if isinstance(act, Label) else self._slots

    async def _nominate(self, act: Nominate) -> str:
        return await self._patch_pod(act.pod, {"metadata": {"uid": act.uid}, "status": {"nominatedNodeName": act.node or None}})

    async def _bind(self, act: Bind) -> str:
        """Bind a pod, where its node is what it was when that was decided: beside a restarting device plugin it would fail for good."""
        namespace, name = act.pod.split("/", 1)
        try:
            node = await self._read(act.node)
            if node.metadata.deleted:
                return f"pod {act.pod}: {_node_gone(act.node)}"
            if lost := _lost(node, act.devices):
                return f"pod {act.pod}: node {act.node} {lost}; it is bound once the node has that again"
            await self._client.bind(namespace, name, act.node, uid=act.uid)
        except Conflict as error:
            # It may be bound by ourselves: by an attempt that got no answer, or by the leader before.
            return "" if f'"{act.node}"' in error.message else f"pod {act.pod}: {error}"
        except NotFound as error:
            return f"pod {act.pod}: {error}"
        return ""

    async def _read(self, node: str) -> WireNode:
        """A node as it is now, read once for all acts that need it meanwhile."""

        async def read() -> WireNode:
            return msgspec.json.decode(await self._client.get(NODES, node), type=WireNode)

        task = self._reading.get(node)
        if task is None:
            task = self._reading[node] = asyncio.get_running_loop().create_task(read())
            task.add_done_callback(lambda _: self._reading.pop(node, None))
        return await asyncio.shield(task)

    async def _patch_pod(self, pod: str, patch: dict[str, Any]) -> str:
        """Patch a pod by way of its status; the uid in ``patch`` makes it that pod's, and not that of one which took its name meanwhile."""
        namespace, name = pod.split("/", 1)
        try:
            await self._client.merge_patch(PODS, name, patch, namespace=namespace, subresource="status")
        except (NotFound, Conflict) as error:
            return f"pod {pod}: {error}"
        return ""

    async def _write(self, node: str, change: Change, *, client: Client | None = None) -> str:
        """Change a node by what is read of it, also where others write at the same time; what they have written stays as it is."""
        client = client or self._client
        for _ in range(ATTEMPTS):
            try:
                found = msgspec.json.decode(await client.get(NODES, node), type=WireNode)
            except NotFound:
                return _node_gone(node)
            patch = change(found)
            if not patch:
                return ""
            patch["metadata"] = {"resourceVersion": found.metadata.version, **patch.get("metadata", {})}
            try:
                await client.merge_patch(NODES, node, patch)
            except Conflict:
                continue
            except NotFound:
                return _node_gone(node)
            return ""
        return f"node {node} was changed by others {ATTEMPTS} times while it was written to"

    async def _exclude(self, act: Exclude) -> str:
        """No load balancer sends anything to a node that is gone: an idle machine may have ended meanwhile."""
        failure = await self._write(act.node, _excluded)
        return "" if failure == _node_gone(act.node) else failure

    async def _checkpoint(self, act: Checkpoint) -> str:
        """Annotate the pod, by way of its status: the API server takes annotations there, and no right to change pods is needed."""
        moment = datetime.fromtimestamp(act.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return await self._patch_pod(act.pod, {"metadata": {"uid": act.uid, "annotations": {CHECKPOINT_REQUESTED: moment}}})

    async def _evict(self, act: Evict) -> Outcome:
        namespace, name = act.pod.split("/", 1)
        answer = await self._client.evict(namespace, name, uid=act.uid, grace=act.grace)
        match answer:
            case Evicted():
                return Outcome(act)
            case GoneAlready():
                return Outcome(act, gone=True)
            case Refused(why=why, retry_after=wait):
                return Outcome(act, why, wait or 0.0, budget=True)
            case Overlapping(why=why):
                return Outcome(act, why, budget=True)

    async def _delete(self, act: Delete) -> str:
        namespace, name = act.pod.split("/", 1)
        return await self._gone(self._client.delete(PODS, name, namespace=namespace, uid=act.uid, grace=act.grace))

    async def _clear(self, act: Clear) -> str:
        return await self._gone(self._client.delete(NODES, act.node, uid=act.uid))

    async def _gone(self, deletion: Awaitable[bytes]) -> str:
        """Delete what is meant; that it is gone, or another one of its name is there, is as good."""
        with suppress(NotFound, Conflict):
            await deletion
        return ""


def _subject(act: Act) -> tuple[object, ...]:
    """What an act decides of: the taint that closes a node, the one of a node that leaves, or whatever only acts of its kind write."""
    kind: object = type(act)
    for one, pair in (("closed", (Lift, Close, Ajar)), ("leaving", (Mark, Unmark))):
        kind = one if isinstance(act, pair) else kind
    return kind, getattr(act, "pod", "") or getattr(act, "node", "")


def _what(act: Act) -> tuple[object, ...]:
    """An act but for why it was decided."""
    return type(act), *(getattr(act, name) for name in act.__struct_fields__ if name not in ("reason", "devices"))


def _node_gone(node: str) -> str:
    return f"node {node} is gone"


def _lost(node: WireNode, devices: Mapping[str, int]) -> str:
    """What a node does not offer any more of ``devices``, in words."""
    offered = node.status.allocatable or {}
    for resource, amount in devices.items():
        shown = str(offered.get(resource, 0))
        if not shown.isdecimal() or int(shown) < amount:
            return f"shows {shown} {resource} by now, and showed {amount}"
    return ""


def _taint(key: str, *, present: bool) -> Change:
    """Put a taint of ours on, or take it off."""
    return _taints(frozenset({key}), [WireTaint(key, "NoSchedule")] if present else [])


def _taints(ours: frozenset[str], wanted: list[WireTaint]) -> Change:
    """Let a node bear ``wanted`` of the taints with the keys ``ours``; all others stay as they are."""

    def change(node: WireNode) -> dict[str, Any]:
        taints = node.spec.taints or []
        if {one.key for one in taints} & ours == {one.key for one in wanted}:
            return {}
        return {"spec": {"taints": [one for one in taints if one.key not in ours] + wanted or None}}

    return change


def _closing(wanted: WireTaint | None) -> Change:
    """Let a node bear ``wanted`` of the taints that close nodes, and be cordoned by us while that has no hard effect.

    A cordon is ours where such a taint stands beside it. What a person has cordoned stays cordoned, and gets no taint of ours for it.
    """

    def change(node: WireNode) -> dict[str, Any]:
        taints, cordoned = node.spec.taints or [], bool(node.spec.unschedulable)
        before = [one for one in taints if one.key in CLOSING]
        ours = cordoned and any(one.effect == AJAR for one in before)
        cordon = wanted is not None and wanted.effect == AJAR
        if cordon and cordoned and not ours:
            return {}
        after = [wanted] if wanted is not None else []
        spec: dict[str, Any] = {}
        if [(one.key, one.effect) for one in before] != [(one.key, one.effect) for one in after]:
            spec["taints"] = [one for one in taints if one.key not in CLOSING] + after or None
        if cordon != cordoned and (cordon or ours):
            spec["unschedulable"] = True if cordon else None
        return {"spec": spec} if spec else {}

    return change


def _labelled(pool: str) -> Change:
    """Let a node say which pool it is of."""

    def change(node: WireNode) -> dict[str, Any]:
        return {} if (node.metadata.labels or {}).get(POOL_LABEL) == pool else {"metadata": {"labels": {POOL_LABEL: pool}}}

    return change


def _excluded(node: WireNode) -> dict[str, Any]:
    """Keep load balancers away. Only while our taint is there: what takes that off takes this off, too, and must not be overtaken."""
    leaving = any(taint.key == LEAVING_TAINT for taint in node.spec.taints or ())
    known = EXCLUDE_LABEL in (node.metadata.labels or {})
    return {"metadata": {"labels": {EXCLUDE_LABEL: EXCLUDE_VALUE}}} if leaving and not known else {}


def _unmarked(node: WireNode) -> dict[str, Any]:
    """Without our leaving taint, and without the label where it is ours."""
    patch = _taint(LEAVING_TAINT, present=False)(node)
    ours = (node.metadata.labels or {}).get(EXCLUDE_LABEL) == EXCLUDE_VALUE
    return {**patch, **({"metadata": {"labels": {EXCLUDE_LABEL: None}}} if ours else {})}
