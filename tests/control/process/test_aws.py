"""`gpuscaler run` with an AWS account: from pending pods to instances and back, with the real boto3 and an emulated endpoint."""

from pathlib import Path
from typing import Any

import pytest
from tests.control.aws_stage import Stage, aws_stage
from tests.control.world import QUICK
from tests.objects import pod

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.kube.resources import PODS

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

SOON = "pools:\n  - {name: gpus, idle_after: 1m}\n"


async def all_bound(here: Stage) -> bool:
    return all((await here.bound()).values())


async def test_a_pending_pod_gets_an_instance_and_an_idle_instance_is_terminated_by_its_id(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.start(here.settings(more=SOON))
        await here.submit("train", run_for="30s")
        await here.until(lambda: all_bound(here), 120)
        assert (here.desired("gpus"), len(here.machines())) == (1, 1)
        (node,) = await here.nodes()
        assert node["spec"]["providerID"] == f"aws:///us-east-1a/{here.machines()[0]}"
        await here.sleep(180)
        assert (here.desired("gpus"), await here.nodes()) == (0, [])
        assert here.wrote() == {"LaunchInstances": 1, "TerminateInstanceInAutoScalingGroup": 1}
        status = await here.status()
        assert [(pool.name, pool.way) for pool in status.pools] == [("gpus", "launch-instances")]
        assert (status.promises_kept, status.promises_broken, status.troubles) == (1, 0, ())


@pytest.mark.parametrize("spelling", ["reference", "guide", "random"])
async def test_replies_of_aws_are_understood_in_every_spelling_that_aws_uses(spelling: Any, tmp_path: Path) -> None:
    async with aws_stage(tmp_path, Conditions(boot=QUICK, spelling=spelling)) as here:
        here.group("a-spot", market="spot")
        here.group("b-on-demand")
        here.limit(1, market="spot")
        here.start(here.settings(more="limits: {gpus: 2}\n"))
        await here.submit("first", "second")
        await here.until(lambda: all_bound(here), 120)
        await here.sleep(60)
        status = await here.status()
        assert {pool.name: pool.machines for pool in status.pools} == {"a-spot": 1, "b-on-demand": 1}
        assert (len(here.machines()), status.troubles) == (2, ())


async def test_nodes_without_pool_or_market_labels_are_assigned_to_the_group_that_lists_their_machine(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("a-spot", market="spot")
        here.group("b-on-demand")
        here.limit(1, market="spot")
        here.start()
        await here.submit("first", "second")
        await here.until(lambda: all_bound(here), 120)
        for node in await here.nodes():
            telling = ("gpuscaler.io/pool", "karpenter.sh/capacity-type", "eks.amazonaws.com/capacityType")
            removed_labels = dict.fromkeys(telling)
            await here.relabel(node["metadata"]["name"], removed_labels)
        await here.sleep(90)
        pools = {pool.name: (pool.machines, pool.dollars_per_hour) for pool in (await here.status()).pools}
        assert {name: machines for name, (machines, _) in pools.items()} == {"a-spot": 1, "b-on-demand": 1}
        assert pools["a-spot"][1] < pools["b-on-demand"][1] == pytest.approx(1.006)


async def test_if_a_spot_group_has_no_capacity_machines_are_bought_on_demand_within_seconds(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("a-spot", market="spot")
        here.group("b-on-demand")
        here.limit(0, market="spot")
        here.start()
        await here.submit("train")
        await here.until(lambda: here.machines("b-on-demand"), 15)
        await here.until(lambda: all_bound(here), 120)
        assert (here.machines("a-spot"), here.desired("a-spot"), here.desired("b-on-demand")) == ([], 0, 1)
        assert any("spot" in breaker.target for breaker in (await here.status()).breakers)


async def test_without_the_right_to_launch_instances_desired_capacity_is_used_and_status_gives_the_reason(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.fault(operation="LaunchInstances", code="AccessDenied", status=403)
        here.start()
        await here.submit("train")
        await here.until(lambda: all_bound(here), 120)
        assert (here.desired("gpus"), here.wrote()["SetDesiredCapacity"]) == (1, 1)
        here.path.write_text(here.settings(more="pools: [{name: gpus, priority: 1}]\n"))
        await here.sleep(30)
        (pool,) = (await here.status()).pools
        assert pool.way.startswith("desired-capacity: LaunchInstances is not available: IAM does not allow autoscaling:LaunchInstances")


async def test_an_interrupted_machine_is_tainted_at_once_and_replaced_before_its_end(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("a-spot", market="spot")
        here.group("b-on-demand")
        here.start(here.settings(queue_url=here.queue()))
        await here.deploy("serve", grace="20s")
        await here.until(here.bound, 10)
        await here.until(lambda: all_bound(here), 120)
        (machine,) = here.machines()
        here.interrupt(machine)
        await here.sleep(5)
        (node,) = [node for node in await here.nodes() if node["spec"]["providerID"].endswith(machine)]
        assert "gpuscaler.io/leaving" in [taint["key"] for taint in node["spec"]["taints"]]
        assert len(here.machines("b-on-demand")) == 1
        await here.sleep(150)
        assert await all_bound(here)
        assert [node["spec"]["providerID"].rpartition("/")[2] for node in await here.nodes()] == here.machines("b-on-demand")


async def test_changes_to_auto_scaling_groups_take_effect_without_a_restart(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", MaxSize=1)
        here.start()
        await here.submit("first", "second")
        await here.sleep(90)
        assert sum(map(bool, (await here.bound()).values())) == 1
        here.client("autoscaling").update_auto_scaling_group(AutoScalingGroupName="gpus", MaxSize=3)
        await here.sleep(250)
        assert await all_bound(here)
        here.group("more", instance_type="g4dn.xlarge")
        await here.sleep(250)
        assert [pool.name for pool in (await here.status()).pools] == ["gpus", "more"]


async def test_settings_of_a_group_take_effect_when_the_run_file_is_saved(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.start(here.settings(more="pools:\n  - {name: gpus, max: 0}\n"))
        await here.submit("train")
        await here.sleep(30)
        assert here.machines() == []
        here.path.write_text(here.settings(more="pools:\n  - {name: gpus, max: 1}\n"))
        await here.until(here.machines, 10)


async def test_a_failed_read_of_the_account_keeps_the_pools_and_is_reported(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.start()
        await here.sleep(60)
        here.fault(operation="DescribeLaunchTemplateVersions", code="InternalError", status=500)
        here.fault(operation="DescribeAutoScalingGroups", code="AccessDenied", status=403)
        await here.sleep(300)
        status = await here.status()
        assert [pool.name for pool in status.pools] == ["gpus"]
        assert any("Region us-east-1" in trouble and "autoscaling:DescribeAutoScalingGroups" in trouble for trouble in status.troubles)
        here.endpoint.faults.all.clear()
        await here.submit("train")
        await here.until(lambda: all_bound(here), 300)
        await here.sleep(300)
        assert (await here.status()).troubles == ()


async def test_an_aws_account_is_read_again_until_its_first_answer(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.fault(operation="DescribeAutoScalingGroups", code="InternalFailure", status=500)
        here.start()
        await here.submit("train")
        await here.sleep(60)
        assert here.machines() == []
        here.endpoint.faults.all.clear()
        await here.until(lambda: all_bound(here), 120)


async def test_a_dry_run_changes_nothing_in_the_aws_account_and_leaves_the_queue_unread(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        url = here.queue()
        before = dict(here.session.call_counts)
        here.start(here.settings(queue_url=url), dry_run=True)
        await here.submit("train")
        await here.sleep(120)
        asked = {name for name, count in here.session.call_counts.items() if count > before.get(name, 0)}
        assert {name for name in asked if not name.startswith(("Describe", "Get"))} == set()
        assert await here.bound() == {"train": ""}


async def test_a_former_leader_writes_nothing_to_the_aws_account(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.start(identity="one")
        await here.sleep(10)
        here.start(identity="two")
        await here.submit("train")
        await here.until(lambda: all_bound(here), 120)
        await here.stop()
        await here.submit("next")
        await here.until(lambda: all_bound(here), 120)
        assert (here.desired("gpus"), here.wrote()) == (2, {"LaunchInstances": 2})
        assert (await here.status()).leader.identity == "two"


@pytest.mark.parametrize("after", [1, 12])
async def test_raising_desired_capacity_is_neither_lost_nor_repeated_if_the_controller_stops_before_the_outcome(
    after: float, tmp_path: Path
) -> None:
    """Either its answer was not there yet, or it was accepted: errors show only in activities, 30 s late."""
    async with aws_stage(tmp_path, Conditions(boot=QUICK, activity=30.0)) as here:
        here.group("a-spot", market="spot")
        here.group("b-on-demand")
        here.limit(0, market="spot")
        by_number = here.settings(launch="desired-capacity")
        here.start(by_number)
        await here.submit("train")
        await here.until(lambda: here.desired("a-spot") == 1, 20)
        await here.sleep(after)
        await here.stop()
        here.start(by_number, identity="two")
        await here.until(lambda: all_bound(here), 150)
        assert here.desired("a-spot") == 0
        here.limit(None, market="spot")
        await here.sleep(120)
        assert (here.machines("a-spot"), len(here.machines("b-on-demand"))) == ([], 1)
        assert (await here.status()).troubles == ()


async def test_the_node_of_a_machine_that_was_terminated_while_no_controller_ran_is_deleted(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.client("autoscaling").set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
        await here.until(here.nodes, 60)
        (node,) = await here.nodes()
        here.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=here.machines()[0], ShouldDecrementDesiredCapacity=True
        )
        await here.until(here.no_nodes, 60)
        await here.leave_behind(node)
        here.start()
        await here.until(here.no_nodes, 300)


async def test_pods_that_request_neuron_cores_or_devices_get_machines_that_have_them(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("inferentia", instance_type="inf2.xlarge")
        here.group("trainium", instance_type="trn1.32xlarge")
        here.start(here.settings(more="limits: {gpus: 17}\n"))
        for name, resource, amount in (("core", "neuroncore", 1), ("other-core", "neuroncore", 1), ("devices", "neuron", 4)):
            body = pod(name, 0)
            body["spec"]["containers"][0]["resources"]["limits"] = {f"aws.amazon.com/{resource}": str(amount)}
            await here.user.create(PODS, body, namespace="default")
            await here.sleep(45)

        assert await all_bound(here)
        assert (len(here.machines("inferentia")), len(here.machines("trainium"))) == (1, 1)
        status = await here.status()
        assert {pool.name: pool.dollars_per_hour for pool in status.pools} == {"inferentia": 0.7582, "trainium": 21.5}
