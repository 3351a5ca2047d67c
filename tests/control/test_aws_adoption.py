"""Machines of the groups that gpuscaler did not order: those of a minimum size, and those that people, updates and groups add."""

from pathlib import Path
from typing import Any

import pytest
from tests.clouds.aws.accounts import CLUSTER, DISCOVERED
from tests.control.aws_stage import Stage, aws_stage

from gpuscaler.embedded.aws.autoscaling.scaling import reclaim
from gpuscaler.embedded.nodes import machines
from gpuscaler.kube.resources import NODES
from gpuscaler.model.well_known import ARRIVING_TAINT, POOL_LABEL

#: Labels that no Auto Scaling group gives its nodes.
UNREAL = (POOL_LABEL, "karpenter.sh/capacity-type", "eks.amazonaws.com/capacityType")


@pytest.fixture(autouse=True)
def real_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes have gpuscaler's taint from their user data, and no label that states their group or market."""
    made = machines.node_of

    def node_of(*what: Any, **more: Any) -> dict[str, Any]:
        node = made(*what, **more)
        for key in UNREAL:
            node["metadata"]["labels"].pop(key, None)
        return node

    monkeypatch.setattr(machines, "node_of", node_of)


async def closed(here: Stage) -> list[str]:
    """Nodes with the arriving taint."""
    return [
        node["metadata"]["name"]
        for node in await here.nodes()
        if any(taint["key"] == ARRIVING_TAINT for taint in node["spec"].get("taints") or ())
    ]


async def running(here: Stage) -> int:
    return len(await here.nodes())


