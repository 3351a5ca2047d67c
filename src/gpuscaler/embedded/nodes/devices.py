"""Devices of simulated machines: a Node shows them only while the pod of their device plugin runs on it.

Only the API is used, so that this works against any API server whose cluster has a DaemonSet controller, a scheduler and kubelets.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any, Final, cast

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.embedded.nodes.plugin_pods import PluginPod, PluginPods
from gpuscaler.embedded.nodes.plugins import Plugin, plugin_of
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import AlreadyExists, ApiError, NotFound, Unreachable
from gpuscaler.kube.reflector import Batch, Reflector
from gpuscaler.kube.resources import DAEMON_SETS, NODES, PODS
from gpuscaler.kube.turns import DecodeLock
from gpuscaler.model.pods import Resources
from gpuscaler.simulation.cloud.delays import NO_FAULTS, Faults, MissingResource
from gpuscaler.simulation.cloud.machines import is_device

_LOG = structlog.get_logger(__name__)
#: How long the kubelet keeps the capacity of a plugin that is gone (``endpointStopGracePeriod`` of its device manager), in seconds.
#: The allocatable amount drops to 0 at once.
CAPACITY_KEPT: Final = 300.0
#: Pauses between retries while the API server does not answer, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0


class Promise(Struct, frozen=True):
    """The devices of a machine, which its Node shows ``delay`` seconds after their plugins' pods run there; infinite means never."""

    instance: str
    instance_type: str
    amounts: Resources
    delay: float


