"""The entries of ``pools``: pools with their offerings, and overrides of pools found in an account."""

from gpuscaler.model.accelerators import count_accelerators
from gpuscaler.model.overrides import OfferingPrice, PoolOverride
from gpuscaler.model.pools import Offering, Pool, all_have_gpus
from gpuscaler.model.reading.cursor import Cursor
from gpuscaler.settings.fields.pool_settings import OfferingSettings, OverrideSettings, PoolSettings
from gpuscaler.settings.fields.table import NO_CONTEXT, Schema, read, read_attributes, requires_values, schema
from gpuscaler.settings.offerings import read_offerings

#: Keys of an entry of ``pools`` that overrides a pool found in an account, and keys of its offerings, which can set prices only.
OVERRIDE_KEYS = (
    *("name", "min", "max", "spare", "idle_after", "unready_after", "steering", "closed", "min_gpus_per_pod", "priority"),
    *("offerings", "labels", "taints", "startup_taints", "budgets"),
)
PRICE_KEYS = ("type", "market", "zone", "price")
#: Attributes that a pool takes unchanged from its settings.
_SHARED = {*PoolSettings.__struct_fields__} & {*Pool.__struct_fields__} - {"offerings"}


def pool_schema() -> Schema:
    """Return the JSON Schema of a pool."""
    return {**schema(PoolSettings), "anyOf": [requires_values("types"), requires_values("offerings")]}


def override_schema() -> Schema:
    """Return the JSON Schema of an entry that overrides a pool found in an account."""
    overrides = schema(OverrideSettings, only=OVERRIDE_KEYS)
    price = schema(OfferingSettings, only=PRICE_KEYS)
    price["required"] += ["price"]
    overrides["properties"]["offerings"] = {"anyOf": [{"type": "array", "items": price}, {"type": "null"}]}
    return overrides


def read_pools(at: Cursor, region: str) -> tuple[Pool, ...]:
    """Read the entries as pools with their offerings; ``region`` is the file's, "" if it has none."""
    pools: dict[str, tuple[Cursor, Pool]] = {}
    items = at.items()
    if not items and isinstance(at.entry.value, list):
        at.wrong("at least one pool; add - name: …", seen="an empty list")
    for item in items:
        pool = _entry(item, region)
        if pool is None:
            continue
        if pool.name in pools:
            item.add_problem(f'saw the name "{pool.name}" a second time (first at {pools[pool.name][0].path}); rename one')
        pools[pool.name] = (item, pool)
    return tuple(pool for _, pool in pools.values())


def _entry(at: Cursor, region: str) -> Pool | None:
    entry = read(PoolSettings, at, NO_CONTEXT)
    if not isinstance(at.entry.value, dict):
        return None
    if not at.has("types") and not at.has("offerings"):
        at.add_problem("saw neither types nor offerings, expected at least one way to buy; add types: […]")
    offerings = read_offerings(entry, region)
    _check_gpus(entry, offerings, at)
    pool = Pool(
        **{name: getattr(entry, name) for name in _SHARED},
        offerings=offerings,
        match_labels=entry.labels,
        configured_labels=tuple(entry.labels),
        buys_without_gpus=at.has("min_gpus_per_pod") or not all_have_gpus(offerings),
    )
    return pool if entry.name else None


def _check_gpus(entry: PoolSettings, offerings: tuple[Offering, ...], at: Cursor) -> None:
    """Report settings that need more GPUs than the pool's machines have."""
    if entry.spare.gpus and offerings and not any(count_accelerators(offering.allocatable) for offering in offerings):
        expected = "whole GPUs among what the pool's machines offer; write spare: N for machines"
        at.descend("spare", "gpus").wrong(expected, seen=str(entry.spare.gpus))
    for offering in offerings:
        gpus = count_accelerators(offering.allocatable)
        if gpus < entry.min_gpus_per_pod:
            expected = f"at most {gpus}, the GPUs of {offering.instance_type}; lower it, or give that type its own pool"
            at.descend("min_gpus_per_pod").wrong(expected, seen=str(entry.min_gpus_per_pod))
            break


def read_overrides(at: Cursor) -> tuple[PoolOverride, ...]:
    """Read the entries as overrides, for files with pools from an account."""
    pool_overrides: dict[str, PoolOverride] = {}
    for item in at.items():
        attributes = read_attributes(OverrideSettings, item, NO_CONTEXT, only=OVERRIDE_KEYS)
        if "name" not in attributes:
            continue
        if attributes["name"] in pool_overrides:
            item.add_problem(f'saw the name "{attributes["name"]}" a second time; merge the two entries')
        prices = attributes.pop("offerings", None)
        offering_prices = tuple(price for line in prices.items() if (price := _price(line))) if prices else ()
        pool_overrides[attributes["name"]] = PoolOverride(**attributes, prices=offering_prices)
    return tuple(pool_overrides.values())


def _price(at: Cursor) -> OfferingPrice | None:
    """Read an offering that only sets a price."""
    attributes = read_attributes(OfferingSettings, at, NO_CONTEXT, only=PRICE_KEYS)
    if isinstance(at.entry.value, dict) and not at.has("price"):
        at.add_problem("saw no price, expected one; add price: …")
    offering_settings = OfferingSettings(**attributes)
    offering_settings.check_price(at, free=offering_settings.market == "reserved")
    return (
        OfferingPrice(offering_settings.type, offering_settings.price, offering_settings.market, offering_settings.zone)
        if offering_settings.type and offering_settings.price is not None
        else None
    )
