"""Kubelets of all nodes in one object: pods start, run for as long as they ask, and end when they are deleted or their node is gone.

It uses only the API, so it works against any API server.
"""

import asyncio
import heapq
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import structlog
from msgspec import Struct, field

from gpuscaler.embedded.nodes.admitting import Admission, Refusal
from gpuscaler.embedded.nodes.leases import Leases
from gpuscaler.embedded.nodes.plugins import is_plugin
from gpuscaler.embedded.nodes.scheduling import timestamp
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Forbidden, NotFound, Unreachable
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.reflector import Batch
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod

_LOG = structlog.get_logger(__name__)
#: Actions on a pod.
START, SUCCEED, REMOVE, TURN_AWAY = "start", "succeed", "remove", "turn away"
ALL = (START, SUCCEED, REMOVE, TURN_AWAY)
#: The phase that a pod must be in for the action.
BEFORE = {START: "Pending", SUCCEED: "Running", TURN_AWAY: "Pending"}
#: The longest grace period in seconds, whatever a deleted pod asks for: nothing runs in it.
GRACE = 2.0
#: Seconds until a failed change of a pod is tried again.
AGAIN = 1.0


class WireContainer(Struct, frozen=True):
    name: str
    image: str = ""


class WireSpec(Struct, frozen=True):
    containers: tuple[WireContainer, ...] = ()
    init: tuple[WireContainer, ...] = field(default=(), name="initContainers")


class WireStatus(Struct, frozen=True):
    started: str = field(default="", name="startTime")


class WirePod(Struct, frozen=True):
    """The fields of a pod that a kubelet repeats in its status."""

    spec: WireSpec = WireSpec()
    status: WireStatus = WireStatus()


