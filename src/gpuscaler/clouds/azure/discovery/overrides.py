"""The user's overrides with the names that pools have in Azure, which ignores the case of names. Pure."""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from gpuscaler.model.azure_names import fold_id
from gpuscaler.model.overrides import EVERY_POOL, PoolOverride
from gpuscaler.model.pools import Pool


def for_pools(overrides: Mapping[str, PoolOverride], pools: Iterable[Pool]) -> dict[str, PoolOverride]:
    """``overrides``, which are by name in any case, by the names of ``pools``, with their sizes as the pools spell them.

    Where names differ by case only, as labels may, an override is that of the pool whose name it has exactly.
    """
    folded = {fold_id(name): override for name, override in overrides.items()}
    found = {EVERY_POOL: overrides[EVERY_POOL]} if EVERY_POOL in overrides else {}
    for pool in pools:
        override = overrides.get(pool.name) or folded.get(fold_id(pool.name))
        if override is not None:
            found[pool.name] = _respelled(override, pool)
    return found


def _respelled(override: PoolOverride, pool: Pool) -> PoolOverride:
    spellings = {fold_id(name): name for offering in pool.offerings for name in (offering.instance_type, offering.zone)}
    prices = (
        replace(price, instance_type=_spelled(spellings, price.instance_type), zone=_spelled(spellings, price.zone))
        for price in override.prices
    )
    return replace(override, prices=tuple(prices))


def _spelled(spellings: Mapping[str, str], name: str) -> str:
    return spellings.get(fold_id(name), name)
