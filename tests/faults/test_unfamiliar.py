"""F67: machines that match none of their pool's offerings."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.control.world import World
from tests.faults.kit import all_bound, faulty, status

from gpuscaler.clouds.aws.buying.buying import launched_offering
from gpuscaler.clouds.protocol import BuyResult, Order
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.offerings import OfferingKey

TWO = """
region: us-east-1
limits: {gpus: 4}
pools:
  - name: gpu
    types: [g4dn.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
    idle_after: 60s
  - name: other
    types: [g5.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
    idle_after: 60s
"""


def misread(here: World, change: Callable[[Instance], Instance]) -> Callable[[], None]:
    """Let the cloud's answers and lists show ``change(machine)`` for each machine, until the returned function is called."""
    provider = here.cluster.provider
    buy, listed = provider.buy, provider.inventory

    async def some(order: Order) -> BuyResult:
        bought = await buy(order)
        return replace(bought, instances=tuple(map(change, bought.instances)))

    async def inventory() -> Inventory:
        seen = await listed()
        return replace(seen, instances=tuple(map(change, seen.instances)))

    def end() -> None:
        provider.buy, provider.inventory = buy, listed  # type: ignore[method-assign]

    provider.buy, provider.inventory = some, inventory  # type: ignore[method-assign]
    return end


@pytest.mark.parametrize(
    "fields", [{"market": "Teleported"}, {"zone": "us-east-1z"}, {"instance_type": "g4dn.huge"}], ids=["market", "zone", "type"]
)
async def test_f67_a_machine_without_a_matching_offering_counts_for_limits_and_stops_buying_until_it_matches(
    fields: dict[str, str],
) -> None:
    async with faulty(TWO) as here:
        end = misread(here, lambda instance: replace(instance, **fields) if instance.pool == "gpu" else instance)
        await here.submit("first")
        await here.sleep(120.0)
        assert len(here.cluster.core.history()) == 1
        assert await all_bound(here)
        (stop,) = (await status(here)).breakers
        assert (stop.target, stop.cause, stop.open) == ("pool gpu", "unfamiliar", True)

        # Other pods have their machines by then.
        await here.submit("second")
        await here.sleep(120.0)
        assert await all_bound(here)
        assert [machine.offering.pool for machine in here.cluster.core.history()] == ["gpu", "other"]

        end()
        await here.sleep(30.0)
        assert (await status(here)).breakers == ()


async def test_f67_a_machine_of_unknown_type_counts_for_limits_like_the_most_expensive_type() -> None:
    large = TWO.replace("types: [g4dn.xlarge]", "types: [g4dn.xlarge, g4dn.12xlarge]")
    async with faulty(large) as here:
        misread(here, lambda instance: replace(instance, instance_type="g4dn.huge") if instance.pool == "gpu" else instance)
        await here.submit("first", 4)
        await here.sleep(5.0)
        # The machine on its way may have four GPUs, which is the limit.
        await here.submit("second")
        await here.sleep(5.0)

        assert len(here.cluster.core.history()) == 1
        assert {limit.name: limit.used for limit in (await status(here)).limits}["gpus"] == 4


@pytest.mark.parametrize("spelling", ["Spot", "SPOT", "s-pot"])
def test_f67_a_spot_machine_of_aws_is_recognised_in_every_spelling_of_its_market(spelling: str) -> None:
    spot, on_demand = (OfferingKey("gpus", market, "g5.xlarge", "us-east-1a") for market in ("spot", "on-demand"))

    assert launched_offering({"MarketType": spelling, "InstanceType": "g5.xlarge"}, (on_demand, spot)) == spot
    assert launched_offering({"MarketType": "OnDemand", "InstanceType": "g5.xlarge"}, (spot, on_demand)) == on_demand