class Kubelets:
    """Runs the pods that are bound to nodes, for as long as :meth:`run` runs. ``picture`` has pods and nodes, and must be running.

    ``pull`` returns how many seconds a pod waits for its image, by the node's name, ``plugin_pull`` the same for device plugins. ``now`` is
    the wall clock, of which ``speed`` seconds pass in a second of the event loop. Only nodes for which ``is_ours`` is true are simulated:
    others have kubelets of their own. Without ``leases`` they renew none, which saves a write for each node every ten seconds. ``lasts``
    returns after how many seconds the kubelet of a node stops for good, by the node's name.
    """

    def __init__(
        self,
        client: Client,
        picture: Picture,
        *,
        now: Callable[[], float],
        pull: Callable[[str], float],
        plugin_pull: Callable[[str], float] = lambda _node: 0.0,
        speed: float = 1.0,
        is_ours: Callable[[Node], bool] = lambda _node: True,
        leases: bool = True,
        lasts: Callable[[str], float] = lambda _node: float("inf"),
    ) -> None:
        self._client, self._now, self._pull, self._speed, self._ours = client, now, pull, speed, is_ours
        self._plugin_pull, self._lasts = plugin_pull, lasts
        self._leases = Leases(client, now=now, again=self._post_ready, speed=speed) if leases else None
        #: Nodes whose kubelet has stopped.
        self.stopped: set[str] = set()
        #: The uids of nodes.
        self._nodes: dict[str, str] = {}
        self._pods: dict[str, Pod] = {}
        self._admission = Admission()
        #: Reasons of pods that are rejected, by uid.
        self._refusals: dict[str, Refusal] = {}
        self._due: list[tuple[float, str, str, str]] = []
        self._planned: dict[tuple[str, str], str] = {}
        self._wake = asyncio.Event()
        self._writes: set[asyncio.Task[None]] = set()
        #: Forbidden writes that were already logged.
        self._forbidden: set[str] = set()
        picture.listen(self._receive)

    def _receive(self, batch: Batch) -> None:
        if batch.model is Node:
            self._nodes_changed({key: item if isinstance(item, Node) else None for key, item in batch.changes.items()})
        elif batch.model is Pod:
            for key, item in batch.changes.items():
                self._pod_changed(key, item if isinstance(item, Pod) and item.node_name else None)

    def _nodes_changed(self, changes: Mapping[str, Node | None]) -> None:
        uids = {name: node.uid for name, node in changes.items() if node is not None and self._ours(node)}
        removed = {name for name, node in changes.items() if node is None and name in self._nodes}
        for name, node in changes.items():
            self._admission.node_changed(name, node)
        self._add_nodes(uids)
        for name in removed:
            del self._nodes[name]
        if self._leases is not None:
            for name in uids.keys() - self.stopped:
                self._leases.keep(name, uids[name])
            for name in removed:
                self._leases.leave(name)
        self.stopped -= removed
        for orphan in [pod for pod in self._pods.values() if pod.node_name in removed] if removed else ():
            self._plan(orphan, REMOVE, self._now())

    def _pod_changed(self, key: str, pod: Pod | None) -> None:
        before = self._pods.pop(key, None)
        if before is not None and (pod is None or pod.uid != before.uid or pod.finished):
            self._admission.left(before.uid)
            self._refusals.pop(before.uid, None)
        if pod is not None:
            self._pods[key] = pod
            self._plan_next(pod)
        else:
            for what in ALL:
                self._planned.pop((key, what), None)

    def stop(self, node: str) -> None:
        """Stop the kubelet of a node: its status is not updated any more, and its pods stay as they are."""
        self.stopped.add(node)
        if self._leases is not None:
            self._leases.leave(node)

    def resume(self, node: str) -> None:
        """Start the kubelet of a node again; it reports its node as Ready."""
        if node not in self.stopped:
            return
        self.stopped.discard(node)
        if self._leases is not None and node in self._nodes:
            self._leases.keep(node, self._nodes[node])
        for pod in [pod for pod in self._pods.values() if pod.node_name == node]:
            for what in ALL:
                self._planned.pop((pod.key, what), None)
            self._plan_next(pod)

    async def _post_ready(self, node: str) -> None:
        """Set a node that was declared unreachable to Ready."""
        current = msgspec.json.decode(await self._client.get(NODES, node))
        conditions = (current.get("status") or {}).get("conditions") or []
        if not any((condition["type"], condition.get("reason")) == ("Ready", "NodeStatusUnknown") for condition in conditions):
            return
        moment = timestamp(self._now())
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
        updated = [
            *({**condition, "status": "False"} for condition in conditions if condition["type"] != "Ready"),
            {**ready, "lastTransitionTime": moment},
        ]
        await self._client.merge_patch(NODES, node, {"status": {"conditions": updated}}, subresource="status")

    def _stop_later(self, node: str) -> None:
        if (left := self._lasts(node)) < float("inf"):
            asyncio.get_running_loop().call_later(left / self._speed, self._stop_if_present, node)

    def _stop_if_present(self, node: str) -> None:
        if node in self._nodes:
            self.stop(node)

    def _add_nodes(self, uids: Mapping[str, str]) -> None:
        """Add nodes; pods that are bound to them may have been seen before."""
        fresh = uids.keys() - self._nodes.keys()
        self._nodes |= uids
        for name in fresh:
            self._stop_later(name)
        for pod in [pod for pod in self._pods.values() if pod.node_name in fresh] if fresh else ():
            self._plan_next(pod)

    def _plan_next(self, pod: Pod) -> None:
        """The next action for a bound pod."""
        if pod.node_name not in self._nodes or pod.node_name in self.stopped:
            return
        now = self._now()
        refusal = None if pod.deleted or pod.finished else self._admission.admit(pod)
        if pod.deleted:
            self._plan(pod, REMOVE, now + min(GRACE, float(pod.spec.grace_seconds)))
        elif refusal is not None:
            self._refusals[pod.uid] = refusal
            self._plan(pod, TURN_AWAY, now)
        elif pod.phase == "Pending":
            pull = self._plugin_pull if _is_plugin(pod) else self._pull
            self._plan(pod, START, now + pull(pod.node_name))
        elif pod.phase == "Running" and pod.options.run_for is not None:
            self._plan(pod, SUCCEED, (pod.started or now) + pod.options.run_for)

    def _plan(self, pod: Pod, what: str, at: float) -> None:
        """Do ``what`` to exactly this pod at ``at``, once."""
        if self._planned.get((pod.key, what)) != pod.uid:
            self._planned[pod.key, what] = pod.uid
            heapq.heappush(self._due, (at, pod.key, what, pod.uid))
            self._wake.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._work())
            if self._leases is not None:
                tasks.create_task(self._leases.run())

    async def _work(self) -> None:
        try:
            while True:
                self._wake.clear()
                now = self._now()
                while self._due and self._due[0][0] <= now + 0.001:
                    _, key, what, uid = heapq.heappop(self._due)
                    pod = self._pods.get(key)
                    # Another process may simulate the same nodes: what it has done already is not done again.
                    done_already = pod is None or pod.uid != uid or pod.phase != BEFORE.get(what, pod.phase)
                    if pod is not None and not done_already and pod.node_name not in self.stopped:
                        self._spawn(pod, what)
                    else:
                        self._planned.pop((key, what), None)
                left = max(0.001, (self._due[0][0] - now) / self._speed) if self._due else None
                try:
                    async with asyncio.timeout(left):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            for task in self._writes:
                task.cancel()

    def _spawn(self, pod: Pod, what: str) -> None:
        task = asyncio.get_running_loop().create_task(self._change(pod, what))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _change(self, pod: Pod, what: str) -> None:
        try:
            if what == REMOVE:
                await self._client.delete(PODS, pod.name, namespace=pod.namespace, uid=pod.uid, grace=0)
            else:
                current = msgspec.json.decode(await self._client.get(PODS, pod.name, namespace=pod.namespace), type=WirePod)
                body = {"metadata": {"uid": pod.uid}, "status": self._status(pod, what, current)}
                await self._client.merge_patch(PODS, pod.name, body, namespace=pod.namespace, subresource="status")
        except NotFound:
            pass
        except (ApiError, Unreachable) as error:
            if isinstance(error, Forbidden) and what not in self._forbidden:
                self._forbidden.add(what)
                _LOG.warning("a simulated kubelet lacks a permission", pod=pod.key, problem=str(error))
            self._planned.pop((pod.key, what), None)
            self._plan(pod, what, self._now() + AGAIN * self._speed)
            return
        self._forbidden.discard(what)
        if self._planned.get((pod.key, what)) == pod.uid and what == REMOVE:
            del self._planned[pod.key, what]

    def _status(self, pod: Pod, what: str, current: WirePod) -> dict[str, Any]:
        if what == TURN_AWAY:
            return rejected_status(self._refusals[pod.uid])
        return running_status(self._now(), current) if what == START else succeeded_status(self._now(), current)


