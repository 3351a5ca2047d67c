"""The prices that pools of Azure are planned with: the user's, those of the Retail Prices API, the catalogue's."""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from gpuscaler import catalogue
from gpuscaler.catalogue.nearby import nearest_price
from gpuscaler.clouds.azure.api.http import Http
from gpuscaler.clouds.azure.prices.asking import prices_url, read_items, size_groups
from gpuscaler.clouds.azure.prices.retail import ListedPrice, SizePrices, prices_in
from gpuscaler.clouds.pricing import IMPLAUSIBLE_FACTOR, SPOT_DIVISOR, PriceToUse, known_prices, on_demand_price
from gpuscaler.clouds.protocol import UNKNOWN, CloudError
from gpuscaler.clouds.remembering import DatedAnswer, load_answers, save_answers
from gpuscaler.model.azure_names import fold_id
from gpuscaler.model.offerings import ON_DEMAND, RESERVED
from gpuscaler.model.overrides import OfferingPrice
from gpuscaler.model.pools import BY_SIZE

#: How long a price is valid, in seconds.
PRICES_SECONDS: Final = 12 * 3600.0
#: The spot price that is assumed while none is known, as a share of the on-demand price. The catalogue has no spot prices of Azure, and
#: spot machines at the price of others would not be bought.
UNKNOWN_SPOT_SHARE: Final = 0.5
#: How long all queries of a refresh may take, and how many are made at once.
_REFRESH_SECONDS, _AT_ONCE = 10.0, 4
#: The pauses after failures grow from the first to the longest, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 60.0, 3600.0
_SETTING: Final = "azure.prices"
_FILE: Final = "azure-prices-{}.json"


class _Cache(Struct):
    """Prices by location/size, both in lower case; None for sizes that the API does not list there."""

    prices: dict[str, DatedAnswer[SizePrices | None]] = {}


class PriceSource:
    """Prices in US dollars per hour, by size, market and location.

    ``own`` are the user's, which are not checked. ``folder`` keeps the API's prices across restarts. ``endpoint_url`` is the endpoint of
    Azure Resource Manager in the settings, empty for the public one. ``http`` is closed by its owner. Refreshes follow one another.
    """

    def __init__(
        self,
        http: Http,
        *,
        now: Callable[[], float],
        own: Sequence[OfferingPrice] = (),
        endpoint_url: str = "",
        folder: Path | None = None,
    ) -> None:
        self._http, self._now, self._url = http, now, prices_url(endpoint_url)
        self._own = {(fold_id(price.instance_type), price.market): price.price for price in own}
        name = _FILE.format(hashlib.sha256(self._url.encode()).hexdigest()[:12])
        self._file = folder / name if folder is not None else None
        self._cache: _Cache | None = None
        #: Until when the API is not asked after failures, and the number of failures in a row.
        self._quiet_until, self._failures = 0.0, 0

    async def refresh(self, locations: Iterable[str], sizes: Collection[str]) -> dict[str, str]:
        """Read the prices of the sizes in each location that are missing or older than :data:`PRICES_SECONDS`; notes on what failed.

        Takes at most 10 seconds. After a failure the last known prices stay, and the API is not asked for a minute, later for an hour.
        """
        if self._cache is None:
            self._cache = await asyncio.to_thread(self._load)
        now = self._now()
        queries = [(location, group) for location in sorted(set(locations)) for group in size_groups(self._stale(location, sizes, now))]
        if not self._url or not queries or now < self._quiet_until:
            return {}
        refused = await self._read(queries, now)
        self._failures = self._failures + 1 if refused is not None else 0
        if self._file is not None:
            await asyncio.to_thread(save_answers, self._cache, self._file)
        if refused is None:
            return {}
        pause = min(_FIRST_PAUSE * 2.0 ** min(self._failures - 1, 20), _LONGEST_PAUSE)
        self._quiet_until = now + max(pause, refused.retry_after)
        return {"retail prices": f"{refused.detail}; the last known prices are used, else the catalogue's"}

    def price_of(self, size: str, market: str, location: str, kind: catalogue.InstanceType | None = None) -> PriceToUse:
        """The price of one offering. ``reserved`` is already paid for. ``kind`` is the basis of a guess if no price is known.

        A warning is the same text for all pools and zones with that size, market and location.
        """
        own_price = self._own.get((fold_id(size), market))
        if own_price is not None:
            return PriceToUse(own_price)
        if market == RESERVED:
            return PriceToUse(0.0)
        listed = self._listed(size, location)
        list_price = _list_price(size, location, listed, kind)
        if market == ON_DEMAND:
            return list_price
        own_price = self._own.get((fold_id(size), ON_DEMAND))
        return _spot_price(size, location, listed.spot, list_price, list_price if own_price is None else PriceToUse(own_price))

    def _listed(self, size: str, location: str) -> SizePrices:
        answer = self._cache.prices.get(_key(location, size)) if self._cache is not None else None
        return (answer.value if answer is not None else None) or SizePrices()

    def _stale(self, location: str, sizes: Collection[str], now: float) -> list[str]:
        assert self._cache is not None
        prices = self._cache.prices
        if not (location.isascii() and location.isalnum()):
            return []
        return [size for size in sizes if not (cached := prices.get(_key(location, size))) or not cached.is_fresh(now, PRICES_SECONDS)]

    async def _read(self, queries: Sequence[tuple[str, list[str]]], now: float) -> CloudError | None:
        """Make the queries; the first failure, if any. After it no further query is begun."""
        waiting, failures = list(reversed(queries)), list[CloudError]()

        async def work() -> None:
            while waiting and not failures:
                location, group = waiting.pop()
                try:
                    items = await read_items(self._http, self._url, location, group)
                except CloudError as error:
                    failures.append(error)
                    return
                self._keep(location, group, prices_in(items, location, now), now)

        try:
            async with asyncio.timeout(_REFRESH_SECONDS):
                await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        except TimeoutError:
            failures.append(CloudError(UNKNOWN, f"{self._url}: saw no answer to all queries within {_REFRESH_SECONDS:g} s"))
        return failures[0] if failures else None

    def _keep(self, location: str, sizes: Collection[str], found: dict[str, SizePrices], now: float) -> None:
        """Keep the answers. A price that the API no longer lists stays valid, since machines are paid for until they are gone."""
        assert self._cache is not None
        for size in sizes:
            key = _key(location, size)
            before = self._cache.prices.get(key)
            listed, known = found.get(size.lower()), before.value if before is not None else None
            if listed is not None and known is not None:
                listed = SizePrices(listed.on_demand or known.on_demand, listed.spot or known.spot)
            self._cache.prices[key] = DatedAnswer(now, listed or known)

    def _load(self) -> _Cache:
        return (load_answers(self._file, _Cache) if self._file is not None else None) or _Cache()


