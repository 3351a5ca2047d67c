"""What a machine may be that is known under a key of no offering: an offering of its pool, the dearest of those most like it.

What is not counted is bought again, and again, so that such a machine counts for the most that it may be.
"""

from collections.abc import Iterable, Mapping

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Offering


def may_be(keys: Iterable[OfferingKey], offerings: Mapping[OfferingKey, Offering]) -> list[Offering]:
    """What a machine under any of ``keys`` may be: the offerings of these keys, or where none is offered, those most like them.

    These are offerings of its pool with its instance type, or all offerings of the pool where none has it.
    """
    keys = list(keys)
    found = [offerings[key] for key in keys if key in offerings]
    return found or list({offering.key: offering for key in keys for offering in alike(key, offerings.values())}.values())


def alike(key: OfferingKey, offerings: Iterable[Offering]) -> list[Offering]:
    """Offerings of the pool of ``key`` with its instance type, or all of the pool where none has it."""
    pool, _, instance_type, _ = key
    same_pool = [offering for offering in offerings if offering.pool == pool]
    return [offering for offering in same_pool if offering.instance_type == instance_type] or same_pool


def taken_for(key: OfferingKey, offerings: Mapping[OfferingKey, Offering]) -> Offering | None:
    """The one offering that a machine under ``key`` is planned as; None where its pool has none.

    Where no offering has the key, that is the dearest that it may be, of the same zone and market where there is one.
    """
    if key in offerings:
        return offerings[key]
    _, market, _, zone = key
    return max(alike(key, offerings.values()), key=lambda one: (one.zone == zone, one.market == market, one.price, one.key), default=None)
