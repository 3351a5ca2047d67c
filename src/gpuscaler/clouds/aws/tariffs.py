"""Prices of one region: on demand from the Pricing API where that is allowed, spot from the price history."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from datetime import UTC, datetime

from gpuscaler.clouds.aws.calls import Calls, DeniedError
from gpuscaler.clouds.aws.prices import Place, SpotPrice, Tariff, on_demand_of, spot_of
from gpuscaler.clouds.aws.remembering import LIST_PRICES, SPOT_PRICES, Dated, Kept
from gpuscaler.clouds.protocol import CloudError
from gpuscaler.model.overrides import OfferingPrice

#: The Pricing API answers for all regions in a few.
_PRICING_REGION = "us-east-1"
_AT_ONCE = 100
_PLATFORM = "Linux/UNIX"


class Tariffs:
    def __init__(
        self, region: str, calls: Calls, kept: Kept, *, workers: Executor, now: Callable[[], float], own: tuple[OfferingPrice, ...]
    ) -> None:
        self._region, self._calls, self._kept, self._workers, self._now = region, calls, kept, workers, now
        self._own = own
        self._spot: dict[Place, SpotPrice] = {}
        self._spot_at: dict[str, float] = {}
        #: Until when the Pricing API, which was refused, is not asked again.
        self._refused_until = 0.0

    def of(self, types: Collection[str], *, on_spot: Collection[str]) -> tuple[Tariff, dict[str, str]]:
        """What the types cost in the region, those of ``on_spot`` there too, and notes on what could not be read."""
        notes: dict[str, str] = {}
        on_demand = self._on_demand(types, notes)
        self._read_spot(on_spot, notes)
        spot = {place: price for place, price in self._spot.items() if place[0] in on_spot}
        return Tariff(self._region, on_demand, spot, self._now(), self._own), notes

    def _on_demand(self, types: Collection[str], notes: dict[str, str]) -> dict[str, float]:
        now, kept = self._now(), self._kept.prices
        stale = [name for name in sorted(types) if not (one := kept.get(self._key(name))) or not one.fresh(now, LIST_PRICES)]
        if now >= self._refused_until:
            for name, found in zip(stale, self._workers.map(self._ask, stale), strict=True):
                if not isinstance(found, CloudError):
                    kept[self._key(name)] = Dated(now, found)
                    continue
                self._refused_until = now + LIST_PRICES / 24
                if not isinstance(found, DeniedError):
                    notes["list prices"] = f"{found.detail}; the catalogue's prices count"
        return {name: one.value for name in types if (one := kept.get(self._key(name))) is not None and one.value is not None}

    def _key(self, name: str) -> str:
        return f"{self._region}/{name}"

    def _ask(self, name: str) -> float | CloudError | None:
        if self._now() < self._refused_until:
            return CloudError("unknown", "refused a moment ago")
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
                "pricing", _PRICING_REGION, "GetProducts", tries=1, ServiceCode="AmazonEC2", Filters=filters
            )
        except CloudError as error:
            self._refused_until = self._now() + LIST_PRICES / 24
            return error
        return on_demand_of(reply.get("PriceList") or ())

    def _read_spot(self, types: Collection[str], notes: dict[str, str]) -> None:
        now = self._now()
        stale = [name for name in sorted(types) if not 0 <= now - self._spot_at.get(name, -SPOT_PRICES) < SPOT_PRICES]
        moment = datetime.fromtimestamp(now, UTC)
        for start in range(0, len(stale), _AT_ONCE):
            some = stale[start : start + _AT_ONCE]
            try:
                entries = list(
                    self._calls.pages(
                        "ec2",
                        self._region,
                        "DescribeSpotPriceHistory",
                        "SpotPriceHistory",
                        InstanceTypes=some,
                        ProductDescriptions=[_PLATFORM],
                        StartTime=moment,
                        EndTime=moment,
                    )
                )
            except CloudError as error:
                notes["spot prices"] = f"{error.detail}; older ones, or the catalogue's, count"
                return
            self._spot |= spot_of(entries)
            self._spot_at |= dict.fromkeys(some, now)
