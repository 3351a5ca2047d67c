"""Reads the prices of one region: on demand from the Pricing API if that is allowed, spot from the price history."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from datetime import UTC, datetime

from gpuscaler.clouds.aws.api.calls import Calls, DeniedError
from gpuscaler.clouds.aws.api.remembering import LIST_PRICES_SECONDS, SPOT_PRICES_SECONDS, AnswerCache
from gpuscaler.clouds.aws.prices.choosing import YUAN_PER_DOLLAR, Place, SpotPrice, Tariff, in_yuan, on_demand_price_of, spot_prices_of
from gpuscaler.clouds.protocol import CloudError
from gpuscaler.clouds.remembering import DatedAnswer
from gpuscaler.model.overrides import OfferingPrice

#: The nearest endpoint of the Pricing API, by prefix of a region's name; each endpoint answers for its whole partition.
#: AWS Price List, "Endpoints". China has prices of its own; GovCloud and the isolated partitions have none.
_PRICING = {
    "us-gov-": "",
    "us-iso": "",
    "eu-iso": "",
    "eusc-": "",
    "cn-": "cn-northwest-1",
    "ap-": "ap-south-1",
    **dict.fromkeys(("eu-", "il-", "me-", "af-"), "eu-central-1"),
    "": "us-east-1",
}
#: Tries of a query, and the number of unanswered types after which the remaining ones wait for the next attempt. The pauses before that
#: grow from the first to the longest, in seconds; a denial by IAM waits for the longest at once.
_TRIES, _UNANSWERED = 2, 2
_FIRST_PAUSE, _LONGEST_PAUSE = 60.0, 3600.0
_AT_ONCE = 100
_PLATFORM = "Linux/UNIX"


def pricing_region(region: str) -> str:
    """The region whose Pricing API has prices for ``region``; empty if its partition has none."""
    return _PRICING[max((prefix for prefix in _PRICING if region.startswith(prefix)), key=len)]


class PriceReader:
    def __init__(
        self,
        region: str,
        calls: Calls,
        cache: AnswerCache,
        *,
        workers: Executor,
        now: Callable[[], float],
        own: tuple[OfferingPrice, ...],
        list_prices: bool = True,
    ) -> None:
        self._region, self._calls, self._cache, self._workers, self._now = region, calls, cache, workers, now
        self._own_prices = own
        self._spot: dict[Place, SpotPrice] = {}
        self._spot_at: dict[str, float] = {}
        self._pricing = pricing_region(region) if list_prices else ""
        #: Until when the Pricing API is not asked again after failures, and the number of failures in a row.
        self._quiet_until, self._failures = 0.0, 0
        #: Types without an answer in the current pass.
        self._unanswered: list[str] = []

    def read_prices(self, types: Collection[str], *, on_spot: Collection[str]) -> tuple[Tariff, dict[str, str]]:
        """Prices of the types in the region, including spot prices of ``on_spot``, and notes on what could not be read."""
        notes: dict[str, str] = {}
        on_demand = self._on_demand(types, notes)
        self._read_spot(on_spot, notes)
        spot = {place: price for place, price in self._spot.items() if place[0] in on_spot}
        return Tariff(self._region, on_demand, spot, self._now(), self._own_prices), notes

    def _on_demand(self, types: Collection[str], notes: dict[str, str]) -> dict[str, float]:
        """The last known price of each type; a price that AWS no longer lists stays valid."""
        now, prices = self._now(), self._cache.prices
        stale = [
            name for name in sorted(types) if not (cached := prices.get(self._key(name))) or not cached.is_fresh(now, LIST_PRICES_SECONDS)
        ]
        if self._pricing and now >= self._quiet_until and stale:
            self._unanswered.clear()
            refused: CloudError | None = None
            for name, answer in zip(stale, self._workers.map(self._query_price, stale), strict=True):
                if isinstance(answer, CloudError):
                    refused = answer if refused is None or isinstance(answer, DeniedError) else refused
                    continue
                before = prices.get(self._key(name))
                prices[self._key(name)] = DatedAnswer(now, answer if answer is not None or before is None else before.value)
            self._pause(refused, notes)
        return {name: cached.value for name in types if (cached := prices.get(self._key(name))) is not None and cached.value is not None}

    def _pause(self, refused: CloudError | None, notes: dict[str, str]) -> None:
        """Schedule the next attempt after a failure, with a pause that grows while failures continue."""
        self._failures = self._failures + 1 if refused is not None else 0
        if refused is None:
            return
        pause = min(_FIRST_PAUSE * 2.0 ** min(self._failures - 1, 20), _LONGEST_PAUSE)
        self._quiet_until = self._now() + (_LONGEST_PAUSE if isinstance(refused, DeniedError) else max(pause, refused.retry_after))
        if not isinstance(refused, DeniedError):
            notes["list prices"] = f"{refused.detail}; the last known prices are used, else the catalogue's"

    def _key(self, name: str) -> str:
        return f"{self._region}/{name}"

    def _query_price(self, name: str) -> float | CloudError | None:
        if len(self._unanswered) >= _UNANSWERED:
            return CloudError("unknown", f"pricing in {self._pricing}: several types got no answer a moment ago")
        wanted = {
            "instanceType": name,
            "regionCode": self._region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
        try:
            reply: Mapping[str, list[str]] = self._calls.read(
                "pricing", self._pricing, "GetProducts", tries=_TRIES, ServiceCode="AmazonEC2", Filters=filters
            )
        except CloudError as error:
            self._unanswered.append(name)
            return error
        return on_demand_price_of(reply.get("PriceList") or ())

    def _read_spot(self, types: Collection[str], notes: dict[str, str]) -> None:
        now = self._now()
        stale = [name for name in sorted(types) if not 0 <= now - self._spot_at.get(name, -SPOT_PRICES_SECONDS) < SPOT_PRICES_SECONDS]
        moment = datetime.fromtimestamp(now, UTC)
        for start in range(0, len(stale), _AT_ONCE):
            batch = stale[start : start + _AT_ONCE]
            try:
                entries = list(
                    self._calls.pages(
                        "ec2",
                        self._region,
                        "DescribeSpotPriceHistory",
                        "SpotPriceHistory",
                        InstanceTypes=batch,
                        ProductDescriptions=[_PLATFORM],
                        StartTime=moment,
                        EndTime=moment,
                    )
                )
            except CloudError as error:
                notes["spot prices"] = f"{error.detail}; older prices are used, else the catalogue's"
                return
            self._spot |= spot_prices_of(entries, per_dollar=YUAN_PER_DOLLAR if in_yuan(self._region) else 1.0)
            self._spot_at |= dict.fromkeys(batch, now)
