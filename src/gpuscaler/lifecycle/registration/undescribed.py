"""Unfamiliar machines of our pools, which no offering describes, and the breakers that stop purchases because of them.

A cloud may grant a machine of another market, zone or type than the pool offers, or our cloud adapter may misread an answer. Such a machine
costs money and has GPUs, and counts as the most expensive machine that it could be. While it exists nothing is bought in its pool, because
the next machine would probably be unfamiliar, too.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state.breakers import Breaker, Breakers, Target
from gpuscaler.planning.state.ledger.ledger import Ledger
from gpuscaler.planning.state.offering_events import UNFAMILIAR

#: The maximum number of machines listed in one sentence.
NAMED = 3


def find_unfamiliar(keys: Mapping[str, OfferingKey], ledger: Ledger, policy: Policy, index: MachineIndex) -> Mapping[str, OfferingKey]:
    """Return the ordered machines with keys that their pools do not offer, by id, as long as the machines exist.

    ``keys`` is the result of the previous pass. Once its pool offers the key, a machine is no longer unfamiliar. Nodes with a key that an
    earlier version of the settings offered are not unfamiliar, because they are of the offering that was bought.
    """
    offerings, pools = policy.offerings, {pool.name for pool in policy.pools}
    coming = {
        machine.instance: machine.offering
        for machine in ledger.coming
        if machine.order and machine.instance and machine.offering is not None
    }
    listed = {name: instance.key for name, instance in index.listed.alive.items()}
    # Without a list, a machine without a node may still exist.
    stays = {
        name: listed.get(name, key)
        for name, key in keys.items()
        if name in listed or name in index.by_machine or index.listed.instances is None
    }
    offering_keys = {**stays, **coming}
    return {name: key for name, key in sorted(offering_keys.items()) if key not in offerings and key.pool in pools}


def unordered_unfamiliar(ledger: Ledger, policy: Policy) -> Mapping[str, OfferingKey]:
    """Return machines that were not ordered here and are not open yet, by id, if their pools do not offer their keys.

    Once open, such a machine is an ordinary node: an order of ours would not bring another one like it.
    """
    offerings, pools = policy.offerings, {pool.name for pool in policy.pools}
    keys = {machine.instance: machine.key for machine in ledger.coming if machine.instance and not machine.order}
    return {name: key for name, key in sorted(keys.items()) if key not in offerings and key.pool in pools}


def with_stops(breakers: Breakers, unfamiliar: Mapping[str, OfferingKey], now: float) -> Breakers:
    """Return ``breakers`` and an open breaker for each pool with ``unfamiliar`` machines, which are given by id with their keys."""
    if not unfamiliar:
        return breakers
    by_pool: dict[str, list[str]] = {}
    for name, key in unfamiliar.items():
        by_pool.setdefault(key.pool, []).append(f"{name} is {' '.join(filter(None, (key.instance_type, key.market, key.zone)))}")
    stops = (
        Breaker(Target(pool), UNFAMILIAR, len(machines), now, now, None, detail=_format_machines(machines))
        for pool, machines in by_pool.items()
    )
    return replace(breakers, open=(*breakers.open, *stops))


def _format_machines(machines: list[str]) -> str:
    more = f" and {len(machines) - NAMED} more" if len(machines) > NAMED else ""
    return f"{', '.join(machines[:NAMED])}{more}, which the pool does not offer; it counts as the most expensive machine that it may be"
