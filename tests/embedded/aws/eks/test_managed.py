"""EKS's own actions on its node groups: hooks that hold instances while nodes are drained, updates with surge, repair."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.clouds.aws.accounts import CLUSTER
from tests.clouds.aws.user_data import encoded
from tests.control.aws_stage import Stage, aws_stage
from tests.embedded.aws.test_recorded_nodes import EKS_TAGS

from gpuscaler.kube.resources import NODES

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

#: A group that only users and EKS change.
NAMES = {"clusterName": CLUSTER, "nodegroupName": "gpus"}


async def managed(here: Stage, count: int, *, zones: int = 1, **params: Any) -> list[str]:
    """A managed node group with that many machines that are nodes; returns their ids."""
    role = "arn:aws:iam::123456789012:role/nodes"
    here.client("eks").create_nodegroup(**NAMES, subnets=["subnet-useast1a"], nodeRole=role, **params)
    names = [f"us-east-1{letter}" for letter in "abc"[:zones]]
    here.group("gpus", tags=EKS_TAGS, arriving=False, AvailabilityZones=names, NewInstancesProtectedFromScaleIn=False, MaxSize=10)
    here.client("autoscaling").set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=count)
    await here.until(lambda: registered(here, count), 120)
    return here.machines()


async def registered(here: Stage, count: int) -> bool:
    return sum("nvidia.com/gpu" in node["status"]["allocatable"] for node in await here.nodes()) == count


def states(here: Stage) -> Mapping[str, str]:
    return {instance.id: instance.lifecycle for instance in here.region.groups["gpus"].members.values()}


async def all_bound(here: Stage) -> bool:
    nodes = await here.bound()
    return bool(nodes) and all(nodes.values())


async def test_an_instance_terminated_by_its_group_waits_until_its_node_is_drained(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        (first,) = await managed(here, 1)
        await here.deploy("serve")
        await here.until(lambda: all_bound(here), 60)

        here.client("autoscaling").terminate_instance_in_auto_scaling_group(InstanceId=first, ShouldDecrementDesiredCapacity=False)
        await here.sleep(1)
        assert states(here)[first] == "Terminating:Wait"
        await here.until(lambda: first not in states(here), 120)

        await here.until(lambda: all_bound(here), 120)
        (node,) = await here.nodes()
        assert node["spec"]["providerID"].endswith(next(iter(states(here))))


async def test_changed_labels_and_taints_of_a_node_group_reach_its_existing_nodes(tmp_path: Path) -> None:
    taint = {"key": "nvidia.com/gpu", "value": "red", "effect": "NO_SCHEDULE"}
    async with aws_stage(tmp_path) as here:
        await managed(here, 1, labels={"old": "yes"}, taints=[taint])
        (before,) = await here.nodes()
        name, foreign_taint = before["metadata"]["name"], {"key": "mine", "effect": "NoSchedule"}
        await here.user.merge_patch(NODES, name, {"spec": {"taints": [*before["spec"]["taints"], foreign_taint]}})

        change = {"addOrUpdateTaints": [{"key": "nvidia.com/gpu", "value": "blue", "effect": "NO_EXECUTE"}], "removeTaints": [taint]}
        labels = {"addOrUpdateLabels": {"new": "yes"}, "removeLabels": ["old"]}
        here.client("eks").update_nodegroup_config(**NAMES, taints=change, labels=labels)
        await here.sleep(5)

        (after,) = await here.nodes()
        assert {(taint["key"], taint.get("value"), taint["effect"]) for taint in after["spec"]["taints"]} == {
            ("mine", None, "NoSchedule"),
            ("nvidia.com/gpu", "blue", "NoExecute"),
        }
        assert "old" not in after["metadata"]["labels"]
        assert after["metadata"]["labels"]["new"] == "yes"


async def test_a_node_group_update_launches_extra_nodes_per_zone_replaces_all_and_scales_down_again(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        before = await managed(here, 2, zones=2)
        here.client("ec2").create_launch_template_version(
            LaunchTemplateName="gpus", SourceVersion="1", LaunchTemplateData={"UserData": encoded("kubelet --node-labels=team=red")}
        )

        update = here.client("eks").update_nodegroup_version(**NAMES)["update"]["id"]
        await here.sleep(20)
        assert here.desired("gpus") == 6

        def status() -> str:
            return str(here.client("eks").describe_update(name=CLUSTER, updateId=update)["update"]["status"])

        await here.until(lambda: status() != "InProgress", 600)
        await here.until(lambda: len(states(here)) == 2, 300)
        await here.until(lambda: registered(here, 2), 120)

        assert status() == "Successful"
        group = here.region.groups["gpus"]
        assert (group.desired, group.max) == (2, 10)
        assert not set(before) & set(group.members)
        assert {node["metadata"]["labels"].get("team") for node in await here.nodes()} == {"red"}


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_node_that_stays_unready_is_repaired_if_node_repair_is_enabled(enabled: bool, tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        (first,) = await managed(here, 1, nodeRepairConfig={"enabled": enabled})
        (node,) = await here.nodes()
        unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        await here.user.merge_patch(NODES, node["metadata"]["name"], {"status": {"conditions": [unknown]}}, subresource="status")

        await here.sleep(1700)
        assert list(states(here)) == [first]
        await here.sleep(400)

        assert (list(states(here)) == [first]) is not enabled


async def test_changed_node_group_settings_are_applied_to_its_auto_scaling_group(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        await managed(here, 1, labels={"team": "red"})

        here.client("eks").update_nodegroup_config(
            **NAMES,
            labels={"addOrUpdateLabels": {"stage": "test"}, "removeLabels": ["team"]},
            scalingConfig={"minSize": 1, "maxSize": 4, "desiredSize": 2},
        )
        await here.until(lambda: registered(here, 2), 120)

        assert here.client("eks").describe_nodegroup(**NAMES)["nodegroup"]["labels"] == {"stage": "test"}
        assert (here.desired("gpus"), here.region.groups["gpus"].max) == (2, 4)
