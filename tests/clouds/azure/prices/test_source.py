"""Prices that pools are planned with: where they come from, what replaces unusable ones, and how often the API is asked."""

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace
from tests.clouds.azure.prices.retail_api import A100, T4, RetailApi, item, serving, spot

from gpuscaler.catalogue import lookup
from gpuscaler.clouds.azure.api.http import Http
from gpuscaler.clouds.azure.prices.asking import PUBLIC_URL, next_page, prices_url, size_groups
from gpuscaler.clouds.azure.prices.source import PRICES_SECONDS, PriceSource
from gpuscaler.clouds.pricing import UNKNOWN_PRICE
from gpuscaler.model.overrides import OfferingPrice
from gpuscaler.model.pools import BY_SIZE
from gpuscaler.settings import parse_settings

pytestmark = pytest.mark.looptime(False)  # real sockets take real time

#: What the catalogue has for the size in eastus.
LISTED = 3.673


class Clock:
    def __init__(self) -> None:
        self.now = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    made = Http()
    yield made
    await made.close()


async def source_of(http: Http, clock: Clock, *items: dict[str, Any], own: tuple[OfferingPrice, ...] = ()) -> PriceSource:
    async with serving(RetailApi(*items)) as api:
        source = PriceSource(http, now=clock, own=own, endpoint_url=api.url)
        assert await source.refresh(["eastus"], [A100, T4]) == {}
        return source


async def test_prices_of_the_api_are_used(http: Http, clock: Clock) -> None:
    source = await source_of(http, clock, item(price=3.5), spot(price=0.8))

    assert source.price_of(A100, "on-demand", "eastus") == (3.5, "", "")
    assert source.price_of(A100, "spot", "eastus") == (0.8, "", "")
    assert source.price_of(A100, "reserved", "eastus") == (0.0, "", "")
    assert source.price_of(A100.lower(), "spot", "EastUS").price == 0.8


async def test_shipped_prices_are_used_before_the_first_answer(http: Http, clock: Clock) -> None:
    source = PriceSource(http, now=clock)

    assert source.price_of(A100, "on-demand", "eastus") == (LISTED, "", "")
    assert source.price_of(A100, "on-demand", "uksouth").price_from == "westeurope"


async def test_an_unknown_spot_price_is_assumed_below_on_demand_and_reported(http: Http, clock: Clock) -> None:
    price, warning, price_from = PriceSource(http, now=clock).price_of(A100, "spot", "eastus")

    assert (price, price_from) == (1.8365, BY_SIZE)
    assert warning.startswith(f"the spot price of {A100} in eastus is unknown; $1.8365 is assumed")
    assert warning.endswith(f"add {A100}/spot to azure.prices")


async def test_a_size_without_any_price_is_guessed_from_its_family_or_bought_last(http: Http, clock: Clock) -> None:
    source = PriceSource(http, now=clock)
    described = lookup(A100)
    assert described is not None

    guess = source.price_of("Standard_NC24bds_A100_v9", "on-demand", "eastus", replace(described, name="Standard_NC24bds_A100_v9"))
    unknown = source.price_of("Standard_NC24bds_A100_v9", "on-demand", "eastus")

    assert LISTED < guess.price < UNKNOWN_PRICE
    assert guess.price_from == unknown.price_from == BY_SIZE
    assert unknown.price == UNKNOWN_PRICE
    assert "add it to azure.prices" in unknown.warning


async def test_prices_of_the_user_take_precedence_and_are_not_checked(http: Http, clock: Clock) -> None:
    own = (OfferingPrice(A100, 2.0, "on-demand"), OfferingPrice(A100, 5.0, "spot"), OfferingPrice(T4, 0.4, "on-demand"))
    source = await source_of(http, clock, item(), spot(), item(T4, 0.5), spot(T4, 0.45), own=own)

    assert source.price_of(A100, "on-demand", "eastus") == (2.0, "", "")
    assert source.price_of(A100, "spot", "eastus") == (5.0, "", "")
    # A spot price above the user's own price is no mistake: on-demand machines are bought then.
    assert source.price_of(T4, "spot", "eastus") == (0.45, "", "")


async def test_a_price_without_a_market_in_the_run_file_leaves_spot_at_its_own_price(http: Http, clock: Clock) -> None:
    place = "{id: 00000000-0000-0000-0000-000000000000, resource_groups: [a]}"
    settings = parse_settings(f"cloud: azure\nazure: {{subscriptions: [{place}], prices: {{{A100.lower()}: 3.0}}}}")
    source = await source_of(http, clock, item(price=3.6), spot(price=0.8), own=settings.azure.prices)

    assert source.price_of(A100, "on-demand", "eastus") == (3.0, "", "")
    assert source.price_of(A100, "spot", "eastus") == (0.8, "", "")


