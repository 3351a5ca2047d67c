"""Random spot markets of AWS: a few machines, none, later more. No surplus machine is left, for each way to buy from groups."""

from collections.abc import Iterator
from functools import partial
from itertools import islice, product
from random import Random

from msgspec import Struct

from benchmarks.aws_failover import ANSWER_SECONDS, LAUNCH_SECONDS, TYPES
from benchmarks.aws_world import BOOT, REGION, aws_world
from benchmarks.figures import Figure
from benchmarks.live_scenes import in_virtual_time
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving.control import Limit, set_capacity
from gpuscaler.embedded.aws.serving.faults import Fault

MARKETS = 12
WAYS = ("launch-instances", "desired-capacity")
#: Maximum delay of reads, and how long the end is observed, in seconds.
READ_LAG, WATCHED = 5.0, 600.0


class MarketRun(Struct, frozen=True):
    """``pods`` were requested, of which ``bound`` were bound; ``launched`` machines were launched, and ``alive`` exist at the end."""

    pods: int
    bound: int
    launched: int
    alive: int


def figures() -> Iterator[Figure]:
    for way in WAYS:
        runs = [in_virtual_time(partial(_scene, seed, way)) for seed in range(MARKETS)]
        pods, bound = sum(run.pods for run in runs), sum(run.bound for run in runs)
        surplus = sum(max(0, run.alive - run.pods) for run in runs)
        went = sum(run.launched - run.alive for run in runs)
        yield Figure(
            f"{MARKETS} random spot markets, some with answers {READ_LAG:g} s behind; buying from groups by {way}",
            "",
            "every pod runs, 0 machines surplus",
            f"{bound} of {pods} pods bound, {surplus} machines surplus, {went} that came while their order was withdrawn and were ended",
            bound == pods and surplus == 0,
            {"pods": pods, "bound": bound, "surplus": surplus, "let_go": went},
        )


async def _scene(seed: int, way: str) -> MarketRun:
    luck = Random(seed)
    conditions = Conditions(
        answer=LAUNCH_SECONDS,
        activity=luck.choice((2.0, 5.0, 20.0, 60.0)),
        boot=BOOT,
        read_lag=luck.choice((0.0, 0.0, READ_LAG)),
        retry=luck.choice((10.0, 60.0)),
    )
    async with aws_world(conditions, launch=way) as here:
        region = here.account.region(REGION)
        markets = [(kind, f"{REGION}{letter}") for letter, kind in islice(product("abc", TYPES), luck.randint(1, 8))]
        for place, (kind, zone) in enumerate(markets):
            here.group(f"spot-{place}", kind, zone, "spot")
            set_capacity(region, Limit(luck.choice((0, 0, 0, 1, 3)), "spot", kind, zone))
        here.group("on-demand", "g5.xlarge", f"{REGION}a", "on-demand")
        await here.sleep(READ_LAG + 1.0)
        await here.start()
        here.endpoint.faults.all.append(Fault(delay=ANSWER_SECONDS))
        pods = 0
        for _ in range(luck.randint(1, 3)):
            await here.sleep(luck.uniform(1, 40))
            more = luck.randint(1, 6)
            await here.submit(f"pod{pods + number}" for number in range(more))
            pods += more
        for kind, zone in markets:
            await here.sleep(luck.uniform(0, 30))
            set_capacity(region, Limit(luck.choice((3, 5, None)), "spot", kind, zone))
        await here.sleep(WATCHED)
        alive = sum(instance.state in {"pending", "running"} for instance in region.instances.values())
        return MarketRun(pods, await here.bound(), len(region.instances), alive)
