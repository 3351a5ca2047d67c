"""What a cloud's machines are in the cluster: Node objects that appear after the boot, and go when the machine does.

What needs a device plugin comes with :mod:`~gpuscaler.embedded.nodes.devices`.

Only the API is used, so that this works against any API server.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from gpuscaler.embedded.nodes.devices import Devices, Promise, failed, until_done
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
    """What a cloud's machines are called: their Node and its ``spec.providerID``.

    That begins with ``scheme`` for all of them, and the name behind its last slash with ``prefix``. ``bare`` nodes carry nothing of ours by
    themselves, neither the label of their pool nor the arriving taint: what they register with is in their offering. ``finish`` adds what
    that cloud's kubelets write on a Node beside.
    """

    node: Callable[[CloudMachine], str] = name_of
    provider_id: Callable[[CloudMachine], str] = provider_id
    scheme: str = SCHEME
    prefix: str = ""
    bare: bool = False
    finish: Callable[[CloudMachine, dict[str, Any]], None] = lambda _machine, _node: None

    def is_ours(self, instance: str) -> bool:
        """Whether a ``spec.providerID`` is of a machine of this cloud."""
        return instance.startswith(self.scheme) and instance.rpartition("/")[2].startswith(self.prefix)


SIMULATED: Final = Naming()


class Machines:
    """Keeps a Node for each machine whose events it :meth:`hear` s, for as long as :meth:`run` runs.

    ``steered`` says that machines register with our arriving taint, as pools do whose boot configuration sets it. Of ``now`` pass
    ``speed`` seconds in a second of the event loop. What goes wrong with devices is in ``faults``, drawn by ``seed``.
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
        #: Events that wait for one that could not be written, by machine: others' Nodes do not wait for them.
        self._held: dict[str, deque[CloudEvent]] = {}
        #: Nodes of machines that are gone, which could not be deleted yet.
        self._left: list[dict[str, Any]] = []

    def hear(self, event: CloudEvent) -> None:
        """Something happened to a machine."""
        if event.machine is not None:
            self._events.put_nowait(event)

    async def run(self) -> None:
        """Write Nodes until cancelled, of each machine in the order of its events."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.devices.run())
            for node in self._left:
                tasks.create_task(until_done(partial(self._remove, node)))
            while True:
                event = await self._events.get()
                assert event.machine is not None, "only events of machines are kept"
                name = event.machine.id
                if name in self._held:
                    self._held[name].append(event)
                elif said := await failed(partial(self._follow, event.kind, event.machine)):
                    self._held[name] = deque([event])
                    tasks.create_task(self._catch_up(name, said))

    async def _catch_up(self, name: str, said: str) -> None:
        """Write what is held of one machine, since the API server ``said`` no."""
        while self._held[name]:
            event = self._held[name][0]
            assert event.machine is not None, "only events of machines are kept"
            await until_done(partial(self._follow, event.kind, event.machine), said)
            self._held[name].popleft()
            said = ""
        del self._held[name]

    async def agree(self, machines: Sequence[CloudMachine]) -> None:
        """Have a Node for each of ``machines`` that is up, and none for any other of this cloud: after what nobody saw."""
        for machine in machines:
            if machine.state in {REGISTERED, VISIBLE}:
                self.hear(CloudEvent(self._now(), REGISTERED, machine))
        names = {self._naming.provider_id(machine) for machine in machines}
        await until_done(partial(self._clear, names))

    async def _clear(self, names: Set[str]) -> None:
        found = [msgspec.json.decode(raw) for raw in await self._client.list_all(NODES)]
        ours = [node for node in found if self._naming.is_ours(_instance(node))]
        for node in ours:
            self.devices.seen(node["metadata"]["name"], node.get("status") or {})
        gone = [node for node in ours if _instance(node) not in names]
        # What cannot be deleted now keeps nobody from leading.
        self._left = [node for node in gone if await failed(partial(self._remove, node))]

    async def _remove(self, node: dict[str, Any]) -> None:
        try:
            await self._client.delete(NODES, node["metadata"]["name"], uid=node["metadata"].get("uid", ""), grace=0)
        except (NotFound, Conflict):
            # It is gone, and perhaps another has its name.
            return

    async def _found(self, machine: CloudMachine) -> dict[str, Any] | None:
        """The Node with the name of ``machine``. Raises :class:`NotFound`; None where it is another machine's, which is left alone."""
        node = msgspec.json.decode(await self._client.get(NODES, self._naming.node(machine)))
        return node if _instance(node) == self._naming.provider_id(machine) else None

    async def _follow(self, kind: str, machine: CloudMachine) -> None:
        name = self._naming.node(machine)
        if kind in {REGISTERED, VISIBLE}:
            # A machine that was there from the beginning only ever tells that it shows all it has.
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
                node = await self._found(machine)
                if node is not None:
                    await self._remove(node)

    def _node(self, machine: CloudMachine, *, steered: bool) -> dict[str, Any]:
        return node_of(machine, self._now(), naming=self._naming, steered=steered)


def _instance(node: Mapping[str, Any]) -> str:
    return (node.get("spec") or {}).get("providerID") or ""


def node_of(machine: CloudMachine, now: float, *, naming: Naming = SIMULATED, steered: bool, whole: bool = False) -> dict[str, Any]:
    """The Node that a machine registers as: Ready, ``whole`` or without what its device plugin brings."""
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