def _is_plugin(pod: Pod) -> bool:
    return pod.owner.kind == "DaemonSet" and is_plugin(pod.namespace, pod.owner.name)


def running_status(now: float, pod: WirePod) -> dict[str, Any]:
    """The status of ``pod`` when it starts to run."""
    moment = timestamp(now)
    state = {"running": {"startedAt": moment}}
    return {
        "phase": "Running",
        "startTime": moment,
        "conditions": pod_conditions(moment, ready=True),
        **container_statuses(pod, state, ready=True),
    }


def rejected_status(refusal: Refusal) -> dict[str, Any]:
    """The status of a pod that its kubelet rejects."""
    return {"phase": "Failed", "reason": refusal.reason, "message": f"Pod was rejected: {refusal.message}"}


def succeeded_status(now: float, pod: WirePod) -> dict[str, Any]:
    """The status of ``pod`` when it has succeeded."""
    moment = timestamp(now)
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": pod.status.started or moment, "finishedAt": moment}
    return {
        "phase": "Succeeded",
        "conditions": pod_conditions(moment, ready=False),
        **container_statuses(pod, {"terminated": ended}, ready=False),
    }


def container_statuses(pod: WirePod, state: dict[str, Any], *, ready: bool) -> dict[str, Any]:
    """The statuses of containers: init containers complete at once."""
    done = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    by_field = {
        "containerStatuses": [_container(container, state, ready=ready) for container in pod.spec.containers],
        "initContainerStatuses": [_container(container, done, ready=True) for container in pod.spec.init],
    }
    return {name: statuses for name, statuses in by_field.items() if statuses}


def _container(container: WireContainer, state: dict[str, Any], *, ready: bool) -> dict[str, Any]:
    image = {"image": container.image, "imageID": "", "restartCount": 0}
    return {"name": container.name, "state": state, "ready": ready, "started": ready, **image}


def pod_conditions(moment: str, *, ready: bool) -> list[dict[str, str]]:
    values = {"PodScheduled": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
    return [{"type": name, "status": str(value), "lastTransitionTime": moment} for name, value in values.items()]
