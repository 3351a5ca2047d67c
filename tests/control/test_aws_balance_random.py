"""A group that balances three zones, pods with and without zones, people who end machines, and restarts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.control.aws_stage import Stage, aws_stage
from tests.control.world import seeded_random
from tests.objects import pod
from tests.soaking import seeds

from gpuscaler.embedded.apiserver import kinds
from gpuscaler.kube.resources import PODS

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

ZONES = ["us-east-1a", "us-east-1b", "us-east-1c"]
SHORT = "pools:\n  - {name: gpus, idle_after: 30s}\n"
#: How long random events happen, in seconds.
CHAOS = 900.0


class PodWatch:
    """The pods on each machine, observed continuously, and those that were lost because their group balanced its zones."""

    def __init__(self, here: Stage) -> None:
        self.here = here
        self.lost: list[str] = []
        self._busy: Mapping[str, list[str]] = {}
        self._seen: set[str] = set()
        self._positions: list[int] = []

    async def observe(self) -> None:
        for activity in self.here.region.groups["gpus"].activities:
            if activity.id in self._seen or not activity.description.startswith("Terminating") or "balance" not in activity.cause:
                continue
            self._seen.add(activity.id)
            machine = activity.description.rpartition(" ")[2]
            self.lost += [f"{name} on {machine}" for name in self._busy.get(machine, [])]
        # Listing everything takes a quarter of the time, and mostly nothing has changed.
        store = self.here.cluster.api.store
        if self._positions == (positions := [store[kind].position for kind in (kinds.NODES, kinds.PODS)]):
            return
        self._positions = positions
        machines = {node["metadata"]["name"]: node["spec"]["providerID"].rpartition("/")[2] for node in await self.here.nodes()}
        busy: dict[str, list[str]] = {}
        for body in await self.here.pods():
            running = body.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in body["metadata"]
            if running and not body["metadata"].get("ownerReferences") and body["spec"].get("nodeName") in machines:
                busy.setdefault(machines[body["spec"]["nodeName"]], []).append(body["metadata"]["name"])
        self._busy = busy


async def submit(here: Stage, name: str, zone: str, seconds: int) -> None:
    body = pod(name, 1, {"gpuscaler.io/run-for": f"{seconds}s"})
    if zone:
        body["spec"]["nodeSelector"] = {"topology.kubernetes.io/zone": zone}
    await here.user.create(PODS, body, namespace="default")


@pytest.mark.parametrize("seed", seeds(3))
async def test_no_running_pod_is_ended_by_zone_balancing_that_gpuscaler_caused(seed: int, tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        dice, watched = seeded_random(seed, "balance"), PodWatch(here)
        here.group("gpus", AvailabilityZones=ZONES, NewInstancesProtectedFromScaleIn=False, MaxSize=20)
        hook: dict[str, Any] = {"LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING", "HeartbeatTimeout": 300}
        here.client("autoscaling").put_lifecycle_hook(AutoScalingGroupName="gpus", LifecycleHookName="drain", **hook)
        text = here.settings(queue_url=here.queue(), more=SHORT)
        here.start(text)
        until, lives, number = here.now() + CHAOS, 1, 0
        due = 0.0
        while here.now() < until:
            await here.sleep(0.5)
            await watched.observe()
            if here.now() < due:
                continue
            due = here.now() + dice.uniform(5.0, 60.0)
            match dice.choice(("bound", "bound", "free", "restart")):
                case "restart":
                    lives += 1
                    await here.stop()
                    here.start(text, identity=f"life-{lives}")
                case what:
                    for _ in range(dice.randint(1, 3)):
                        number += 1
                        zone = dice.choice(ZONES[:2]) if what == "bound" else ""
                        await submit(here, f"pod-{number}", zone, dice.randint(60, 400))

        assert number > 0
        assert watched.lost == []
