"""F110: the cloud grants a machine that ends before it is a node: once, a few times, for good."""

from collections import Counter
from pathlib import Path

import pytest
from tests.control.aws_stage import Stage, aws_stage
from tests.control.world import QUICK

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.hardware.hardware import Trouble

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

SHUTDOWN, NO_CAPACITY, BROKEN = "Client.InstanceInitiatedShutdown", "Server.InsufficientInstanceCapacity", "Server.InternalError"


def launched(here: Stage) -> Counter[str]:
    """Return how many machines there ever were, by market."""
    return Counter(machine.offering.market for machine in here.region.hardware.core.history())


async def all_bound(here: Stage) -> bool:
    bound = await here.bound()
    return bool(bound) and all(bound.values())


@pytest.mark.parametrize(("code", "launch"), [(NO_CAPACITY, "auto"), (SHUTDOWN, "desired-capacity")], ids=["pending", "running"])
async def test_f110_if_machines_of_a_spot_group_end_before_registering_the_group_is_paused_and_pods_run_on_demand(
    code: str, launch: str, tmp_path: Path
) -> None:
    async with aws_stage(tmp_path, Conditions(boot=QUICK)) as here:
        here.group("a-spot", market="spot")
        here.group("b-on-demand")
        here.region.hardware.troubles.append(Trouble(code, market="spot"))
        here.start(here.settings(launch=launch))
        await here.submit("first", "second")
        await here.until(lambda: all_bound(here), 300.0)
        await here.sleep(600.0)

        assert launched(here)["on-demand"] == 2
        assert launched(here)["spot"] <= 10
        assert (here.desired("a-spot"), here.desired("b-on-demand")) == (0, 2)
        assert any(breaker.cause == "failed" and "a-spot" in breaker.target for breaker in (await here.status()).breakers)


async def test_f110_after_a_temporary_failure_pods_run_on_the_machine_that_their_group_launches(tmp_path: Path) -> None:
    async with aws_stage(tmp_path, Conditions(boot=QUICK)) as here:
        here.group("gpus")
        here.region.hardware.troubles.append(Trouble(BROKEN, times=2))
        here.start()
        await here.submit("first", "second")
        await here.until(lambda: all_bound(here), 200.0)
        await here.sleep(120.0)

        assert launched(here)["on-demand"] == 4
        assert here.desired("gpus") == 2
