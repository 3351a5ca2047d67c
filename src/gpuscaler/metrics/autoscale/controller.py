"""Keeps autoscalers in line with annotations: watches, decides, writes, and records Events on the workload."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any, cast

import msgspec
import structlog

from gpuscaler.kube.client import Client
from gpuscaler.kube.decode import Decoded, header_of, identity_of
from gpuscaler.kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound, Unreachable
from gpuscaler.kube.events import EventRecorder, Reference
from gpuscaler.kube.leases import LeaderElection, NotLeaderError
from gpuscaler.kube.reflector import Batch, Pace, Reflector
from gpuscaler.kube.resources import DEPLOYMENTS, STATEFUL_SETS, Resource
from gpuscaler.kube.turns import Turn
from gpuscaler.metrics.autoscale.annotation import ANNOTATION
from gpuscaler.metrics.autoscale.deciding import OWNED_BY, Act, Annotated, Existing, decide
from gpuscaler.model.aside import Skipped
from gpuscaler.model.decoding.objects import Data

_LOG = structlog.get_logger(__name__)
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
#: Seconds to wait for related changes, between passes without changes, and after a failed write.
DEBOUNCE, LOOK, AGAIN = 0.5, 60.0, 5.0


class _Owner(msgspec.Struct, gc=False):
    uid: str = ""


class _Metadata(msgspec.Struct, gc=False, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None
    deletion_timestamp: str | None = None


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")


_object = msgspec.json.Decoder(_Object).decode


class _Decoder:
    """Decodes workloads and autoscalers; a workload that is being deleted counts as having no annotation."""

    def __init__(self, resource: Resource) -> None:
        self._kind = resource.kind
        self.model: type = Existing if resource == AUTOSCALERS else Annotated

    def key(self, identity: str) -> str:
        return identity

    def read(self, data: Data) -> Decoded:
        try:
            found = _object(data)
            metadata = found.metadata
            made = self._autoscaler(metadata, msgspec.json.decode(found.spec)) if self.model is Existing else self._workload(metadata)
        except (msgspec.MsgspecError, ValueError, AttributeError, RecursionError) as error:
            identity = identity_of(header_of(data))
            return Decoded(identity, aside=Skipped(f"{self._kind} {identity}", f"saw {error}, expected an object that can be parsed"))
        # The reflector passes on the objects of its decoder unchanged.
        return Decoded(f"{metadata.namespace}/{metadata.name}", cast("Any", (made,)))

    def _workload(self, metadata: _Metadata) -> Annotated:
        annotation = None if metadata.deletion_timestamp else (metadata.annotations or {}).get(ANNOTATION)
        return Annotated(self._kind, metadata.namespace, metadata.name, metadata.uid, annotation)

    def _autoscaler(self, metadata: _Metadata, spec: dict[str, Any]) -> Existing:
        target = spec.get("scaleTargetRef", {})
        marked = (metadata.labels or {}).get(OWNED_BY, "")
        owned = any(owner.uid == marked for owner in metadata.owner_references or ())
        return Existing(
            metadata.namespace,
            metadata.name,
            metadata.uid,
            metadata.resource_version,
            (str(target.get("kind", "")), str(target.get("name", ""))),
            # A copied label alone does not make an autoscaler ours.
            marked if owned else "",
            spec,
        )


class AutoscaleController:
    """The control loop. ``client`` is fenced by ``election``: at most one process writes.

    ``served`` returns the metrics of pods that are served, or None while they are unknown. Nothing is done then, since metrics are chosen
    from them. ``clock`` is monotonic, in seconds.
    """

    def __init__(
        self,
        client: Client,
        *,
        election: LeaderElection,
        events: EventRecorder,
        served: Callable[[], Collection[str] | None],
        clock: Callable[[], float],
        random: Random,
    ) -> None:
        self._client, self._election, self._events, self._served = client, election, events, served
        self._found: dict[Resource, dict[str, Any]] = {resource: {} for resource in (AUTOSCALERS, DEPLOYMENTS, STATEFUL_SETS)}
        self._changed = asyncio.Event()
        # Warnings of the last pass, by the workload's UID and the reason: each is recorded once while it stays the same.
        self._told: dict[tuple[str, str], str] = {}
        #: What could not be read in the last pass.
        self._unread: list[str] = []
        turn = Turn()
        self._reflectors = [
            Reflector(client, resource, _Decoder(resource), self._receive, clock=clock, random=random, turn=turn, pace=Pace())
            for resource in self._found
        ]

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run(), name=f"reflect {reflector.resource.label}")
            tasks.create_task(self._events.run(), name="write Events")
            tasks.create_task(self._election.run(self._lead), name="autoscale by annotations")

    def _receive(self, batch: Batch) -> None:
        known = self._found[batch.resource]
        for key, one in cast("Mapping[str, Any]", batch.changes).items():
            if one is None:
                known.pop(key, None)
            else:
                known[key] = one
        self._changed.set()

    async def _lead(self) -> None:
        while True:
            # Until all lists are complete, a missing object means nothing.
            whole = all(reflector.synced for reflector in self._reflectors)
            self._complain()
            good = await self._look() if whole else False
            try:
                async with asyncio.timeout(LOOK if good else AGAIN):
                    await self._changed.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(DEBOUNCE)

    def _complain(self) -> None:
        """Log what cannot be read, once while it stays the same: nothing is done without it, and the log must say why."""
        unread = [reflector.trouble for reflector in self._reflectors if reflector.trouble]
        if unread and unread != self._unread:
            _LOG.warning("objects that autoscalers are made from cannot be read", problems=unread)
        self._unread = unread

    async def _look(self) -> bool:
        """Do all pending acts; return whether all succeeded."""
        self._changed.clear()
        served = self._served()
        if served is None:
            return False
        workloads = [*self._found[DEPLOYMENTS].values(), *self._found[STATEFUL_SETS].values()]
        acts = decide(workloads, tuple(self._found[AUTOSCALERS].values()), served=served)
        before, self._told = self._told, {}
        good = True
        for act in acts:
            good = await self._do(act, before) and good
        return good

    async def _do(self, act: Act, before: Mapping[tuple[str, str], str]) -> bool:
        try:
            await self._write(act)
        except (Conflict, AlreadyExists, NotFound):
            # Something else changed it first: the watch will show it.
            return True
        except (ApiError, Unreachable, NotLeaderError) as error:
            _LOG.warning("autoscaler could not be written", workload=act.about.shown, verb=act.verb, problem=str(error))
            if isinstance(error, Invalid | Forbidden):
                self._warn(act.about, "AutoscaleFailed", f"the API server rejects its autoscaler: {error}", before)
            # Invalid stays invalid until a person changes something.
            return isinstance(error, Invalid)
        if act.verb == "refuse":
            self._warn(act.about, act.reason, act.note, before)
        else:
            self._tell(act.about, act.reason, act.note, warning=False)
        return True

    def _warn(self, about: Annotated, reason: str, note: str, before: Mapping[tuple[str, str], str]) -> None:
        self._told[about.uid, reason] = note
        if before.get((about.uid, reason)) != note:
            self._tell(about, reason, note, warning=True)

    def _tell(self, about: Annotated, reason: str, note: str, *, warning: bool) -> None:
        regarding = Reference(about.kind, about.name, about.namespace, about.uid, "apps/v1")
        self._events.record(regarding, reason, note, action="Autoscale", warning=warning)

    async def _write(self, act: Act) -> None:
        namespace = act.about.namespace
        if act.verb == "create":
            await self._client.create(AUTOSCALERS, act.body, namespace=namespace)
        elif act.verb == "replace" and act.existing is not None:
            await self._client.replace(AUTOSCALERS, act.existing.name, act.body, namespace=namespace)
        elif act.verb == "delete" and act.existing is not None:
            await self._client.delete(AUTOSCALERS, act.existing.name, namespace=namespace, uid=act.existing.uid)
