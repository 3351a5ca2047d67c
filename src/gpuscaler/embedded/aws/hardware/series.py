"""Spot markets of an account that follow measured series."""

from collections.abc import Iterable
from pathlib import Path

from gpuscaler.embedded.aws.hardware import instance_types
from gpuscaler.embedded.aws.hardware.hardware import EC2
from gpuscaler.embedded.aws.hardware.zones import zones_of
from gpuscaler.model.pools import Offering, Policy, Pool
from gpuscaler.simulation.cloud.markets import Markets
from gpuscaler.simulation.traces.spot import read_spot
from gpuscaler.simulation.traces.spot_markets import markets_of


def series_of(path: Path, *, regions: Iterable[str], zones: int, seed: int, began: float) -> Markets:
    """The spot markets of all GPU types in ``regions``, from a file of availability or prices; see ``docs/reference/spot-markets.md``.

    Second 0 of the series is ``began``. Raises :class:`~gpuscaler.simulation.traces.spot.SpotError` for an unusable file.
    """
    offerings = [
        Offering(
            EC2, "spot", instance_type.name, zone, instance_types.price(instance_type.name, region, "spot"), instance_type.allocatable, {}
        )
        for region in regions
        for zone in zones_of(region, zones)
        for instance_type in instance_types.in_region(region)
        if instance_type.gpus
    ]
    return markets_of(Policy(pools=(Pool(EC2, tuple(offerings)),)), [read_spot(path)], seed=seed, began=began)[0]
