"""A node with a dead kubelet (a hung kernel, a GPU off the bus) on an instance that EC2 considers healthy."""

from pathlib import Path

from tests.control.aws_stage import Stage, aws_stage

from gpuscaler.embedded.nodes.scheduling import timestamp
from gpuscaler.kube.resources import NODES, PODS


async def all_bound(here: Stage) -> bool:
    bound = await here.bound()
    return bool(bound) and all(bound.values())


async def die(here: Stage) -> str:
    """Make the only node of the cluster silent, as the node controller shows it; its pod is deleted."""
    await here.until(lambda: all_bound(here), 300)
    await here.sleep(60.0)
    (node,) = await here.nodes()
    name = str(node["metadata"]["name"])
    now = timestamp(here.now())
    unknown_status = {
        "type": "Ready",
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    }
    await here.user.merge_patch(NODES, name, {"status": {"conditions": [unknown_status]}}, subresource="status")
    taints = [{"key": "node.kubernetes.io/unreachable", "effect": effect} for effect in ("NoSchedule", "NoExecute")]
    await here.user.merge_patch(NODES, name, {"spec": {"taints": taints}})
    await here.user.delete(PODS, "train", namespace="default", grace=0)
    return name


async def test_a_dead_node_of_a_group_at_its_maximum_is_reported_and_ended_and_the_next_pod_runs(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", instance_type="p5.48xlarge", MaxSize=1)
        here.start()
        await here.submit("train", gpus=8)
        name = await die(here)
        (instance,) = here.machines()
        await here.submit("next", gpus=8)
        await here.sleep(400.0)
        (trouble,) = (await here.status()).troubles
        assert f"node {name} of pool gpus has not been Ready since" in trouble
        assert "and costs $55.04/h" in trouble
        await here.sleep(2000.0)
        assert here.machines() == [instance]
        await here.sleep(900.0)

        assert await all_bound(here)
        assert instance not in {instance.id for instance in here.region.instances.values() if instance.ended_at is None}
        assert (await here.status()).troubles == ()
        assert here.desired("gpus") == 1


async def test_a_machine_delayed_by_a_lifecycle_hook_counts_for_limits_until_it_is_terminated(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", instance_type="p5.48xlarge", MaxSize=1)
        hook = {"LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING", "HeartbeatTimeout": 900, "DefaultResult": "CONTINUE"}
        here.client("autoscaling").put_lifecycle_hook(AutoScalingGroupName="gpus", LifecycleHookName="others", **hook)
        here.start(here.settings(more="limits: {gpus: 8}\npools:\n  - {name: gpus, unready_after: 600s}\n"))
        await here.submit("train", gpus=8)
        await die(here)
        await here.submit("next", gpus=8)
        await here.sleep(1400.0)
        assert [instance.lifecycle for instance in here.region.instances.values()] == ["Terminating:Wait"]
        await here.sleep(400.0)

        assert await all_bound(here)
