"""F69 and F70: few machines are bought, whatever makes plans count wrongly or machines fail."""

import msgspec
import pytest
from tests.faults.kit import all_bound, faulty, recorded, status
from tests.faults.test_machines import die_young

from gpuscaler.kube.resources import EVENTS
from gpuscaler.planning.capacity import existing

MANY = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge, g5.xlarge, g6.xlarge]
    markets: [on-demand]
    zones: [us-east-1a, us-east-1b]
"""


async def test_f69_a_planner_that_ignores_ordered_machines_buys_at_most_one_machine_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(existing, "upcoming_nodes", lambda *_: ({}, []))
    async with recorded() as (here, _):
        await here.submit("p")
        await here.submit("q")
        await here.sleep(14.0)
        # One for each pod, and one more.
        assert len(here.cluster.core.history()) == 3
        events = [msgspec.json.decode(event) for event in await here.user.list_all(EVENTS)]
        notes = [event["note"] for event in events if event["reason"] == "ScaleUpStopped"]
        assert any("machines are on their way for demand" in message for message in notes)
        await here.sleep(200.0)

        assert await all_bound(here)


async def test_f70_after_three_fruitless_machines_for_a_pod_their_type_is_paused_for_an_hour() -> None:
    async with faulty() as here:
        here.support(die_young(here))
        await here.submit("p")
        await here.sleep(3000.0)

        assert len(here.cluster.core.history()) == 3
        texts = [breaker.text for breaker in (await status(here)).breakers if breaker.cause == "fruitless"]
        assert any(
            "machines were bought without use" in message and "pod default/p is still pending after 3 machines" in message
            for message in texts
        )


async def test_f70_ten_fruitless_machines_of_a_pool_within_an_hour_pause_the_pool() -> None:
    async with faulty(MANY) as here:
        here.support(die_young(here))
        for number in range(4):
            await here.submit(f"p{number}")
        await here.sleep(3300.0)

        # Machines that were on their way when the tenth failed are still to come.
        assert 10 <= len(here.cluster.core.history()) <= 14
        texts = [breaker.text for breaker in (await status(here)).breakers if breaker.target == "pool gpu"]
        assert any("limits.fruitless_per_hour" in message for message in texts)
