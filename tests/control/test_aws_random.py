"""Despite random failures and replacements of the controller, pods run, no surplus is bought, and all machines are removed."""

from pathlib import Path
from typing import Any

import pytest
from tests.control.aws_stage import Stage, aws_stage
from tests.control.world import QUICK, seeded_random
from tests.soaking import seeds

from gpuscaler.embedded.aws.conditions import Conditions

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

GROUPS = ("a-spot", "b-spot", "c-on-demand")
SHORT = "pools:\n" + "".join(f"  - {{name: {name}, idle_after: 20s}}\n" for name in GROUPS)
#: How long random events happen, and how long it is quiet afterwards, in seconds.
CHAOS, QUIET = 90.0, 300.0
OPERATIONS = ("LaunchInstances", "SetDesiredCapacity", "DescribeScalingActivities", "DescribeAutoScalingGroups", "DescribeInstances")
FAULTS: tuple[dict[str, Any], ...] = (
    {"sever": "before"},
    {"sever": "after"},
    {"code": "Throttling"},
    {"code": "InternalFailure", "status": 500},
)


class Chaos:
    """Random events on a stage, from ``seed``."""

    def __init__(self, here: Stage, seed: int, launch: str) -> None:
        self.here, self.dice = here, seeded_random(seed, "aws")
        self.text = here.settings(launch=launch, more=SHORT)
        self.pods, self.lives = 0, 0
        self.leading = False

    async def replace(self) -> None:
        """Stop the controller if it runs, otherwise start another one."""
        if self.leading:
            await self.here.stop()
        else:
            self.lives += 1
            self.here.start(self.text, identity=f"life-{self.lives}")
        self.leading = not self.leading

    async def step(self) -> None:
        match self.dice.choice(("submit", "submit", "limit", "fault", "replace", "replace", "mend")):
            case "submit":
                self.pods += 1
                await self.here.submit(f"pod-{self.pods}", run_for=f"{self.dice.randint(5, 40)}s")
            case "limit":
                zone = self.dice.choice(("us-east-1a", "us-east-1b"))
                self.here.limit(self.dice.choice((0, 0, 1, None)), market="spot", zone=zone)
            case "fault":
                self.here.fault(operation=self.dice.choice(OPERATIONS), times=self.dice.randint(1, 6), **self.dice.choice(FAULTS))
            case "replace":
                await self.replace()
            case "mend":
                self.here.endpoint.faults.all.clear()

    async def run(self) -> None:
        until = self.here.now() + CHAOS
        while self.here.now() < until:
            await self.here.sleep(self.dice.uniform(0.1, 8.0))
            await self.step()
        self.here.endpoint.faults.all.clear()
        self.here.region.hardware.markets.limits.clear()
        if not self.leading:
            await self.replace()
        await self.here.sleep(QUIET)


def ended_by_cloud(here: Stage) -> int:
    """The number of machines that EC2 has ended by itself."""
    return sum("EC2 health check" in activity.cause for name in GROUPS for activity in here.region.groups[name].activities)


@pytest.mark.parametrize("seed", seeds(2))
async def test_under_random_aws_failures_every_pod_runs_and_every_machine_is_removed_later(seed: int, tmp_path: Path) -> None:
    launch, activity = ("auto", 0.0) if seed % 2 else ("desired-capacity", 20.0)
    async with aws_stage(tmp_path, Conditions(boot=QUICK, activity=activity)) as here:
        here.group("a-spot", market="spot")
        here.group("b-spot", market="spot", AvailabilityZones=["us-east-1b"])
        here.group("c-on-demand")
        chaos = Chaos(here, seed, launch)
        await chaos.replace()
        await chaos.run()
        assert [name for name, node in (await here.bound()).items() if not node] == []
        assert ([here.desired(name) for name in GROUPS], await here.nodes()) == ([0, 0, 0], [])
        # The groups start replacements for the machines that EC2 reclaimed.
        assert 0 < len(here.machines()) <= chaos.pods + ended_by_cloud(here)
