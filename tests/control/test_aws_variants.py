"""Variants of what went wrong in the field: what a stranger's account does a little otherwise than the cases that were mended."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.control.aws_stage import aws_stage

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
