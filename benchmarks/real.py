"""On a real control plane: time until the cloud is asked, whether plans come true, whether our scheduler model binds like the real one.

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
from benchmarks.live import rank
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.reflector import Batch
from gpuscaler.kube.resources import PODS
from gpuscaler.model.pods import Pod

#: Number of pods created one after the other, each of which needs a machine.
DEMANDS = 60
#: Maximum seconds between machines of random workloads becoming ready.
APART = 120.0
POOL = "real"


def figures() -> Iterator[Figure]:
    waits = asyncio.run(measure())
    total, own_part = [asked - created for created, _, asked in waits], [asked - marked for _, marked, asked in waits]
    yield Figure(
        f"Kubernetes {version()}: from a pod's creation to the order at the cloud, including the scheduler's verdict",
        "",
        "p99 ≤ 1.5 s, our own part of it ≤ 0.7 s",
        f"p99 {rank(total, 0.99):.2f} s, p50 {rank(total, 0.5):.2f} s of {len(waits)} pods; "
        f"own part: p99 {rank(own_part, 0.99):.2f} s, p50 {rank(own_part, 0.5):.2f} s",
        len(waits) == DEMANDS and rank(total, 0.99) <= 1.5 and rank(own_part, 0.99) <= 0.7,
        {"whole_p99": rank(total, 0.99), "own_p99": rank(own_part, 0.99), "pods": len(waits)},
    )
    workloads = int(os.environ.get("WORKLOADS", "20"))
    nominated = asyncio.run(steering.measure_all(workloads, seed=1, apart=APART, restart=True, steering="nominate"))
    unsteered = asyncio.run(steering.measure_all(workloads, seed=1, apart=APART, steered=False, restart=True))
    share = nominated.arrived / max(1, nominated.nominated)
    yield Figure(
        f"Kubernetes {version()}, {workloads} random workloads with nominations, the controller killed in between: plans come true",
        f"unsteered: {unsteered}",
        "all bound; ≥ 90 % where promised; 0 rejected by filters",
        str(nominated),
        nominated.bound == nominated.planned and nominated.broken == 0 and share >= 0.9,
        {"planned": nominated.planned, "bound": nominated.bound, "further": nominated.further, "share": share},
    )
    same = asyncio.run(agreement.measure(workloads * 5, seed=1))
    verdicts, nodes = agreement.share(same.same, same.pods), agreement.share(same.best, same.bound)
    simulated = agreement.share(same.agreed, same.simulated)
    yield Figure(
        f"Kubernetes {version()}, {workloads * 5} random workloads: our model of kube-scheduler decides like kube-scheduler",
        "",
        "all verdicts; ≥ 97 % of nodes",
        str(same),
        same.same == same.pods and min(nodes, simulated) >= 0.97,
        {"pods": same.pods, "verdicts": verdicts, "nodes": nodes, "simulated": simulated},
    )


async def measure() -> list[tuple[float, float, float]]:
    """For each pod, in seconds since the epoch: its creation, when it was seen as unschedulable, when its machine was ordered.

    Machines take long to boot, so that nothing else happens meanwhile.
    """
    draw = Random(1)
    created: dict[str, float] = {}
    marked: dict[str, float] = {}

    def hear(batch: Batch) -> None:
        for key, item in batch.changes.items():
            if isinstance(item, Pod) and item.unschedulable:
                marked.setdefault(key, time.time())

    async with stage("latency") as made:
        await made.install()
        await made.namespace(POOL)
        pools = [{"name": POOL, "types": ["g4dn.xlarge"]}]
        run_file = made.run_file("run", pools, cloud={**CLOUD, "boot": "10m"}, http={"enabled": False}, pace={})
        controller = made.start(run_file, await made.kubeconfig())
        picture = Picture(made.admin, clock=asyncio.get_running_loop().time, random=draw, resources=(PODS,))
        picture.listen(hear)
        listening = asyncio.create_task(picture.run())
        await asyncio.sleep(8)
        for number in range(DEMANDS):
            await asyncio.sleep(draw.uniform(0.6, 1.4))
            created[f"{POOL}/p{number}"] = time.time()
            await made.create(pod(f"p{number}", POOL), POOL)
        await asyncio.sleep(5)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        ordered_at = {pod_key: line["at"] for line in controller.logged("ordered") for pod_key in line.get("pods", ())}
    return [(created[pod_key], marked[pod_key], ordered_at[pod_key]) for pod_key in created if pod_key in marked and pod_key in ordered_at]