class Devices:
    """Shows the devices of machines that were passed to :meth:`promise` while their plugins run, as long as :meth:`run` runs.

    ``now`` is the wall clock, of which ``speed`` seconds pass in a second of the event loop. A DaemonSet is created when the first machine
    comes that needs it, and never again: deleting it ends its devices. ``faults`` are random failures; methods cause more on demand.
    """

    def __init__(self, client: Client, *, now: Callable[[], float], speed: float = 1.0, faults: Faults = NO_FAULTS, seed: int = 0) -> None:
        self.faults = faults
        self._seed = seed
        self._client, self._now, self._speed = client, now, speed
        self._promised: dict[str, Promise] = {}
        #: A node's devices as we wrote or read them; capacity and allocatable.
        self._capacity: dict[str, dict[str, int]] = {}
        self._shown: dict[str, dict[str, int]] = {}
        self._pods: dict[str, PluginPod] = {}
        #: The running ones, by node and plugin.
        self._running: dict[tuple[str, str], dict[str, PluginPod]] = {}
        #: When the devices of a plugin on a node appear, by the pod's uid; and since when it has had no running pod.
        self._shows: dict[tuple[str, str], tuple[str, float]] = {}
        self._stopped: dict[tuple[str, str], float] = {}
        #: Until when restarting plugins are away, by node and plugin, and what was hidden by calls.
        self._away: dict[tuple[str, str], float] = {}
        self._hidden: list[MissingResource] = []
        #: The number of permanently broken devices, by node and resource.
        self._broken: dict[tuple[str, str], int] = {}
        self._installed: set[str] = set()
        self._wanted: asyncio.Queue[Plugin] = asyncio.Queue()
        self._dirty: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._listed = False

    def promise(self, node: str, promise: Promise) -> None:
        """Register a machine that is, or will be, the Node ``node``."""
        devices = {name: amount for name, amount in promise.amounts.items() if is_device(name)}
        if not devices:
            return
        if node not in self._promised or self._promised[node].instance != promise.instance:
            self._forget_node(node)
            self._restart_later(node, promise.instance, 0)
        self._promised[node] = replace(promise, amounts=devices)
        for plugin in map(plugin_of, devices):
            if plugin.name not in self._installed:
                self._installed.add(plugin.name)
                self._wanted.put_nowait(plugin)
        self._mark_dirty(node)

    def record_shown(self, node: str, status: Mapping[str, Any]) -> None:
        """Record what a Node showed when this process began."""
        self._shown[node] = _counts(status.get("allocatable"))
        self._capacity[node] = _counts(status.get("capacity"))

    def forget(self, node: str, instance: str) -> None:
        """Forget the machine ``instance``, which is gone."""
        if node in self._promised and self._promised[node].instance == instance:
            self._forget_node(node)

    def restart(self, node: str = "", *, seconds: float = 45.0, plugin: str = "") -> None:
        """Restart device plugins: their devices are away for ``seconds``. "" stands for all nodes and for all plugins."""
        for name, promise in self._promised.items():
            for plugin_name in {plugin_of(resource).name for resource in promise.amounts}:
                if node in ("", name) and plugin in ("", plugin_name):
                    self._away[name, plugin_name] = self._now() + seconds
                    self._mark_dirty(name)

    def break_for_good(self, node: str, resource: str, count: int = 1) -> None:
        """Break devices of a node for good: the kubelet still counts them as capacity, but gives them to no pod."""
        self._broken[node, resource] = self._broken.get((node, resource), 0) + count
        self._mark_dirty(node)

    def hide(self, resource: str = "", instance_type: str = "") -> None:
        """From now on no machine of the type shows the resource, whatever it promises; an empty argument means all."""
        self._hidden.append(MissingResource(resource, instance_type))
        self._mark_all_dirty()

    def unhide(self) -> None:
        """Show again what :meth:`hide` has hidden."""
        self._hidden.clear()
        self._mark_all_dirty()

    @property
    def hidden(self) -> Sequence[MissingResource]:
        """The entries of :meth:`hide`."""
        return tuple(self._hidden)

    def _restart_later(self, node: str, instance: str, times: int) -> None:
        """Restart the plugins of a node at random times, again and again."""
        if self.faults.plugin_hours:
            rng = Random(f"{self._seed}/plugin/{instance}/{times}")
            wait = rng.expovariate(1.0) * self.faults.plugin_hours * 3600.0 / self._speed
            asyncio.get_running_loop().call_later(wait, self._restarts, node, instance, times)

    def _restarts(self, node: str, instance: str, times: int) -> None:
        if node in self._promised and self._promised[node].instance == instance:
            self.restart(node, seconds=self.faults.plugin_seconds)
            self._restart_later(node, instance, times + 1)

    def _forget_node(self, node: str) -> None:
        promise = self._promised.pop(node, None)
        for amounts in (self._shown, self._capacity) if promise is not None else ():
            amounts.pop(node, None)
        for key in [key for key in (*self._shows, *self._stopped, *self._away) if key[0] == node]:
            for moments in (self._shows, self._stopped, self._away):
                moments.pop(key, None)
        for name in promise.amounts if promise is not None else ():
            self._broken.pop((node, name), None)

    def _mark_all_dirty(self) -> None:
        for node in self._promised:
            self._mark_dirty(node)

    def _mark_dirty(self, node: str) -> None:
        self._dirty[node] = None
        self._wake.set()

    # Running plugins

    def _receive(self, batch: Batch) -> None:
        for name, item in batch.changes.items():
            before, pod = self._pods.pop(name, None), cast("PluginPod | None", item)
            if before is not None:
                self._running.get((before.node, before.plugin), {}).pop(name, None)
                self._mark_dirty(before.node)
            if pod is not None:
                self._pods[name] = pod
                if pod.running:
                    self._running.setdefault((pod.node, pod.plugin), {})[name] = pod
                self._mark_dirty(pod.node)
        if batch.listed and not self._listed:
            self._listed = True
            self._mark_all_dirty()

    async def run(self) -> None:
        """Write the devices of nodes until cancelled."""
        clock = asyncio.get_running_loop().time
        reflector = Reflector(self._client, PODS, PluginPods(), self._receive, clock=clock, random=Random(0), decode_lock=DecodeLock())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._install())
            # Without machines that have devices there is nothing to watch.
            await self._wake.wait()
            tasks.create_task(reflector.run())
            while True:
                await self._wake.wait()
                self._wake.clear()
                nodes, self._dirty = list(self._dirty), {}
                if self._listed:
                    await asyncio.gather(*(retry_until_done(lambda node=node: self._settle(node)) for node in nodes))  # type: ignore[misc]

    async def _install(self) -> None:
        while True:
            plugin = await self._wanted.get()
            await retry_until_done(lambda plugin=plugin: self._create(plugin))  # type: ignore[misc]

    async def _create(self, plugin: Plugin) -> None:
        manifest = plugin.manifest()
        try:
            await self._client.create(DAEMON_SETS, manifest, namespace=manifest["metadata"]["namespace"])
        except AlreadyExists:
            # The users have installed it themselves, as they would in a real cluster.
            return

    # Devices of nodes

    async def _settle(self, node: str) -> None:
        promise = self._promised.get(node)
        if promise is None:
            return
        allocatable, capacity = self._due(node, promise)
        shown, old_capacity = self._shown.get(node, {}), self._capacity.get(node, {})
        patch = {"capacity": _changes(old_capacity, capacity), "allocatable": _changes(shown, allocatable)}
        if not patch["capacity"] and not patch["allocatable"]:
            return
        try:
            current = msgspec.json.decode(await self._client.get(NODES, node))
            if (current.get("spec") or {}).get("providerID") != promise.instance:
                return
            body = {"metadata": {"uid": current["metadata"]["uid"]}, "status": {name: part for name, part in patch.items() if part}}
            await self._client.merge_patch(NODES, node, body, subresource="status")
        except NotFound:
            return
        self._shown[node], self._capacity[node] = allocatable, capacity

    def _due(self, node: str, promise: Promise) -> tuple[dict[str, int], dict[str, int]]:
        """Allocatable and capacity that a node shows by now; if time alone changes them, the node is checked again then."""
        now = self._now()
        shown, old_capacity = self._shown.get(node, {}), self._capacity.get(node, {})
        allocatable, capacity = {}, {}
        for name, amount in promise.amounts.items():
            at, kept = self._times(node, promise, plugin_of(name).name, now, showed=bool(shown.get(name)))
            at = float("inf") if self._is_absent(name, promise) else at
            for moment in (at, kept):
                if now < moment < float("inf"):
                    asyncio.get_running_loop().call_later((moment - now) / self._speed + 0.001, self._mark_dirty, node)
            allocatable[name] = max(amount - self._broken.get((node, name), 0), 0) if at <= now else 0
            capacity[name] = amount if at <= now else old_capacity.get(name, 0) if now < kept else 0
        return allocatable, capacity

    def _is_absent(self, resource: str, promise: Promise) -> bool:
        """Whether a machine never shows a resource."""
        for absent in (*self.faults.absent, *self._hidden):
            rng = Random(f"{self._seed}/absent/{promise.instance}/{resource}")
            if absent.hits(resource, promise.instance_type) and rng.random() < absent.share:
                return True
        return False

    def _times(self, node: str, promise: Promise, plugin: str, now: float, *, showed: bool) -> tuple[float, float]:
        """When the devices of a plugin appear, and until when their capacity remains without them."""
        key = (node, plugin)
        pod = next(iter(self._running.get(key, {}).values()), None)
        if pod is None:
            self._shows.pop(key, None)
            since = self._stopped.setdefault(key, now)
            return float("inf"), since + CAPACITY_KEPT
        if key not in self._shows or self._shows[key][0] != pod.uid:
            # After a restart, this process finds what the plugin has already shown.
            unbroken = showed and key not in self._shows and key not in self._stopped
            self._shows[key] = (pod.uid, now if unbroken else now + promise.delay)
        at = max(self._shows[key][1], self._away.get(key, 0.0))
        since = self._stopped.pop(key, now) if at <= now else self._stopped.setdefault(key, now)
        return at, since + CAPACITY_KEPT


def _counts(amounts: Mapping[str, Any] | None) -> dict[str, int]:
    """The devices among the amounts in a Node's status."""
    return {name: int(amount) for name, amount in (amounts or {}).items() if is_device(name) and str(amount).isdigit()}


def _changes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, str]:
    return {name: str(amount) for name, amount in after.items() if before.get(name, 0) != amount}


async def try_write(write: Callable[[], Coroutine[Any, Any, None]], logged: str = "") -> str:
    """Try ``write``; returns the API server's error, empty on success. An error equal to ``logged`` is not logged again."""
    try:
        await write()
    except (ApiError, Unreachable) as error:
        if str(error) != logged:
            _LOG.warning("an object of a simulated machine could not be written", problem=str(error))
        return str(error) or type(error).__name__
    return ""


async def retry_until_done(write: Callable[[], Coroutine[Any, Any, None]], logged: str = "") -> None:
    """Try ``write`` until the API server accepts it; after an earlier error ``logged`` it waits before the first try."""
    pause = FIRST_PAUSE
    logged = logged or await try_write(write)
    while logged:
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
        logged = await try_write(write, logged)
