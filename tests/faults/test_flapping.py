"""F120: spot that comes and goes every few minutes, zone by zone: pods run, and do not follow it for ever."""

from collections import Counter
from pathlib import Path

import pytest
from tests.control.aws_stage import Stage, aws_stage

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

ZONES = ("us-east-1a", "us-east-1b")


def launched(here: Stage) -> Counter[str]:
    """Return how many machines there ever were, by market."""
    return Counter(machine.offering.market for machine in here.region.hardware.core.history())


async def all_bound(here: Stage) -> bool:
    bound = await here.bound()
    return bool(bound) and all(bound.values())


async def test_f120_if_spot_alternates_between_zones_a_pod_is_moved_only_a_few_times(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("a-spot", market="spot", AvailabilityZones=[ZONES[0]])
        here.group("b-spot", market="spot", AvailabilityZones=[ZONES[1]])
        here.group("c-on-demand")
        here.start(here.settings(queue_url=here.queue()))
        await here.deploy("serve")
        for turn in range(6):
            for place, zone in enumerate(ZONES):
                here.limit(0 if (turn + place) % 2 else None, market="spot", zone=zone)
            await here.sleep(300.0)
            assert await all_bound(here)

        # There would be one for each turn if nothing were learned from the turns before.
        assert launched(here)["spot"] <= 4
        assert launched(here)["on-demand"] == 1
