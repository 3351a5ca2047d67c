"""How often consolidation, the expensive part of a plan, is planned."""

from itertools import pairwise

from tests.control.world import world

from gpuscaler.kube.resources import PODS


async def test_consolidation_is_planned_every_ten_minutes_without_changes() -> None:
    async with world() as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await here.sleep(200.0)
        settled, plans = len(here.notes.weighed), here.notes.plans
        await here.sleep(1800.0)

        assert len(here.notes.weighed) - settled == 3
        # The other parts of plans are made as often as before.
        assert here.notes.plans - plans >= 175


async def test_consolidation_is_planned_once_a_minute_during_many_changes() -> None:
    async with world() as here:
        here.start()
        await here.sleep(2.0)
        for number in range(120):
            await here.submit(f"p{number}", 0)
            await here.sleep(5.0)
            await here.user.delete(PODS, f"p{number}", namespace="default", grace=0)

        gaps = [later - earlier for earlier, later in pairwise(here.notes.weighed)]
        assert len(gaps) >= 8
        assert min(gaps) >= 60.0
        assert max(gaps) <= 75.0


async def test_consolidation_is_not_planned_while_the_cloud_cannot_be_read() -> None:
    async with world() as here:
        here.start()
        await here.sleep(100.0)
        here.cluster.provider.outage = "the cloud is down"
        await here.sleep(100.0)
        before = len(here.notes.weighed)
        await here.sleep(1200.0)

        assert len(here.notes.weighed) == before
