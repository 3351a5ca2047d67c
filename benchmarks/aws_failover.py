"""From the first capacity error to on-demand: the real controller and boto3 against our endpoint, with all spot groups dry.

Every call takes 0.1 s more than its own time; time is virtual. Half a minute after the order for on-demand, spot has machines again, so
that anything that was not withdrawn would arrive.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice, product

from msgspec import Struct

from benchmarks.aws_world import REGION, AwsWorld, aws_world
from benchmarks.cloud_world import BOOT
from benchmarks.figures import Figure
from benchmarks.live_scenes import run_in_virtual_time
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving.faults import Fault

DRY_GROUPS = (1, 2, 3, 6, 12, 24)
PEERS = (
    "Cluster Autoscaler with a 60 s signal: 1.5 / 2.5 / 3.5 / 6.5 / 33 to 36 / 85 to 90 min; "
    "default without signal 15.7 / 91.5 min, then never"
)
#: One GPU each.
TYPES = ("g4dn.xlarge", "g4dn.2xlarge", "g4dn.4xlarge", "g5.xlarge", "g5.2xlarge", "g5.4xlarge", "g6.xlarge", "g6.2xlarge")
PODS = 8
#: Duration of an answer to LaunchInstances, of any other answer, and the delay until activities show, in seconds.
LAUNCH_SECONDS, ANSWER_SECONDS, ACTIVITY_SECONDS = 2.0, 0.1, 20.0
#: Targets in seconds, from the first error and from the moment it shows.
TARGET_SECONDS, TARGET_SHOWN_SECONDS = 10.0, 30.0
#: When pods come, in seconds after the controller began: its periodic calls are in another phase each time.
PHASES = (5.0, 6.0, 7.0)
#: When spot has capacity again, and for how long arrivals are observed afterwards, in seconds.
SPOT_RETURNS_SECONDS, OBSERVED_SECONDS = 30.0, 900.0
RAISING_OPERATIONS = frozenset({"LaunchInstances", "SetDesiredCapacity"})


class Failover(Struct, frozen=True):
    """``seconds`` from the first observable capacity error until on-demand is ordered.

    ``tried`` spot groups were asked before, and ``surplus`` machines more than pods were launched.
    """

    seconds: float
    tried: int
    surplus: int
    bound: int


def figures() -> Iterator[Figure]:
    what = f"first capacity error → on-demand ordered; {' / '.join(map(str, DRY_GROUPS))} dry spot groups, {PODS} pods"
    at_once = [
        worst(run_in_virtual_time(partial(_play_failover, groups, "launch-instances", phase)) for phase in PHASES) for groups in DRY_GROUPS
    ]
    yield _figure(f"{what}, each answering with the errors in {LAUNCH_SECONDS:g} s", PEERS, at_once, TARGET_SECONDS)
    from_activities = [
        worst(run_in_virtual_time(partial(_play_failover, groups, "desired-capacity", phase)) for phase in PHASES) for groups in DRY_GROUPS
    ]
    yield _figure(
        f"{what}, from the moment activities show the errors, after {ACTIVITY_SECONDS:g} s", "", from_activities, TARGET_SHOWN_SECONDS
    )


def worst(failovers: Iterator[Failover]) -> Failover:
    results = list(failovers)
    return Failover(
        max(failover.seconds for failover in results),
        max(failover.tried for failover in results),
        max(failover.surplus for failover in results),
        min(failover.bound for failover in results),
    )


def _figure(what: str, peers: str, failovers: list[Failover], reach: float) -> Figure:
    seconds = " / ".join(f"{failover.seconds:.1f}" for failover in failovers)
    tried = " / ".join(str(failover.tried) for failover in failovers)
    surplus = max(failover.surplus for failover in failovers)
    return Figure(
        what,
        peers,
        f"≤ {reach:g} s each, 0 surplus",
        f"{seconds} s; {tried} groups tried; {surplus} machines surplus",
        all(failover.seconds <= reach and failover.bound == PODS for failover in failovers) and surplus == 0,
        {
            **{f"seconds_{groups}": failover.seconds for groups, failover in zip(DRY_GROUPS, failovers, strict=True)},
            **{f"tried_{groups}": failover.tried for groups, failover in zip(DRY_GROUPS, failovers, strict=True)},
            "surplus": surplus,
        },
    )


async def _play_failover(groups: int, launch: str, phase: float) -> Failover:
    conditions = Conditions(answer=LAUNCH_SECONDS, activity=ACTIVITY_SECONDS, boot=BOOT)
    async with aws_world(conditions, launch=launch) as here:
        for index, (letter, instance_type) in enumerate(islice(product("abc", TYPES), groups)):
            here.create_group(f"spot-{index}", instance_type, f"{REGION}{letter}", "spot")
        here.create_group("on-demand", "g5.xlarge", f"{REGION}a", "on-demand")
        here.limit_spot()
        await here.start()
        here.endpoint.faults.all.append(Fault(delay=ANSWER_SECONDS))
        await here.sleep(phase)
        await here.submit(f"pod{number}" for number in range(PODS))
        while not scale_up_requests(here, "on-demand"):
            await here.sleep(1.0)
        ordered_at, first_request_at = scale_up_requests(here, "on-demand")[0][0], scale_up_requests(here, "spot")[0][0]
        await here.sleep(SPOT_RETURNS_SECONDS)
        here.limit_spot(None)
        await here.sleep(OBSERVED_SECONDS)
        launched = sum(here.launched_by_group().values())
        tried = {group for at, group in scale_up_requests(here, "spot") if at <= ordered_at}
        observable_at = first_request_at + LAUNCH_SECONDS + ANSWER_SECONDS
        if launch == "desired-capacity":
            observable_at = first_request_at + conditions.reaction + ACTIVITY_SECONDS
        return Failover(ordered_at - observable_at, len(tried), launched - PODS, await here.count_bound())


def scale_up_requests(here: AwsWorld, prefix: str) -> list[tuple[float, str]]:
    """The requests for machines of groups with this name prefix: when, and which group."""
    return [(at, group) for at, operation, group in here.endpoint.log if operation in RAISING_OPERATIONS and group.startswith(prefix)]
