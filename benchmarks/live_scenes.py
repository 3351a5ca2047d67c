"""Two scenarios in which Cluster Autoscaler fails, on the embedded cluster in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec.structs import replace
from tests.control.world import World, world
from tests.objects import pod

from benchmarks.figures import Figure
from gpuscaler.embedded.nodes.machines import name_of
from gpuscaler.embedded.serving.cluster import Conditions
from gpuscaler.embedded.serving.pacing import PacedLoop
from gpuscaler.kube import resources
from gpuscaler.model.pools import Policy
from gpuscaler.settings import parse_policy
from gpuscaler.simulation.cloud.delays import Delay, Delays

T = TypeVar("T")

#: GPUs show two minutes after the machine is Ready.
DELAYS = Delays(device_plugin=Delay(120.0, 120.0, 120.0), image_pull=Delay(0.0, 0.0, 0.0))
ONE_GPU = """
region: us-east-1
pools:
  - {name: gpu, types: [g4dn.xlarge], markets: [on-demand], zones: [us-east-1a]}
"""
TWO_POOLS = f"{ONE_GPU}  - {{name: other, types: [m5.large], markets: [on-demand], zones: [us-east-1a]}}\n"
#: Idle time before a machine may be removed, and the interval of the loop, in seconds.
IDLE_SECONDS, LOOP_SECONDS = 600.0, 10.0
PODS, NODES = 8, 4


def late_gpus() -> Figure:
    bought, bound = run_in_virtual_time(_play_late_gpus)
    return Figure(
        f"{PODS} one-GPU pods on one-GPU machines that show their GPUs 2 min after Ready, without any GPU label",
        "Cluster Autoscaler buys 56",
        f"exactly {PODS} bought",
        f"{bought} bought, {bound} pods bound",
        bought == PODS == bound,
        {"bought": bought, "bound": bound},
    )


async def _play_late_gpus() -> tuple[int, int]:
    here = World(without_gpu_labels(parse_policy(ONE_GPU)), conditions=Conditions(delays=DELAYS))
    try:
        here.start()
        await here.sleep(5.0)
        for number in range(PODS):
            await here.submit(f"pod{number}")
        await here.sleep(1800.0)
        assert not any(is_gpu_label(label) for node in await here.nodes() for label in node["metadata"]["labels"])
        bound = await here.bound()
        return len(here.cluster.core.history()), sum(map(bool, bound.values()))
    finally:
        await here.close()


def without_gpu_labels(policy: Policy) -> Policy:
    """``policy`` with machines that have no GPU label."""
    pools = []
    for pool in policy.pools:
        offerings = [
            replace(offering, labels={key: value for key, value in offering.labels.items() if not is_gpu_label(key)})
            for offering in pool.offerings
        ]
        pools.append(replace(pool, offerings=tuple(offerings)))
    return replace(policy, pools=tuple(pools))


def is_gpu_label(key: str) -> bool:
    return "gpu" in key.removeprefix("gpuscaler.io/")


def idle_nodes() -> Figure:
    delays = run_in_virtual_time(_play_idle_nodes)
    worst = max(delays, default=float("inf"))
    return Figure(
        f"{NODES} idle GPU nodes while another pool scales up every 5 min",
        "Cluster Autoscaler: never in 4 h",
        f"removed {IDLE_SECONDS:g} s after their last pod plus one loop of {LOOP_SECONDS:g} s",
        f"{', '.join(f'{seconds:.1f} s' for seconds in sorted(delays))} after",
        len(delays) == NODES and worst <= IDLE_SECONDS + LOOP_SECONDS,
        {"worst": worst, "gone": len(delays)},
    )


async def _play_idle_nodes() -> list[float]:
    """Seconds from the last pod of each GPU machine to its removal."""
    async with world(TWO_POOLS, delays=DELAYS) as here:
        here.start()
        await here.sleep(5.0)
        for number in range(NODES):
            manifest = pod(f"gpu{number}", 1, {"gpuscaler.io/run-for": f"{15 + number}m"})
            await here.user.create(resources.PODS, manifest, namespace="default")
        last_busy: dict[str, float] = {}
        for minute in range(240):
            if minute % 5 == 0:
                await here.user.create(resources.PODS, other_pod(minute), namespace="default")
            for _ in range(60):
                await here.sleep(1.0)
                await _record_busy(here, last_busy)
        machines = [machine for machine in here.cluster.core.history() if machine.offering.pool == "gpu"]
        assert len(machines) == NODES == len(last_busy)
        others = sum(machine.offering.pool == "other" for machine in here.cluster.core.history())
        assert others == 240 // 5, f"saw {others} machines of the other pool, expected one every 5 minutes"
        return [machine.ended_at - last_busy[name_of(machine)] for machine in machines if machine.ended_at is not None]


def other_pod(number: int) -> dict[str, Any]:
    """A pod for the other pool: it asks for one of two CPUs, and with the system's reservation no second one fits."""
    manifest = pod(f"other{number}", 0)
    manifest["spec"]["nodeSelector"] = {"gpuscaler.io/pool": "other"}
    return manifest


async def _record_busy(here: World, last_busy: dict[str, float]) -> None:
    """Record when each GPU machine's pod was last seen running, by the name of its node."""
    for body in await here.pods():
        if body["metadata"]["name"].startswith("gpu") and body["status"].get("phase") == "Running":
            last_busy[body["spec"]["nodeName"]] = here.now()


def run_in_virtual_time(play: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of ``play``, in a loop whose clock jumps from timer to timer."""
    with asyncio.Runner(loop_factory=lambda: PacedLoop(1e9)) as runner:
        return runner.run(play())
