"""Which of the many items with the name of a size is its price."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.clouds.azure.prices.retail_api import A100, T4, item, spot

from gpuscaler.clouds.azure.prices.retail import ListedPrice, SizePrices, prices_in

NOW = datetime(2026, 11, 26, tzinfo=UTC).timestamp()


def prices(*items: Any) -> dict[str, SizePrices]:
    return prices_in(items, "eastus", NOW)


def test_prices_are_by_size_and_market() -> None:
    assert prices(item(), spot(), item(T4, 0.5)) == {
        A100.lower(): SizePrices(ListedPrice(3.6), ListedPrice(0.9)),
        T4.lower(): SizePrices(ListedPrice(0.5)),
    }


@pytest.mark.parametrize(
    "other",
    [
        item(price=5.0, productName="Virtual Machines NCads A100 v4 Series Windows"),
        item(price=5.0, productName="NCads A100 v4 Series CloudServices"),
        item(price=5.0, productName="NCads A100 v4 Series Cloud Services"),
        item(price=5.0, productName="NCads A100 v4 Series Dedicated Host"),
        item(price=0.7, meterName="NC24ads A100 v4 Low Priority", skuName="NC24ads A100 v4 Low Priority"),
        item(price=0.7, meterName="NC24ads A100 v4 Low Priority"),
        item(price=9.9, skuName="NC24ads A100 v4 Expired"),
        item(price=2.0, type="DevTestConsumption"),
        item(price=20_000.0, type="Reservation", reservationTerm="1 Year"),
        item(price=1.0, tierMinimumUnits=100.0),
        item(price=1.0, armRegionName="westeurope"),
        item(price=1.0, serviceName="Azure Kubernetes Service"),
        item(price=1.0, effectiveStartDate="2027-01-01T00:00:00Z"),
        item(price=9.0, effectiveStartDate="2024-01-01T00:00:00Z", effectiveEndDate="2025-01-01T00:00:00Z"),
        item(price=9.0, armSkuName=None),
        item(price=9.0, productName=7),
        {},
        None,
        "text",
    ],
    ids=str,
)
def test_items_that_are_not_the_price_of_a_linux_machine_never_win(other: Any) -> None:
    expected = {A100.lower(): SizePrices(ListedPrice(3.6))}

    assert prices(item(), other) == prices(other, item()) == expected


def test_the_newest_price_that_has_begun_is_used() -> None:
    old, new = item(price=4.0, effectiveStartDate="2022-01-01T00:00:00Z"), item(price=3.6, effectiveStartDate="2025-06-01T00:00:00Z")

    assert prices(old, new) == prices(new, old) == {A100.lower(): SizePrices(ListedPrice(3.6))}


def test_of_products_with_the_same_date_the_one_named_like_virtual_machines_is_used_then_the_highest() -> None:
    odd = item(price=9.0, productName="NCads A100 v4 Series")

    assert prices(odd, item(), item(price=3.7)) == {A100.lower(): SizePrices(ListedPrice(3.7))}


def test_a_product_without_the_words_virtual_machines_is_used_if_there_is_no_other() -> None:
    """As "DCsv3 Series Linux" in eastus."""
    assert prices(item(price=9.0, productName="DCsv3 Series Linux")) == {A100.lower(): SizePrices(ListedPrice(9.0))}


@pytest.mark.parametrize(
    ("odd", "problem"),
    [
        (item(price=0.0), "is $0"),
        (item(price=-1.0), "is $-1"),
        (item(price=math.nan), "is no number"),
        (item(price=math.inf), "is no number"),
        (item(price="3.6"), "is no number"),
        (item(price=True), "is no number"),
        (item(price=None), "is no number"),
        (item(currencyCode="EUR"), "is in EUR"),
        (item(unitOfMeasure="1/Month"), "is per 1/Month"),
    ],
)
def test_an_unusable_price_is_kept_as_a_problem_unless_there_is_a_usable_one(odd: dict[str, Any], problem: str) -> None:
    assert prices(odd) == {A100.lower(): SizePrices(ListedPrice(0.0, problem))}
    assert prices(odd, item(effectiveStartDate="2020-01-01T00:00:00Z")) == {A100.lower(): SizePrices(ListedPrice(3.6))}


def test_sizes_are_found_in_any_case() -> None:
    assert A100.lower() in prices(item(armSkuName=A100.upper()))
