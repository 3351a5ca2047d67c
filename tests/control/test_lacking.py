"""Machines that never show all resources of their type are not bought forever."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.control.aws_stage import aws_stage
from tests.control.world import ONE_GPU_MACHINES, QUICK, World, world
from tests.objects import pod

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.kube.resources import EVENTS, PODS
from gpuscaler.lifecycle.pacing import Pace
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.cloud.delays import Faults

NEVER = Faults(never_registers=0.0, partial_grants=0.0, gpu_hours_between_failures=0.0, never_visible=1.0)
EFA = "vpc.amazonaws.com/efa"
HOUR = 3600.0


@pytest.mark.parametrize("pods", [1, 4])
async def test_machines_that_never_show_their_gpus_are_bought_twice_and_then_at_growing_intervals(pods: int) -> None:
    async with world(faults=NEVER, pace=Pace(ready=120.0)) as here:
        here.start()
        for number in range(pods):
            await here.submit(f"train-{number}")
        await here.sleep(1800.0)
        first = max(2, pods)
        assert len(here.cluster.core.history()) == first
        # An hour after the second, and two hours after that one.
        await here.sleep(4 * HOUR)
        assert first + 2 <= len(here.cluster.core.history()) <= first + 3


async def test_a_resource_that_machines_never_show_is_named_in_status_and_on_the_pods(tmp_path: Path) -> None:
    pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")
    async with aws_stage(tmp_path, Conditions(boot=QUICK, machines=NEVER)) as here:
        here.group("gpus", instance_type="p5.48xlarge")
        here.start()
        await here.submit("train", gpus=8)
        await here.sleep(300.0)
        (waiting,) = (await here.status()).waiting
        assert "not ready yet: it shows no nvidia.com/gpu: is its device plugin running?" in waiting.reason
        await here.sleep(1800.0)
        assert len(here.machines()) == 2
        (breaker,) = (await here.status()).breakers
        assert (breaker.target, breaker.cause, breaker.open) == ("pool gpus p5.48xlarge", "lacking", True)
        assert "machines never showed nvidia.com/gpu, 2 times" in breaker.text
        events = [msgspec.json.decode(body) for body in await here.user.list_all(EVENTS)]
        lost = [event for event in events if event["reason"] == "MachineLost"]
        assert lost
        assert all("it shows no nvidia.com/gpu: is its device plugin running?" in one["note"] for one in lost)
        (waiting,) = (await here.status()).waiting
        assert "machines never showed nvidia.com/gpu" in waiting.reason


@asynccontextmanager
async def world_with_unshown_resource(resource: str, **more: Any) -> AsyncIterator[World]:
    """A world in which the templates of machines have one ``resource`` that the machines do not show."""
    async with world(ONE_GPU_MACHINES, **more) as here:
        here.policy = with_resource(here.policy, resource)
        here.start()
        await here.sleep(2.0)
        yield here


def with_resource(policy: Policy, resource: str) -> Policy:
    pools = (
        replace(pool, offerings=tuple(replace(offering, allocatable={**offering.allocatable, resource: 1}) for offering in pool.offerings))
        for pool in policy.pools
    )
    return replace(policy, pools=tuple(pools))


async def submit(here: World, name: str, resource: str) -> None:
    body = pod(name)
    body["spec"]["containers"][0]["resources"]["limits"][resource] = "1"
    await here.user.create(PODS, body, namespace="default")


async def test_a_pod_that_does_not_request_the_missing_resource_gets_a_machine_at_once() -> None:
    async with world_with_unshown_resource(EFA) as here:
        await here.submit("plain")
        await here.sleep(120.0)

        assert (await here.bound())["plain"]
        assert len(here.cluster.core.history()) == 1


async def test_purchases_stop_after_two_machines_lack_a_resource_while_other_pods_are_placed() -> None:
    async with world_with_unshown_resource(EFA, pace=Pace(ready=120.0)) as here:
        await submit(here, "fast", EFA)
        await here.sleep(900.0)
        assert len(here.cluster.core.history()) == 2
        assert here.controller is not None
        (breaker,) = here.controller.memory.breakers.open
        assert (breaker.cause, breaker.lacks) == ("lacking", EFA)
        await here.submit("plain")
        await here.sleep(120.0)

        assert (await here.bound())["plain"]
        assert not (await here.bound())["fast"]
        assert len(here.cluster.core.history()) == 3
        # By then an open node shows that there is none.
        await here.sleep(1200.0)
        assert here.notes.last is not None
        assert any(f"no open node of type g4dn.xlarge shows {EFA}" in warning for warning in here.notes.last.warnings)
        await submit(here, "faster", EFA)
        await here.sleep(1.5 * HOUR)
        assert len(here.cluster.core.history()) == 3
