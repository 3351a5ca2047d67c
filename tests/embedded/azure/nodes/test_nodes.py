"""Machines of the simulated account as nodes: with what recorded nodes of AKS have, and nothing else."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from tests.control.world import QUICK
from tests.embedded.azure import recorded_nodes as recorded
from tests.embedded.azure.conftest import BEGAN, SIZE
from tests.embedded.tolerant import tolerant_plugin
from tests.objects import pod
from tests.running_cluster import RunningCluster

from gpuscaler.embedded.azure import SUBSCRIPTION, Account, Conditions, making
from gpuscaler.embedded.azure.compute import capacity
from gpuscaler.embedded.azure.nodes.auto_drain import AutoDrain
from gpuscaler.embedded.azure.nodes.nodes import NodeNames, register_nodes
from gpuscaler.embedded.nodes.machines import Machines
from gpuscaler.embedded.serving.cluster import Conditions as ClusterConditions
from gpuscaler.embedded.serving.cluster import EmbeddedCluster
from gpuscaler.kube.resources import PODS
from gpuscaler.model.pools import Policy
from gpuscaler.model.quantities import parse


class World(RunningCluster):
    """A cluster whose nodes are the machines of an account."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.account = Account(now=lambda: BEGAN + loop.time(), conditions=Conditions(boot=QUICK))
        super().__init__(EmbeddedCluster(Policy(pools=()), now=self.account.now, conditions=ClusterConditions(delays=QUICK)))
        names = NodeNames()
        machines = Machines(self.cluster.client("azure"), now=self.account.now, naming=names.naming())
        register_nodes(self.account, machines, names)
        self.aks = making.create_cluster(self.account, system_count=0)
        drain = AutoDrain(self.account, self.cluster.client("azure"), now=self.account.now)
        self.support(machines.run(), drain.run(), self._pass())

    async def _pass(self) -> None:
        while True:
            self.account.advance()
            await asyncio.sleep(0.5)

    async def grown(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        """The nodes of a scale set, after it has grown to ``count``."""
        scale_set = self.account.scale_set(SUBSCRIPTION, self.aks.node_group, f"aks-{name}-{self.aks.hash}-vmss")
        capacity.set_capacity(self.account, scale_set, count)

        async def there() -> bool:
            return len(await self.nodes()) == count

        await self.until(there, 120)
        return await self.nodes()

    async def with_devices(self) -> dict[str, Any]:
        async def shown() -> bool:
            return any("nvidia.com/gpu" in node["status"]["allocatable"] for node in await self.nodes())

        await self.until(shown, 120)
        (node,) = await self.nodes()
        return node


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    try:
        yield made
    finally:
        await made.close()


def labels(node: Mapping[str, Any]) -> dict[str, str]:
    return dict(node["metadata"]["labels"])


@pytest.mark.parametrize(
    ("size", "spot", "expected"),
    [
        ("Standard_D4s_v5", False, recorded.PLAIN),
        (SIZE, False, recorded.PLAIN | recorded.GPU),
        (SIZE, True, recorded.PLAIN | recorded.GPU | recorded.SPOT),
    ],
)
async def test_nodes_of_aks_have_the_labels_of_recorded_ones(size: str, spot: bool, expected: frozenset[str]) -> None:
    async with world() as here:
        making.create_pool(here.account, here.aks, "gpu", size, spot=spot)
        (node,) = await here.grown("gpu")
        assert labels(node).keys() == expected
        assert labels(node)["kubernetes.azure.com/cluster"] == here.aks.node_group
        spots = [("kubernetes.azure.com/scalesetpriority", "spot", "NoSchedule")]
        assert [(taint["key"], taint["value"], taint["effect"]) for taint in node["spec"].get("taints") or ()] == (spots if spot else [])


async def test_nodes_have_the_names_zones_and_settings_of_their_pool() -> None:
    async with world() as here:
        making.create_pool(here.account, here.aks, "gpu", SIZE, zones=("2",), labels={"team": "ml"}, taints=("sku=gpu:NoSchedule",))
        scale_set = here.account.scale_set(SUBSCRIPTION, here.aks.node_group, f"aks-gpu-{here.aks.hash}-vmss")
        scale_set.next_number = 10
        (node,) = await here.grown("gpu")
        assert node["metadata"]["name"] == f"aks-gpu-{here.aks.hash}-vmss00000a"
        expected = recorded.PROVIDER_ID.format(subscription=SUBSCRIPTION, pool="gpu", hash=here.aks.hash, number=10)
        assert node["spec"]["providerID"] == expected
        assert labels(node)["topology.kubernetes.io/zone"] == labels(node)["topology.disk.csi.azure.com/zone"] == "eastus-2"
        assert (labels(node)["team"], labels(node)["kubernetes.azure.com/mode"]) == ("ml", "user")
        assert [(taint["key"], taint["value"]) for taint in node["spec"]["taints"]] == [("sku", "gpu")]


async def test_a_node_in_no_zone_has_the_zone_0() -> None:
    async with world() as here:
        making.create_pool(here.account, here.aks, "gpu", SIZE)
        (node,) = await here.grown("gpu")
        assert (labels(node)["topology.kubernetes.io/zone"], labels(node)["topology.disk.csi.azure.com/zone"]) == ("0", "")


async def test_gpus_appear_only_where_the_device_plugin_runs() -> None:
    async with world() as here:
        making.create_pool(here.account, here.aks, "gpu", SIZE, taints=("sku=gpu:NoSchedule",))
        (node,) = await here.grown("gpu")
        assert "nvidia.com/gpu" not in node["status"]["allocatable"]
        await here.sleep(300)
        (node,) = await here.nodes()
        assert "nvidia.com/gpu" not in node["status"]["allocatable"], "the plugin as shipped does not tolerate sku=gpu"


async def test_a_node_has_the_fields_of_recorded_ones() -> None:
    async with world() as here:
        await tolerant_plugin(here.user)
        making.create_pool(here.account, here.aks, "gpu", recorded.NC6S_V3.name)
        await here.grown("gpu")
        node = await here.with_devices()
        status = node["status"]
        assert frozenset(node["metadata"]["annotations"]) >= recorded.ANNOTATIONS
        assert frozenset(status["allocatable"]) == frozenset(status["capacity"]) == recorded.AMOUNTS
        assert {condition["type"] for condition in status["conditions"]} >= recorded.CONDITIONS
        assert {address["type"] for address in status["addresses"]} == recorded.ADDRESSES
        assert float(parse(status["capacity"]["memory"])) / 1024 == pytest.approx(recorded.NC6S_V3.capacity, rel=0.001)
        assert float(parse(status["allocatable"]["cpu"])) * 1000 == recorded.NC6S_V3.cpu
        assert float(parse(status["allocatable"]["ephemeral-storage"])) / 1024 == pytest.approx(recorded.NC6S_V3.disk * 0.9, rel=0.001)


async def test_nodes_go_with_their_machines_whether_they_are_deleted_or_evicted() -> None:
    async with world() as here:
        making.create_pool(here.account, here.aks, "spot", SIZE, spot=True)
        await here.grown("spot", 2)
        scale_set = here.account.scale_set(SUBSCRIPTION, here.aks.node_group, f"aks-spot-{here.aks.hash}-vmss")
        making.evict(here.account, scale_set, "0", notice=30)
        await here.sleep(60)
        assert [node["metadata"]["name"][-6:] for node in await here.nodes()] == ["000001"]
        capacity.delete_machines(here.account, scale_set, list(scale_set.machines.values()), force=True)
        await here.sleep(60)
        assert await here.nodes() == []


def scheduled(node: Mapping[str, Any]) -> tuple[str, str]:
    (condition,) = [condition for condition in node["status"]["conditions"] if condition["type"] == "VMEventScheduled"]
    return condition["status"], condition["message"].partition(" ")[0]


@pytest.mark.parametrize(("kind", "auto_drain", "drained"), [("Preempt", True, True), ("Preempt", False, False), ("Freeze", True, False)])
async def test_aks_shows_scheduled_events_and_drains_the_node_of_some(kind: str, auto_drain: bool, drained: bool) -> None:
    async with world() as here:
        here.account.conditions = replace(here.account.conditions, auto_drain=auto_drain)
        making.create_pool(here.account, here.aks, "cpu", "Standard_D4s_v5")
        (node,) = await here.grown("cpu")
        assert scheduled(node) == ("False", "VM")
        await here.user.create(PODS, pod("job", 0), namespace="default")
        await here.until(here.pods, 60)
        await here.sleep(30)
        scale_set = here.account.scale_set(SUBSCRIPTION, here.aks.node_group, f"aks-cpu-{here.aks.hash}-vmss")
        here.account.announce(scale_set.machines["0"], kind, here.account.time + 600)
        await here.sleep(60)
        (node,) = await here.nodes()
        assert scheduled(node) == ("True", kind)
        assert bool(node["spec"].get("unschedulable")) == drained
        assert (await here.pods() == []) == drained


async def test_a_machine_whose_extension_fails_does_not_become_a_node() -> None:
    async with world() as here:
        making.create_pool(here.account, here.aks, "gpu", SIZE)
        making.add_trouble(here.account, "VMExtensionProvisioningError", times=1)
        scale_set = here.account.scale_set(SUBSCRIPTION, here.aks.node_group, f"aks-gpu-{here.aks.hash}-vmss")
        capacity.set_capacity(here.account, scale_set, 1)
        await here.sleep(300)
        assert await here.nodes() == []
        assert scale_set.machines["0"].power == "running"


async def test_machines_of_a_pool_without_scale_set_have_names_of_their_own() -> None:
    async with world() as here:
        pool = making.create_pool(here.account, here.aks, "mixed", {SIZE: 0})
        capacity.set_capacity(here.account, pool.profiles[SIZE.lower()], 1)

        await here.until(here.nodes, 120)
        (node,) = await here.nodes()
        name = f"aks-mixed-{here.aks.hash}-vms0"
        assert node["metadata"]["name"] == name
        group = f"azure:///subscriptions/{SUBSCRIPTION}/resourceGroups/mc_rg_aks_eastus"
        assert node["spec"]["providerID"] == f"{group}/providers/Microsoft.Compute/virtualMachines/{name}"
        assert labels(node)["kubernetes.azure.com/nodepool-type"] == "VirtualMachines"


async def test_nodes_of_other_scale_sets_have_what_the_flags_in_their_custom_data_set() -> None:
    async with world() as here:
        flags = b"kubelet --node-labels=team=red,pool=own --register-with-taints=dedicated=gpu:NoExecute"
        profile = {"osProfile": {"computerNamePrefix": "own-", "customData": b64encode(flags).decode()}}
        tags = {"k8s.io_cluster-autoscaler_node-template_label_promised": "yes"}
        scale_set = making.create_scale_set(here.account, "own", "workers", SIZE, tags=tags, properties={"virtualMachineProfile": profile})
        capacity.set_capacity(here.account, scale_set, 1)

        await here.until(here.nodes, 120)
        (node,) = await here.nodes()
        assert node["metadata"]["name"] == "own-000000"
        assert (labels(node)["team"], labels(node)["pool"]) == ("red", "own")
        assert not {key for key in labels(node) if ("azure.com/" in key and key != "topology.disk.csi.azure.com/zone") or key == "promised"}
        assert [(taint["key"], taint["effect"]) for taint in node["spec"]["taints"]] == [("dedicated", "NoExecute")]