async def test_nodes_of_a_groups_minimum_that_existed_before_the_controller_are_opened_and_used(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", MinSize=2, DesiredCapacity=2)
        await here.sleep(120)
        assert len(await closed(here)) == 2
        here.start()
        await here.submit("train", run_for="600s")
        await here.sleep(120)

        assert await closed(here) == []
        assert all((await here.bound()).values())
        assert here.desired("gpus") == 2
        assert (await here.status()).pools[0].machines == 2


async def test_nodes_that_register_while_no_controller_runs_are_opened_by_the_next_controller(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.start()
        await here.sleep(60)
        await here.stop()
        here.client("autoscaling").set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
        await here.sleep(1200)
        here.start()
        await here.submit("train", run_for="600s")
        await here.sleep(120)

        assert await closed(here) == []
        assert all((await here.bound()).values())
        assert here.desired("gpus") == 1


async def test_machines_that_a_user_adds_are_opened_and_are_removed_once_idle(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.start()
        await here.sleep(60)
        here.client("autoscaling").set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=2)
        await here.sleep(240)
        assert (await running(here), await closed(here)) == (2, [])
        await here.submit("train", run_for="300s")
        await here.sleep(60)
        assert all((await here.bound()).values())
        await here.sleep(1300)

        assert (here.desired("gpus"), await running(here)) == (0, 0)
        assert len(here.machines()) == 2


@pytest.mark.parametrize("queue", [False, True], ids=["without a word", "with notice"])
async def test_machines_that_a_group_launches_in_place_of_reclaimed_ones_are_opened_and_used_or_removed(
    tmp_path: Path, queue: bool
) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpu-spot", market="spot", CapacityRebalance=queue)
        options = {"queue_url": here.queue()} if queue else {}
        here.start(here.settings(more="pools:\n  - {name: gpu-spot, idle_after: 120s}\n", **options))
        await here.deploy("serve")

        async def bound() -> bool:
            bound_pods = await here.bound()
            return bool(bound_pods) and all(bound_pods.values())

        await here.until(bound, 300)
        for taken_back in range(1, 5):
            await here.sleep(360)
            used = set((await here.bound()).values())
            for node in await here.nodes():
                if node["metadata"]["name"] in used:
                    instance = node["spec"]["providerID"].rpartition("/")[2]
                    reclaim(here.region, here.region.instances[instance], notice=120.0 if queue else 0.0)
            await here.sleep(180)
            await here.until(bound, 300)
            assert await closed(here) == []
            assert here.desired("gpu-spot") <= 2, f"after {taken_back} reclaims"
        await here.sleep(900)

        assert here.desired("gpu-spot") == await running(here) == 1
        assert len(here.machines()) <= 5, "a machine for each that was reclaimed"
        assert here.wrote().get("LaunchInstances", 0) == 1


async def test_a_node_that_the_cloud_does_not_list_counts_neither_for_a_minimum_nor_for_the_cost(tmp_path: Path) -> None:
    """A control plane node of the same type and zone: the group's only idle machine is its minimum, and stays."""
    async with aws_stage(tmp_path) as here:
        here.group("workers", MinSize=1, DesiredCapacity=1)
        await here.sleep(60)
        (worker,) = await here.nodes()
        labels = {**worker["metadata"]["labels"], "kubernetes.io/hostname": "control-plane-1", POOL_LABEL: "workers"}
        body = {"metadata": {"name": "control-plane-1", "labels": labels}, "spec": {"providerID": "aws:///us-east-1a/i-0fedcba9876543210"}}
        await here.user.create(NODES, {**worker, **body})
        here.start(here.settings(more="limits: {machines: 2}\n"))
        await here.sleep(900)
        status = await here.status()

        assert (here.desired("workers"), len(here.machines())) == (1, 1)
        assert [(pool.machines, pool.dollars_per_hour > 0) for pool in status.pools] == [(1, True)]
        await here.submit("one", "two", run_for="600s")
        await here.sleep(300)
        assert sorted(name for name, node in (await here.bound()).items() if node) == ["one", "two"]


async def test_a_reclaimed_machine_of_a_group_at_its_minimum_is_replaced_only_by_the_group(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpu-spot", market="spot", MinSize=2, DesiredCapacity=2)
        here.start(here.settings(queue_url=here.queue()))
        await here.sleep(120)
        first, second = here.machines()
        here.interrupt(first)
        await here.sleep(1000)

        assert here.desired("gpu-spot") == await running(here) == 2
        assert len(here.machines()) == 3
        assert here.region.instances[second].state == "running", "a healthy machine was removed instead of a surplus one"
        assert "LaunchInstances" not in here.wrote()


async def test_a_pod_moves_to_the_machine_that_its_group_launched_to_balance_zones(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", AvailabilityZones=["us-east-1a", "us-east-1b"], NewInstancesProtectedFromScaleIn=False)
        here.client("autoscaling").suspend_processes(AutoScalingGroupName="gpus", ScalingProcesses=["AZRebalance"])
        here.start()
        await here.deploy("serve", replicas=2)
        await here.sleep(240)
        bought = here.wrote().get("LaunchInstances", 0)
        assert all((await here.bound()).values())
        here.client("autoscaling").resume_processes(AutoScalingGroupName="gpus", ScalingProcesses=["AZRebalance"])
        await here.sleep(1000)

        assert all((await here.bound()).values())
        assert here.desired("gpus") == await running(here) == 2
        assert here.wrote().get("LaunchInstances", 0) == bought


async def test_pods_run_elsewhere_if_their_group_cannot_replace_reclaimed_machines(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpu-spot", market="spot")
        here.group("gpu-on-demand")
        here.start()
        await here.deploy("serve")
        await here.sleep(240)
        assert here.desired("gpu-spot") == 1
        (instance,) = here.machines("gpu-spot")
        here.limit(0, market="spot")
        reclaim(here.region, here.region.instances[instance], notice=0.0)
        await here.sleep(90)
        assert here.wrote()["LaunchInstances"] == 2
        await here.sleep(120)
        assert all((await here.bound()).values())
        here.limit(None, market="spot")
        await here.sleep(1500)

        assert all((await here.bound()).values())
        assert await running(here) == 1, "a machine that the group launched late was not removed"


MANAGED = {"eks:cluster-name": CLUSTER, "eks:nodegroup-name": "system"}


async def bare(here: Stage) -> None:
    """Nodes of a group for the system do not have gpuscaler's taint."""
    for node in await here.nodes():
        await here.user.merge_patch(NODES, node["metadata"]["name"], {"spec": {"taints": None}})


async def our_taints(here: Stage) -> list[str]:
    return [
        taint["key"]
        for node in await here.nodes()
        for taint in node["spec"].get("taints") or ()
        if taint["key"].startswith("gpuscaler.io/")
    ]


async def test_a_managed_node_group_for_system_pods_is_not_changed(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("eks-system", instance_type="m5.xlarge", tags=MANAGED | DISCOVERED, MinSize=1, DesiredCapacity=3)
        await here.sleep(60)
        await bare(here)
        here.start()
        await here.sleep(1000)
        status = await here.status()

        assert here.desired("eks-system") == await running(here) == 3
        assert await our_taints(here) == []
        assert status.pools == ()
        skipped = {entry.about: entry.text for entry in status.set_aside}
        assert skipped["AutoScalingGroup us-east-1/eks-system"] == "it has no accelerator; name it in aws.groups to adopt it"
        assert status.warnings == ()


async def test_orders_and_removals_in_progress_are_finished_in_a_group_that_is_no_longer_managed(tmp_path: Path) -> None:
    """The previous version managed it: one machine leaves, another one arrives, and nodes have gpuscaler's taints."""
    async with aws_stage(tmp_path) as here:
        here.group("eks-system", instance_type="m5.xlarge", tags=MANAGED, MinSize=1, DesiredCapacity=3)
        await here.sleep(60)
        await bare(here)
        here.start(here.settings(groups="[eks-system]", more="pace: {consolidate: 600s}\n"))

        async def leaves() -> bool:
            return "gpuscaler.io/leaving" in await our_taints(here)

        await here.until(leaves, 1200)
        await here.stop()
        here.client("autoscaling").set_desired_capacity(AutoScalingGroupName="eks-system", DesiredCapacity=4)
        await here.sleep(120)
        left = sum(any(taint["key"] == "gpuscaler.io/leaving" for taint in node["spec"].get("taints") or ()) for node in await here.nodes())
        here.start()
        warned: list[str] = []

        async def warns() -> bool:
            warned.extend((await here.status()).warnings)
            return bool(warned)

        await here.until(warns, 60)
        assert warned[0].startswith("pool eks-system is no longer managed. Work in progress is finished (")
        await here.sleep(900)

        assert left > 0
        assert here.desired("eks-system") == await running(here) == 4 - left
        assert await our_taints(here) == []
        assert (await here.status()).warnings == ()
