"""Warnings about the cost of pool priorities."""

from msgspec.structs import replace
from tests.planning.building import offering

from gpuscaler.model.pools import BY_SIZE, Offering, Policy, Pool
from gpuscaler.model.priorities.inverting import find_inverted, priority_warnings
from gpuscaler.model.priorities.priorities import apply_priorities, parse_priorities


def policy(**pools: Offering) -> Policy:
    return Policy(tuple(Pool(name, (offering,)) for name, offering in pools.items()))


def warnings_of(text: str, policy: Policy) -> tuple[str, ...]:
    priorities = parse_priorities(text, "it")
    return priority_warnings(apply_priorities(policy, priorities)[0], priorities)


SPOT4, ONE = offering("g.4", 2.27, gpus=4, market="spot"), offering("g.1", 0.65)


def test_priority_patterns_that_match_no_pool_are_reported_with_their_number() -> None:
    assert warnings_of("{50: [spot, 'gpu-.*'], 10: [one]}", policy(spot=SPOT4, one=SPOT4)) == ("its pattern 50: gpu-.* matches no pool",)


def test_a_warning_names_a_pool_preferred_over_a_cheaper_one_and_the_extra_cost() -> None:
    (only,) = warnings_of("{50: [spot], 10: [one]}", policy(spot=SPOT4, one=ONE))

    assert only.startswith(
        "pool spot (priority 50) comes before pool one (priority 10), which is cheaper: its machines cost at least $2.27/h"
    )
    assert "a pod that fits both and runs alone costs $1.62/h more; " in only
    assert only.endswith("; but it is cheaper per GPU when full ($0.57 per GPU against $0.65)")


def test_the_warning_about_reversed_priorities_compares_prices_per_gpu() -> None:
    (only,) = warnings_of("{1: [spot], 2: [demand]}", policy(spot=offering("g.1", 0.2, market="spot"), demand=ONE))

    assert only.startswith("pool demand (priority 2) comes before pool spot (priority 1), which is cheaper: ")
    assert only.endswith("it is also more expensive per GPU ($0.65 per GPU against $0.20)")


def test_the_warning_about_reversed_priorities_names_the_cheapest_pool_of_lower_priority() -> None:
    (only,) = warnings_of("{9: [dear], 5: [cheap, mid]}", policy(dear=SPOT4, mid=ONE, cheap=offering("g.1", 0.3)))

    assert "comes before pool cheap (priority 5)" in only


def test_priorities_without_extra_cost_cause_no_warning() -> None:
    guessed = replace(offering("h", 0.01, pool="guessed"), price_from=BY_SIZE)
    priced = policy(spot=offering("g.1", 0.2), one=ONE, cpu=offering("c.1", 0.05, gpus=0), guessed=guessed)

    assert warnings_of("{50: [spot], 10: [one, cpu, guessed]}", priced) == ()
    assert list(find_inverted(priced)) == []


def test_pools_without_gpus_are_compared_with_each_other() -> None:
    (only,) = warnings_of(
        "{2: [big], 1: [small]}", policy(big=offering("c.8", 0.4, gpus=0, cpu=8), small=offering("c.2", 0.1, gpus=0, cpu=2))
    )

    assert "pool big (priority 2) comes before pool small (priority 1)" in only
    assert only.endswith("it is also more expensive per CPU ($0.0500 per CPU against $0.0500)")
