"""The cost of machines, in words: the price of a granted offering, or a range while the cloud has not chosen yet."""

from collections.abc import Sequence

from gpuscaler.control.records.words import format_price_range
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import PlannedMachine
from gpuscaler.planning.state.ledger.entries import OrderedMachine


def price_of(policy: Policy | None, key: OfferingKey) -> float | None:
    """Dollars per hour of an offering; None if the policy does not have it any more."""
    pools = policy.pools if policy is not None else ()
    return next((offering.price for pool in pools if pool.name == key.pool for offering in pool.offerings if offering.key == key), None)


def format_ordered_price(machine: OrderedMachine, policy: Policy | None) -> str:
    """The cost of an ordered machine: of the granted offering, or of those that the plan would accept."""
    least, most = ordered_price_range(machine, policy)
    return format_price_range(least, most)


def ordered_price_range(machine: OrderedMachine, policy: Policy | None) -> tuple[float, float]:
    """The lowest and highest possible cost of an ordered machine, in dollars per hour."""
    possible_offerings = (machine.offering,) if machine.offering is not None else machine.offerings[: max(1, machine.meant)]
    prices = [price for key in possible_offerings if (price := price_of(policy, key)) is not None] or [machine.price]
    return min(prices), max(prices)


def format_plan_price(machines: Sequence[PlannedMachine]) -> str:
    """The total cost of a plan's machines."""
    least = sum(min((choice.price_per_hour for choice in machine.choices), default=machine.price_per_hour) for machine in machines)
    return format_price_range(least, sum(machine.price_per_hour for machine in machines))
