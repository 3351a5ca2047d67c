"""Prices per region and partition: the endpoint of requests, the effect of failed requests, and that AWS's order of prices is kept."""

from typing import Any

import pytest
from tests.clouds.aws.accounts import Aws, pool

from gpuscaler.clouds.aws.discovery.discovery import DiscoveryResult
from gpuscaler.clouds.aws.prices.asking import pricing_region
from gpuscaler.embedded.aws.hardware import instance_types
from gpuscaler.embedded.aws.serving.faults import Fault, denied, outage
from gpuscaler.model.overrides import OfferingPrice

TYPES = ("c5.4xlarge", "g4dn.xlarge", "g5.xlarge", "g6e.48xlarge", "p5.48xlarge")
SEVERED = Fault(service="pricing", sever="before")


def account(region: str, *faults: Fault, types: tuple[str, ...] = TYPES) -> Aws:
    """An account with a spot group and an on-demand group for each type."""
    aws = Aws(regions=(region,))
    for name in types:
        aws.template(name, region=region, InstanceType=name)
        template = {"LaunchTemplateSpecification": {"LaunchTemplateName": name}, "Overrides": [{"InstanceType": name}]}
        for market, share in (("on-demand", 100), ("spot", 0)):
            shares = {"OnDemandPercentageAboveBaseCapacity": share, "SpotAllocationStrategy": "price-capacity-optimized"}
            policy: dict[str, Any] = {"LaunchTemplate": template, "InstancesDistribution": shares}
            aws.group(f"{name}-{market}".replace(".", "-"), region=region, MixedInstancesPolicy=policy)
    aws.endpoint.faults.all += faults
    return aws


def prices(discovered: DiscoveryResult, market: str) -> dict[str, float]:
    return {
        offering.instance_type: offering.price for some in discovered.pools for offering in some.pool.offerings if offering.market == market
    }


def guesses(discovered: DiscoveryResult) -> set[str]:
    return {offering.price_from for some in discovered.pools for offering in some.pool.offerings}


def in_order(some: dict[str, float]) -> list[str]:
    return sorted(some, key=lambda name: (some[name], name))


REGIONS = (
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "eu-central-1",
    "ap-northeast-2",
    "sa-east-1",
    "us-gov-west-1",
    "cn-north-1",
    "af-south-1",
)


@pytest.mark.parametrize(
    "fault", [None, SEVERED, outage("pricing"), denied("GetProducts"), Fault(service="pricing", code="Throttling", times=1)]
)
@pytest.mark.parametrize("region", REGIONS)
def test_offerings_are_ordered_by_aws_prices_whatever_the_pricing_api_answers(region: str, fault: Fault | None) -> None:
    discovered = account(region, *([fault] if fault else [])).discover()

    for market in ("spot", "on-demand"):
        true = {name: instance_types.price(name, region, market) for name in TYPES}
        assert in_order(prices(discovered, market)) == in_order(true)
    spot, on_demand = prices(discovered, "spot"), prices(discovered, "on-demand")
    assert all(spot[name] < on_demand[name] for name in TYPES)
    assert spot == {name: pytest.approx(instance_types.price(name, region, "spot"), rel=0.02) for name in TYPES}
    assert not any("expected about" in warning for some in discovered.pools for warning in some.warnings)


@pytest.mark.parametrize(
    ("region", "where"),
    [("us-east-2", "us-east-1"), ("eu-central-1", "eu-central-1"), ("ap-south-1", "ap-south-1"), ("ap-northeast-2", "ap-south-1"),
     ("cn-north-1", "cn-northwest-1"), ("us-gov-east-1", ""), ("us-isob-east-1", ""), ("sa-east-1", "us-east-1"),
     ("me-central-1", "eu-central-1")],
)  # fmt: skip
def test_prices_are_requested_from_the_partition_of_the_region(region: str, where: str) -> None:
    assert pricing_region(region) == where


def test_the_pricing_api_is_not_called_in_govcloud() -> None:
    aws = account("us-gov-west-1")
    discovered = aws.discover()
    assert "GetProducts" not in aws.session.call_counts
    assert guesses(discovered) == {"", "us-west-2", "us-east-1"}
    (warning,) = [text for text in pool(discovered, "g5-xlarge-on-demand").warnings if "price" in text]
    assert warning == "no price of g5.xlarge in us-gov-west-1 is known; the price in us-west-2 is used: add it to aws.prices"


def test_prices_in_yuan_are_converted_and_reported() -> None:
    discovered = account("cn-north-1").discover()
    assert 0.9 < prices(discovered, "on-demand")["g5.xlarge"] / instance_types.price("g5.xlarge", "cn-north-1", "on-demand") < 1.1
    assert "prices in cn-north-1 are in yuan; 7 yuan count as a dollar" in pool(discovered, "g5-xlarge-spot").warnings


def test_one_throttled_call_does_not_change_prices() -> None:
    calm = account("us-west-1").discover()
    throttled = account("us-west-1", Fault(service="pricing", code="Throttling", message="Rate exceeded", times=1)).discover()
    assert throttled.pools == calm.pools
    assert guesses(throttled) == {""}


def test_known_prices_stay_valid_and_missing_ones_are_retried_with_growing_waits() -> None:
    aws = account("us-west-1")
    discovery = aws.discovery()
    before_failures = prices(discovery.discover(), "on-demand")
    aws.endpoint.faults.all.append(outage("pricing"))
    aws.time += 90_000.0
    assert prices(discovery.discover(), "on-demand") == before_failures
    queried = []
    for _ in range(40):
        before = aws.session.call_counts["GetProducts"]
        aws.time += 180.0
        assert prices(discovery.discover(), "on-demand") == before_failures
        queried.append(aws.session.call_counts["GetProducts"] > before)
    # Two hours: after 1, 2, 4, 8, 16, 32 and 60 minutes, at the next pass.
    assert 5 <= sum(queried) <= 8
    aws.endpoint.faults.all.clear()
    aws.time += 3700.0
    notes = [skipped for skipped in discovery.discover().set_aside if "list prices" in skipped.object]
    discovery.close()
    assert notes == []


def test_prices_are_stored_per_type_even_if_requests_for_some_types_fail() -> None:
    aws = account("us-west-1", Fault(service="pricing", about="g5.xlarge", code="Throttling", times=2))
    discovery = aws.discovery()
    discovery.discover()
    queries = aws.session.call_counts["GetProducts"]
    aws.time += 180.0
    discovered = discovery.discover()
    discovery.close()
    assert guesses(discovered) == {""}
    assert aws.session.call_counts["GetProducts"] == queries + 1


def test_a_configured_on_demand_price_does_not_change_spot_prices() -> None:
    aws = account("ap-northeast-2", SEVERED, types=("g4dn.xlarge",))
    own = (OfferingPrice("g4dn.xlarge", 0.647, market="on-demand"),)
    discovered = aws.discover(prices=own)
    assert prices(discovered, "on-demand") == {"g4dn.xlarge": 0.647}
    assert prices(discovered, "spot")["g4dn.xlarge"] == pytest.approx(
        instance_types.price("g4dn.xlarge", "ap-northeast-2", "spot"), rel=0.01
    )
    assert prices(discovered, "spot")["g4dn.xlarge"] < 0.647
