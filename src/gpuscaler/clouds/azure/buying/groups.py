"""A scale set or agent pool as buying sees it: a number that can be read, written with compare-and-swap, and machines deleted by id."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec.structs import replace

from gpuscaler.clouds.azure.api.arm import COMPUTE, CONTAINERSERVICE, Arm, etag_of
from gpuscaler.clouds.azure.api.ids import agent_pool_path, group_path, scale_set_path
from gpuscaler.clouds.azure.api.operations import operation_url
from gpuscaler.clouds.azure.buying.capacity import Count
from gpuscaler.clouds.azure.discovery.pools import AGENT_POOL, AzurePool
from gpuscaler.clouds.azure.documents.reading import machine_of, scale_set_of
from gpuscaler.clouds.azure.documents.resources import MACHINES, ScaleSet, VirtualMachine, is_word
from gpuscaler.clouds.azure.documents.wire import ReadingError
from gpuscaler.clouds.azure.machines.listing import is_leaving
from gpuscaler.clouds.protocol import CONFIGURATION, CloudError
from gpuscaler.model.azure_names import fold_id, node_name
from gpuscaler.model.pools import Pool

#: Provisioning states in which nothing is running any more.
_FINAL: Final = ("succeeded", "failed", "canceled")
#: The tag by which AKS marks the machines of a pool of virtual machines.
_POOL_TAG: Final = "aks-managed-poolname"
#: The power state of a machine whose list does not have any.
_UNKNOWN_POWER: Final = "unknown"
#: The largest capacity of a scale set and of an agent pool.
LARGEST: Final = 1000


class Group(Protocol):
    """What is bought from: a scale set, or one size of an agent pool.

    ``name`` is its name in messages. ``one_at_a_time`` means that Azure refuses a write while an operation is running.
    """

    key: tuple[str, str]
    name: str
    one_at_a_time: bool

    async def machines(self) -> Sequence[VirtualMachine]:
        """All machines that Azure lists, in any state. Raises CloudError."""
        ...

    async def number(self) -> Count:
        """A fresh read of the number, as if a machine were listed for all of it. Raises CloudError."""
        ...

    async def count(self) -> tuple[Count, Sequence[VirtualMachine]]:
        """A fresh read of the number, and the machines. Raises CloudError."""
        ...

    async def write(self, count: Count, capacity: int) -> str:
        """Set the capacity, unless something was written since ``count`` was read; returns the URL of the operation."""
        ...

    async def delete(self, machines: Sequence[VirtualMachine], *, force: bool) -> str:
        """Delete ``machines``, which lowers the capacity; returns the URL of the operation. ``machines`` must not be empty."""
        ...


class ScaleSetGroup:
    """A scale set, of either orchestration mode."""

    one_at_a_time = False

    def __init__(self, arm: Arm, scale_set: ScaleSet, pool: Pool) -> None:
        self._arm, self._set, self._limit = arm, scale_set, LARGEST if pool.max is None else pool.max
        self._path = scale_set_path(scale_set.subscription, scale_set.group, scale_set.name)
        self.key = (fold_id(self._path), "")
        self.name = f"scale set {scale_set.name}"

    async def machines(self) -> Sequence[VirtualMachine]:
        return await list_machines(self._arm, self._set)

    async def number(self) -> Count:
        return await _scale_set_number(self._arm, self._path, self.name, self._limit)

    async def count(self) -> tuple[Count, Sequence[VirtualMachine]]:
        return await _counted(self)

    async def write(self, count: Count, capacity: int) -> str:
        # Azure keeps every property that a write leaves out, so that what others set is not written back.
        body = {"location": self._set.location, "sku": {**self._sku(), "capacity": capacity}}
        return operation_url(await self._arm.write("PUT", self._path, version=COMPUTE, body=body, etag=count.etag))

    def _sku(self) -> Mapping[str, Any]:
        return {"name": self._set.size} if self._set.size else {"name": "Mix"}

    async def delete(self, machines: Sequence[VirtualMachine], *, force: bool) -> str:
        # Sister actions of deleteInstances take an empty list as all machines.
        assert machines, "a deletion names machines"
        parameters = {"forceDeletion": "true"} if force else {}
        body = {"instanceIds": [machine.instance_id for machine in machines]}
        path = f"{self._path}/delete"
        return operation_url(await self._arm.write("POST", path, version=COMPUTE, body=body, parameters=parameters))


class AgentPoolGroup:
    """One size of an agent pool of AKS, which takes one write at a time."""

    one_at_a_time = True

    def __init__(self, arm: Arm, azure_pool: AzurePool, size: str) -> None:
        agent_pool = azure_pool.agent_pool
        assert agent_pool is not None, "only agent pools are written as such"
        self._arm, self._azure_pool, self._pool = arm, azure_pool, agent_pool
        self._size = size if is_word(agent_pool.kind, MACHINES) else ""
        self._path = agent_pool_path(agent_pool.subscription, agent_pool.group, agent_pool.cluster, agent_pool.name)
        self._limit = LARGEST if azure_pool.pool.max is None else azure_pool.pool.max
        #: The document of the last read: a write sends all of it back.
        self._document: dict[str, Any] = {}
        self.key = (fold_id(self._path), fold_id(self._size))
        self.name = f"agent pool {agent_pool.name}{f' ({self._size})' if self._size else ''}"

    async def machines(self) -> Sequence[VirtualMachine]:
        machines = await list_pool_machines(self._arm, self._azure_pool)
        return [machine for machine in machines if not self._size or is_word(machine.size, self._size)]

    async def number(self) -> Count:
        reply = await self._arm.read(self._path, version=CONTAINERSERVICE)
        self._document = reply.body if isinstance(reply.body, dict) else {}
        properties = self._properties()
        number = self._profile(properties).get("count") if self._size else properties.get("count")
        if number is None and self._size:
            number = 0
        if not isinstance(number, int) or number < 0:
            raise CloudError(CONFIGURATION, f"{self.name}: saw count {str(number)[:40]}, expected the number of its machines")
        etag, busy = str(properties.get("eTag") or "") or etag_of(reply), is_busy(str(properties.get("provisioningState") or ""))
        count = Count(number, etag, number, busy=busy, limit=self._limit)
        if self._azure_pool.scale_set is None:
            return count
        own = self._azure_pool.scale_set
        path = scale_set_path(own.subscription, own.group, own.name)
        scale_set = await _scale_set_number(self._arm, path, self.name, self._limit)
        largest = max(number, scale_set.capacity)
        return replace(count, capacity=largest, listed=largest, busy=busy or scale_set.busy, agreed=number == scale_set.capacity)

    async def count(self) -> tuple[Count, Sequence[VirtualMachine]]:
        return await _counted(self)

    async def write(self, count: Count, capacity: int) -> str:
        properties = {name: value for name, value in self._properties().items() if name not in _READ_ONLY}
        if self._size:
            properties["virtualMachinesProfile"] = self._profiles_with(capacity)
        else:
            properties["count"] = capacity
        reply = await self._arm.write("PUT", self._path, version=CONTAINERSERVICE, body={"properties": properties}, etag=count.etag)
        return operation_url(reply)

    async def delete(self, machines: Sequence[VirtualMachine], *, force: bool) -> str:  # noqa: ARG002  # AKS always drains nothing itself
        assert machines, "a deletion names machines"
        # AKS calls a machine as its node is called.
        body = {"machineNames": [machine.computer_name or node_name(machine.name) for machine in machines]}
        return operation_url(await self._arm.write("POST", f"{self._path}/deleteMachines", version=CONTAINERSERVICE, body=body))

    def _properties(self) -> dict[str, Any]:
        properties = self._document.get("properties")
        return properties if isinstance(properties, dict) else {}

    def _profiles(self, properties: Mapping[str, Any]) -> list[dict[str, Any]]:
        profile = properties.get("virtualMachinesProfile") or {}
        scale = profile.get("scale") if isinstance(profile, dict) else {}
        manual = scale.get("manual") if isinstance(scale, dict) else ()
        return [entry for entry in manual or () if isinstance(entry, dict)]

    def _profile(self, properties: Mapping[str, Any]) -> Mapping[str, Any]:
        return next((entry for entry in self._profiles(properties) if is_word(entry.get("size"), self._size)), {})

    def _profiles_with(self, capacity: int) -> dict[str, Any]:
        """The whole list of profiles, as it must be sent, with the number of this size changed."""
        profiles = self._profiles(self._properties())
        changed = [{**entry, "count": capacity} if is_word(entry.get("size"), self._size) else entry for entry in profiles]
        if not any(is_word(entry.get("size"), self._size) for entry in profiles):
            changed.append({"size": self._size, "count": capacity})
        return {"scale": {"manual": changed}}


#: Properties of an agent pool that only Azure writes.
_READ_ONLY: Final = ("provisioningState", "currentOrchestratorVersion", "nodeImageVersion", "eTag", "virtualMachineNodesStatus")


def group_of(arm: Arm, azure_pool: AzurePool, size: str) -> Group:
    """The group in which machines of ``size`` of the pool are bought."""
    if azure_pool.way == AGENT_POOL or azure_pool.scale_set is None:
        return AgentPoolGroup(arm, azure_pool, size)
    return ScaleSetGroup(arm, azure_pool.scale_set, azure_pool.pool)


async def _scale_set_number(arm: Arm, path: str, name: str, limit: int) -> Count:
    reply = await arm.read(path, version=COMPUTE)
    try:
        scale_set = scale_set_of(reply.body)
    except ReadingError as error:
        raise CloudError(CONFIGURATION, f"{name}: {error}") from error
    capacity, etag = scale_set.capacity, etag_of(reply) or scale_set.etag
    return Count(capacity, etag, capacity, busy=is_busy(scale_set.state), limit=limit)


async def _counted(group: Group) -> tuple[Count, Sequence[VirtualMachine]]:
    # The number first: a machine that comes in between is listed, and a listed machine is never above the number that is written.
    number = await group.number()
    machines = await group.machines()
    return replace(number, listed=sum(not is_leaving(machine) for machine in machines)), machines


def is_busy(state: str) -> bool:
    """Whether a provisioning state says that an operation is running."""
    return bool(state) and state.lower() not in _FINAL


async def list_machines(arm: Arm, scale_set: ScaleSet) -> Sequence[VirtualMachine]:
    """The machines of a scale set, in any state; one that cannot be read has no id. Raises CloudError."""
    path = scale_set_path(scale_set.subscription, scale_set.group, scale_set.name)
    if scale_set.is_flexible:
        chosen = {"$filter": f"'virtualMachineScaleSet/id' eq '{path}'", "$expand": "instanceView"}
        machines = group_path(scale_set.subscription, scale_set.group) + "/providers/Microsoft.Compute/virtualMachines"
        return list(map(_read_machine, await arm.pages(machines, version=COMPUTE, parameters=chosen)))
    return list(map(_read_machine, await arm.pages(f"{path}/virtualMachines", version=COMPUTE, parameters={"$expand": "instanceView"})))


async def list_pool_machines(arm: Arm, azure_pool: AzurePool) -> Sequence[VirtualMachine]:
    """The machines of an agent pool: of its scale set, else the virtual machines of the node resource group that carry its name."""
    if azure_pool.scale_set is not None:
        return await list_machines(arm, azure_pool.scale_set)
    agent_pool = azure_pool.agent_pool
    assert agent_pool is not None, "a pool has a scale set or an agent pool"
    path = group_path(agent_pool.subscription, agent_pool.node_resource_group) + "/providers/Microsoft.Compute/virtualMachines"
    machines = map(_read_machine, await arm.pages(path, version=COMPUTE))
    # This list has no power states: a machine that failed may run and cost.
    return [
        replace(machine, power=machine.power or _UNKNOWN_POWER) if is_word(machine.state, "Failed") else machine
        for machine in machines
        if _belongs_to(machine, agent_pool.name)
    ]


def _belongs_to(machine: VirtualMachine, pool: str) -> bool:
    tags = {name.lower(): value for name, value in machine.tags.items()}
    return tags.get(_POOL_TAG) == pool or (_POOL_TAG not in tags and fold_id(machine.name).startswith(f"aks-{fold_id(pool)}-"))


def _read_machine(document: object) -> VirtualMachine:
    """A machine; one that cannot be read has no id: it is counted, and nothing is done to it."""
    try:
        return machine_of(document)
    except ReadingError:
        return VirtualMachine("", "", "")
