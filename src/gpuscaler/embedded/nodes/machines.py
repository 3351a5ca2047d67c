"""A cloud's machines in the cluster: Node objects that appear after the boot, and are deleted with the machine.

Devices are added by :mod:`~gpuscaler.embedded.nodes.devices`.

It uses only the API, so it works against any API server.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from gpuscaler.embedded.nodes.devices import Devices, Promise, retry_until_done, try_write
from gpuscaler.embedded.nodes.scheduling import timestamp
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import AlreadyExists, Conflict, NotFound
from gpuscaler.kube.resources import NODES
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import ARRIVING_TAINT, POOL_LABEL
from gpuscaler.simulation.cloud.delays import NO_FAULTS, Faults
from gpuscaler.simulation.cloud.machines import LOST, REGISTERED, TERMINATED, VISIBLE, CloudEvent, CloudMachine, before_device_plugin
from gpuscaler.simulation.cloud.provider import SCHEME, provider_id

#: Resources that are counted in thousandths.
THOUSANDTHS = frozenset({"cpu"})


def name_of(machine: CloudMachine) -> str:
    """The name of a simulated machine's Node."""
    return machine.id


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of a cloud's machines: of their Node, and its ``spec.providerID``.

    All provider IDs begin with ``scheme``; the name behind the last slash begins with ``prefix``. ``bare`` nodes get nothing of ours by
    themselves, neither the label of their pool nor the arriving taint: their labels and taints come from their offering. ``finish`` adds
    other fields that the cloud's kubelets write on a Node.
    """

    node: Callable[[CloudMachine], str] = name_of
    provider_id: Callable[[CloudMachine], str] = provider_id
    scheme: str = SCHEME
    prefix: str = ""
    bare: bool = False
    finish: Callable[[CloudMachine, dict[str, Any]], None] = lambda _machine, _node: None

    def is_ours(self, instance: str) -> bool:
        """Whether a ``spec.providerID`` belongs to a machine of this cloud."""
        return instance.startswith(self.scheme) and instance.rpartition("/")[2].startswith(self.prefix)


SIMULATED: Final = Naming()


class Machines:
    """Maintains a Node for each machine whose events it gets through :meth:`hear`, while :meth:`run` runs.

    ``steered`` machines register with our arriving taint, as in pools whose boot settings add it. ``speed`` seconds of ``now`` pass in
    a second of the event loop. ``faults`` are failures of devices, drawn by ``seed``.
    """

    def __init__(
        self,
        client: Client,
        *,
        now: Callable[[], float],
        steered: bool = True,
        naming: Naming = SIMULATED,
        speed: float = 1.0,
        faults: Faults = NO_FAULTS,
        seed: int = 0,
    ) -> None:
        self._client, self._now, self._steered, self._naming = client, now, steered, naming
        self.devices = Devices(client, now=now, speed=speed, faults=faults, seed=seed)
        self._events: asyncio.Queue[CloudEvent] = asyncio.Queue()
        #: Events behind one that could not be written, by machine: Nodes of other machines do not wait for them.
        self._held: dict[str, deque[CloudEvent]] = {}
        #: Nodes of ended machines that could not be deleted yet.
        self._left: list[dict[str, Any]] = []

    def hear(self, event: CloudEvent) -> None:
        """Receive an event of a machine."""
        if event.machine is not None:
            self._events.put_nowait(event)

    async def run(self) -> None:
        """Write Nodes until cancelled, for each machine in the order of its events."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.devices.run())
            for node in self._left:
                tasks.create_task(retry_until_done(partial(self._remove, node)))
            while True:
                event = await self._events.get()
                assert event.machine is not None, "only events of machines are kept"
                name = event.machine.id
                if name in self._held:
                    self._held[name].append(event)
                elif error := await try_write(partial(self._apply_event, event.kind, event.machine)):
                    self._held[name] = deque([event])
                    tasks.create_task(self._catch_up(name, error))

    async def _catch_up(self, name: str, error: str) -> None:
        """Retry the queued events of one machine, after the API server refused the first with ``error``."""
        while self._held[name]:
            event = self._held[name][0]
            assert event.machine is not None, "only events of machines are kept"
            await retry_until_done(partial(self._apply_event, event.kind, event.machine), error)
            self._held[name].popleft()
            error = ""
        del self._held[name]

    async def reconcile(self, machines: Sequence[CloudMachine]) -> None:
        """Have a Node for each running machine of ``machines``, and for no other of this cloud, whatever events were missed."""
        for machine in machines:
            if machine.state in {REGISTERED, VISIBLE}:
                self.hear(CloudEvent(self._now(), REGISTERED, machine))
        names = {self._naming.provider_id(machine) for machine in machines}
        await retry_until_done(partial(self._delete_stale_nodes, names))

    async def _delete_stale_nodes(self, names: Set[str]) -> None:
        nodes = [msgspec.json.decode(raw) for raw in await self._client.list_all(NODES)]
        own = [node for node in nodes if self._naming.is_ours(_instance(node))]
        for node in own:
            self.devices.record_shown(node["metadata"]["name"], node.get("status") or {})
        ended = [node for node in own if _instance(node) not in names]
        # A Node that cannot be deleted now must not block leading.
        self._left = [node for node in ended if await try_write(partial(self._remove, node))]

    async def _remove(self, node: dict[str, Any]) -> None:
        try:
            await self._client.delete(NODES, node["metadata"]["name"], uid=node["metadata"].get("uid", ""), grace=0)
        except (NotFound, Conflict):
            # It is deleted already, and another may have its name.
            return

    async def _find_own_node(self, machine: CloudMachine) -> dict[str, Any] | None:
        """The Node with the name of ``machine``. Raises :class:`NotFound`; None if it belongs to another machine, and stays untouched."""
        node = msgspec.json.decode(await self._client.get(NODES, self._naming.node(machine)))
        return node if _instance(node) == self._naming.provider_id(machine) else None

    async def _apply_event(self, kind: str, machine: CloudMachine) -> None:
        name = self._naming.node(machine)
        if kind in {REGISTERED, VISIBLE}:
            # A machine that existed from the start has only one event: that it shows all its resources.
            steered = self._steered and kind == REGISTERED
            with suppress(AlreadyExists):
                await self._client.create(NODES, self._node(machine, steered=steered))
            delay = machine.visible_at - machine.registered_at if machine.registered_at < float("inf") else float("inf")
            offering = machine.offering
            promise = Promise(self._naming.provider_id(machine), offering.instance_type, offering.allocatable, delay)
            self.devices.promise(name, promise)
        elif kind in {LOST, TERMINATED}:
            self.devices.forget(name, self._naming.provider_id(machine))
            with suppress(NotFound):
                node = await self._find_own_node(machine)
                if node is not None:
                    await self._remove(node)

    def _node(self, machine: CloudMachine, *, steered: bool) -> dict[str, Any]:
        return node_of(machine, self._now(), naming=self._naming, steered=steered)


