"""The controller and the simulator make the same decisions in the same order for one recorded schedule.

If a pod fits several machines, the schedulers of the two may choose differently; most schedules here leave no choice.
"""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from tests.control.world import BEGAN, CallObserver, world

from gpuscaler.clouds.protocol import Order
from gpuscaler.embedded.demo.workload import submissions
from gpuscaler.kube.resources import JOBS
from gpuscaler.model.offerings import SPOT
from gpuscaler.settings.pools_file import parse_policy
from gpuscaler.simulation.cloud.delays import NO_FAULTS, Delay, Delays, Faults
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.policies.ours import Gpuscaler
from gpuscaler.simulation.replay import EPOCH, run
from gpuscaler.simulation.traces.traces import Job, Trace
from gpuscaler.simulation.world.autoscaler import Decisions, View

POOLS = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge, g4dn.12xlarge]
    markets: [spot, on-demand]
    zones: [us-east-1a]
    idle_after: 5m
limits: {gpus: 12}
"""
#: The same for both clouds, without random variation.
DELAYS = Delays(
    boot=Delay(60.0, 60.0, 60.0), device_plugin=Delay(20.0, 20.0, 20.0), answer=Delay(1.0, 1.0, 1.0), image_pull=Delay(0.0, 0.0, 0.0)
)
#: The controller leads before jobs come.
FIRST = 2.0
#: The controller has observed a pod, and planned.
SOON = 1.0
#: The simulator knows at once that a machine is idle; the controller notices it at a resync, and plans at the next one. Then it drains.
LATE = 30.0
SCHEDULES = {
    "a few jobs of several sizes": (
        Job("a", 0, 300, gpus=1),
        Job("b", 0.05, 300, gpus=1),
        Job("c", 400, 900, gpus=4),
        Job("d", 460, 60, gpus=1),
    ),
    "a gang, and one that comes while its machines boot": (Job("gang", 0, 600, gpus=4, pods=2), Job("late", 30, 60, gpus=1)),
    "more than the limit admits": (Job("a", 0, 200, gpus=4, pods=3), Job("b", 20, 100, gpus=4), Job("c", 25, 100, gpus=1)),
}


def random_jobs(seed: int) -> tuple[Job, ...]:
    """Fourteen jobs, some of them at the same time."""
    dice, at, jobs = random.Random(seed), 0.0, []
    for number in range(14):
        at += dice.choice((1, 70, 130, 400)) + dice.random()
        long, gpus, pods = dice.choice((30, 200, 700)), dice.choice((1, 1, 2, 4)), dice.choice((1, 1, 1, 2))
        jobs.append(Job(f"j{number}", at, long, gpus=gpus, pods=pods))
    return tuple(jobs)


class Decision(NamedTuple):
    """A purchase of machines of the first available one of ``offerings``, or an end, ``at`` seconds after the beginning."""

    at: float
    what: str
    offerings: tuple[tuple[str, str], ...]
    machines: int


class CallRecorder(CallObserver):
    """Records the controller's calls to its cloud."""

    def __init__(self, here: Any) -> None:
        self.here = here
        self.decisions: list[Decision] = []

    async def buy(self, order: Order) -> None:
        names = tuple((key.instance_type, key.market) for key in order.offerings)
        self.decisions.append(Decision(self.here.now() - BEGAN - FIRST, "buy", names, order.count))

    async def remove(self, ids: Sequence[str]) -> None:
        for ident in ids:
            offering = self.here.cluster.core.machine(ident.rsplit("/", 1)[-1]).offering
            self.decisions.append(Decision(self.here.now() - BEGAN - FIRST, "end", ((offering.instance_type, offering.market),), 1))


class RecordingPolicy(Gpuscaler):
    """Records the policy's decisions."""

    decisions: list[Decision]

    def decide(self, view: View, now: float) -> Decisions:
        made = super().decide(view, now)
        for bought in made.purchases:
            names = tuple((key.instance_type, key.market) for key in bought.offerings)
            self.decisions.append(Decision(now - EPOCH, "buy", names, len(bought.machines)))
        for removal in made.removals:
            offering = view.offering_of(removal.node)
            self.decisions.append(Decision(now - EPOCH, "end", ((offering.instance_type, offering.market),), 1))
        return made


