"""Machines whose reservation ends at a known time: they are emptied before it, and none is bought shortly before it."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.planning.state import State

#: Emptying a machine starts this many seconds before its end: longer than a replacement takes to boot. Where its pods save their work
#: first, it starts earlier by the time that they ask for, at most by the second number.
EMPTY_SECONDS, SAVE_SECONDS = 1800.0, 1800.0
#: No machine is bought with less time than this until it may have to be emptied: the same time that a change of machine counts for.
WORTH_SECONDS = 900.0
WHY = "its reservation ends"


def purchase_deadlines(pools: Iterable[Pool]) -> Mapping[OfferingKey, float]:
    """The last moment at which each offering that ends may be bought."""
    return {
        offering.key: offering.ends - EMPTY_SECONDS - SAVE_SECONDS - WORTH_SECONDS
        for pool in pools
        for offering in pool.offerings
        if offering.ends
    }


def block_expiring(state: State, closes: Mapping[OfferingKey, float], now: float) -> State:
    """``state`` with offerings blocked that are about to end."""
    closed = frozenset(key for key, at in closes.items() if now > at)
    return replace(state, blocked_offerings=state.blocked_offerings | closed) if closed else state


def describe_expiry(policy: Policy, key: OfferingKey, now: float) -> str:
    """Why an offering that is about to end is not bought; empty where it is not about to end."""
    for offering in (
        offering for pool in policy.pools if pool.name == key.pool for offering in pool.offerings if offering.key == key and offering.ends
    ):
        if now > purchase_deadlines((Pool(key.pool, (offering,)),))[key]:
            until = datetime.fromtimestamp(offering.ends, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            return f"{offering.market} {offering.instance_type} {offering.zone}: its machines end at {until}, too soon to buy one"
    return ""
