"""F37 to F40: wrong prices, and pods that are very many, short-lived or impossible to place."""

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from tests.control.records.test_service import events
from tests.control.replicas import FILE
from tests.faults.kit import IDLE, faulty, recorded, replicated, status
from tests.planning.building import offering, planned, pods, pool, spec

from gpuscaler.kube.resources import EVENTS, PODS
from gpuscaler.model.pools import Limits
from gpuscaler.planning.state import State
from gpuscaler.settings import SettingsError, parse_policy

PRICED = """
region: us-east-1
pools:
  - name: gpu
    offerings:
      - {type: g4dn.xlarge, market: spot, zone: us-east-1a, price: PRICE}
"""
LIMITED = """
region: us-east-1
limits: {gpus: 24, machines_per_minute: 6}
pools:
  - name: gpu
    types: [g4dn.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
"""


@pytest.mark.parametrize("price", ["0", "-0.5", ".inf", ".nan", "0.5 EUR", "null"])
def test_f37_an_impossible_price_is_rejected_and_a_missing_price_is_taken_from_the_catalogue(price: str) -> None:
    text = PRICED.replace("PRICE", price)
    if price == "null":
        (offering,) = parse_policy(text).pools[0].offerings
        assert 0.05 < offering.price < 1.0
        return
    with pytest.raises(SettingsError) as raised:
        parse_policy(text)
    assert "price" in str(raised.value)
    assert "expected dollars per hour above 0" in str(raised.value)


async def test_f37_wrong_prices_in_a_changed_run_file_delay_no_pod(tmp_path: Path) -> None:
    async with replicated(tmp_path) as here:
        await here.sleep(10.0)
        (tmp_path / "run.yaml").write_text(f"cloud: simulated\n{PRICED.replace('PRICE', '-1')}")
        await here.submit()
        await here.sleep(90.0)

        assert all((await here.here.bound()).values())
        leader = await here.leader()
        assert leader.place is not None
        assert any("price" in trouble for trouble in leader.place.troubles())
        # A hundred times the old price is odd, but it is what the file says: without a limit in dollars machines are bought all the same.
        (tmp_path / "run.yaml").write_text(FILE.replace("types: [g4dn.xlarge]", "offerings: [{type: g4dn.xlarge, price: 52.6}]"))
        await here.sleep(30.0)
        assert leader.place.troubles() == ()
        await here.submit()
        await here.sleep(90.0)
        assert all((await here.here.bound()).values())


async def test_f38_purchases_for_80_pods_created_by_mistake_stay_within_the_limits_and_the_rate() -> None:
    async with faulty(LIMITED) as here:
        for number in range(80):
            await here.submit(f"p{number}")
        await here.sleep(300.0)

        bought = sorted(machine.bought_at for machine in here.cluster.core.history())
        assert len(bought) == 24
        # A grant comes up to three seconds after the order, which is what counts.
        assert max(Counter(int((at - bought[0]) // 57.0) for at in bought).values()) <= 6
        seen = await status(here)
        assert [(limit.name, limit.used, limit.most) for limit in seen.limits] == [("gpus", 24.0, 24.0)]
        (waiting,) = seen.waiting
        assert waiting.count == 56
        assert "limit" in waiting.reason


def test_f38_a_plan_for_100000_pods_respects_the_limits_and_shows_the_cost_without_limits() -> None:
    machines = pool(offering("g.8", 8.0, gpus=8, cpu=64, memory=512), offering("g.1", 1.5))
    limits = Limits(gpus=64, machines_per_minute=10, dollars_per_hour=50.0)
    plan = planned(pods("p", 100_000, spec(gpus=1)), machines, state=State(bought_last_minute=4), limits=limits)

    assert sum(8 if machine.instance_type == "g.8" else 1 for machine in plan.machines) <= 64
    assert 1 <= len(plan.machines) <= 6
    assert 0.0 < plan.cost_per_hour <= 50.0
    assert len(plan.unplaced) == 100_000 - sum(len(machine.pods) for machine in plan.machines)


async def test_f39_for_short_lived_pods_no_more_machines_are_bought_than_pods_are_pending_at_once() -> None:
    async with faulty(IDLE) as here:
        for number in range(250):
            await here.submit(f"p{number}")
            await asyncio.sleep(0.01)
            await here.user.delete(PODS, f"p{number}", namespace="default")
            await asyncio.sleep(0.01)
        assert len(here.cluster.core.history()) <= 2
        # The next pod uses the machine that was bought for an earlier one.
        await here.submit("last")
        await here.sleep(60.0)

        assert (await here.bound())["last"]
        assert len(here.cluster.core.history()) <= 2


async def test_f40_a_pod_that_no_machine_can_run_gets_one_event_with_the_reason() -> None:
    async with recorded() as (here, _):
        await here.submit("big", 8)
        await here.sleep(300.0)
        reported = await events(here)
        (event,) = [
            decoded for data in await here.user.list_all(EVENTS) if (decoded := msgspec.json.decode(data))["reason"] == "NotTriggerScaleUp"
        ]
        assert "series" not in event, "it was reported again"
        assert here.cluster.core.history() == ()

    assert [event[:2] for event in reported] == [("Pod big", "NotTriggerScaleUp")]
    assert "8 nvidia.com/gpu requested, an empty machine has 1" in reported[0][2]
