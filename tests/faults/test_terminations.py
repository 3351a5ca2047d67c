"""F76: machines that their group ends by itself, on demand as on spot: closed and drained while a hook holds them, then released."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.control.aws_stage import Stage, aws_stage
from tests.objects import budget

from gpuscaler.kube.resources import EVENTS, POD_DISRUPTION_BUDGETS

LEAVING = "gpuscaler.io/leaving"
HOOK: dict[str, Any] = {
    "AutoScalingGroupName": "gpus",
    "LifecycleHookName": "k8s-term-hook",
    "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
    "HeartbeatTimeout": 600,
    "DefaultResult": "CONTINUE",
}


async def all_bound(here: Stage) -> bool:
    bound = await here.bound()
    return bool(bound) and all(bound.values())


async def serving(here: Stage) -> tuple[str, str]:
    """Return a machine of the group with a pod of a Deployment on it, and its node."""
    await here.deploy("serve")
    await here.until(lambda: all_bound(here), 300)
    await here.sleep(60.0)
    (machine,) = here.machines()
    (node,) = [node for node in await here.nodes() if node["spec"]["providerID"].endswith(machine)]
    return machine, node["metadata"]["name"]


def end(here: Stage, machine: str) -> float:
    """End the machine as a person, an instance refresh or a maximum lifetime would, and return the time."""
    here.client("autoscaling").terminate_instance_in_auto_scaling_group(InstanceId=machine, ShouldDecrementDesiredCapacity=False)
    return here.now()


async def reasons(here: Stage, node: str) -> list[str]:
    """Return the notes of Events about a node."""
    events = [msgspec.json.decode(event) for event in await here.user.list_all(EVENTS)]
    return [event.get("note") or event.get("message", "") for event in events if event.get("regarding", {}).get("name") == node]


@pytest.mark.parametrize("market", ["on-demand", "spot"])
@pytest.mark.parametrize("queue", [True, False])
async def test_f76_a_machine_that_its_group_ends_is_tainted_at_once_drained_and_released_from_its_hook(
    tmp_path: Path, market: str, queue: bool
) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", market=market)
        url = here.queue()
        here.client("autoscaling").put_lifecycle_hook(**HOOK)
        here.start(here.settings(queue_url=url) if queue else "")
        machine, node = await serving(here)
        at = end(here, machine)
        await here.sleep(5.0 if queue else 15.0)
        (marked,) = [entry for entry in await here.nodes() if entry["metadata"]["name"] == node]
        assert LEAVING in {taint["key"] for taint in marked["spec"].get("taints") or ()}
        assert here.region.instances[machine].lifecycle == "Terminating:Wait"
        await here.sleep(120.0)

        assert await all_bound(here)
        assert set((await here.bound()).values()) != {node}
        assert (here.region.instances[machine].ended_at is not None) == queue
        assert here.session.call_counts.get("CompleteLifecycleAction", 0) == int(queue)
        assert any("Auto Scaling ended it because a user requested it" in reason for reason in await reasons(here, node))
        assert [breaker.cause for breaker in (await here.status()).breakers] == []
        await here.sleep(max(0.0, at + 700.0 - here.now()))
        assert here.region.instances[machine].ended_at is not None


async def test_f76_a_disruption_budget_is_respected_until_shortly_before_the_hook_times_out(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.client("autoscaling").put_lifecycle_hook(**HOOK)
        here.start(here.settings(queue_url=here.queue()))
        machine, node = await serving(here)
        await here.user.create(POD_DISRUPTION_BUDGETS, budget("serve", minAvailable=1), namespace="default")
        at = end(here, machine)
        await here.sleep(560.0)
        assert set((await here.bound()).values()) == {node}
        assert here.session.call_counts["RecordLifecycleActionHeartbeat"] >= 1
        await here.sleep(at + 640.0 - here.now())

        assert here.region.instances[machine].ended_at is not None
        assert node not in set((await here.bound()).values())


async def test_f76_the_lifecycle_hook_of_a_managed_node_group_is_left_to_eks(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.client("autoscaling").put_lifecycle_hook(**{**HOOK, "LifecycleHookName": "Terminate-LC-Hook"})
        here.start(here.settings(queue_url=here.queue()))
        machine, node = await serving(here)
        end(here, machine)
        await here.sleep(200.0)

        assert await all_bound(here)
        assert set((await here.bound()).values()) != {node}
        assert here.region.instances[machine].lifecycle == "Terminating:Wait"
        assert "CompleteLifecycleAction" not in here.session.call_counts


async def test_f76_without_a_lifecycle_hook_pods_get_the_remaining_time_of_their_machine(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.start(here.settings(queue_url=here.queue()))
        machine, node = await serving(here)
        end(here, machine)
        await here.sleep(120.0)

        assert await all_bound(here)
        assert node not in {node["metadata"]["name"] for node in await here.nodes()}
        assert (await here.status()).removals == ()


async def test_f76_desired_capacity_is_not_lowered_for_a_machine_that_its_group_already_ends(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.client("autoscaling").put_lifecycle_hook(**HOOK)
        here.start(here.settings(queue_url=here.queue()))
        machine, _ = await serving(here)
        end(here, machine)
        await here.sleep(180.0)

        assert here.session.call_counts["TerminateInstanceInAutoScalingGroup"] == 1
        assert here.desired("gpus") >= 1
