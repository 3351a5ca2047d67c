"""On a real control plane: time until the cloud is called, whether plans come true, whether our scheduler model binds like the real one.

The binding of pods is measured by ``benchmarks.binding``. ``WORKLOADS=500 python -m benchmarks real`` plays 500 random workloads.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from random import Random

from tests.e2e import agreement, steering
from tests.e2e.objects import pod
from tests.e2e.stage import CLOUD, stage, version

from benchmarks.figures import Figure
from benchmarks.live import quantile
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.reflector import Batch
from gpuscaler.kube.resources import PODS
from gpuscaler.model.pods import Pod

#: Number of pods created one after the other, each of which needs a machine.
UNSCHEDULABLE_PODS = 60
#: Maximum seconds between machines of random workloads becoming ready.
MAX_APART_SECONDS = 120.0
POOL_NAME = "real"


def figures() -> Iterator[Figure]:
    moments = asyncio.run(measure_orders())
    total, own_part = (
        [ordered_at - created_at for created_at, _, ordered_at in moments],
        [ordered_at - unschedulable_at for _, unschedulable_at, ordered_at in moments],
    )
    yield Figure(
        f"Kubernetes {version()}: from a pod's creation to the order at the cloud, including the scheduler's verdict",
        "",
        "p99 ≤ 1.5 s, our own part of it ≤ 0.7 s",
        f"p99 {quantile(total, 0.99):.2f} s, p50 {quantile(total, 0.5):.2f} s of {len(moments)} pods; "
        f"own part: p99 {quantile(own_part, 0.99):.2f} s, p50 {quantile(own_part, 0.5):.2f} s",
        len(moments) == UNSCHEDULABLE_PODS and quantile(total, 0.99) <= 1.5 and quantile(own_part, 0.99) <= 0.7,
        {"whole_p99": quantile(total, 0.99), "own_p99": quantile(own_part, 0.99), "pods": len(moments)},
    )
    workloads = int(os.environ.get("WORKLOADS", "20"))
    nominated = asyncio.run(steering.measure_all(workloads, seed=1, apart=MAX_APART_SECONDS, restart=True, steering="nominate"))
    unsteered = asyncio.run(steering.measure_all(workloads, seed=1, apart=MAX_APART_SECONDS, steered=False, restart=True))
    share = nominated.arrived / max(1, nominated.nominated)
    yield Figure(
        f"Kubernetes {version()}, {workloads} random workloads with nominations, the controller killed in between: plans come true",
        f"unsteered: {unsteered}",
        "all bound; ≥ 90 % where promised; 0 rejected by filters",
        str(nominated),
        nominated.bound == nominated.planned and nominated.broken == 0 and share >= 0.9,
        {"planned": nominated.planned, "bound": nominated.bound, "further": nominated.further, "share": share},
    )
    tally = asyncio.run(agreement.measure(workloads * 5, seed=1))
    verdicts, nodes = agreement.share(tally.same, tally.pods), agreement.share(tally.best, tally.bound)
    simulated = agreement.share(tally.agreed, tally.simulated)
    yield Figure(
        f"Kubernetes {version()}, {workloads * 5} random workloads: our model of kube-scheduler decides like kube-scheduler",
        "",
        "all verdicts; ≥ 97 % of nodes",
        str(tally),
        tally.same == tally.pods and min(nodes, simulated) >= 0.97,
        {"pods": tally.pods, "verdicts": verdicts, "nodes": nodes, "simulated": simulated},
    )


async def measure_orders() -> list[tuple[float, float, float]]:
    """For each pod, in seconds since the epoch: its creation, when it was seen as unschedulable, when its machine was ordered.

    Machines take long to boot, so that nothing else happens meanwhile.
    """
    draw = Random(1)
    created_at: dict[str, float] = {}
    unschedulable_at: dict[str, float] = {}

    def record_unschedulable(batch: Batch) -> None:
        for key, item in batch.changes.items():
            if isinstance(item, Pod) and item.unschedulable:
                unschedulable_at.setdefault(key, time.time())

    async with stage("latency") as here:
        await here.install()
        await here.namespace(POOL_NAME)
        pools = [{"name": POOL_NAME, "types": ["g4dn.xlarge"]}]
        run_file = here.run_file("run", pools, cloud={**CLOUD, "boot": "10m"}, http={"enabled": False}, pace={})
        controller = here.start(run_file, await here.kubeconfig())
        picture = Picture(here.admin, clock=asyncio.get_running_loop().time, random=draw, resources=(PODS,))
        picture.listen(record_unschedulable)
        picture_task = asyncio.create_task(picture.run())
        await asyncio.sleep(8)
        for number in range(UNSCHEDULABLE_PODS):
            await asyncio.sleep(draw.uniform(0.6, 1.4))
            created_at[f"{POOL_NAME}/p{number}"] = time.time()
            await here.create(pod(f"p{number}", POOL_NAME), POOL_NAME)
        await asyncio.sleep(5)
        picture_task.cancel()
        await asyncio.gather(picture_task, return_exceptions=True)
        ordered_at = {pod_key: line["at"] for line in controller.logged("ordered") for pod_key in line.get("pods", ())}
    return [
        (created_at[pod_key], unschedulable_at[pod_key], ordered_at[pod_key])
        for pod_key in created_at
        if pod_key in unschedulable_at and pod_key in ordered_at
    ]
