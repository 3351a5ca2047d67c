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
from gpuscaler.kube.turns import DecodeLock
from gpuscaler.metrics.autoscale.annotation import ANNOTATION
from gpuscaler.metrics.autoscale.deciding import OWNED_BY, AnnotatedWorkload, AutoscalerAction, ExistingAutoscaler, decide
from gpuscaler.model.aside import Skipped
from gpuscaler.model.decoding.objects import Data

_LOG = structlog.get_logger(__name__)
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
#: Seconds to wait for related changes, between passes without changes, and after a failed write.
DEBOUNCE, RESYNC_SECONDS, RETRY_SECONDS = 0.5, 60.0, 5.0


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
        self.model: type = ExistingAutoscaler if resource == AUTOSCALERS else AnnotatedWorkload

    def key(self, identity: str) -> str:
        return identity

    def read(self, data: Data) -> Decoded:
        try:
            decoded = _object(data)
            metadata = decoded.metadata
            model = (
                self._autoscaler(metadata, msgspec.json.decode(decoded.spec))
                if self.model is ExistingAutoscaler
                else self._workload(metadata)
            )
        except (msgspec.MsgspecError, ValueError, AttributeError, RecursionError) as error:
            identity = identity_of(header_of(data))
            return Decoded(identity, aside=Skipped(f"{self._kind} {identity}", f"saw {error}, expected an object that can be parsed"))
        # The reflector passes on the objects of its decoder unchanged.
        return Decoded(f"{metadata.namespace}/{metadata.name}", cast("Any", (model,)))

    def _workload(self, metadata: _Metadata) -> AnnotatedWorkload:
        annotation = None if metadata.deletion_timestamp else (metadata.annotations or {}).get(ANNOTATION)
        return AnnotatedWorkload(self._kind, metadata.namespace, metadata.name, metadata.uid, annotation)

    def _autoscaler(self, metadata: _Metadata, spec: dict[str, Any]) -> ExistingAutoscaler:
        target = spec.get("scaleTargetRef", {})
        marked = (metadata.labels or {}).get(OWNED_BY, "")
        owned = any(owner.uid == marked for owner in metadata.owner_references or ())
        return ExistingAutoscaler(
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
        self._objects: dict[Resource, dict[str, Any]] = {resource: {} for resource in (AUTOSCALERS, DEPLOYMENTS, STATEFUL_SETS)}
        self._changed = asyncio.Event()
        # Warnings of the last pass, by the workload's UID and the reason: each is recorded once while it stays the same.
        self._warned: dict[tuple[str, str], str] = {}
        #: What could not be read in the last pass.
        self._unread: list[str] = []
        turn = DecodeLock()
        self._reflectors = [
            Reflector(client, resource, _Decoder(resource), self._receive, clock=clock, random=random, decode_lock=turn, pace=Pace())
            for resource in self._objects
        ]

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run(), name=f"reflect {reflector.resource.label}")
            tasks.create_task(self._events.run(), name="write Events")
            tasks.create_task(self._election.run(self._lead), name="autoscale by annotations")

    def _receive(self, batch: Batch) -> None:
        objects = self._objects[batch.resource]
        for key, changed in cast("Mapping[str, Any]", batch.changes).items():
            if changed is None:
                objects.pop(key, None)
            else:
                objects[key] = changed
        self._changed.set()

    async def _lead(self) -> None:
        while True:
            # Until all lists are complete, a missing object means nothing.
            synced = all(reflector.synced for reflector in self._reflectors)
            self._log_unreadable()
            succeeded = await self._apply_changes() if synced else False
            try:
                async with asyncio.timeout(RESYNC_SECONDS if succeeded else RETRY_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(DEBOUNCE)

    def _log_unreadable(self) -> None:
        """Log what cannot be read, once while it stays the same: nothing is done without it, and the log must say why."""
        unread = [reflector.trouble for reflector in self._reflectors if reflector.trouble]
        if unread and unread != self._unread:
            _LOG.warning("objects that autoscalers are made from cannot be read", problems=unread)
        self._unread = unread

    async def _apply_changes(self) -> bool:
        """Do all pending acts; return whether all succeeded."""
        self._changed.clear()
        served = self._served()
        if served is None:
            return False
        workloads = [*self._objects[DEPLOYMENTS].values(), *self._objects[STATEFUL_SETS].values()]
        acts = decide(workloads, tuple(self._objects[AUTOSCALERS].values()), served=served)
        before, self._warned = self._warned, {}
        succeeded = True
        for act in acts:
            succeeded = await self._apply(act, before) and succeeded
        return succeeded

    async def _apply(self, act: AutoscalerAction, before: Mapping[tuple[str, str], str]) -> bool:
        try:
            await self._write(act)
        except (Conflict, AlreadyExists, NotFound):
            # Something else changed it first: the watch will show it.
            return True
        except (ApiError, Unreachable, NotLeaderError) as error:
            _LOG.warning("autoscaler could not be written", workload=act.about.display_name, verb=act.verb, problem=str(error))
            if isinstance(error, Invalid | Forbidden):
                self._warn(act.about, "AutoscaleFailed", f"the API server rejects its autoscaler: {error}", before)
            # An invalid autoscaler stays invalid until a person changes something.
            return isinstance(error, Invalid)
        if act.verb == "refuse":
            self._warn(act.about, act.reason, act.note, before)
        else:
            self._record_event(act.about, act.reason, act.note, warning=False)
        return True

    def _warn(self, about: AnnotatedWorkload, reason: str, note: str, before: Mapping[tuple[str, str], str]) -> None:
        self._warned[about.uid, reason] = note
        if before.get((about.uid, reason)) != note:
            self._record_event(about, reason, note, warning=True)

    def _record_event(self, about: AnnotatedWorkload, reason: str, note: str, *, warning: bool) -> None:
        regarding = Reference(about.kind, about.name, about.namespace, about.uid, "apps/v1")
        self._events.record(regarding, reason, note, action="Autoscale", warning=warning)

    async def _write(self, act: AutoscalerAction) -> None:
        namespace = act.about.namespace
        if act.verb == "create":
            await self._client.create(AUTOSCALERS, act.body, namespace=namespace)
        elif act.verb == "replace" and act.existing is not None:
            await self._client.replace(AUTOSCALERS, act.existing.name, act.body, namespace=namespace)
        elif act.verb == "delete" and act.existing is not None:
            await self._client.delete(AUTOSCALERS, act.existing.name, namespace=namespace, uid=act.existing.uid)
