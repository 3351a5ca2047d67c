"""Nodes of the simulated account have the same fields as recorded real ones of their kind, and no others."""

from pathlib import Path
from typing import Any

import pytest
from tests.clouds.aws.accounts import CLUSTER, DISCOVERED
from tests.control.aws_stage import Stage, aws_stage
from tests.control.world import QUICK
from tests.embedded.aws import recorded_nodes as recorded
from tests.embedded.aws.recorded_nodes import Recorded, Size
from tests.embedded.tolerant import tolerant_plugin

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.model.quantities import parse

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

PREFIX = "k8s.io/cluster-autoscaler/node-template"
EKS_TAGS = {"eks:cluster-name": CLUSTER, "eks:nodegroup-name": "gpus"}
KOPS_TAGS = {"KubernetesCluster": CLUSTER, "kops.k8s.io/instancegroup": "gpus", f"{PREFIX}/label/node-role.kubernetes.io/node": ""}
#: Labels that tags promise although nothing sets them.
PROMISES = {
    f"{PREFIX}/label/team": "red",
    f"{PREFIX}/label/gpuscaler.io/pool": "gpus",
    f"{PREFIX}/taint/nvidia.com/gpu": "true:NoSchedule",
    f"{PREFIX}/taint/dedicated": "nvidia.com/gpu=true",
}
BOTTLEROCKET = '[settings.kubernetes]\ncluster-name = "research"\n'
TAINTED = '[settings.kubernetes.node-taints]\n"gpuscaler.io/arriving" = ":NoSchedule"\n"nvidia.com/gpu" = "true:NoSchedule"\n'


async def first_node(here: Stage, name: str = "gpus") -> dict[str, Any]:
    """The node of a group's only machine, with its devices."""
    await tolerant_plugin(here.user)
    here.client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=1)

    async def complete() -> bool:
        return any("nvidia.com/gpu" in node["status"]["allocatable"] for node in await here.nodes())

    await here.until(complete, 120)
    (node,) = await here.nodes()
    return node


def keys(node: dict[str, Any]) -> frozenset[str]:
    return frozenset(node["metadata"]["labels"])


@pytest.mark.parametrize(
    ("kind", "tags", "conditions"),
    [
        (recorded.MANAGED, DISCOVERED | EKS_TAGS | PROMISES, Conditions(boot=QUICK)),
        (recorded.SELF_MANAGED, DISCOVERED | PROMISES, Conditions(boot=QUICK)),
        (recorded.BOTTLEROCKET, DISCOVERED | PROMISES, Conditions(boot=QUICK, ebs_csi=False)),
        (recorded.KOPS_NODE, KOPS_TAGS, Conditions(boot=QUICK)),
    ],
    ids=["managed", "self-managed", "bottlerocket", "kops"],
)
async def test_a_node_has_the_labels_of_recorded_nodes_of_its_kind(
    kind: Recorded, tags: dict[str, str], conditions: Conditions, tmp_path: Path
) -> None:
    async with aws_stage(tmp_path, conditions) as here:
        here.group("gpus", tags=tags, user_data=BOTTLEROCKET)

        node = await first_node(here)

        assert keys(node) == kind.labels, kind.seen
        assert not node["spec"].get("taints"), "tags alone put no taint on a node"


async def test_a_node_has_the_same_fields_as_recorded_nodes(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", tags=DISCOVERED | EKS_TAGS)

        node = await first_node(here)
        status = node["status"]

        assert frozenset(node["metadata"]["annotations"]) >= recorded.ANNOTATIONS
        assert frozenset(status["allocatable"]) == frozenset(status["capacity"]) == recorded.AMOUNTS | {"nvidia.com/gpu"}
        assert {condition["type"] for condition in status["conditions"]} == recorded.CONDITIONS
        assert {address["type"] for address in status["addresses"]} == recorded.ADDRESSES
        assert frozenset(status["nodeInfo"]) == recorded.NODE_INFO


@pytest.mark.parametrize("size", recorded.SIZES, ids=lambda size: size.instance_type)
async def test_a_node_has_the_memory_and_pod_limit_of_recorded_nodes(size: Size, tmp_path: Path) -> None:
    """Sizes agree within half a percent: kernels differ."""
    async with aws_stage(tmp_path) as here:
        here.group("gpus", tags=DISCOVERED | (EKS_TAGS if size.managed else {}), instance_type=size.instance_type)
        here.client("autoscaling").set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
        await here.until(here.nodes, 120)
        (node,) = await here.nodes()

        amounts = node["status"]["allocatable"]

        assert float(parse(amounts["memory"])) / 1024 == pytest.approx(size.allocatable, rel=0.005), size.seen
        assert int(amounts["pods"]) == size.pods, size.seen


async def test_only_nodes_with_gpu_feature_discovery_have_its_labels(tmp_path: Path) -> None:
    async with aws_stage(tmp_path, Conditions(boot=QUICK, gpu_feature_discovery=True)) as here:
        here.group("gpus")

        assert keys(await first_node(here)) == recorded.SELF_MANAGED.labels | recorded.DISCOVERY


async def test_nodes_have_the_labels_of_their_eks_node_group_and_its_taints_unless_user_data_sets_taints(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.client("eks").create_nodegroup(
            clusterName=CLUSTER,
            nodegroupName="gpus",
            subnets=["subnet-useast1a"],
            nodeRole="arn:aws:iam::123456789012:role/nodes",
            labels={"team": "red"},
            taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}],
        )
        here.group("gpus", tags=DISCOVERED | EKS_TAGS, user_data="#!/bin/bash\n")
        node = await first_node(here)
        assert node["metadata"]["labels"]["team"] == "red"
        assert [(taint["key"], taint["value"]) for taint in node["spec"]["taints"]] == [("nvidia.com/gpu", "true")]

        here.group("more", tags=DISCOVERED | EKS_TAGS, user_data="kubelet --register-with-taints=gpuscaler.io/arriving=:NoSchedule")
        here.client("autoscaling").set_desired_capacity(AutoScalingGroupName="more", DesiredCapacity=1)

        async def both() -> bool:
            return len(await here.nodes()) == 2

        await here.until(both, 120)
        assert sorted(node["spec"]["taints"][0]["key"] for node in await here.nodes()) == ["gpuscaler.io/arriving", "nvidia.com/gpu"]


async def test_a_node_with_invalid_user_data_does_not_register(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", user_data="kubelet --register-with-taints=dedicated=nvidia.com/gpu=true")
        here.client("autoscaling").set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)

        await here.sleep(120)

        (machine,) = here.region.instances.values()
        assert (machine.state, await here.nodes()) == ("running", [])


async def test_a_bottlerocket_node_registers_with_the_taints_of_its_settings(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", user_data=TAINTED)

        node = await first_node(here)

        assert [taint["key"] for taint in node["spec"]["taints"]] == ["gpuscaler.io/arriving", "nvidia.com/gpu"]


async def test_efa_devices_exist_on_nodes_whose_template_attaches_them(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", instance_type="p5.48xlarge")
        assert "vpc.amazonaws.com/efa" not in (await first_node(here))["status"]["allocatable"]
