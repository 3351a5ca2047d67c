"""Variants of what went wrong in the field: what a stranger's account does a little otherwise than the cases that were mended."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.control.aws_stage import aws_stage
from tests.control.world import QUICK

from gpuscaler.clouds.delays import Absent, Faults
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.devices import Devices, Promise

pytestmark = pytest.mark.looptime(noop_cycles=1)


async def test_machines_that_show_fewer_gpus_than_their_pods_ask_for_are_not_bought_until_the_pool_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Devices.promise

    def promise(devices: Devices, node: str, promised: Promise) -> None:
        whole(devices, node, replace(promised, amounts={**promised.amounts, "nvidia.com/gpu": 7}))

    monkeypatch.setattr(Devices, "promise", promise)
    async with aws_stage(tmp_path) as here:
        here.group("gpus", instance_type="p5.48xlarge")
        here.start()
        await here.submit("all", "all-again", gpus=8)
        await here.submit("one")
        await here.sleep(540.0)

        bound = await here.bound()
        assert [name for name, node in bound.items() if node] == ["one"]
        assert len(here.machines()) <= 4
        status = await here.status()
        assert sum(one.count for one in status.waiting) == 2
        assert any(
            "did not take it: node ip-10-0-0-" in one.text and "has 7 nvidia.com/gpu, and it asks for 8" in one.text
            for one in status.happened
        )


async def test_what_a_group_starts_for_its_minimum_and_never_shows_gpus_holds_no_pod_up_and_is_not_replaced_all_the_time(
    tmp_path: Path,
) -> None:
    faults = Faults(
        never_registers=0.0, partial_grants=0.0, gpu_hours_between_failures=0.0, absent=(Absent("nvidia.com/gpu", "p4d.24xlarge"),)
    )
    async with aws_stage(tmp_path, Conditions(boot=QUICK, machines=faults)) as here:
        here.group("broken", instance_type="p4d.24xlarge", MinSize=2, DesiredCapacity=2)
        await here.sleep(100.0)
        here.group("sound", instance_type="p5.48xlarge")
        here.start()
        await here.submit("one", "other", gpus=8)
        await here.sleep(1300.0)
        assert all((await here.bound()).values())
        assert len(here.machines("sound")) == 2

        replaced = set(here.machines("broken"))
        await here.sleep(1800.0)
        assert len(replaced | set(here.machines("broken"))) <= 4
        assert len([one for one in here.region.instances.values() if one.group == "broken" and one.state == "running"]) == 2
        (said, *_) = [one for one in (await here.status()).breakers if "never showed nvidia.com/gpu" in one.text]
        assert said.open
