"""Rebalance recommendations for all spot machines at once, repeatedly, and each several times."""

from collections import Counter
from pathlib import Path

import pytest
from tests.control.aws_stage import Stage, aws_stage

from gpuscaler.embedded.aws.autoscaling import scaling
from gpuscaler.embedded.aws.messages import notices

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")


def launched(here: Stage) -> Counter[str]:
    """The number of machines that ever existed, by market."""
    return Counter(machine.offering.market for machine in here.region.hardware.core.history())


async def all_bound(here: Stage) -> bool:
    bound = await here.bound()
    return bool(bound) and all(bound.values())


async def test_rebalance_recommendations_for_all_machines_cause_no_purchases_besides_launches_by_groups(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("a-spot", market="spot", CapacityRebalance=True)
        here.group("b-on-demand")
        here.start(here.settings(queue_url=here.queue()))
        await here.deploy("serve", 2)
        await here.sleep(120.0)
        bought = here.session.call_counts["LaunchInstances"]
        for _ in range(4):
            for instance in [instance for instance in here.region.instances.values() if instance.state == "running"]:
                for _ in range(3):
                    notices.rebalance(here.region, instance)
                scaling.recommend_rebalance(here.region, instance)
            await here.sleep(120.0)
            assert await all_bound(here)

        # The group launches one for each machine and storm; gpuscaler adds none, and replaces no replacement.
        assert here.session.call_counts["LaunchInstances"] == bought
        assert launched(here) == {"spot": 2 + 4 * 2}
        assert here.desired("a-spot") == 2
