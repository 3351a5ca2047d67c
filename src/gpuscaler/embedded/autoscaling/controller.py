"""Reconciles every HorizontalPodAutoscaler each fifteen seconds, and carries out the decisions of planning's algorithm.

Source: ``reconcileAutoscaler`` of ``pkg/controller/podautoscaler/horizontal.go``, Kubernetes 1.35. Autoscalers that share pods are not
detected.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import msgspec

from gpuscaler.embedded.apiserver.kinds import BY_NAME
from gpuscaler.embedded.autoscaling import showing
from gpuscaler.embedded.autoscaling.asking import MetricsClient
from gpuscaler.embedded.autoscaling.reading import replica_pod
from gpuscaler.embedded.nodes.scheduling import timestamp
from gpuscaler.embedded.workloads.mirror import Mirror
from gpuscaler.embedded.workloads.steps import Object, identity
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.events import EventRecorder, Reference
from gpuscaler.kube.resources import PODS, Resource
from gpuscaler.simulation.horizontal import AutoscalerError, History, Outcome, read_autoscaler, step
from gpuscaler.simulation.horizontal.specs import Autoscaler, Scale

RESOURCE: Final = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
#: Seconds between two steps of one autoscaler: kube-controller-manager's ``--horizontal-pod-autoscaler-sync-period``.
PERIOD: Final = 15.0


class _Stopped(Exception):  # noqa: N818 - it names the outcome of a step
    """A step that ends before anything is decided, with the condition and the Event that give the reason."""

    def __init__(self, kind: str, reason: str, message: str, cause: str) -> None:
        super().__init__(message)
        self.kind, self.reason, self.cause = kind, reason, cause


@dataclass(slots=True)
class _AutoscalerState:
    """The memory of one autoscaler, by its uid: ``desired`` and ``scaled`` as its status shows them."""

    uid: str
    due: float
    history: History = field(default_factory=History)
    desired: int = 0
    scaled: str = ""


class Autoscalers:
    """The controller, while :meth:`run` runs. ``now`` is the cluster's wall clock; ``speed`` seconds of it pass in one of the loop."""

    def __init__(self, client: Client, *, now: Callable[[], float], clock: Callable[[], float], random: Random, speed: float = 1.0) -> None:
        self._client, self._now, self._speed = client, now, speed
        self._mirror = Mirror(client, (RESOURCE,), clock=clock, random=random, touched=self._object_changed)
        self._metrics = MetricsClient(client)
        self._events = EventRecorder(client, now, component="horizontal-pod-autoscaler", instance="horizontal-pod-autoscaler")
        self._known: dict[str, _AutoscalerState] = {}
        self._stirred = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._mirror.reflectors:
                tasks.create_task(reflector.run())
            tasks.create_task(self._events.run())
            tasks.create_task(self._work())

    def _object_changed(self, _kind: str, obj: Object) -> None:
        name, uid = identity(obj), obj["metadata"]["uid"]
        remembered = self._known.get(name)
        if remembered is None or remembered.uid != uid:
            # The first step comes one period later, as in a controller that gathers changes first.
            self._known[name] = _AutoscalerState(uid, self._now() + PERIOD)
            self._stirred.set()

    async def _work(self) -> None:
        while True:
            self._stirred.clear()
            now = self._now()
            due = [item for item in self._known.items() if item[1].due <= now + 0.001]
            await asyncio.gather(*(self._turn(name, remembered) for name, remembered in due))
            left = min((remembered.due for remembered in self._known.values()), default=None)
            try:
                async with asyncio.timeout(None if left is None else max(0.01, (left - self._now()) / self._speed)):
                    await self._stirred.wait()
            except TimeoutError:
                continue

    async def _turn(self, name: str, remembered: _AutoscalerState) -> None:
        obj = self._mirror.get(RESOURCE.kind, name)
        if obj is None or obj["metadata"]["uid"] != remembered.uid:
            del self._known[name]
            return
        remembered.due = self._now() + PERIOD
        try:
            await self._step(obj, remembered)
        except (ApiError, Unreachable):
            # Nothing was decided, or the result could not be written: the next step tries again.
            return
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # Objects are stored here without validation; a malformed one must not stop other autoscalers.
            self._record_event(obj, "FailedReconcile", f"saw an object that cannot be read: {type(error).__name__}: {error}", warning=True)

    async def _step(self, obj: Object, remembered: _AutoscalerState) -> None:
        try:
            autoscaler = read_autoscaler(msgspec.json.encode(obj))
        except AutoscalerError as error:
            self._record_event(obj, "FailedConvertHPA", str(error), warning=True)
            return
        current: int | None = None
        try:
            resource, scale, selector = await self._scale(autoscaler)
            current = scale["spec"]["replicas"]
            outcome = await self._decide(autoscaler, scale, selector, remembered.history)
            remembered.history = outcome.history
            self._record_errors(obj, outcome)
            if outcome.desired != current:
                await self._rescale(obj, remembered, resource, scale, outcome)
            if not outcome.error or outcome.recommendation is not None:
                remembered.desired = outcome.desired
            metrics = showing.metrics(autoscaler, obj["spec"], outcome.current)
        except _Stopped as stopped:
            remembered.history = remembered.history.with_condition(stopped.kind, "False", stopped.reason, str(stopped), now=self._now())
            self._record_event(obj, stopped.reason, stopped.cause, warning=True)
            metrics = (obj.get("status") or {}).get("currentMetrics") or []
        await self._write_status(obj, remembered, current, metrics)

    async def _scale(self, autoscaler: Autoscaler) -> tuple[Resource, Object, str]:
        """The scale of the target, and the selector of its pods. Raises :class:`_Stopped`."""
        target = autoscaler.target
        kind = BY_NAME.get((target.api_version, target.kind))
        able, unable = "AbleToScale", "the HPA controller was unable to get the target's current scale"
        if kind is None or not kind.scale:
            cause = f'no matches for kind "{target.kind}" in group "{target.api_version.rpartition("/")[0]}"'
            raise _Stopped(able, "FailedGetScale", f"{unable}: {cause}", cause)
        resource = Resource(kind.group, kind.version, kind.plural, kind.kind)
        try:
            raw_scale = await self._client.get(resource, target.name, namespace=autoscaler.namespace, subresource="scale")
        except ApiError as error:
            raise _Stopped(able, "FailedGetScale", f"{unable}: {error.message}", error.message) from error
        scale: Object = msgspec.json.decode(raw_scale)
        selector = scale["status"].get("selector", "")
        if not selector:
            missing = "the HPA target's scale is missing a selector"
            raise _Stopped("ScalingActive", "InvalidSelector", missing, "selector is required")
        return resource, scale, selector

    async def _decide(self, autoscaler: Autoscaler, scale: Object, selector: str, history: History) -> Outcome:
        replicas = scale["spec"]["replicas"]
        is_in_bounds = autoscaler.min_replicas <= replicas <= autoscaler.max_replicas
        listed = (
            await self._client.list_all(PODS, namespace=autoscaler.namespace, query={"labelSelector": selector}) if is_in_bounds else []
        )
        return step(
            autoscaler,
            Scale(replicas, scale["status"].get("replicas", 0)),
            metrics=[await self._metrics.answer(autoscaler, metric, selector) for metric in autoscaler.metrics] if is_in_bounds else (),
            pods=[replica_pod(msgspec.json.decode(pod)) for pod in listed],
            history=history,
            now=self._now(),
        )

    async def _rescale(self, obj: Object, remembered: _AutoscalerState, resource: Resource, scale: Object, outcome: Outcome) -> None:
        change = f"New size: {outcome.desired}; reason: {outcome.reason}"
        metadata = scale["metadata"]
        wanted = {**scale, "spec": {"replicas": outcome.desired}}
        try:
            await self._client.replace(resource, metadata["name"], wanted, namespace=metadata["namespace"], subresource="scale")
        except ApiError as error:
            unable = f"the HPA controller was unable to update the target scale: {error.message}"
            raise _Stopped("AbleToScale", "FailedUpdateScale", unable, f"{change}; error: {error.message}") from error
        remembered.scaled = timestamp(self._now())
        self._record_event(obj, "SuccessfulRescale", change)

    def _record_errors(self, obj: Object, outcome: Outcome) -> None:
        active = outcome.history.condition("ScalingActive")
        if outcome.error and active is not None and active.status != "True":
            self._record_event(obj, active.reason, active.message.partition(": ")[2], warning=True)
        if outcome.error and outcome.recommendation is None:
            self._record_event(obj, "FailedComputeMetricsReplicas", outcome.error.partition(": ")[2], warning=True)

    def _record_event(self, obj: Object, reason: str, note: str, *, warning: bool = False) -> None:
        metadata = obj["metadata"]
        reference = Reference(RESOURCE.kind, metadata["name"], metadata["namespace"], metadata["uid"], RESOURCE.api_version)
        self._events.record(reference, reason, note, action="Rescale", warning=warning)

    async def _write_status(self, obj: Object, remembered: _AutoscalerState, current: int | None, metrics: list[Any]) -> None:
        before = obj.get("status") or {}
        status = {
            **before,
            "observedGeneration": obj["metadata"].get("generation", 1),
            "currentReplicas": before.get("currentReplicas", 0) if current is None else current,
            "desiredReplicas": remembered.desired,
            "currentMetrics": metrics,
            "conditions": showing.conditions(remembered.history),
            **({"lastScaleTime": remembered.scaled} if remembered.scaled else {}),
        }
        if status != before:
            metadata = obj["metadata"]
            answer = await self._client.merge_patch(
                RESOURCE, metadata["name"], {"status": status}, namespace=metadata["namespace"], subresource="status"
            )
            self._mirror.put(RESOURCE.kind, msgspec.json.decode(answer))
