"""A process that crashes in the middle of its orders in Azure: the next one buys what is missing, and nothing twice."""

from pathlib import Path

import pytest
from tests.control.azure_stage import Stage, azure_stage

from gpuscaler.embedded.serving.accounts import boot_delays
from gpuscaler.kube.resources import DEPLOYMENTS

#: Machines are nodes 20 s after they were ordered, so that a process that starts again may find nodes that are younger than the 30 s by
#: which clocks may differ. Azure's operation takes longer.
QUICK_BOOT, PROVISIONING = boot_delays(15.0), 40.0
POOL = "pools:\n  - {name: gpus, idle_after: 30s, max: 60}\n"


async def grow(here: Stage, replicas: int) -> None:
    await here.user.merge_patch(DEPLOYMENTS, "train", {"spec": {"replicas": replicas}}, namespace="default")


@pytest.mark.parametrize("api", ["vmss", "agentpool"])
@pytest.mark.parametrize("after", [0.3, 0.5, 1.0, 4.0, 9.0, 12.0])
async def test_a_crash_in_the_middle_of_an_order_repeats_no_order(after: float, api: str, tmp_path: Path) -> None:
    async with azure_stage(tmp_path, boot=QUICK_BOOT, provisioning=PROVISIONING) as here:
        here.pool("gpus", spot=True)
        text = here.settings(api=api, more=POOL)
        here.start(text, identity="one")
        await here.sleep(4.0)
        await here.deploy("train", replicas=3)
        await here.sleep(after)
        here.crash()
        await grow(here, 6)
        await here.sleep(1.0)
        here.start(text, identity="two")
        await here.until(here.all_bound, 300)
        await here.sleep(300)
        assert (here.capacity("gpus"), len(here.machines()), here.count_registered()) == (6, 6, 6)
        assert (await here.status()).troubles == ()


async def test_after_a_restart_an_order_follows_soon_after_an_operation_of_the_agent_pool_that_belongs_to_no_order(tmp_path: Path) -> None:
    async with azure_stage(tmp_path, boot=QUICK_BOOT, provisioning=65.0) as here:
        here.pool("gpus", spot=True)
        text = here.settings(api="agentpool", more=POOL)
        here.start(text)
        await here.sleep(4.0)
        await here.deploy("train", replicas=3)
        await here.sleep(9.0)
        here.crash()
        await grow(here, 6)
        await here.sleep(1.0)
        # All machines of the first order are known, so the next process does not follow its operation, which ends 75 s after it began.
        here.start(text)
        await here.until(here.all_bound, 300)
        first, second = here.endpoint.writes
        assert 75.0 <= second.at - first.at < 90.0
        await here.sleep(300)
        assert (here.capacity("gpus"), here.count_registered()) == (6, 6)


@pytest.mark.parametrize("api", ["vmss", "agentpool"])
async def test_an_order_that_was_saved_and_not_sent_is_placed_again_once_the_list_would_show_its_machines(api: str, tmp_path: Path) -> None:
    async with azure_stage(tmp_path, boot=QUICK_BOOT, provisioning=PROVISIONING) as here:
        here.pool("gpus", spot=True)
        text = here.settings(api=api, more=POOL)
        here.start(text)
        await here.sleep(4.0)
        await here.deploy("train", replicas=3)
        await here.sleep(0.5)
        here.crash()
        assert not here.endpoint.writes
        began = here.now()
        here.start(text)
        await here.until(here.all_bound, 300)
        (write,) = here.endpoint.writes
        # Nothing tells it apart from an order that was sent: 10 s for Azure's lists and 30 s for what may still be under way.
        assert 40.0 <= write.at - began < 60.0
        await here.sleep(300)
        assert (here.capacity("gpus"), here.count_registered()) == (3, 3)