def _instance(node: Mapping[str, Any]) -> str:
    return (node.get("spec") or {}).get("providerID") or ""


def node_of(machine: CloudMachine, now: float, *, naming: Naming = SIMULATED, steered: bool, whole: bool = False) -> dict[str, Any]:
    """The Node that a machine registers as: Ready, ``whole`` or without the resources of its device plugins."""
    offering = machine.offering
    amounts = quantities(offering.allocatable if whole else before_device_plugin(offering.allocatable))
    taints = [*offering.taints, *([Taint(ARRIVING_TAINT)] if steered and not naming.bare else [])]
    pool = {} if naming.bare else {POOL_LABEL: offering.pool}
    moment = timestamp(now)
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    node: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": naming.node(machine),
            "labels": {**pool, **offering.labels, "kubernetes.io/hostname": naming.node(machine)},
        },
        "spec": {
            "providerID": naming.provider_id(machine),
            "taints": [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in taints],
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{**ready, "lastHeartbeatTime": moment, "lastTransitionTime": moment}],
            "nodeInfo": {"kubeletVersion": "v1.35.4", "operatingSystem": "linux", "architecture": "amd64"},
        },
    }
    naming.finish(machine, node)
    return node


def quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    """Amounts in the model's base units as the API writes them."""
    return {name: f"{amount}m" if name in THOUSANDTHS else str(amount) for name, amount in amounts.items()}
