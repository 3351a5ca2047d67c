"""Why a demo cost more than the least that is possible, in dollars, and what a peer's model makes of the same hours."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.embedded.demo.scenario import Scenario, markets
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.simulation.replay import EPOCH, run
from gpuscaler.simulation.results.figures import idle_gpu_hours
from gpuscaler.simulation.world.meter import Result

PEER, POOL = "karpenter", "gpuscaler.io/pool"
#: Parts of the cost that are smaller than this, in dollars, are not worth a line.
LEAST = 0.5


class Part(Struct, frozen=True):
    """``dollars`` of the difference between a cost and its bound, and what they went to."""

    dollars: float
    text: str


def parts(result: Result, policy: Policy, told: Scenario) -> Iterator[Part]:
    """What the cost of ``result`` has beyond its bound; together they are the whole difference.

    First what on-demand machines cost beyond spot prices; of the rest, which is at spot prices, boot and idle time and lost work by their
    share of the GPU-hours that were paid; what is left went to GPUs, CPUs and memory that the pods of a machine left over.
    """
    premium = sum(
        row.cost - row.hours * least_price(policy, row.instance_type, row.cost / row.hours) for row in result.machine_hours if row.hours
    )
    an_hour = (result.cost - premium) / result.gpu_hours_paid if result.gpu_hours_paid else 0.0
    idle = (idle_gpu_hours(result) or 0.0) * an_hour
    lost = result.lost_gpu_hours * an_hour
    rest = result.cost - result.lower_bound - premium - idle - lost
    hours = f"minutes {told.dry / 60:.0f} to {told.back / 60:.0f}"
    yield Part(premium, f"on-demand prices: spot ran dry ({hours}, {result.capacity_errors} refusals), and jobs stay where they run")
    yield Part(idle, f"machines that booted or idled: {idle_gpu_hours(result) or 0.0:.1f} GPU-hours")
    yield Part(lost, f"work that {result.evictions} evictions lost, most of them with spot machines: {result.lost_gpu_hours:.1f} GPU-hours")
    yield Part(rest, "what pods left over of the machines that they ran on")


def explained(result: Result, policy: Policy, told: Scenario) -> Iterator[str]:
    """Lines for people: how many times the bound a demo cost, what the bound leaves out, and where the difference went."""
    if result.lower_bound <= 0:
        return
    times = result.cost / result.lower_bound
    yield (
        f"Why {times:.1f} times the bound: ${result.lower_bound:.2f} pays for the work that was done and nothing else, by the second, in "
        "parts of machines, in hindsight, with spot always to be had. Of the rest"
    )
    for part in parts(result, policy, told):
        if part.dollars >= LEAST:
            yield f"  ${part.dollars:.2f} went to {part.text}"


def least_price(policy: Policy, instance_type: str, paid: float) -> float:
    """What an hour of a type costs in the cheapest of its markets."""
    return min((one.price for one in policy.offerings.values() if one.instance_type == instance_type), default=paid)


def peer_of(told: Scenario, policy: Policy) -> Result:
    """What the model of Karpenter makes of the same jobs, machines, delays and dry spot market, in the simulator."""
    merged = in_one_pool(policy)
    # Jobs that take a part of a GPU get a whole one, as in the demo.
    jobs = tuple(replace(job, gpu_milli=1000) for job in told.trace.jobs)
    trace = replace(told.trace, jobs=jobs)
    result = run(trace, merged, name=PEER, seed=told.seed, markets=markets(told, merged, EPOCH), checkpoint=0.0)
    # Of two hours the last quarter says nothing, and a demo has none.
    return replace(result, last_quarter=None)


def in_one_pool(policy: Policy) -> Policy:
    """``policy`` as one who runs Karpenter writes it: pools that differ in their markets alone are one, in which it takes spot first.

    Of two pools of one weight Karpenter takes the first by name, which here would be the one on demand.
    """
    groups: dict[tuple[object, ...], list[Pool]] = {}
    for pool in policy.pools:
        alike = (pool.min, pool.max, pool.idle_after, pool.priority, frozenset((one.instance_type, one.zone) for one in pool.offerings))
        groups.setdefault(alike, []).append(pool)
    pools = []
    for first, *others in groups.values():
        more = (replace(one, pool=first.name, labels={**one.labels, POOL: first.name}) for pool in others for one in pool.offerings)
        pools.append(replace(first, offerings=(*first.offerings, *more)))
    return replace(policy, pools=tuple(pools))
