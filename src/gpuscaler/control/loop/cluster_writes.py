"""Carries out acts on the cluster: taints, nominations, evictions. The outcome of each is returned; failed acts are not retried here."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Conflict, Forbidden, NotFound, Unreachable
from gpuscaler.kube.eviction import AlreadyDeleted, Evicted, MultipleBudgets, Refused
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.lifecycle.actions import (
    ON_MACHINES,
    Act,
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
    OpenWindow,
    Unmark,
)
from gpuscaler.lifecycle.node_marks.soft_taints import SOFT, SOFT_TAINTS
from gpuscaler.model.options import CHECKPOINT_REQUESTED
from gpuscaler.model.taints import WINDOW_EFFECT
from gpuscaler.model.well_known import ARRIVING_TAINT, CLOSING_TAINTS, EXCLUDE_LABEL, EXCLUDE_VALUE, KEPT_TAINT, LEAVING_TAINT, POOL_LABEL

#: The maximum number of writes in progress.
CONCURRENT_WRITES = 16
#: How often a write to a node is tried when other programs change the node at the same time.
ATTEMPTS = 4
#: How long forbidden acts are not retried, at first and at most, in seconds: they work again once a person grants the rights.
PAUSE_SECONDS, LONGEST_PAUSE = 10.0, 120.0
#: Phrases of admission webhooks and policies that forbid one write; an answer about one object does not apply to others.
POLICY = ("denied the request", "denied request")
#: Statuses with which an API server or an admission webhook rejects the request itself: the same request would be rejected again.
LASTING = frozenset({400, 403, 405, 422})
#: The subject of acts on a node's closing taint.
CLOSED = "closed"
SOFT_KEYS, CLOSING = frozenset(taint.key for taint in SOFT_TAINTS), frozenset(CLOSING_TAINTS)


#: What acts are about: the kind, and the name of a node or pod. Two acts on one subject may undo each other.
Subject = tuple[object, str]


class Outcome(Struct, frozen=True, gc=False):
    """The outcome of an act. ``detail`` is empty if it was done; otherwise it says why it was not.

    ``budget`` is set if one or more PodDisruptionBudgets refused an eviction; ``retry_after`` are seconds to wait. ``tried`` says whether
    a request was sent at all: an act that was forbidden a moment ago is not tried. ``gone`` is set if the pod was gone before, ``lasting``
    if the same request would be refused again.
    """

    act: Act
    detail: str = ""
    retry_after: float = 0.0
    budget: bool = False
    tried: bool = True
    gone: bool = False
    lasting: bool = False


class ActPause(Struct, frozen=True, gc=False):
    """A pause of ``pause`` seconds for acts of one kind, until ``until`` on the event loop's clock, because of ``error``."""

    until: float
    pause: float
    error: str


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


#: Computes the patch for a node in this state; empty if the node is as it should be.
Change = Callable[[WireNode], dict[str, Any]]


