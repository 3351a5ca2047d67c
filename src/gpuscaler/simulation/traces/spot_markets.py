"""Assigns series to the offerings' markets: the offering's own, one that a map names, or one that a seed draws."""

import random
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
import yaml
from msgspec import Struct

from gpuscaler.catalogue.zones import region_of
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.traces.spot import MarketSeries, SpotError, SpotFile


class SeriesChoice(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The entry of a map for offerings: names of their availability and price series, and the offset at which a run begins."""

    availability: str = ""
    price: str = ""
    shift: float = 0.0


#: Patterns of "instance type/zone", with ``*`` for anything, in the order in which they are tried.
SpotMap = Mapping[str, SeriesChoice]


def read_spot_map(path: Path) -> SpotMap:
    """A YAML or JSON file of lines such as ``g5.*/us-east-1a: us-east-1c``, or with ``{availability: …, price: …, shift: …}``."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpotError(f"{path}: saw {error.strerror}, expected a readable file (--spot-map)") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpotError(f"{path}: not YAML or JSON: {error}") from error
    if not isinstance(content, dict):
        raise SpotError(f"{path}: saw no mapping, expected lines such as g5.*/us-east-1a: us-east-1c")
    choices: dict[str, SeriesChoice] = {}
    for pattern, chosen in content.items():
        try:
            choices[str(pattern)] = msgspec.convert({"availability": chosen} if isinstance(chosen, str) else chosen, SeriesChoice)
        except msgspec.ValidationError as error:
            raise SpotError(f"{path}: {pattern}: {error}; expected a series, or availability, price and shift") from error
    return choices


def markets_of(
    policy: Policy, files: Sequence[SpotFile], *, seed: int, began: float, spot_map: SpotMap | None = None
) -> tuple[Markets, list[str]]:
    """The markets of the spot offerings of ``policy``, and notes on what was derived for which offerings.

    An offering has the series of its own instance type and zone (region, for prices) if there is one; else the one that ``spot_map`` names;
    else one that ``seed`` draws, with an offset that it draws too. Drawn prices are relative: the offering's own price stands for the
    series' average. Raises :class:`SpotError` if the map names no series.
    """
    choose = _SeriesAssigner(files, seed, spot_map or {})
    capacity: dict[OfferingKey, Steps] = {}
    prices: dict[OfferingKey, Steps] = {}
    for offering in policy.offerings.values():
        region = region_of(offering.zone, policy.region)
        if offering.market == "spot":
            choose.availability(offering, capacity)
            choose.price(offering, region, prices)
        elif offering.market == "on-demand":
            own = choose.own(choose.on_demand, offering.instance_type, region)
            if own is not None:
                prices[offering.key] = own.as_steps()
    return Markets(capacity, prices, began=began), choose.notes()


def derived_markets(policy: Policy, files: Sequence[SpotFile], *, seed: int, spot_map: SpotMap) -> list[str]:
    """Report lines about the markets: which series were drawn, and which rows of the files were skipped."""
    notes = markets_of(policy, files, seed=seed, began=0.0, spot_map=spot_map)[1]
    for file in files:
        if file.set_aside:
            first = file.bad_rows[0]
            rows = "row" if file.set_aside == 1 else "rows"
            notes.append(f"{file.name}: {file.set_aside:,} malformed {rows} skipped, the first in line {first.line}: {first.reason}")
    return notes


class _SeriesAssigner:
    def __init__(self, files: Sequence[SpotFile], seed: int, spot_map: SpotMap) -> None:
        self._available = [series for file in files for series in file.availability]
        self._spot = [series for file in files for series in file.spot]
        self.on_demand = [series for file in files for series in file.on_demand]
        self._seed = seed
        self._map = spot_map
        self._drawn = {"availability": 0, "price": 0}
        for choice in spot_map.values():
            if choice.availability:
                _by_name(self._available, choice.availability)
            if choice.price:
                _by_name(self._spot, choice.price)

    @staticmethod
    def own(series: Sequence[MarketSeries], instance_type: str, place: str) -> MarketSeries | None:
        return next((market for market in series if market.instance_type == instance_type and market.place == place), None)

    def availability(self, offering: Offering, steps: dict[OfferingKey, Steps]) -> None:
        if not self._available:
            return
        choice = self._mapped(offering)
        own = self.own(self._available, offering.instance_type, offering.zone)
        if choice is not None and choice.availability:
            steps[offering.key] = _by_name(self._available, choice.availability).as_steps(shift=choice.shift)
        elif own is not None:
            steps[offering.key] = own.as_steps()
        else:
            series, shift = self._draw("availability", self._available, offering)
            steps[offering.key] = series.as_steps(shift=shift)

    def price(self, offering: Offering, region: str, steps: dict[OfferingKey, Steps]) -> None:
        if not self._spot:
            return
        choice = self._mapped(offering)
        own = self.own(self._spot, offering.instance_type, region)
        if choice is not None and choice.price:
            series, shift = _by_name(self._spot, choice.price), choice.shift
        elif own is not None:
            steps[offering.key] = own.as_steps()
            return
        else:
            series, shift = self._draw("price", self._spot, offering)
        steps[offering.key] = series.as_steps(shift=shift, factor=offering.price / series.mean)

    def notes(self) -> list[str]:
        titles = {"availability": "spot availability", "price": "spot price, relative to its average,"}
        return [
            f"{titles[kind]} of {count} offerings: each uses the series of another market with an offset, both drawn by the seed"
            for kind, count in self._drawn.items()
            if count
        ]

    def _mapped(self, offering: Offering) -> SeriesChoice | None:
        name = f"{offering.instance_type}/{offering.zone}"
        return next((choice for pattern, choice in self._map.items() if fnmatchcase(name, pattern)), None)

    def _draw(self, kind: str, series: Sequence[MarketSeries], offering: Offering) -> tuple[MarketSeries, float]:
        # Pools do not affect a market: the same type in the same zone runs dry in all of them at once.
        luck = random.Random(f"{self._seed}/{kind}/{offering.instance_type}/{offering.zone}")
        self._drawn[kind] += 1
        chosen = luck.choice(series)
        return chosen, luck.uniform(0.0, chosen.period)


def _by_name(series: Sequence[MarketSeries], name: str) -> MarketSeries:
    """The series with a name, or with a part of a name that no other has."""
    matching = [market for market in series if market.name == name] or [market for market in series if name in market.name.split("/")]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(market.name for market in (matching or series)[:8])
    number = "several series" if matching else "no series"
    raise SpotError(f"--spot-map: {name!r} names {number}, expected one of {names}")
