"""Machines of our pools that no offering describes, and the stop that they put to buying.

A cloud grants a machine of another market, zone or type than the pool offers, or an adapter misreads an answer. Such a machine costs money
and has GPUs, and counts as the dearest that it may be. While it is there nothing more is bought in its pool: whatever made it unfamiliar
would make the next one so.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from gpuscaler.lifecycle.observed.machine_index import Roll
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state.breakers import Breaker, Breakers, Target
from gpuscaler.planning.state.ledger.ledger import Ledger
from gpuscaler.planning.state.offering_events import UNFAMILIAR

#: So many machines are named in one sentence.
NAMED = 3


def unfamiliar(known: Mapping[str, OfferingKey], book: Ledger, policy: Policy, roll: Roll) -> Mapping[str, OfferingKey]:
    """Machines that came of our orders under keys that their pools do not offer, by id, for as long as they are there.

    ``known`` are those of the look before. One whose pool offers its key by now is understood. Nodes that are there under a key that the
    settings offered once are no such machines: they are what they were bought as.
    """
    offerings, pools = policy.offerings, {pool.name for pool in policy.pools}
    coming = {one.instance: one.offering for one in book.coming if one.order and one.instance and one.offering is not None}
    listed = {name: instance.key for name, instance in roll.listed.alive.items()}
    # Without a list, who is not a node may be there all the same.
    stays = {
        name: listed.get(name, key)
        for name, key in known.items()
        if name in listed or name in roll.by_machine or roll.listed.instances is None
    }
    found = {**stays, **coming}
    return {name: key for name, key in sorted(found.items()) if key not in offerings and key.pool in pools}


def of_others(book: Ledger, policy: Policy) -> Mapping[str, OfferingKey]:
    """Machines under keys that their pools do not offer which other people started and that are not open yet, by id.

    Once such a machine is open it is a node like others: nobody here asked for it, and no order brings the next one.
    """
    offerings, pools = policy.offerings, {pool.name for pool in policy.pools}
    found = {one.instance: one.key for one in book.coming if one.instance and not one.order}
    return {name: key for name, key in sorted(found.items()) if key not in offerings and key.pool in pools}


def with_stops(breakers: Breakers, strangers: Mapping[str, OfferingKey], now: float) -> Breakers:
    """``breakers`` with one for each pool that has unfamiliar machines, open until these are gone or understood."""
    if not strangers:
        return breakers
    by_pool: dict[str, list[str]] = {}
    for name, key in strangers.items():
        by_pool.setdefault(key.pool, []).append(f"{name} is {' '.join(filter(None, (key.instance_type, key.market, key.zone)))}")
    stops = (
        Breaker(Target(pool), UNFAMILIAR, len(machines), now, now, None, detail=_named(machines)) for pool, machines in by_pool.items()
    )
    return replace(breakers, open=(*breakers.open, *stops))


def _named(machines: list[str]) -> str:
    more = f" and {len(machines) - NAMED} more" if len(machines) > NAMED else ""
    return f"{', '.join(machines[:NAMED])}{more}, which the pool does not offer; it counts as the dearest that it may be"
