"""F79: node labels that do not announce GPUs, so that our own pods run on the wrong nodes, or are missing on the right ones."""

from typing import Any

from tests.control.world import World
from tests.faults.guarding import BUSY_STRANGER, IDLE_STRANGER
from tests.faults.kit import bought, faulty, status
from tests.objects import pod

from gpuscaler.control.records.status.status import Process
from gpuscaler.kube.resources import DAEMON_SETS, NODES, PODS

LABELS = {"app.kubernetes.io/name": "gpuscaler", "app.kubernetes.io/component": "exporter"}
PRESENT = {"matchExpressions": [{"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}]}


def exporter() -> dict[str, Any]:
    """The DaemonSet as the chart makes it, with one of its terms."""
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [PRESENT]}}}
    spec = {"affinity": affinity, "tolerations": [{"operator": "Exists"}], "containers": [{"name": "exporter", "image": "gpuscaler:1"}]}
    template = {"metadata": {"labels": LABELS}, "spec": spec}
    metadata = {"name": "gpuscaler-exporter", "labels": LABELS}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {"selector": {}, "template": template}}


async def machine(here: World) -> str:
    """Buy a machine with a GPU and return its node, which has no label of NVIDIA's feature discovery."""
    await here.submit("train")
    await bought(here, 1)
    await here.sleep(120.0)
    (name,) = {str(node["metadata"]["name"]) for node in await here.nodes()} - {BUSY_STRANGER, IDLE_STRANGER}
    await here.user.merge_patch(NODES, name, {"metadata": {"labels": {"nvidia.com/gpu.present": None}}})
    return name


async def test_f79_nodes_with_gpus_and_no_exporter_are_reported_until_they_are_labelled() -> None:
    async with faulty() as here:
        name = await machine(here)
        assert (await status(here)).warnings == ()

        await here.user.create(DAEMON_SETS, exporter(), namespace="kube-system")
        await here.sleep(5.0)
        (warning,) = (await status(here)).warnings
        assert warning.startswith("DaemonSet kube-system/gpuscaler-exporter matches 0 of 3 nodes with NVIDIA GPUs, and not ")
        assert all(word in warning for word in (name, BUSY_STRANGER, IDLE_STRANGER))
        assert "label them, or set exporter.affinity of the chart to your own terms" in warning

        await here.user.merge_patch(NODES, name, {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}})
        await here.sleep(5.0)
        (warning,) = (await status(here)).warnings
        assert "matches 1 of 3 nodes" in warning
        assert BUSY_STRANGER in warning
        assert name not in warning


async def test_f79_a_leader_on_a_node_with_gpus_is_reported_until_it_runs_elsewhere() -> None:
    async with faulty() as here:
        name = await machine(here)
        own = pod("gpuscaler-0", 0)
        own["spec"]["nodeName"] = name
        await here.user.create(PODS, own, namespace="default")
        await here.sleep(5.0)
        leader = Process("me", pod="gpuscaler-0", namespace="default")

        (warning,) = (await status(here, leader)).warnings
        assert warning.startswith(f"pod default/gpuscaler-0, which leads, runs on node {name}, which has GPUs: saw no label there")
        assert "label the node, or set controller.affinity of the chart to your own terms" in warning
        assert (await status(here, Process("me", pod="gpuscaler-1", namespace="default"))).warnings == ()

        await here.user.delete(PODS, "gpuscaler-0", namespace="default")
        await here.sleep(5.0)
        assert (await status(here, leader)).warnings == ()
