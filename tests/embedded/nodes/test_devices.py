"""Devices of simulated nodes appear with the pod of their device plugin, and disappear with it."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.control.world import World, world

from gpuscaler.clouds.protocol import Order
from gpuscaler.embedded.nodes.plugins import GENERIC, PLUGINS, is_plugin, plugin_of
from gpuscaler.kube.resources import DAEMON_SETS, NODES, PODS
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.well_known import ARRIVING_TAINT
from gpuscaler.simulation.cloud.delays import NO_FAULTS, Delay, Delays, Faults, MissingResource

GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
SECONDS = Delay(10.0, 10.0, 10.0)
STEADY = Delays(boot=SECONDS, device_plugin=Delay(5.0, 5.0, 5.0), answer=Delay(1.0, 1.0, 1.0), image_pull=Delay(40.0, 40.0, 40.0))
TWO = """
region: us-east-1
pools:
  - {name: gpu, types: [g4dn.xlarge], markets: [on-demand], zones: [us-east-1a]}
  - {name: efa, types: [p5.48xlarge], markets: [on-demand], zones: [us-east-1a]}
  - {name: cpu, types: [m5.xlarge], markets: [on-demand], zones: [us-east-1a]}
"""
TYPES = {"gpu": "g4dn.xlarge", "efa": "p5.48xlarge", "cpu": "m5.xlarge"}


async def buy(here: World, pool: str = "gpu") -> str:
    """Buy a machine and wait for its Node."""
    order = Order(f"t-{here.now():.1f}", pool, (OfferingKey(pool, "on-demand", TYPES[pool], "us-east-1a"),), 1)
    bought = await here.cluster.provider.buy(order)
    await here.sleep(10.5)
    return bought.instances[0].id.rpartition("/")[2]


async def amounts(here: World, name: str, part: str = "allocatable") -> dict[str, str]:
    node = msgspec.json.decode(await here.user.get(NODES, name))
    return {resource: amount for resource, amount in node["status"][part].items() if "/" in resource}


async def plugin_pods(here: World, name: str = "") -> list[dict[str, Any]]:
    pods = [msgspec.json.decode(raw) for raw in await here.user.list_all(PODS, namespace="kube-system")]
    return [pod for pod in pods if name in ("", pod["spec"].get("nodeName"))]


async def test_gpus_appear_once_the_device_plugin_has_its_image_and_has_registered() -> None:
    async with world(TWO, delays=STEADY, steered=False) as here:
        name = await buy(here)
        assert await amounts(here, name) == await amounts(here, name, "capacity") == {}
        (pod,) = await plugin_pods(here, name)
        assert pod["metadata"]["ownerReferences"][0]["name"] == "nvidia-device-plugin-daemonset"
        await here.sleep(2.0)
        assert (await plugin_pods(here, name))[0]["status"]["phase"] == "Pending"
        # A tenth of the time of a job's image, and then the time of the registration.
        await here.sleep(3.0)
        assert (await plugin_pods(here, name))[0]["status"]["phase"] == "Running"
        assert await amounts(here, name) == {}
        await here.sleep(5.0)
        assert await amounts(here, name) == await amounts(here, name, "capacity") == {GPU: "1"}


async def test_devices_are_missing_from_the_deletion_of_their_plugins_pod_until_the_next_pod_runs() -> None:
    async with world(TWO, delays=STEADY, steered=False) as here:
        name = await buy(here)
        await here.sleep(20.0)
        (pod,) = await plugin_pods(here, name)
        await here.user.delete(PODS, pod["metadata"]["name"], namespace="kube-system")
        await here.sleep(5.0)
        assert (await amounts(here, name), await amounts(here, name, "capacity")) == ({GPU: "0"}, {GPU: "1"})
        await here.sleep(15.0)
        assert await amounts(here, name) == {GPU: "1"}


async def test_without_the_plugins_daemon_set_devices_disappear_and_their_capacity_after_five_minutes() -> None:
    async with world(TWO, delays=STEADY, steered=False) as here:
        name = await buy(here)
        await here.sleep(20.0)
        await here.user.delete(DAEMON_SETS, PLUGINS[0].name, namespace="kube-system")
        await here.sleep(290.0)
        assert (await amounts(here, name), await amounts(here, name, "capacity")) == ({GPU: "0"}, {GPU: "1"})
        await here.sleep(20.0)
        assert await amounts(here, name, "capacity") == {GPU: "0"}


async def test_a_node_with_a_taint_that_the_device_plugin_does_not_tolerate_has_no_devices() -> None:
    tainted = TWO.replace("types: [g4dn.xlarge]", "types: [g4dn.xlarge], taints: [{key: team, value: a, effect: NoSchedule}]")
    async with world(tainted, delays=STEADY, steered=False) as here:
        name = await buy(here)
        await here.sleep(60.0)
        assert (await plugin_pods(here, name), await amounts(here, name)) == ([], {})
        # The operator of the cluster fixes the toleration.
        tolerations = [*PLUGINS[0].manifest()["spec"]["template"]["spec"]["tolerations"], {"key": "team", "operator": "Exists"}]
        patch = {"spec": {"template": {"spec": {"tolerations": tolerations}}}}
        await here.user.merge_patch(DAEMON_SETS, PLUGINS[0].name, patch, namespace="kube-system")
        await here.sleep(30.0)
        assert await amounts(here, name) == {GPU: "1"}


async def test_each_vendor_has_its_own_device_plugin_and_machines_without_devices_have_no_plugin() -> None:
    async with world(TWO, delays=STEADY, steered=False) as here:
        await buy(here, "cpu")
        await here.sleep(20.0)
        assert await here.user.list_all(DAEMON_SETS, namespace="kube-system") == []
        name = await buy(here, "efa")
        await here.sleep(20.0)
        assert (await amounts(here, name)).keys() == {GPU, EFA}
        owners = {pod["metadata"]["ownerReferences"][0]["name"] for pod in await plugin_pods(here, name)}
        assert owners == {plugin_of(GPU).name, plugin_of(EFA).name}


async def test_devices_disappear_and_return_when_a_test_restarts_or_hides_their_plugin() -> None:
    async with world(TWO, delays=STEADY, steered=False) as here:
        name = await buy(here, "efa")
        await here.sleep(20.0)
        devices = here.cluster.machines.devices
        devices.restart(name, seconds=30.0, plugin=plugin_of(GPU).name)
        await here.sleep(29.0)
        assert [int(amount) > 0 for _, amount in sorted((await amounts(here, name)).items())] == [False, True]
        await here.sleep(2.0)
        assert (await amounts(here, name))[GPU] == "8"
        devices.hide(EFA, "p5.48xlarge")
        await here.sleep(1.0)
        assert (await amounts(here, name))[EFA] == "0"
        devices.unhide()
        await here.sleep(1.0)
        assert int((await amounts(here, name))[EFA]) > 0


@pytest.mark.parametrize(
    ("faults", "shown"),
    [
        (replace(NO_FAULTS, never_visible=1.0), set()),
        (replace(NO_FAULTS, absent=(MissingResource(EFA),)), {GPU}),
        (replace(NO_FAULTS, absent=(MissingResource("", "g4dn.xlarge"),)), {GPU, EFA}),
        (replace(NO_FAULTS, absent=(MissingResource(EFA, share=0.0),)), {GPU, EFA}),
    ],
)
async def test_faults_select_promised_devices_that_never_appear(faults: Faults, shown: set[str]) -> None:
    async with world(TWO, delays=STEADY, faults=faults, steered=False) as here:
        name = await buy(here, "efa")
        await here.sleep(60.0)
        assert {resource for resource, amount in (await amounts(here, name)).items() if amount != "0"} == shown


async def test_device_plugins_restart_at_the_configured_rate() -> None:
    faults = replace(NO_FAULTS, plugin_hours=0.05, plugin_seconds=30.0)
    async with world(TWO, delays=STEADY, faults=faults, steered=False) as here:
        name = await buy(here)
        seen = []
        for _ in range(400):
            await here.sleep(5.0)
            seen.append((await amounts(here, name)).get(GPU))
        # 2,000 s, with restarts of 30 s each every 180 s on average.
        assert 10 <= seen.count("0") <= 120
        assert seen.count("1") > 200


def test_no_device_plugin_tolerates_our_taint_and_that_of_an_unknown_resource_has_its_own_name() -> None:
    unknown = plugin_of("example.com/FPGA_1")

    assert unknown.name == f"{GENERIC}example-com-fpga-1"
    for plugin in (*PLUGINS, unknown):
        tolerations = plugin.manifest()["spec"]["template"]["spec"]["tolerations"]
        assert all(toleration["key"] not in ("", ARRIVING_TAINT) for toleration in tolerations)
        assert is_plugin("kube-system", plugin.name)
    assert not is_plugin("default", PLUGINS[0].name)
    assert plugin_of("nvidia.com/mig-1g.10gb") == plugin_of(GPU)
