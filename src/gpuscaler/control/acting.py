"""Carrying acts out on the cluster: our own taints, nominations, evictions. What came of each is told; nothing is tried twice here."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Conflict, Forbidden, NotFound, Unreachable
from gpuscaler.kube.eviction import Evicted, GoneAlready, Overlapping, Refused
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.planning.acts import Act, Close, Discourage, End, Evict, Lift, Mark, Nominate, Unmark
from gpuscaler.planning.discouraging import SOFT, SOFT_TAINTS
from gpuscaler.planning.keeping import ARRIVING_TAINT
from gpuscaler.planning.scale_down.blockers import LEAVING_TAINT

#: So many writes are under way at once.
ABREAST = 16
#: How often a taint is tried when somebody else changes the node at the same moment.
ATTEMPTS = 4
#: How long what is forbidden is not tried, at first and at most, in seconds: rights come back when a person gives them.
REST_SECONDS, LONGEST_REST = 10.0, 120.0
SOFT_KEYS = frozenset(taint.key for taint in SOFT_TAINTS)


class Outcome(Struct, frozen=True, gc=False):
    """What came of an act. ``detail`` is empty when it was done, else why it was not, in words."""

    act: Act
    detail: str = ""
    retry_after: float = 0.0


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


class WireMetadata(msgspec.Struct):
    version: str = msgspec.field(default="", name="resourceVersion")


class WireNode(msgspec.Struct):
    metadata: WireMetadata = msgspec.field(default_factory=WireMetadata)
    spec: WireSpec = msgspec.field(default_factory=WireSpec)


class Actor:
    """Carries out acts on nodes and pods. Acts on machines (:class:`~gpuscaler.planning.acts.End`) are the cloud's and not taken here."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(ABREAST)
        #: What was forbidden, by the kind of act and the namespace.
        self._resting: dict[tuple[type, str], Rest] = {}
        self._how: Mapping[type, Callable[[Any], Awaitable[str]]] = {
            Nominate: self._nominate,
            Lift: lambda act: self._taint(act.node, ARRIVING_TAINT, present=False),
            Close: lambda act: self._taint(act.node, ARRIVING_TAINT, present=True),
            Mark: lambda act: self._taint(act.node, LEAVING_TAINT, present=True),
            Unmark: lambda act: self._taint(act.node, LEAVING_TAINT, present=False),
            Discourage: lambda act: self._taints(act.node, SOFT_KEYS, [WireTaint(key, SOFT) for key in act.taints]),
            Evict: self._evict,
        }

    async def carry_out(self, acts: Iterable[Act]) -> list[Outcome]:
        """Do all of ``acts``, side by side; one that fails does not stop the others. What a fence raises goes through."""
        return list(await asyncio.gather(*(self._one(act) for act in acts if not isinstance(act, End))))

    async def _one(self, act: Act) -> Outcome:
        kind = (type(act), act.pod.split("/", 1)[0] if isinstance(act, Nominate | Evict) else "")
        async with self._slots:
            now, rest = asyncio.get_running_loop().time(), self._resting.get(kind)
            if rest is not None and now < rest.until:
                return Outcome(act, rest.said, rest.until - now)
            try:
                done = Outcome(act, await self._how[type(act)](act))
            except Forbidden as error:
                pause = REST_SECONDS if rest is None else min(2 * rest.pause, LONGEST_REST)
                self._resting[kind] = Rest(now + pause, pause, str(error))
                return Outcome(act, str(error), pause)
            except (ApiError, Unreachable) as error:
                return Outcome(act, str(error), getattr(error, "retry_after", None) or 0.0)
            self._resting.pop(kind, None)
            return done

    async def _nominate(self, act: Nominate) -> str:
        namespace, name = act.pod.split("/", 1)
        # The uid makes it that pod's, and not that of one which took its name meanwhile.
        patch = {"metadata": {"uid": act.uid}, "status": {"nominatedNodeName": act.node or None}}
        try:
            await self._client.merge_patch(PODS, name, patch, namespace=namespace, subresource="status")
        except (NotFound, Conflict) as error:
            return f"pod {act.pod}: {error}"
        return ""

    async def _taint(self, node: str, key: str, *, present: bool) -> str:
        """Put a taint of ours on, or take it off."""
        return await self._taints(node, frozenset({key}), [WireTaint(key, "NoSchedule")] if present else [])

    async def _taints(self, node: str, ours: frozenset[str], wanted: list[WireTaint]) -> str:
        """Let a node bear ``wanted`` of the taints with the keys ``ours``; all others stay as they are, whoever writes at the same time."""
        for _ in range(ATTEMPTS):
            try:
                found = msgspec.json.decode(await self._client.get(NODES, node), type=WireNode)
            except NotFound:
                return f"node {node} is gone"
            taints = found.spec.taints or []
            if {one.key for one in taints} & ours == {one.key for one in wanted}:
                return ""
            after = [one for one in taints if one.key not in ours] + wanted
            patch = {"metadata": {"resourceVersion": found.metadata.version}, "spec": {"taints": after or None}}
            try:
                await self._client.merge_patch(NODES, node, patch)
            except Conflict:
                continue
            except NotFound:
                return f"node {node} is gone"
            return ""
        return f"node {node} was changed by others {ATTEMPTS} times while its taints were written"

    async def _evict(self, act: Evict) -> str:
        namespace, name = act.pod.split("/", 1)
        answer = await self._client.evict(namespace, name, uid=act.uid)
        match answer:
            case Evicted() | GoneAlready():
                return ""
            case Refused(why=why) | Overlapping(why=why):
                return f"pod {act.pod}: {why}"
