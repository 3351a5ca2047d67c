import json
import math
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from gpuscaler.catalogue import InstanceType, lookup
from gpuscaler.clouds.aws.prices.choosing import SpotPrice, Tariff, on_demand_price_of, spot_prices_of
from gpuscaler.clouds.pricing import UNKNOWN_PRICE
from gpuscaler.model.pools import BY_SIZE

NOW = 1_790_000_000.0
ZONE = "us-east-1a"
LISTED = 1.006


def tariff(*, on_demand: float | None = None, spot: float | None = None, since: float = NOW - 3600) -> Tariff:
    spots = {} if spot is None else {("g5.xlarge", ZONE): SpotPrice(spot, since)}
    return Tariff("us-east-1", {} if on_demand is None else {"g5.xlarge": on_demand}, spots, NOW)


def product(*prices: float, unit: str = "Hrs") -> str:
    dimensions = {str(place): {"unit": unit, "pricePerUnit": {"USD": str(price)}} for place, price in enumerate(prices)}
    return json.dumps({"terms": {"OnDemand": {"offer": {"priceDimensions": dimensions}}}})


def test_prices_from_aws_are_used() -> None:
    assert tariff(on_demand=1.2).price_of("g5.xlarge", "on-demand", ZONE) == (1.2, "", "")
    assert tariff(spot=0.4).price_of("g5.xlarge", "spot", ZONE) == (0.4, "", "")


def test_prices_missing_from_aws_come_from_the_catalogue() -> None:
    assert tariff().price_of("g5.xlarge", "on-demand", ZONE) == (LISTED, "", "")
    assert 0 < tariff().price_of("g5.xlarge", "spot", ZONE).price < LISTED


def test_reserved_offerings_have_no_hourly_price() -> None:
    assert tariff(on_demand=1.2).price_of("g5.xlarge", "reserved", ZONE) == (0.0, "", "")


@pytest.mark.parametrize("wrong", [0.0, -1.0, LISTED * 100, LISTED / 100, math.inf, math.nan])
def test_an_implausible_list_price_is_replaced_and_reported(wrong: float) -> None:
    price, warning, _ = tariff(on_demand=wrong).price_of("g5.xlarge", "on-demand", ZONE)

    assert price == LISTED
    assert f"is ${wrong:g}, expected about $1.006" in warning


@pytest.mark.parametrize("wrong", [0.0, -0.3, 100.6, math.nan])
def test_an_implausible_spot_price_is_replaced_and_reported(wrong: float) -> None:
    price, warning, _ = tariff(spot=wrong).price_of("g5.xlarge", "spot", ZONE)

    assert 0 < price <= LISTED
    assert f"the spot price of g5.xlarge in {ZONE} is ${wrong:g}" in warning


def test_a_spot_price_above_on_demand_is_used_so_that_on_demand_is_bought() -> None:
    assert tariff(spot=LISTED * 2).price_of("g5.xlarge", "spot", ZONE) == (LISTED * 2, "", "")


def test_a_stale_spot_price_is_reported_and_never_makes_a_machine_cheaper() -> None:
    price, warning, _ = tariff(spot=0.02, since=NOW - 100 * 86_400).price_of("g5.xlarge", "spot", ZONE)

    assert price == tariff().price_of("g5.xlarge", "spot", ZONE).price
    assert "is 100 days old" in warning


def test_a_type_without_any_price_is_bought_last_and_reported() -> None:
    price, warning, _ = Tariff("us-east-1", {}, {}, NOW).price_of("x99.xlarge", "on-demand", ZONE)

    assert price == UNKNOWN_PRICE
    assert "add it to aws.prices" in warning


def test_the_highest_hourly_price_of_a_product_list_is_used() -> None:
    assert on_demand_price_of([product(1.0), product(1.5, 0.0)]) == 1.5
    assert on_demand_price_of([product(9.0, unit="Quantity")]) is None


@pytest.mark.parametrize("entry", ["", "[]", "{}", '{"terms": {"OnDemand": []}}', '{"terms": null}', product(-1.0), product(math.nan)])
def test_an_unreadable_product_has_no_price(entry: str) -> None:
    assert on_demand_price_of([entry]) is None


def test_the_newest_spot_price_is_used_and_malformed_entries_are_left_out() -> None:
    def entry(price: str, hour: int) -> dict[str, object]:
        at = datetime(2026, 11, 21, hour, tzinfo=UTC)
        return {"InstanceType": "g5.xlarge", "AvailabilityZone": ZONE, "SpotPrice": price, "Timestamp": at}

    spot_prices = spot_prices_of([entry("0.3", 1), entry("0.5", 3), entry("0.4", 2), entry("cheap", 4), {"InstanceType": "g5.xlarge"}])

    assert spot_prices == {("g5.xlarge", ZONE): SpotPrice(0.5, datetime(2026, 11, 21, 3, tzinfo=UTC).timestamp())}


def newcomer(like: str, name: str) -> InstanceType:
    """A type without a price in any region, of the size of ``like``."""
    instance_type = lookup(like)
    assert instance_type is not None
    return replace(instance_type, name=name)


def test_a_missing_price_is_estimated_from_the_types_family_and_reported() -> None:
    price, warning, price_from = Tariff("us-west-1", {}, {}, NOW).price_of(
        "g5.99xlarge", "on-demand", ZONE, newcomer("g5.48xlarge", "g5.99xlarge")
    )

    assert price_from == BY_SIZE
    assert LISTED * 8 < price < 40.0
    assert warning.startswith("prices unknown: no region has a price of g5.99xlarge; $")


def test_types_of_an_unknown_family_get_the_highest_price_so_that_they_are_bought_last() -> None:
    unknown = Tariff("us-west-1", {}, {}, NOW).price_of("g99.2xlarge", "on-demand", ZONE, newcomer("g5.2xlarge", "g99.2xlarge")).price
    assert Tariff("us-west-1", {}, {}, NOW).price_of("g5.48xlarge", "on-demand", ZONE).price / 8 < unknown < 100.0


def test_a_spot_price_from_aws_is_not_rejected_because_of_an_estimated_on_demand_price() -> None:
    spot = {("g99.2xlarge", ZONE): SpotPrice(120.0, NOW), ("g99.2xlarge", "us-west-1b"): SpotPrice(0.4, NOW)}
    tariff = Tariff("us-west-1", {}, spot, NOW)
    kind = newcomer("g5.2xlarge", "g99.2xlarge")

    assert tariff.price_of("g99.2xlarge", "spot", ZONE, kind) == (120.0, "", "")
    assert tariff.price_of("g99.2xlarge", "spot", "us-west-1b", kind) == (0.4, "", "")
    assert tariff.price_of("g99.2xlarge", "on-demand", ZONE, kind).price == 120.0


def test_an_implausible_spot_price_is_rejected_by_comparison_with_known_prices_of_the_type() -> None:
    for wrong in (0.001, 100.0):
        price, warning, _ = Tariff("eu-south-2", {}, {("g5.xlarge", "eu-south-2a"): SpotPrice(wrong, NOW)}, NOW).price_of(
            "g5.xlarge", "spot", "eu-south-2a"
        )
        assert 0.1 < price < 2.0
        assert f"is ${wrong:g}" in warning


def test_prices_in_yuan_are_converted_to_dollars() -> None:
    dimensions = {"one": {"unit": "Hrs", "pricePerUnit": {"CNY": "14.0"}}}
    assert on_demand_price_of([json.dumps({"terms": {"OnDemand": {"offer": {"priceDimensions": dimensions}}}})]) == 2.0
