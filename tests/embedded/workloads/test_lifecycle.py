"""Kubelets renew the Leases of their nodes; a node with a stopped kubelet is declared unreachable."""

from typing import Any

import msgspec
from tests.control.world import QUICK, World, world
from tests.objects import pod

from gpuscaler.clouds.protocol import Order
from gpuscaler.embedded.nodes.leases import NAMESPACE
from gpuscaler.embedded.workloads.lifecycle import GRACE, UNREACHABLE, toleration_seconds
from gpuscaler.kube.resources import LEASES, NODES, PODS
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.well_known import UNSCHEDULABLE
from gpuscaler.simulation.cloud.delays import Faults

KEY = OfferingKey("gpu", "on-demand", "g4dn.xlarge", "us-east-1a")


async def bought(here: World) -> str:
    """The name of a node that is up and has its devices."""
    made = await here.cluster.provider.buy(Order("a", "gpu", (KEY,), 1))
    await here.sleep(60.0)
    return made.instances[0].id.rpartition("/")[2]


async def node(here: World, name: str) -> dict[str, Any]:
    obj: dict[str, Any] = msgspec.json.decode(await here.user.get(NODES, name))
    return obj


def ready(obj: dict[str, Any]) -> str:
    return next(str(condition["status"]) for condition in obj["status"]["conditions"] if condition["type"] == "Ready")


def unreachable(obj: dict[str, Any]) -> list[str]:
    return [taint["effect"] for taint in obj["spec"].get("taints") or () if taint["key"] == UNREACHABLE]


async def test_the_lease_of_a_node_is_renewed_every_ten_seconds_and_deleted_with_it() -> None:
    async with world() as here:
        name = await bought(here)
        moments = []
        for _ in range(4):
            lease = msgspec.json.decode(await here.user.get(LEASES, name, namespace=NAMESPACE))
            moments.append(lease["spec"]["renewTime"])
            await here.sleep(10.0)
        assert len(set(moments)) == 4
        assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseDurationSeconds"]) == (name, 40)
        assert ready(await node(here, name)) == "True"
        await here.user.delete(NODES, name)
        await here.sleep(30.0)
        assert await here.user.list_all(LEASES, namespace=NAMESPACE) == []


async def test_a_cordoned_node_has_the_unschedulable_taint_until_it_is_uncordoned() -> None:
    async with world() as here:
        name = await bought(here)

        async def cordon_taints(*, unschedulable: bool | None) -> list[str]:
            await here.user.merge_patch(NODES, name, {"spec": {"unschedulable": unschedulable}})
            await here.sleep(1.0)
            return [taint["effect"] for taint in (await node(here, name))["spec"].get("taints") or () if taint["key"] == UNSCHEDULABLE]

        assert await cordon_taints(unschedulable=True) == ["NoSchedule"]
        assert await cordon_taints(unschedulable=None) == []


async def test_a_node_with_a_stopped_kubelet_becomes_unreachable_and_later_loses_its_pods() -> None:
    async with world() as here:
        name = await bought(here)
        body = pod("train", 0)
        body["spec"] |= {"nodeName": name}
        await here.user.create(PODS, body, namespace="default")
        await here.sleep(10.0)
        here.cluster.kubelets.stop(name)
        await here.sleep(GRACE - 15.0)
        assert ready(await node(here, name)) == "True"
        await here.sleep(20.0)
        obj = await node(here, name)
        assert (ready(obj), unreachable(obj)) == ("Unknown", ["NoSchedule", "NoExecute"])
        (train,) = await here.pods()
        assert next(condition["status"] for condition in train["status"]["conditions"] if condition["type"] == "Ready") == "False"
        assert "deletionTimestamp" not in train["metadata"]
        await here.sleep(310.0)
        # No kubelet is there to end it.
        (train,) = await here.pods()
        assert "deletionTimestamp" in train["metadata"]
        await here.sleep(600.0)
        assert len(await here.pods()) == 1
        await here.user.delete(NODES, name)
        await here.sleep(60.0)
        assert await here.pods() == []


async def test_a_restarted_kubelet_makes_its_node_ready_again() -> None:
    async with world() as here:
        name = await bought(here)
        here.cluster.kubelets.stop(name)
        await here.sleep(120.0)
        assert unreachable(await node(here, name))
        here.cluster.kubelets.resume(name)
        await here.sleep(15.0)
        obj = await node(here, name)
        assert (ready(obj), unreachable(obj)) == ("True", [])


async def test_foreign_conditions_and_taints_stay_on_a_node_with_a_live_kubelet() -> None:
    async with world() as here:
        name = await bought(here)
        taints = [{"key": UNREACHABLE, "effect": "NoSchedule"}]
        await here.user.merge_patch(NODES, name, {"spec": {"taints": taints}})
        unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        await here.user.merge_patch(NODES, name, {"status": {"conditions": [unknown]}}, subresource="status")
        await here.sleep(600.0)
        obj = await node(here, name)
        assert (ready(obj), unreachable(obj)) == ("Unknown", ["NoSchedule"])


async def test_if_leases_are_disabled_none_are_written_and_no_node_is_declared_unreachable() -> None:
    async with world(leases=False) as here:
        name = await bought(here)
        here.cluster.kubelets.stop(name)
        await here.sleep(600.0)
        assert await here.user.list_all(LEASES, namespace=NAMESPACE) == []
        assert ready(await node(here, name)) == "True"


async def test_kubelets_stop_at_the_configured_rate() -> None:
    faults = Faults(never_registers=0.0, gpu_hours_between_failures=0.0, kubelet_hours=0.05)
    async with world(faults=faults, delays=QUICK) as here:
        name = await bought(here)
        for _ in range(60):
            await here.sleep(30.0)
            if unreachable(await node(here, name)):
                break
        assert ready(await node(here, name)) == "Unknown"


def test_a_pod_stays_on_an_unreachable_node_for_its_toleration_time() -> None:
    def stays(*tolerations: dict[str, Any]) -> float | None:
        return toleration_seconds({"spec": {"tolerations": list(tolerations)}})

    toleration = {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute"}
    assert stays() == 0.0
    assert stays({"key": "other", "operator": "Exists"}) == 0.0
    assert stays({**toleration, "tolerationSeconds": 300}) == 300.0
    assert stays(toleration) is stays({"operator": "Exists"}) is None
    assert stays({**toleration, "effect": "NoSchedule"}) == 0.0