def _key(location: str, size: str) -> str:
    return f"{location}/{size}".lower()


def _list_price(size: str, location: str, listed: SizePrices, kind: catalogue.InstanceType | None) -> PriceToUse:
    price = listed.on_demand
    usable = price.price if price is not None and not price.problem else None
    spot = (listed.spot.price,) if listed.spot is not None else ()
    chosen = on_demand_price(size, location, usable, kind=kind, spot_prices=spot, setting=_SETTING)
    if price is None or not price.problem:
        return chosen
    return chosen._replace(warning=f"the on-demand price of {size} in {location} {price.problem}; ${chosen.price:g} is used")


def _spot_price(size: str, location: str, listed: ListedPrice | None, list_price: PriceToUse, on_demand: PriceToUse) -> PriceToUse:
    """The price of a spot machine. Azure never sells one above its ``list_price``; ``on_demand`` may be the user's price instead."""
    subject = f"the spot price of {size} in {location}"
    near = nearest_price(size, location)
    if near is not None and near.price.spot is not None:
        guess = PriceToUse(min(near.price.spot, on_demand.price), price_from="" if near.region == location else near.region)
    else:
        guess = PriceToUse(round(on_demand.price * UNKNOWN_SPOT_SHARE, 4), price_from=BY_SIZE)
    if listed is None:
        text = f"is unknown; ${guess.price:g} is assumed, and no pod is moved to save money there: add {size}/spot to {_SETTING}"
        return guess._replace(warning=f"{subject} {text}" if guess.price_from == BY_SIZE else "")
    if listed.problem:
        return guess._replace(warning=f"{subject} {listed.problem}; ${guess.price:g} is used")
    # A guess is no reason to reject Azure's price; a known price of this size in any location may be.
    references = known_prices(size) + ((list_price.price,) if not list_price.price_from else ())
    if listed.price < min(references, default=0.0) / SPOT_DIVISOR:
        return guess._replace(warning=f"{subject} is ${listed.price:g}, expected about ${guess.price:g}; ${guess.price:g} is used")
    highest = list_price.price if not list_price.price_from else max(references, default=listed.price) * IMPLAUSIBLE_FACTOR
    if listed.price > highest:
        text = f"is ${listed.price:g}, expected at most the on-demand price; ${list_price.price:g} is used"
        return PriceToUse(list_price.price, f"{subject} {text}", list_price.price_from)
    return PriceToUse(listed.price)
