"""Explains in dollars why a demo cost more than the lower bound, and what a model of a peer would have done in the same hours."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.embedded.demo.scenario import Scenario, markets
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.simulation.replay import EPOCH, run
from gpuscaler.simulation.results.figures import idle_gpu_hours
from gpuscaler.simulation.world.meter import Result

PEER, POOL = "karpenter", "gpuscaler.io/pool"
#: Smaller parts of the cost than this, in dollars, get no line.
LEAST = 0.5


class CostPart(Struct, frozen=True):
    """``dollars`` of the difference between a cost and its bound, and what they were spent on."""

    dollars: float
    text: str


def cost_parts(result: Result, policy: Policy, scenario: Scenario) -> Iterator[CostPart]:
    """The parts of the cost of ``result`` above its bound; they add up to the whole difference.

    First the premium of on-demand machines over spot prices. The rest is at spot prices: boot time, idle time and lost work by their share
    of the paid GPU-hours. What remains paid for GPUs, CPUs and memory that the pods of a machine left unused.
    """
    premium = sum(
        row.cost - row.hours * least_price(policy, row.instance_type, row.cost / row.hours) for row in result.machine_hours if row.hours
    )
    an_hour = (result.cost - premium) / result.gpu_hours_paid if result.gpu_hours_paid else 0.0
    idle = (idle_gpu_hours(result) or 0.0) * an_hour
    lost = result.lost_gpu_hours * an_hour
    rest = result.cost - result.lower_bound - premium - idle - lost
    hours = f"minutes {scenario.dry / 60:.0f} to {scenario.back / 60:.0f}"
    yield CostPart(premium, f"on-demand prices: spot ran dry ({hours}, {result.capacity_errors} refusals), and jobs stay where they run")
    yield CostPart(idle, f"machines that were booting or idle: {idle_gpu_hours(result) or 0.0:.1f} GPU-hours")
    yield CostPart(
        lost, f"work lost in {result.evictions} evictions, most of them with spot machines: {result.lost_gpu_hours:.1f} GPU-hours"
    )
    yield CostPart(rest, "capacity that pods left unused on the machines they ran on")


def explain_cost(result: Result, policy: Policy, scenario: Scenario) -> Iterator[str]:
    """Lines to print: the ratio of cost to bound, what the bound leaves out, and where the difference went."""
    if result.lower_bound <= 0:
        return
    times = result.cost / result.lower_bound
    yield (
        f"Why {times:.1f} times the bound: ${result.lower_bound:.2f} pays only for the work that was done, by the second, for "
        "parts of machines, in hindsight, with spot always available. Of the rest"
    )
    for part in cost_parts(result, policy, scenario):
        if part.dollars >= LEAST:
            yield f"  ${part.dollars:.2f} went to {part.text}"


def least_price(policy: Policy, instance_type: str, paid: float) -> float:
    """The hourly price of an instance type in its cheapest market."""
    return min((offering.price for offering in policy.offerings.values() if offering.instance_type == instance_type), default=paid)


def simulate_peer(scenario: Scenario, policy: Policy) -> Result:
    """Simulate the model of Karpenter on the same jobs, machines, delays and dry spot market."""
    merged = in_one_pool(policy)
    # Jobs that request a part of a GPU get a whole one, as in the demo.
    jobs = tuple(replace(job, gpu_milli=1000) for job in scenario.trace.jobs)
    trace = replace(scenario.trace, jobs=jobs)
    result = run(trace, merged, name=PEER, seed=scenario.seed, markets=markets(scenario, merged, EPOCH), checkpoint=0.0)
    # The last quarter of two hours is too short to mean anything, and a demo's own result has none.
    return replace(result, last_quarter=None)


def in_one_pool(policy: Policy) -> Policy:
    """``policy`` as a user of Karpenter would write it: pools that differ only in their markets become one, where Karpenter prefers spot.

    Of two pools with equal weight Karpenter takes the first by name, which here would be the on-demand one.
    """
    groups: dict[tuple[object, ...], list[Pool]] = {}
    for pool in policy.pools:
        alike = (
            pool.min,
            pool.max,
            pool.idle_after,
            pool.priority,
            frozenset((offering.instance_type, offering.zone) for offering in pool.offerings),
        )
        groups.setdefault(alike, []).append(pool)
    pools = []
    for first, *others in groups.values():
        more = (
            replace(offering, pool=first.name, labels={**offering.labels, POOL: first.name})
            for pool in others
            for offering in pool.offerings
        )
        pools.append(replace(first, offerings=(*first.offerings, *more)))
    return replace(policy, pools=tuple(pools))
