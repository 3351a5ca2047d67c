"""F84: taints that a group intends and that none of its nodes registers with."""

from pathlib import Path

import pytest
from tests.clouds.aws.accounts import DISCOVERED
from tests.control.aws_stage import Stage, aws_stage

GPU = {"k8s.io/cluster-autoscaler/node-template/taint/nvidia.com/gpu": "true:NoSchedule"}
OURS = "--register-with-taints=gpuscaler.io/arriving=:NoSchedule"


async def warnings(here: Stage) -> str:
    here.start()
    await here.sleep(30)
    return "; ".join((await here.status()).warnings)


async def test_f84_a_taint_promised_by_tags_but_missing_from_the_kubelet_flag_is_reported(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", tags=DISCOVERED | GPU, user_data=f"kubelet {OURS}")
        reported = await warnings(here)
        assert "its tags promise the taint nvidia.com/gpu=true:NoSchedule, which the user data" in reported


async def test_f84_taints_that_the_kubelet_flag_contains_cause_no_warning(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", tags=DISCOVERED | GPU, user_data=f"kubelet {OURS},nvidia.com/gpu=true:NoSchedule")
        assert "taint" not in await warnings(here)


@pytest.mark.parametrize("arriving", [True, False])
async def test_f84_a_node_that_registers_without_our_taint_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arriving: bool
) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", arriving=arriving)
        here.start()
        await here.submit("train")
        await here.until(here.nodes, 120)
        await here.sleep(5)
        (node,) = await here.nodes()
        message = f"node {node['metadata']['name']} of pool gpus registered without the taint gpuscaler.io/arriving:NoSchedule"
        assert (message in capsys.readouterr().out) != arriving