class ClusterWriter:
    """Carries out acts on nodes and pods. The cloud carries out those on machines (:data:`~gpuscaler.lifecycle.actions.ON_MACHINES`)."""

    def __init__(self, client: Client) -> None:
        # A node or a pod is read in a moment; a read without an answer must not delay other tries for as long as one of a long list may.
        self._client = client = replace(client, read_timeout=client.write_timeout)
        self._slots = asyncio.Semaphore(CONCURRENT_WRITES)
        #: Labels are for people and must not delay anything else. With one slot, a lack of rights is reported once and not for each node.
        self._one_slot = asyncio.Semaphore(1)
        #: Interrupted machines are tainted before anything else is done: their pods have two minutes, or half a minute.
        self._at_once, self._slots_at_once = client.urgently(), asyncio.Semaphore(CONCURRENT_WRITES)
        #: The last act decided for each subject, until it is finished.
        self._decided: dict[Subject, Act] = {}
        #: A lock for each subject that an act is carried out on, or waits for.
        self._locks = WeakValueDictionary[Subject, asyncio.Lock]()
        #: The resource versions that nodes had after the last write, until the picture has them.
        self._versions: dict[str, int] = {}
        self._seen = 0
        #: Nodes that are being read: one answer serves all pods that are bound to the node.
        self._reading: dict[str, asyncio.Task[WireNode]] = {}
        #: Pauses of forbidden acts, by the kind of act and the namespace.
        self._pauses: dict[tuple[type, str], ActPause] = {}
        self._performers: Mapping[type, Callable[[Any], Awaitable[str | Outcome]]] = {
            Nominate: self._nominate,
            Bind: self._bind,
            Lift: lambda act: self._write(act.node, _set_closing_taint(None)),
            Close: lambda act: self._write(
                act.node, _set_closing_taint(WireTaint(KEPT_TAINT if act.kept else ARRIVING_TAINT, "NoSchedule"))
            ),
            OpenWindow: lambda act: self._write(
                act.node, _set_closing_taint(WireTaint(KEPT_TAINT if act.kept else ARRIVING_TAINT, WINDOW_EFFECT))
            ),
            Mark: lambda act: self._write(act.node, _set_own_taint(LEAVING_TAINT, present=True), client=self._at_once),
            Unmark: lambda act: self._write(act.node, _remove_leaving_taint),
            Discourage: lambda act: self._write(act.node, _set_taints(SOFT_KEYS, [WireTaint(key, SOFT) for key in act.taints])),
            Label: lambda act: self._write(act.node, _set_pool_label(act.pool)),
            Exclude: self._exclude,
            Checkpoint: self._checkpoint,
            Evict: self._evict,
            Delete: self._delete,
            Clear: self._clear,
        }

    def nodes_in_change(self, seen: int | None) -> frozenset[str]:
        """The nodes whose closing taint is being written, or that were written after resource version ``seen`` (None if it is unknown).

        How these nodes were at ``seen`` says nothing about how they will be.
        """
        if seen is not None:
            # A server that was restored from a backup counts from an earlier version again: what was written before is lost.
            restored, self._seen = seen < self._seen, seen
            self._versions = {} if restored else {node: version for node, version in self._versions.items() if version > seen}
        return frozenset(name for kind, name in self._decided if kind == CLOSED) | self._versions.keys()

    async def carry_out(self, acts: Iterable[Act]) -> list[Outcome]:
        """Do all of ``acts`` concurrently; one that fails does not stop the others. Errors of a fence are raised.

        An act that is not finished is not begun again, and a queued act is dropped if a later one on the same subject differs: neither has
        an outcome.
        """
        own_acts = [act for act in acts if not isinstance(act, ON_MACHINES)]
        new = [
            act
            for act in own_acts
            if (before := self._decided.get(_subject(act))) is None or _without_reason(act) != _without_reason(before)
        ]
        self._decided |= {_subject(act): act for act in new}
        return [outcome for outcome in await asyncio.gather(*map(self._perform_queued, new)) if outcome is not None]

    async def _perform_queued(self, act: Act) -> Outcome | None:
        subject = _subject(act)
        # Acts on one subject never overlap: a later one that finds nothing to remove must not end before an earlier one adds it.
        async with self._slots_of(act), self._locks.setdefault(subject, asyncio.Lock()):
            if self._decided.get(subject) is not act:
                return None
            try:
                return await self._perform(act)
            finally:
                if self._decided.get(subject) is act:
                    del self._decided[subject]

    async def _perform(self, act: Act) -> Outcome:
        kind = (type(act), act.pod.split("/", 1)[0] if isinstance(act, OnPod) else "")
        now, pause_before = asyncio.get_running_loop().time(), self._pauses.get(kind)
        if pause_before is not None and now < pause_before.until:
            return Outcome(act, pause_before.error, pause_before.until - now, tried=False)
        try:
            result = await self._performers[type(act)](act)
        except Forbidden as error:
            if any(phrase in str(error) for phrase in POLICY):
                return Outcome(act, str(error), lasting=True)
            pause = PAUSE_SECONDS if pause_before is None else min(2 * pause_before.pause, LONGEST_PAUSE)
            self._pauses[kind] = ActPause(now + pause, pause, str(error))
            return Outcome(act, str(error), pause, lasting=True)
        except ApiError as error:
            return Outcome(act, str(error), error.retry_after or 0.0, lasting=error.status in LASTING)
        except Unreachable as error:
            return Outcome(act, str(error))
        self._pauses.pop(kind, None)
        return result if isinstance(result, Outcome) else Outcome(act, result)

    def _slots_of(self, act: Act) -> asyncio.Semaphore:
        return self._slots_at_once if isinstance(act, Mark) else self._one_slot if isinstance(act, Label) else self._slots

    async def _nominate(self, act: Nominate) -> str:
        return await self._patch_pod(act.pod, {"metadata": {"uid": act.uid}, "status": {"nominatedNodeName": act.node or None}})

    async def _bind(self, act: Bind) -> str:
        """Bind a pod if its node still offers its devices: while a device plugin restarts, the pod would fail for good."""
        namespace, name = act.pod.split("/", 1)
        try:
            node = await self._read(act.node)
            if node.metadata.deleted:
                return f"pod {act.pod}: {_node_gone_message(act.node)}"
            if lost := _describe_lost_devices(node, act.devices):
                return f"pod {act.pod}: node {act.node} {lost}; the pod is bound once the node offers them again"
            await self._client.bind(namespace, name, act.node, uid=act.uid)
        except Conflict as error:
            # It may be bound already: by an attempt that got no answer, or by the previous leader.
            return "" if f'"{act.node}"' in error.message else f"pod {act.pod}: {error}"
        except NotFound as error:
            return f"pod {act.pod}: {error}"
        return ""

    async def _read(self, node: str) -> WireNode:
        """Read a node; concurrent acts share one request."""

        async def read() -> WireNode:
            return msgspec.json.decode(await self._client.get(NODES, node), type=WireNode)

        task = self._reading.get(node)
        if task is None:
            task = self._reading[node] = asyncio.get_running_loop().create_task(read())
            task.add_done_callback(lambda _: self._reading.pop(node, None))
        return await asyncio.shield(task)

    async def _patch_pod(self, pod: str, patch: dict[str, Any]) -> str:
        """Patch a pod through its status; the uid in ``patch`` ensures that a new pod of the same name is not patched."""
        namespace, name = pod.split("/", 1)
        try:
            await self._client.merge_patch(PODS, name, patch, namespace=namespace, subresource="status")
        except (NotFound, Conflict) as error:
            return f"pod {pod}: {error}"
        return ""

    async def _write(self, node: str, change: Change, *, client: Client | None = None) -> str:
        """Read a node and patch it, also while other programs write to it; their changes are kept."""
        client = client or self._client
        for _ in range(ATTEMPTS):
            try:
                wire_node = msgspec.json.decode(await client.get(NODES, node), type=WireNode)
                if patch := change(wire_node):
                    patch["metadata"] = {"resourceVersion": wire_node.metadata.version, **patch.get("metadata", {})}
                    wire_node = msgspec.json.decode(await client.merge_patch(NODES, node, patch), type=WireNode)
            except Conflict:
                continue
            except NotFound:
                return _node_gone_message(node)
            if (version := wire_node.metadata.version).isdecimal():
                self._versions[node] = int(version)
            return ""
        return f"node {node} was changed by other programs during each of {ATTEMPTS} attempts to write to it"

    async def _exclude(self, act: Exclude) -> str:
        """Exclude a node from load balancers. A node that is gone is no failure: an idle machine may have ended in between."""
        failure = await self._write(act.node, _add_exclude_label)
        return "" if failure == _node_gone_message(act.node) else failure

    async def _checkpoint(self, act: Checkpoint) -> str:
        """Annotate the pod through its status: the API server accepts annotations there, and no right to patch pods is needed."""
        moment = datetime.fromtimestamp(act.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return await self._patch_pod(act.pod, {"metadata": {"uid": act.uid, "annotations": {CHECKPOINT_REQUESTED: moment}}})

    async def _evict(self, act: Evict) -> Outcome:
        namespace, name = act.pod.split("/", 1)
        answer = await self._client.evict(namespace, name, uid=act.uid, grace=act.grace)
        match answer:
            case Evicted():
                return Outcome(act)
            case AlreadyDeleted():
                return Outcome(act, gone=True)
            case Refused(why=why, retry_after=wait):
                return Outcome(act, why, wait or 0.0, budget=True)
            case MultipleBudgets(why=why):
                return Outcome(act, why, budget=True)

    async def _delete(self, act: Delete) -> str:
        namespace, name = act.pod.split("/", 1)
        return await self._delete_object(self._client.delete(PODS, name, namespace=namespace, uid=act.uid, grace=act.grace))

    async def _clear(self, act: Clear) -> str:
        return await self._delete_object(self._client.delete(NODES, act.node, uid=act.uid))

    async def _delete_object(self, deletion: Awaitable[bytes]) -> str:
        """Delete an object; it is no failure if it is gone or replaced by another one of the same name."""
        with suppress(NotFound, Conflict):
            await deletion
        return ""


def _subject(act: Act) -> Subject:
    """The subject of an act: a node's closing taint, a node's leaving taint, or something that only acts of its kind write."""
    kind: object = type(act)
    for subject, acts in ((CLOSED, (Lift, Close, OpenWindow)), ("leaving", (Mark, Unmark))):
        kind = subject if isinstance(act, acts) else kind
    return kind, getattr(act, "pod", "") or getattr(act, "node", "")


def _without_reason(act: Act) -> tuple[object, ...]:
    """An act without its reason."""
    return type(act), *(getattr(act, name) for name in act.__struct_fields__ if name not in ("reason", "devices"))


def _node_gone_message(node: str) -> str:
    return f"node {node} is gone"


def _describe_lost_devices(node: WireNode, devices: Mapping[str, int]) -> str:
    """Which of ``devices`` a node does not offer any more, in words."""
    offered = node.status.allocatable or {}
    for resource, amount in devices.items():
        shown_amount = str(offered.get(resource, 0))
        if not shown_amount.isdecimal() or int(shown_amount) < amount:
            return f"shows {shown_amount} {resource} now, and {amount} before"
    return ""


def _set_own_taint(key: str, *, present: bool) -> Change:
    """Add a taint of gpuscaler, or remove it."""
    return _set_taints(frozenset({key}), [WireTaint(key, "NoSchedule")] if present else [])


def _set_taints(ours: frozenset[str], wanted: list[WireTaint]) -> Change:
    """Set a node's taints with the keys ``ours`` to ``wanted``; all others are kept."""

    def change(node: WireNode) -> dict[str, Any]:
        taints = node.spec.taints or []
        if {taint.key for taint in taints} & ours == {taint.key for taint in wanted}:
            return {}
        return {"spec": {"taints": [taint for taint in taints if taint.key not in ours] + wanted or None}}

    return change


def _set_closing_taint(wanted: WireTaint | None) -> Change:
    """Set a node's closing taint to ``wanted``, and cordon the node while that taint has no hard effect.

    A cordon beside such a taint is ours. A node that a person has cordoned stays cordoned, and gets no such taint.
    """

    def change(node: WireNode) -> dict[str, Any]:
        taints, cordoned = node.spec.taints or [], bool(node.spec.unschedulable)
        before = [taint for taint in taints if taint.key in CLOSING]
        ours = cordoned and any(taint.effect == WINDOW_EFFECT for taint in before)
        cordon = wanted is not None and wanted.effect == WINDOW_EFFECT
        if cordon and cordoned and not ours:
            return {}
        after = [wanted] if wanted is not None else []
        spec: dict[str, Any] = {}
        if [(taint.key, taint.effect) for taint in before] != [(taint.key, taint.effect) for taint in after]:
            spec["taints"] = [taint for taint in taints if taint.key not in CLOSING] + after or None
        if cordon != cordoned and (cordon or ours):
            spec["unschedulable"] = True if cordon else None
        return {"spec": spec} if spec else {}

    return change


def _set_pool_label(pool: str) -> Change:
    """Label a node with its pool."""

    def change(node: WireNode) -> dict[str, Any]:
        return {} if (node.metadata.labels or {}).get(POOL_LABEL) == pool else {"metadata": {"labels": {POOL_LABEL: pool}}}

    return change


def _add_exclude_label(node: WireNode) -> dict[str, Any]:
    """Add the label that excludes a node from load balancers, only beside our taint: removing the taint also removes the label."""
    leaving = any(taint.key == LEAVING_TAINT for taint in node.spec.taints or ())
    excluded = EXCLUDE_LABEL in (node.metadata.labels or {})
    return {"metadata": {"labels": {EXCLUDE_LABEL: EXCLUDE_VALUE}}} if leaving and not excluded else {}


def _remove_leaving_taint(node: WireNode) -> dict[str, Any]:
    """Remove our leaving taint, and the label if it is ours."""
    patch = _set_own_taint(LEAVING_TAINT, present=False)(node)
    ours = (node.metadata.labels or {}).get(EXCLUDE_LABEL) == EXCLUDE_VALUE
    return {**patch, **({"metadata": {"labels": {EXCLUDE_LABEL: None}}} if ours else {})}
