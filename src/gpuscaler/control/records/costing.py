"""What machines cost, in words: the price of what came, and a range for as long as the cloud has still to choose."""

from collections.abc import Sequence

from gpuscaler.control.records.words import hourly
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import Machine
from gpuscaler.planning.state.ledger.entries import Coming


def price_of(policy: Policy | None, key: OfferingKey) -> float | None:
    """Dollars per hour of an offering; None where the policy does not have it any more."""
    pools = policy.pools if policy is not None else ()
    return next((one.price for pool in pools if pool.name == key.pool for one in pool.offerings if one.key == key), None)


def of_coming(machine: Coming, policy: Policy | None) -> str:
    """What a machine on its way costs: as what it was granted, else as anything that the plan would take."""
    least, most = range_of_coming(machine, policy)
    return hourly(least, most)


def range_of_coming(machine: Coming, policy: Policy | None) -> tuple[float, float]:
    """The least and the most that a machine on its way may cost by the hour."""
    may_be = (machine.offering,) if machine.offering is not None else machine.offerings[: max(1, machine.meant)]
    prices = [price for key in may_be if (price := price_of(policy, key)) is not None] or [machine.price]
    return min(prices), max(prices)


def of_plan(machines: Sequence[Machine]) -> str:
    """What the machines of a plan cost together."""
    least = sum(min((choice.price_per_hour for choice in one.choices), default=one.price_per_hour) for one in machines)
    return hourly(least, sum(one.price_per_hour for one in machines))
