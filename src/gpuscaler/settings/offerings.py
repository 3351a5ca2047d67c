"""Offerings of a pool: the short form ``types x markets x zones`` and the exact form, completed from the catalogue."""

import difflib
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from gpuscaler import catalogue
from gpuscaler.catalogue.node_labels import node_labels
from gpuscaler.catalogue.zones import cloud_of, region_of
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import Resources
from gpuscaler.model.pools import Offering
from gpuscaler.model.reading.cursor import Cursor
from gpuscaler.settings.fields.pool_settings import OfferingSettings, PoolSettings
from gpuscaler.settings.fields.table import NO_CONTEXT, read_attributes

#: The kubelet's default limit, for types with unknown pod limits.
DEFAULT_PODS = 110
#: An offering with its labels counts as this many values (see :meth:`Report.count`).
OFFERING_VALUES = 10
#: Beyond this many mistakes in a file, no similar names are suggested: that would take seconds and not help.
MAX_HINTS = 50


class _Line(NamedTuple):
    """An offering as the file lists it, and its place ``at`` there; ``price`` and ``resources`` are None if the file does not set them."""

    at: Cursor
    instance_type: str
    market: str
    zone: str
    price: float | None = None
    resources: Resources | None = None


def read_offerings(pool: PoolSettings, region: str) -> tuple[Offering, ...]:
    offerings: dict[OfferingKey, Offering] = {}
    lines: dict[tuple[str, str, str], Cursor] = {}
    for line in _lines(pool):
        key = (line.instance_type, line.market, line.zone)
        if key in lines:
            place = f", zone {line.zone}" if line.zone else ""
            line.at.add_problem(f"saw {line.instance_type}, {line.market}{place} a second time (first at {lines[key].path}); remove one")
            continue
        lines[key] = line.at
        offering = _offering(line, pool, region_of(line.zone, region))
        if offering is not None:
            offerings[offering.key] = offering
    return tuple(offerings.values())


def _lines(pool: PoolSettings) -> Iterator[_Line]:
    for at in pool.types.names("instance type") if pool.types else []:
        at.report.count(OFFERING_VALUES * len(pool.markets) * len(pool.zones))
        for market in pool.markets:
            for zone in pool.zones:
                yield _Line(at, at.entry.raw, market, zone)
    exact = pool.offerings
    entries = exact.items() if exact else []
    if exact and exact.entry.value == []:
        exact.wrong("at least one offering; remove the key if types is enough", seen="an empty list")
    for at in entries:
        yield from _exact(at, pool)


def _exact(at: Cursor, pool: PoolSettings) -> Iterator[_Line]:
    attributes = read_attributes(OfferingSettings, at, NO_CONTEXT)
    entry = OfferingSettings(**attributes)
    markets, zones = (entry.market,) if entry.market else pool.markets, (entry.zone,) if entry.zone else pool.zones
    entry.check_price(at, free=set(markets) == {"reserved"})
    if not entry.type or any(at.has(key) and key not in attributes for key in ("market", "zone", "price")):
        return
    at.report.count(OFFERING_VALUES * len(markets) * len(zones))
    for market in markets:
        for zone in zones:
            yield _Line(at, entry.type, market, zone, entry.price, entry.resources)


def _offering(line: _Line, pool: PoolSettings, region: str) -> Offering | None:
    instance_type = catalogue.lookup(line.instance_type)
    allocatable = _allocatable(line, instance_type)
    price = line.price if line.price is not None else _list_price(line, instance_type, region)
    arch = instance_type.arch if instance_type else pool.arch or "amd64"
    if pool.arch and arch != pool.arch:
        line.at.add_problem(f"saw {line.instance_type}, which is {arch}, expected {pool.arch} (the pool's arch); move it to another pool")
    if allocatable is None or price is None:
        return None
    labels = node_labels(
        pool=pool.name,
        instance_type=line.instance_type,
        market=line.market,
        zone=line.zone,
        region=region,
        arch=arch,
        cloud=instance_type.cloud if instance_type else cloud_of(line.zone, region),
        details=instance_type,
        allocatable=allocatable,
    )
    return Offering(pool.name, line.market, line.instance_type, line.zone, price, allocatable, {**labels, **pool.labels}, pool.taints)


def _allocatable(line: _Line, instance_type: catalogue.InstanceType | None) -> Resources | None:
    """Return the catalogue's figures overridden by ``resources``; an unknown type needs ``resources``."""
    resources = line.resources or {}
    if instance_type is not None:
        return {**instance_type.allocatable, **resources}
    if line.resources is None:
        near = _similar(line.instance_type) if len(line.at.report) < MAX_HINTS else []
        hint = f"did you mean {' or '.join(near)}? Otherwise " if near else ""
        line.at.add_problem(
            f'saw "{line.instance_type}", which is not in the catalogue; {hint}add it under offerings, with price and resources'
            " (allocatable resources of its nodes)"
        )
        return None
    missing = [name for name in ("cpu", "memory") if not resources.get(name)]
    if missing:
        line.at.add_problem(
            f"saw no {' and no '.join(missing)} in resources of {line.instance_type}, which is not in the catalogue; add them"
        )
        return None
    return {"pods": DEFAULT_PODS, **resources}


@lru_cache(maxsize=256)
def _similar(name: str) -> list[str]:
    """Return up to three similar names in the catalogue. Cached, since each type is looked up once for each market and zone."""
    return difflib.get_close_matches(name, [instance_type.name for instance_type in catalogue.types()], 3)


def _list_price(line: _Line, instance_type: catalogue.InstanceType | None, region: str) -> float | None:
    """Return the catalogue's price, or report why there is none and return None."""
    what = f"the {line.market} price of {line.instance_type}"
    if instance_type is None:
        if line.resources is not None:
            line.at.add_problem(f"saw no price, and {line.instance_type} is not in the catalogue; give price in dollars per hour")
    elif line.market == "reserved":
        line.at.add_problem(
            f"saw no price, and the catalogue does not have {what}: give price under offerings (0 if it is already paid for)"
        )
    elif not region:
        line.at.add_problem(f"saw no price for {line.instance_type} and no region to look it up in; set region (or zones), or give price")
    elif region not in instance_type.prices:
        regions = ", ".join(instance_type.prices)
        line.at.add_problem(
            f"saw no price, and the catalogue does not have {what} in {region} (only in {regions}); give price under offerings"
        )
    else:
        price = instance_type.prices[region]
        if line.market == "on-demand":
            return price.on_demand
        if price.spot is not None:
            return price.spot
        line.at.add_problem(f"saw no price, and the catalogue does not have {what} in {region}; give price under offerings")
    return None
