"""Random spot markets of AWS: a few machines, none, later more. No surplus machine is left, for each way to buy from groups."""

from collections.abc import Iterator
from functools import partial
from itertools import islice, product
from random import Random

from msgspec import Struct

from benchmarks.aws_failover import ANSWER_SECONDS, LAUNCH_SECONDS, TYPES
from benchmarks.aws_world import REGION, aws_world
from benchmarks.cloud_world import BOOT
from benchmarks.figures import Figure
from benchmarks.live_scenes import run_in_virtual_time
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving.control import Limit, set_capacity
from gpuscaler.embedded.aws.serving.faults import Fault

MARKETS = 12
LAUNCH_MODES = ("launch-instances", "desired-capacity")
#: Maximum delay of reads, and how long the end is observed, in seconds.
READ_LAG, OBSERVED_SECONDS = 5.0, 600.0


class MarketRun(Struct, frozen=True):
    """``pods`` were requested, of which ``bound`` were bound; ``launched`` machines were launched, and ``alive`` exist at the end."""

    pods: int
    bound: int
    launched: int
    alive: int


def figures() -> Iterator[Figure]:
    for launch in LAUNCH_MODES:
        runs = [run_in_virtual_time(partial(_play_market, seed, launch)) for seed in range(MARKETS)]
        pods, bound = sum(run.pods for run in runs), sum(run.bound for run in runs)
        surplus = sum(max(0, run.alive - run.pods) for run in runs)
        ended = sum(run.launched - run.alive for run in runs)
        yield Figure(
            f"{MARKETS} random spot markets, some with answers {READ_LAG:g} s behind; buying from groups by {launch}",
            "",
            "every pod runs, 0 machines surplus",
            f"{bound} of {pods} pods bound, {surplus} machines surplus, {ended} that arrived during withdrawal and were ended",
            bound == pods and surplus == 0,
            {"pods": pods, "bound": bound, "surplus": surplus, "let_go": ended},
        )


async def _play_market(seed: int, launch: str) -> MarketRun:
    draw = Random(seed)
    conditions = Conditions(
        answer=LAUNCH_SECONDS,
        activity=draw.choice((2.0, 5.0, 20.0, 60.0)),
        boot=BOOT,
        read_lag=draw.choice((0.0, 0.0, READ_LAG)),
        retry=draw.choice((10.0, 60.0)),
    )
    async with aws_world(conditions, launch=launch) as here:
        region = here.account.region(REGION)
        markets = [(instance_type, f"{REGION}{letter}") for letter, instance_type in islice(product("abc", TYPES), draw.randint(1, 8))]
        for index, (instance_type, zone) in enumerate(markets):
            here.create_group(f"spot-{index}", instance_type, zone, "spot")
            set_capacity(region, Limit(draw.choice((0, 0, 0, 1, 3)), "spot", instance_type, zone))
        here.create_group("on-demand", "g5.xlarge", f"{REGION}a", "on-demand")
        await here.sleep(READ_LAG + 1.0)
        await here.start()
        here.endpoint.faults.all.append(Fault(delay=ANSWER_SECONDS))
        pods = 0
        for _ in range(draw.randint(1, 3)):
            await here.sleep(draw.uniform(1, 40))
            added = draw.randint(1, 6)
            await here.submit(f"pod{pods + number}" for number in range(added))
            pods += added
        for instance_type, zone in markets:
            await here.sleep(draw.uniform(0, 30))
            set_capacity(region, Limit(draw.choice((3, 5, None)), "spot", instance_type, zone))
        await here.sleep(OBSERVED_SECONDS)
        alive = sum(instance.state in {"pending", "running"} for instance in region.instances.values())
        return MarketRun(pods, await here.count_bound(), len(region.instances), alive)
