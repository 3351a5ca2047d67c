"""F60 to F62, F88, F112: nodes that have less than expected, as real ones do."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.clouds.aws.accounts import CA, CLUSTER, DISCOVERED, Aws, pool
from tests.clouds.aws.user_data import encoded
from tests.control.aws_stage import Stage, aws_stage
from tests.control.world import QUICK
from tests.objects import pod
from tests.planning.building import offering, pods, spec, spread

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.kube.resources import PODS
from gpuscaler.model.cluster import Cluster
from gpuscaler.planning.capacity.fallbacks import alternatives
from gpuscaler.planning.capacity.node_templates import Overhead
from gpuscaler.planning.plans import PlannedMachine

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

PRODUCT = "nvidia.com/gpu.product"
PROMISED = f"{CA}/node-template/label/{PRODUCT}"
EKS = {"eks:cluster-name": CLUSTER, "eks:nodegroup-name": "gpus"}
REPLACING = "kubelet --register-with-taints=gpuscaler.io/arriving=:NoSchedule"


async def select(here: Stage, name: str, product: str, *, by: str = PRODUCT) -> None:
    """Submit a pod that wants a GPU of one model, or another label."""
    made = pod(name, 1, {})
    made["spec"]["nodeSelector"] = {by: product}
    await here.user.create(PODS, made, namespace="default")


async def all_bound(here: Stage) -> bool:
    pods = await here.bound()
    return bool(pods) and all(pods.values())


async def test_f60_no_machine_is_bought_for_a_label_that_new_nodes_will_not_have(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.start()
        await select(here, "train", "NVIDIA-A10G")
        await here.sleep(1200)

        assert here.machines() == []
        assert await here.bound() == {"train": ""}


async def test_f60_a_machine_is_bought_if_a_tag_announces_a_label_that_feature_discovery_sets(tmp_path: Path) -> None:
    async with aws_stage(tmp_path, Conditions(boot=QUICK, gpu_feature_discovery=True)) as here:
        here.group("gpus", tags={**DISCOVERED, PROMISED: "NVIDIA-A10G"}, user_data=REPLACING)
        here.start()
        await select(here, "train", "NVIDIA-A10G")

        await here.until(lambda: all_bound(here), 180)
        assert len(here.machines()) == 1


async def test_f88_for_a_label_in_a_tag_that_user_data_do_not_set_only_one_machine_is_bought(
    tmp_path: Path,
) -> None:
    async with aws_stage(tmp_path) as here:
        tags = {**DISCOVERED, f"{CA}/node-template/label/team": "ml"}
        here.group("gpus", tags=tags, user_data=REPLACING)
        here.start(here.settings(more="pools:\n  - {name: gpus, idle_after: 1m}\n"))
        await select(here, "train", "ml", by="team")
        await here.sleep(1200)
        assert here.wrote()["LaunchInstances"] == 1
        assert await here.bound() == {"train": ""}

        data = {"ImageId": "ami-0123", "InstanceType": "g5.xlarge", "UserData": encoded(f"{REPLACING} --node-labels=team=ml")}
        here.client("ec2").create_launch_template_version(LaunchTemplateName="gpus", LaunchTemplateData=data)
        await here.sleep(360)

        assert await all_bound(here)
        assert here.wrote()["LaunchInstances"] == 2


async def test_f61_a_gang_gets_machines_of_two_types_with_one_gpu_model_even_without_a_label_for_it(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("small", instance_type="g5.xlarge", MaxSize=1)
        here.group("large", instance_type="g5.2xlarge", MaxSize=1)
        here.group("other", instance_type="g6.xlarge", MaxSize=1)
        here.start()
        await here.submit("rank-0", "rank-1", gang="train", gang_size="2")

        await here.until(lambda: all_bound(here), 240)
        assert {name: len(here.machines(name)) for name in ("small", "large", "other")} == {"small": 1, "large": 1, "other": 0}


def test_f61_fallbacks_for_pods_that_spread_have_the_same_gpu_model() -> None:
    def spot(name: str, price: float, product: str) -> Any:
        made = offering(name, price, market="spot", cpu=4)
        return replace(made, labels={key: value for key, value in made.labels.items() if key != PRODUCT}, product=product)

    chosen, same, other = spot("g.1", 1.0, "A10G"), spot("g.2", 1.2, "A10G"), spot("h.1", 1.1, "L4")
    waiting = pods("a", 1, spec(gpus=1, cpu=2, spread=(spread("topology.kubernetes.io/zone"),)))
    machine = PlannedMachine("new-1", chosen.pool, "g.1", "spot", "z1", 1.0, pods=tuple(pod.key for pod in waiting))
    cluster = Cluster.of(waiting)

    keys = alternatives(
        machine,
        cluster,
        {taint.key: taint for taint in (chosen, same, other)},
        overhead=Overhead(cluster),
        blocked=frozenset(),
        half_open=frozenset(),
    )

    assert keys == (same.key,)


def test_f62_user_data_that_override_the_taints_of_a_node_group_are_reported() -> None:
    aws = Aws()
    names = {
        "clusterName": CLUSTER,
        "nodegroupName": "gpus",
        "nodeRole": "arn:aws:iam::123456789012:role/nodes",
        "subnets": ["subnet-useast1a"],
    }
    aws.client("eks").create_nodegroup(**names, taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}])
    aws.template("gpus", InstanceType="g5.xlarge", UserData=encoded(REPLACING))
    aws.group("gpus", {**DISCOVERED, **EKS}, LaunchTemplate={"LaunchTemplateName": "gpus"})

    message = "\n".join(pool(aws.discover(), "gpus").warnings)

    assert "replaces the taint nvidia.com/gpu=true:NoSchedule of its node group" in message
    assert "give gpuscaler.io/arriving to the node group" in message


async def test_f62_user_data_that_do_not_start_a_kubelet_are_reported(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", user_data="kubelet --register-with-taints=dedicated=nvidia.com/gpu=true")
        here.start()
        await here.sleep(60)

        assert any("no kubelet starts with the user data" in warning for warning in (await here.status()).warnings)


@pytest.mark.parametrize("team", ["blue", None], ids=["written over", "taken off"])
async def test_f112_changing_a_label_by_hand_on_the_only_node_of_a_pool_delays_no_pod(team: str | None, tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", tags={**DISCOVERED, f"{CA}/node-template/label/team": "red"})
        here.start()
        await select(here, "first", "red", by="team")
        await here.until(lambda: all_bound(here), 180)
        await here.sleep(700)
        (node,) = await here.nodes()
        await here.relabel(node["metadata"]["name"], {"team": team})
        await here.sleep(60)
        await select(here, "second", "red", by="team")

        await here.until(lambda: all_bound(here), 180)
        assert len(here.machines()) == 2
