"""Stand-ins for machines whose key matches no offering: the most expensive of the most similar offerings of their pool.

If such a machine were not counted, it would be bought again and again, so it counts as the most expensive machine that it may be.
"""

from collections.abc import Iterable, Mapping

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Offering


def possible_offerings(keys: Iterable[OfferingKey], offerings: Mapping[OfferingKey, Offering]) -> list[Offering]:
    """The offerings that a machine under any of ``keys`` may be: those of these keys, or the most similar ones if there are none.

    These are the offerings of its pool with its instance type, or all offerings of the pool if none has that type.
    """
    keys = list(keys)
    exact = [offerings[key] for key in keys if key in offerings]
    return exact or list({offering.key: offering for key in keys for offering in similar_offerings(key, offerings.values())}.values())


def similar_offerings(key: OfferingKey, offerings: Iterable[Offering]) -> list[Offering]:
    """Offerings of the pool of ``key`` with its instance type, or all of the pool if none has that type."""
    pool, _, instance_type, _ = key
    same_pool = [offering for offering in offerings if offering.pool == pool]
    return [offering for offering in same_pool if offering.instance_type == instance_type] or same_pool


def assumed_offering(key: OfferingKey, offerings: Mapping[OfferingKey, Offering]) -> Offering | None:
    """The one offering that a machine under ``key`` is planned as; None if its pool has no offerings.

    If no offering has the key, this is the most expensive one that it may be, of the same zone and market if there is one.
    """
    if key in offerings:
        return offerings[key]
    _, market, _, zone = key
    return max(
        similar_offerings(key, offerings.values()),
        key=lambda offering: (offering.zone == zone, offering.market == market, offering.price, offering.key),
        default=None,
    )
