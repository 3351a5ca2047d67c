"""Spot markets of an account that follow measured series."""

from collections.abc import Iterable
from pathlib import Path

from gpuscaler.embedded.azure.hardware import sizes
from gpuscaler.embedded.azure.hardware.hardware import AZURE, SPOT
from gpuscaler.model.pools import Offering, Policy, Pool
from gpuscaler.simulation.cloud.markets import Markets
from gpuscaler.simulation.traces.spot import read_spot
from gpuscaler.simulation.traces.spot_markets import markets_of


def series_of(path: Path, *, locations: Iterable[str], zones: int, seed: int, began: float) -> Markets:
    """The spot markets of all GPU sizes in ``locations``, from a file of availability or prices; see ``docs/reference/spot-markets.md``.

    Second 0 of the series is ``began``. Zone 0 are machines in no zone. Raises
    :class:`~gpuscaler.simulation.traces.spot.SpotError` for an unusable file.
    """
    offerings = [
        Offering(AZURE, SPOT, size.name, f"{location}-{zone}", sizes.price(size, location, SPOT), size.allocatable, {})
        for location in locations
        for zone in range(zones + 1)
        for size in sizes.sizes().values()
        if size.gpus
    ]
    return markets_of(Policy(pools=(Pool(AZURE, tuple(offerings)),)), [read_spot(path)], seed=seed, began=began)[0]