async def test_a_spot_price_that_is_unknown_is_assumed_from_the_users_price_on_demand(http: Http, clock: Clock) -> None:
    source = await source_of(http, clock, item(), own=(OfferingPrice(A100.upper(), 3.0, "on-demand"),))

    assert source.price_of(A100, "on-demand", "eastus").price == 3.0
    assert source.price_of(A100, "spot", "eastus")[::2] == (1.5, BY_SIZE)


@pytest.mark.parametrize("wrong", [item(price=0.0), item(price=math.nan), item(price=-2), item(currencyCode="EUR")], ids=str)
async def test_an_unusable_on_demand_price_is_replaced_and_reported(http: Http, clock: Clock, wrong: dict[str, Any]) -> None:
    price, warning, price_from = (await source_of(http, clock, wrong)).price_of(A100, "on-demand", "eastus")

    assert (price, price_from) == (LISTED, "")
    assert warning.startswith(f"the on-demand price of {A100} in eastus is ")
    assert warning.endswith("; $3.673 is used")


@pytest.mark.parametrize("wrong", [LISTED * 100, LISTED / 100])
async def test_an_implausible_on_demand_price_is_replaced_and_reported(http: Http, clock: Clock, wrong: float) -> None:
    price, warning, _ = (await source_of(http, clock, item(price=wrong))).price_of(A100, "on-demand", "eastus")

    assert price == LISTED
    assert f"is ${wrong:g}, expected about $3.673" in warning


@pytest.mark.parametrize("wrong", [0.0, -1, math.nan, LISTED / 200])
async def test_an_unusable_spot_price_is_replaced_and_reported(http: Http, clock: Clock, wrong: float) -> None:
    price, warning, price_from = (await source_of(http, clock, item(), spot(price=wrong))).price_of(A100, "spot", "eastus")

    assert (price, price_from) == (1.8, BY_SIZE)
    assert warning.startswith(f"the spot price of {A100} in eastus is ")
    assert warning.endswith("; $1.8 is used")


async def test_a_spot_price_above_on_demand_is_lowered_to_it_and_reported(http: Http, clock: Clock) -> None:
    price, warning, _ = (await source_of(http, clock, item(price=3.6), spot(price=4.0))).price_of(A100, "spot", "eastus")

    assert price == 3.6
    assert warning == f"the spot price of {A100} in eastus is $4, expected at most the on-demand price; $3.6 is used"


async def test_a_spot_price_is_not_lowered_to_a_guessed_on_demand_price(http: Http, clock: Clock) -> None:
    source = await source_of(http, clock, spot(T4, 0.5, armRegionName="eastus"))

    assert source.price_of(T4, "spot", "eastus") == (0.5, "", "")


async def test_prices_are_read_again_after_twelve_hours(http: Http, clock: Clock) -> None:
    async with serving(RetailApi(item(price=3.5), spot())) as api:
        source = PriceSource(http, now=clock, endpoint_url=api.url)
        for _ in range(3):
            await source.refresh(["eastus"], [A100])
        assert len(api.queries) == 1
        clock.now += PRICES_SECONDS + 1
        api.items = [item(price=3.4)]
        await source.refresh(["eastus"], [A100])

    assert len(api.queries) == 2
    assert source.price_of(A100, "on-demand", "eastus").price == 3.4
    # The API no longer lists the spot price, and there may be such machines.
    assert source.price_of(A100, "spot", "eastus") == (0.9, "", "")


async def test_sizes_that_the_api_does_not_list_are_asked_for_again_after_an_hour(http: Http, clock: Clock) -> None:
    async with serving(RetailApi(item())) as api:
        source = PriceSource(http, now=clock, endpoint_url=api.url)
        await source.refresh(["eastus"], [A100, T4])
        clock.now += 3_601
        await source.refresh(["eastus"], [A100, T4])

    assert T4 in api.queries[1]
    assert A100 not in api.queries[1]


