"""F11 to F16: a cloud that lacks the requested capacity, or refuses it."""

from collections import Counter

from tests.control.world import BEGAN, ONE_GPU_MACHINES
from tests.faults.kit import SPOT_FIRST, all_bound, bought, faulty, markets, refusing, status

from gpuscaler.clouds.protocol import PRICE, QUOTA, Refusal
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.settings.pools_file import parse_policy
from gpuscaler.simulation.cloud.markets import Markets, Steps

#: As in a cloud whose groups have one type and zone each: one request asks one of them.
TWELVE_SPOT_POOLS = "region: us-east-1\npools:\n" + "".join(
    f"  - {{name: {kind}-{zone}, types: [{kind}.xlarge], markets: [{market}], zones: [us-east-1{zone}]}}\n"
    for kind, zones, market in (("g4dn", "abcd", "spot"), ("g5", "abcd", "spot"), ("g6", "abcd", "spot"), ("g4dn", "f", "on-demand"))
    for zone in zones
)
FAMILIES = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge, g4dn.2xlarge, g5.xlarge]
    markets: [on-demand]
    zones: [us-east-1a, us-east-1b]
"""


def dry(pools: str, *markets: str) -> Markets:
    """Markets that never have capacity."""
    offerings = [offering for pool in parse_policy(pools).pools for offering in pool.offerings]
    return Markets({offering.key: Steps((0.0,), (0.0,)) for offering in offerings if offering.market in markets}, began=BEGAN)


async def test_f11_if_one_spot_offering_has_no_capacity_the_next_one_is_requested_at_once() -> None:
    cheapest: OfferingKey = OfferingKey("gpu", "spot", "g4dn.xlarge", "us-east-1a")
    async with faulty(SPOT_FIRST, markets=Markets({cheapest: Steps((0.0,), (0.0,))}, began=BEGAN)) as here:
        for number in range(8):
            await here.submit(f"p{number}")
        await bought(here, 8)
        first = here.notes.orders[0].at

        assert set(markets(here)) == {"spot"}
        assert max(machine.bought_at for machine in here.cluster.core.history()) <= first + 8.0
        assert {machine.offering.instance_type for machine in here.cluster.core.history()} == {"g4dn.xlarge"}
        assert {breaker.target for breaker in (await status(here)).breakers} == {"spot g4dn.xlarge us-east-1a"}
        await here.sleep(120.0)
        assert await all_bound(here)


async def test_f12_if_no_spot_offering_has_capacity_on_demand_is_requested_within_ten_seconds() -> None:
    async with faulty(TWELVE_SPOT_POOLS, markets=dry(TWELVE_SPOT_POOLS, "spot")) as here:
        await here.submit("p")
        refused = 0.0
        while not any(order.offerings[0][1] == "on-demand" for order in here.notes.orders):
            await here.sleep(0.1)
            assert here.controller is not None
            if not refused and here.controller.memory.breakers.open:
                refused = here.now()
        asked = next(order.at for order in here.notes.orders if order.offerings[0][1] == "on-demand")
        assert refused
        assert asked <= refused + 10.0
        await here.sleep(120.0)

        assert await all_bound(here)
        assert markets(here) == ["on-demand"]


async def test_f13_without_any_capacity_the_cloud_gets_less_than_one_request_a_second() -> None:
    async with faulty(SPOT_FIRST, markets=dry(SPOT_FIRST, "spot", "on-demand")) as here:
        await here.submit("p")
        await here.sleep(600.0)

        asked = [order.at for order in here.notes.orders]
        assert 3 <= len(asked) <= 60
        assert max(Counter(int(at) for at in asked).values()) == 1
        (waiting,) = (await status(here)).waiting
        assert waiting.pods == ("default/p",)
        assert "no capacity" in waiting.reason
        assert "retried at" in waiting.reason


async def test_f14_an_exceeded_quota_pauses_its_whole_instance_family_and_others_are_tried() -> None:
    message = "VcpuLimitExceeded: You have requested more vCPU capacity than your current vCPU limit of 64 allows"
    family = ("g4dn.xlarge", "g4dn.2xlarge")

    def quota(key: OfferingKey) -> Refusal | None:
        return Refusal(QUOTA, key, message, bucket=family) if key[2] in family else None

    async with faulty(FAMILIES) as here:
        asked = refusing(here, quota)
        await here.submit("p")
        await here.sleep(120.0)
        await here.submit("q")
        await here.sleep(120.0)

        assert await all_bound(here)
        assert [machine.offering.instance_type for machine in here.cluster.core.history()] == ["g5.xlarge", "g5.xlarge"]
        assert sum(any(key[2] in family for key in order.offerings) for order in asked) == 1
        (breaker,) = (await status(here)).breakers
        assert "quota used up" in breaker.text
        assert "vCPU limit of 64" in breaker.text


async def test_f15_a_maximum_spot_price_that_is_too_low_pauses_spot_in_the_pool_for_at_least_30_minutes() -> None:
    message = (
        "SpotMaxPriceTooLow: Your Spot request price of 0.05 is lower than the minimum required Spot request fulfillment price of 0.16"
    )

    def too_low(key: OfferingKey) -> Refusal | None:
        return Refusal(PRICE, key, message) if key[1] == "spot" else None

    async with faulty(SPOT_FIRST) as here:
        asked = refusing(here, too_low)
        await here.submit("p")
        await here.sleep(120.0)
        await here.submit("q")
        await here.sleep(1400.0)
        await here.submit("r")
        await here.sleep(120.0)

        assert await all_bound(here)
        assert markets(here) == ["on-demand"] * 3
        assert sum(any(key[1] == "spot" for key in order.offerings) for order in asked) == 1
        (breaker,) = (await status(here)).breakers
        assert breaker.until is not None
        assert 1800.0 <= breaker.until - BEGAN <= 1990.0
        assert "price refused" in breaker.text
        assert "fulfillment price of 0.16" in breaker.text


async def test_f16_after_a_partial_grant_only_the_missing_machines_are_bought_in_another_offering() -> None:
    both = ONE_GPU_MACHINES.replace("[on-demand]", "[spot, on-demand]")
    spot = next(offering for offering in parse_policy(both).pools[0].offerings if offering.market == "spot")
    async with faulty(both, markets=Markets({spot.key: Steps((0.0,), (6.0,))}, began=BEGAN)) as here:
        for number in range(10):
            await here.submit(f"p{number}")
        await here.sleep(300.0)

        assert await all_bound(here)
        assert Counter(markets(here)) == {"spot": 6, "on-demand": 4}
