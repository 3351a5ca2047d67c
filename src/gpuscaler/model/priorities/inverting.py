"""Warnings about priorities of pools: patterns that match no pool, and pools with precedence over cheaper pools."""

from collections.abc import Iterator

from msgspec import Struct

from gpuscaler.model.pools import Policy, Pool, guessed_offerings
from gpuscaler.model.priorities.priorities import Priorities, matches

#: Smaller differences in cost are ignored (dollars per hour).
LEAST = 0.005


class Cost(Struct, frozen=True):
    """Hourly cost of a pool's cheapest machine, and the lowest cost per GPU, or per CPU for machines without GPUs."""

    machine: float
    unit: float


def priority_warnings(policy: Policy, priorities: Priorities) -> tuple[str, ...]:
    """Return all warnings about ``policy``, whose pools have their priorities from ``priorities``."""
    return (*(f"its pattern {pattern} matches no pool" for pattern in unmatched_patterns(policy, priorities)), *find_inverted(policy))


def unmatched_patterns(policy: Policy, priorities: Priorities) -> Iterator[str]:
    """Yield the patterns that match no pool name."""
    names = [pool.name for pool in policy.pools]
    for number, patterns in priorities.tiers:
        yield from (f"{number}: {pattern}" for pattern in patterns if not any(matches(pattern, name) for name in names))


def find_inverted(policy: Policy) -> Iterator[str]:
    """Yield a sentence for each pool with precedence over cheaper pools; it names the cheapest of them.

    Pools with GPUs are compared only with pools with GPUs, and pools without GPUs only with pools without.
    """
    guessed = {key.pool for key in guessed_offerings(policy)}
    pools = [pool for pool in policy.pools if pool.offerings and pool.name not in guessed]
    costs = {pool.name: cost(pool) for pool in pools}
    for pool in sorted(pools, key=lambda pool: (-pool.priority, pool.name)):
        own_cost = costs[pool.name]
        later = [other for other in pools if other.priority < pool.priority and has_gpus(other) == has_gpus(pool)]
        cheaper = [pool for pool in later if costs[pool.name].machine < own_cost.machine - LEAST]
        if cheaper:
            yield _sentence(pool, own_cost, min(cheaper, key=lambda pool: (costs[pool.name].machine, pool.name)), costs)


def _sentence(pool: Pool, own_cost: Cost, other: Pool, costs: dict[str, Cost]) -> str:
    its, unit = costs[other.name], "GPU" if has_gpus(pool) else "CPU"
    less = own_cost.unit < its.unit
    by_unit = f"{format_money(own_cost.unit)} per {unit} against {format_money(its.unit)}"
    filled = f"but it is cheaper per {unit} when full ({by_unit})" if less else f"it is also more expensive per {unit} ({by_unit})"
    return (
        f"pool {pool.name} (priority {pool.priority}) comes before pool {other.name} (priority {other.priority}), which is cheaper: "
        f"its machines cost at least {format_money(own_cost.machine)}/h, those of the other {format_money(its.machine)}/h, so a pod that "
        f"fits both and runs alone costs {format_money(own_cost.machine - its.machine)}/h more; {filled}"
    )


def cost(pool: Pool) -> Cost:
    """Return the cost of the cheapest machines of ``pool``."""
    units = (offering.price / (offering.gpus or max(1.0, offering.allocatable.get("cpu", 0) / 1000)) for offering in pool.offerings)
    return Cost(min(offering.price for offering in pool.offerings), min(units))


def has_gpus(pool: Pool) -> bool:
    return any(offering.gpus for offering in pool.offerings)


def format_money(dollars: float) -> str:
    """Format with cents, or with four decimals for amounts below a cent."""
    return f"${dollars:.2f}" if dollars >= 0.1 or dollars == 0 else f"${dollars:.4f}"