async def test_only_sizes_without_prices_and_locations_are_asked_for(http: Http, clock: Clock) -> None:
    async with serving(RetailApi(item(), item(armRegionName="westeurope", price=4.7))) as api:
        source = PriceSource(http, now=clock, endpoint_url=api.url)
        assert await source.refresh([], [A100]) == await source.refresh(["eastus"], []) == {}
        assert api.queries == []
        await source.refresh(["westeurope", "eastus", "eastus"], [A100])

    assert len(api.queries) == 2
    assert (source.price_of(A100, "on-demand", "eastus").price, source.price_of(A100, "on-demand", "westeurope").price) == (3.6, 4.7)


async def test_all_pages_are_read(http: Http, clock: Clock) -> None:
    async with serving(RetailApi(item(price=3.6), item(T4, 0.5), spot(), spot(T4, 0.2), page=1)) as api:
        source = PriceSource(http, now=clock, endpoint_url=api.url)
        await source.refresh(["eastus"], [A100, T4])

    assert len(api.queries) == 4
    assert source.price_of(T4, "spot", "eastus").price == 0.2


async def test_many_sizes_are_asked_for_in_several_queries(http: Http, clock: Clock) -> None:
    sizes = [f"Standard_NC{number}as_T4_v3" for number in range(40)]
    async with serving(RetailApi(*(item(size, 0.5) for size in sizes))) as api:
        source = PriceSource(http, now=clock, endpoint_url=api.url)
        await source.refresh(["eastus"], sizes)

    assert len(api.queries) == 3
    assert {source.price_of(size, "on-demand", "eastus").price for size in sizes} == {0.5}


ANSWERS = {
    "status 503": web.Response(status=503),
    "status 301": web.Response(status=301, headers={"location": "http://127.0.0.1:1/"}),
    "is not JSON": web.Response(text="<html>"),
    "without Items": web.Response(text='{"Count": 3}'),
    "answer without": web.Response(text="[]"),
    "not JSON": web.Response(text="[" * 100_000),
    "breaks off or has more than": web.Response(text=" " * (8 * 2**20 + 1)),
}


@pytest.mark.parametrize("words", ANSWERS)
async def test_an_unusable_answer_is_reported_and_the_shipped_prices_stay(http: Http, clock: Clock, words: str) -> None:
    async with serving(RetailApi()) as api:
        api.answer = ANSWERS[words]
        source = PriceSource(http, now=clock, endpoint_url=api.url)
        notes = await source.refresh(["eastus"], [A100])

    assert words in notes["retail prices"]
    assert notes["retail prices"].startswith(api.url)
    assert notes["retail prices"].endswith("; the last known prices are used, else the catalogue's")
    assert source.price_of(A100, "on-demand", "eastus") == (LISTED, "", "")


@pytest.mark.parametrize("link", ["http://elsewhere.example/api/retail/prices?$skip=1", "http://127.0.0.1:1/api/retail/prices", 7, "//"])
async def test_a_next_page_at_another_address_is_not_followed(http: Http, clock: Clock, link: Any) -> None:
    async with serving(RetailApi(item())) as api:
        api.next_link = link
        notes = await PriceSource(http, now=clock, endpoint_url=api.url).refresh(["eastus"], [A100])

    assert "expected one at the same address" in notes["retail prices"]
    assert len(api.queries) == 1


def test_a_next_page_with_the_port_of_https_is_at_the_same_address() -> None:
    link = f"{PUBLIC_URL}:443/api/retail/prices?$filter=serviceName%20eq%20%27Virtual%20Machines%27&$skip=100"

    assert next_page(PUBLIC_URL, link).endswith("&$skip=100")


async def test_pages_without_end_are_given_up(http: Http, clock: Clock) -> None:
    async with serving(RetailApi(item())) as api:
        api.next_link = f"{api.url}/api/retail/prices?$filter=armRegionName%20eq%20%27eastus%27"
        notes = await PriceSource(http, now=clock, endpoint_url=api.url).refresh(["eastus"], [A100])

    assert "saw more than 20 pages" in notes["retail prices"]
    assert len(api.queries) == 20


async def test_after_failures_the_api_is_asked_again_after_growing_pauses_and_success_ends_them(http: Http, clock: Clock) -> None:
    async with serving(RetailApi(item(price=3.5))) as api:
        api.answer = web.Response(status=503)
        source = PriceSource(http, now=clock, endpoint_url=api.url)
        began, asked = clock.now, []
        for _ in range(4_000):
            before = len(api.queries)
            await source.refresh(["eastus"], [A100])
            if len(api.queries) > before:
                asked.append(clock.now - began)
            clock.now += 1
        api.answer = None
        clock.now += 3_600
        assert await source.refresh(["eastus"], [A100]) == {}

    assert asked == [0, 60, 180, 420, 900, 1860, 3780]
    assert source.price_of(A100, "on-demand", "eastus").price == 3.5