def spot_until(moment: float, began: float) -> Markets:
    """Spot is available until ``moment`` seconds after the beginning, and then not any more."""
    spots = [offering for pool in parse_policy(POOLS).pools for offering in pool.offerings if offering.market == SPOT]
    steps = Steps((0.0, moment), (50.0, 0.0)) if moment else Steps((0.0,), (0.0,))
    return Markets({offering.key: steps for offering in spots}, began=began)


async def by_controller(jobs: Sequence[Job], *, dry_after: float, faults: Faults) -> list[Decision]:
    async with world(POOLS, delays=DELAYS, markets=spot_until(dry_after, BEGAN + FIRST), faults=faults) as here:
        here.watchman = witness = CallRecorder(here)
        here.start()
        for submission in submissions(Trace("", tuple(jobs))):
            await here.sleep(max(0.0, BEGAN + FIRST + submission.at - here.now()))
            await here.user.create(JOBS, submission.job, namespace=submission.job["metadata"]["namespace"])
        await here.sleep(3600.0)
        assert here.cluster.core.list() == ()
        return witness.decisions


def by_simulator(jobs: Sequence[Job], *, dry_after: float, faults: Faults) -> list[Decision]:
    policy = parse_policy(POOLS)
    ours = RecordingPolicy(policy)
    ours.decisions = []
    run(Trace("", tuple(jobs)), policy, autoscaler=ours, delays=DELAYS, faults=faults, markets=spot_until(dry_after, EPOCH))
    return ours.decisions


async def compare(jobs: Sequence[Job], *, dry_after: float = 1e9, faults: Faults = NO_FAULTS) -> list[Decision]:
    real = await by_controller(jobs, dry_after=dry_after, faults=faults)
    simulated = by_simulator(jobs, dry_after=dry_after, faults=faults)
    assert [decision[1:] for decision in real] == [decision[1:] for decision in simulated]
    for decision, other in zip(real, simulated, strict=True):
        late = SOON if decision.what == "buy" else LATE
        assert -0.1 <= decision.at - other.at <= late, f"{decision} by the controller, {other} by the simulator"
    return simulated


@pytest.mark.parametrize("jobs", SCHEDULES.values(), ids=SCHEDULES)
async def test_controller_and_simulator_make_the_same_decisions(jobs: Sequence[Job]) -> None:
    assert len(await compare(jobs)) > 1


@pytest.mark.parametrize("seed", [1, 3, 4, 6])
async def test_controller_and_simulator_make_the_same_purchases_for_random_jobs(seed: int) -> None:
    jobs = random_jobs(seed)
    real = await by_controller(jobs, dry_after=1e9, faults=NO_FAULTS)
    simulated = by_simulator(jobs, dry_after=1e9, faults=NO_FAULTS)
    # Each scheduler chooses among the machines that a job fits, so idle times may differ.
    bought, planned = ([decision for decision in made if decision.what == "buy"] for made in (real, simulated))
    assert [decision[1:] for decision in bought] == [decision[1:] for decision in planned]
    assert all(-0.1 <= decision.at - other.at <= SOON for decision, other in zip(bought, planned, strict=True))


async def test_controller_and_simulator_both_buy_on_demand_after_spot_refuses() -> None:
    made = await compare([Job("a", 10, 300, gpus=1), Job("b", 500, 300, gpus=4)], dry_after=0.0)
    ended = {name for decision in made if decision.what == "end" for name in decision.offerings}
    assert ended == {("g4dn.xlarge", "on-demand"), ("g4dn.12xlarge", "on-demand")}


async def test_controller_and_simulator_both_replace_an_interrupted_machine_before_its_drain() -> None:
    faults = replace(NO_FAULTS, reclaim=Delay(10.0, 10.0, 10.0), without_notice=0.0)
    made = await compare([Job("a", 0, 1800, gpus=1)], dry_after=600.0, faults=faults)
    assert [decision.what for decision in made][:3] == ["buy", "buy", "end"]
