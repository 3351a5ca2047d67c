import pytest
from msgspec.structs import replace

from gpuscaler.catalogue import InstanceType, lookup
from gpuscaler.catalogue.nearby import guess_price, nearest_price

A100 = "Standard_NC24ads_A100_v4"


def price_in(name: str, region: str) -> float:
    near = nearest_price(name, region)
    assert near is not None
    return near.price.on_demand


@pytest.mark.parametrize(
    ("region", "nearest"),
    [
        ("swedencentral", "swedencentral"),
        ("uksouth", "westeurope"),
        ("northeurope", "westeurope"),
        ("uaenorth", "westeurope"),
        ("koreacentral", "japaneast"),
        ("australiaeast", "japaneast"),
        ("westus2", "westus3"),
        ("canadacentral", "eastus"),
        ("centralus", "eastus"),
        ("usgovvirginia", "eastus"),
    ],
)
def test_a_region_of_azure_without_prices_gets_those_of_the_nearest_region(region: str, nearest: str) -> None:
    near = nearest_price(A100, region)

    assert near is not None
    assert near.region == nearest


def newcomer(name: str, gpus: int) -> InstanceType:
    instance_type = lookup(A100)
    assert instance_type is not None
    return replace(instance_type, name=name, gpus=gpus, allocatable={**instance_type.allocatable, "nvidia.com/gpu": gpus}, prices={})


def test_the_price_of_an_unknown_size_of_azure_is_guessed_from_its_family() -> None:
    assert guess_price(newcomer("Standard_NC72ads_A100_v4", 3), "eastus") == pytest.approx(3 * price_in(A100, "eastus"), rel=0.01)


def test_an_unknown_family_of_azure_gets_the_highest_rate() -> None:
    highest = price_in("Standard_ND96isr_H100_v5", "eastus") / 8

    assert guess_price(newcomer("Standard_NX24_v9", 1), "eastus") == pytest.approx(highest, rel=0.01)
