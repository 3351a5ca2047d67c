"""The API server of a large cluster, in a separate process: 5,000 nodes, 150,000 pods, and any requested rate of changes.

Commands come on standard input, one JSON object per line: ``{"churn": 200}`` for that many pod events a second, ``{"demand": 100}`` for
that many pods that become unschedulable one after the other. Their times, on the machine's monotonic clock, go to standard output.
"""

import asyncio
import json
import random
import ssl
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import trustme
from tests.model import realistic

from benchmarks.fleet import with_requests
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.kinds import NODES, PODS
from gpuscaler.embedded.serving.server import serve

#: Every machine has eight GPUs, and as many pods of one GPU each; the others ask for none.
GPU_PODS = 8
#: Number of pods that come and go: each changes once in so many events, and five times in its life.
CHANGING_PODS = 1_000
#: Interval at which a kubelet reports the state of its node, in seconds.
HEARTBEAT_SECONDS = 300.0
#: Number of bursts of events per second.
BURSTS_PER_SECOND = 20

Json = dict[str, Any]


def write_line(**message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def open_stdin() -> asyncio.StreamReader:
    """Standard input, as a stream of lines."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def cluster_objects(nodes: int, pods: int) -> Iterator[Json]:
    """Machines that are full: all GPUs are in use, other resources are not."""
    for number in range(nodes):
        yield realistic.node(number)
    names = [realistic.node(number)["metadata"]["name"] for number in range(nodes)]
    for number in range(pods):
        layer = number // nodes
        cpu, gib = 500 + 250 * (number // 50 % 12), 2 + number // 50 % 30
        yield with_requests(realistic.pod(number, node=names[number % nodes]), cpu=cpu, gib=gib, gpus=1 if layer < GPU_PODS else 0)


class ClusterActivity:
    """Activity in the cluster: pods are created, bound, started, ended and deleted; kubelets report their nodes."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._draw = random.Random(1)
        self._nodes = list(api.store[NODES].keys)
        self._changing_pods: deque[tuple[int, Json]] = deque()
        self._number = 10_000_000

    async def churn(self, rate: float) -> None:
        """Make ``rate`` pod events a second, until cancelled."""
        loop = asyncio.get_running_loop()
        due, heartbeats_due = loop.time(), 0.0
        while True:
            for _ in range(round(rate / BURSTS_PER_SECOND)):
                self._change_next_pod()
            heartbeats_due += len(self._nodes) / HEARTBEAT_SECONDS / BURSTS_PER_SECOND
            while heartbeats_due >= 1:
                self._send_heartbeat()
                heartbeats_due -= 1
            due += 1 / BURSTS_PER_SECOND
            await asyncio.sleep(max(0.001, due - loop.time()))

    def _change_next_pod(self) -> None:
        if len(self._changing_pods) < CHANGING_PODS:
            self._number += 1
            pod = with_requests(realistic.pod(self._number), cpu=100, gib=1)
            pod["status"] = {"phase": "Pending"}
            step = 0
        else:
            step, pod = self._changing_pods.popleft()
            step += 1
        if step == 4:
            self._api.store.remove(PODS, pod)
            return
        if step == 1:
            pod["spec"]["nodeName"] = self._draw.choice(self._nodes)
            pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": realistic.CREATED}]
        elif step == 2:
            pod["status"] |= {"phase": "Running", "startTime": realistic.CREATED, "podIP": "10.1.2.3"}
        elif step == 3:
            pod["status"]["phase"] = "Succeeded"
        self._api.store.put(PODS, pod)
        self._changing_pods.append((step, pod))

    def _send_heartbeat(self) -> None:
        name = self._draw.choice(self._nodes)
        node = self._api.store[NODES].objects[name].read()
        node |= {"apiVersion": "v1", "kind": "Node"}
        node["status"]["conditions"][0]["lastHeartbeatTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._api.store.put(NODES, node)

    async def demand(self, count: int) -> None:
        """Create ``count`` pods that ask for a whole machine, one after the other."""
        demanded = {}
        for number in range(count):
            await asyncio.sleep(self._draw.uniform(0.6, 1.4))
            pod = with_requests(realistic.pod(50_000_000 + number * 50), cpu=4000, gib=16, gpus=8)
            demanded[f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"] = time.monotonic()
            self._api.store.put(PODS, pod)
        write_line(demanded=demanded)


async def run_server(nodes: int, pods: int) -> None:
    api = ApiServer(time.time)
    api.load(cluster_objects(nodes, pods))
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    serving = await serve(api, tls=context)
    pod_bytes = sum(len(stored.body) for stored in api.store[PODS].objects.values())
    write_line(url=serving.url, authority=authority.cert_pem.bytes().decode(), bytes=pod_bytes)
    activity, tasks = ClusterActivity(api), set[asyncio.Task[None]]()
    async with asyncio.TaskGroup() as group:
        async for line in await open_stdin():
            command = msgspec.json.decode(line)
            coroutine = activity.churn(command["churn"]) if "churn" in command else activity.demand(command["demand"])
            tasks.add(group.create_task(coroutine))
        for task in tasks:
            task.cancel()
    await serving.close()


if __name__ == "__main__":
    asyncio.run(run_server(int(sys.argv[1]), int(sys.argv[2])))