async def test_the_wait_that_the_api_asks_for_is_kept(http: Http, clock: Clock) -> None:
    async with serving(RetailApi(item())) as api:
        api.answer = web.Response(status=429, headers={"retry-after": "300"})
        source = PriceSource(http, now=clock, endpoint_url=api.url)
        await source.refresh(["eastus"], [A100])
        clock.now += 299
        await source.refresh(["eastus"], [A100])
        assert len(api.queries) == 1
        clock.now += 1
        await source.refresh(["eastus"], [A100])

    assert len(api.queries) == 2


async def test_an_api_that_cannot_be_reached_is_reported(http: Http, clock: Clock) -> None:
    notes = await PriceSource(http, now=clock, endpoint_url="http://127.0.0.1:1").refresh(["eastus"], [A100])

    assert "cannot connect to 127.0.0.1:1" in notes["retail prices"]


async def test_prices_survive_a_restart_in_a_folder(http: Http, clock: Clock, tmp_path: Path) -> None:
    async with serving(RetailApi(item(price=3.5), spot(price=math.nan))) as api:
        await PriceSource(http, now=clock, endpoint_url=api.url, folder=tmp_path).refresh(["eastus"], [A100])
        later = PriceSource(http, now=clock, endpoint_url=api.url, folder=tmp_path)
        await later.refresh(["eastus"], [A100])
        assert len(api.queries) == 1
    elsewhere = PriceSource(http, now=clock, endpoint_url="http://127.0.0.1:1", folder=tmp_path)
    await elsewhere.refresh(["eastus"], [A100])

    assert later.price_of(A100, "on-demand", "eastus").price == 3.5
    assert "is no number" in later.price_of(A100, "spot", "eastus").warning
    assert elsewhere.price_of(A100, "on-demand", "eastus").price == LISTED


def overwrite(folder: Path, content: str) -> None:
    (file,) = folder.iterdir()
    file.write_text(content)


@pytest.mark.parametrize("content", ["", "{", '{"prices": {"eastus/x": 5}}', json.dumps([1])])
async def test_a_broken_file_of_prices_is_ignored(http: Http, clock: Clock, tmp_path: Path, content: str) -> None:
    async with serving(RetailApi(item(price=3.5))) as api:
        await PriceSource(http, now=clock, endpoint_url=api.url, folder=tmp_path).refresh(["eastus"], [A100])
        overwrite(tmp_path, content)
        source = PriceSource(http, now=clock, endpoint_url=api.url, folder=tmp_path)
        await source.refresh(["eastus"], [A100])

    assert source.price_of(A100, "on-demand", "eastus").price == 3.5


async def test_a_folder_that_cannot_be_written_costs_only_queries(http: Http, clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with serving(RetailApi(item(price=3.5))) as api:
        source = PriceSource(http, now=clock, endpoint_url=api.url, folder=tmp_path / "file" / "folder")
        assert await source.refresh(["eastus"], [A100]) == {}

    assert source.price_of(A100, "on-demand", "eastus").price == 3.5


async def test_names_that_would_change_the_query_are_never_asked_for(http: Http, clock: Clock) -> None:
    async with serving(RetailApi(item())) as api:
        source = PriceSource(http, now=clock, endpoint_url=api.url)
        await source.refresh(["east' or 1 eq 1", "eastus"], [A100, "x' or 'a' eq 'a"])

    (query,) = api.queries
    assert "eq 'a'" not in query
    assert "1 eq 1" not in query
    assert list(size_groups(["", "Ä", "a-b_c"])) == [["a-b_c"]]


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("", PUBLIC_URL),
        ("https://management.azure.com", PUBLIC_URL),
        ("https://management.usgovcloudapi.net/", PUBLIC_URL),
        ("https://management.chinacloudapi.cn", ""),
        ("http://127.0.0.1:4577/", "http://127.0.0.1:4577"),
    ],
)
def test_clouds_without_prices_of_their_own_share_the_public_ones_or_have_none(endpoint: str, url: str) -> None:
    assert prices_url(endpoint) == url


async def test_a_cloud_without_prices_is_never_asked(http: Http, clock: Clock) -> None:
    source = PriceSource(http, now=clock, endpoint_url="https://management.chinacloudapi.cn")

    assert await source.refresh(["chinaeast2"], [A100]) == {}
    assert source.price_of(A100, "on-demand", "chinaeast2").price_from == "japaneast"
