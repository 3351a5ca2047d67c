"""Prices are read from the simulated account, whose endpoint was written from the API's description alone."""

import pytest
from tests.clouds.azure.prices.retail_api import A100, T4
from tests.clouds.azure.providers import azure_account

from gpuscaler.catalogue import lookup
from gpuscaler.clouds.azure.api.http import Http
from gpuscaler.clouds.azure.prices.source import PriceSource

pytestmark = pytest.mark.looptime(False)  # real sockets take real time


async def test_prices_of_the_simulated_account_are_read() -> None:
    async with azure_account() as harness:
        harness.account.prices |= {(A100.lower(), "eastus", "on-demand"): 3.5, (A100.lower(), "eastus", "spot"): 0.8}
        http = Http()
        source = PriceSource(http, now=harness.now, endpoint_url=harness.url)
        try:
            notes = await source.refresh(["eastus"], [A100, T4])
        finally:
            await http.close()
    described = lookup(T4)
    assert described is not None

    assert notes == {}
    assert source.price_of(A100, "on-demand", "eastus") == (3.5, "", "")
    assert source.price_of(A100, "spot", "eastus") == (0.8, "", "")
    assert source.price_of(T4, "on-demand", "eastus").price == described.prices["eastus"].on_demand
