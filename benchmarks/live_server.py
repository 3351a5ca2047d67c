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

from benchmarks.fleet import sized
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.kinds import NODES, PODS
from gpuscaler.embedded.serving.server import serve

#: Every machine has eight GPUs, and as many pods of one GPU each; the others ask for none.
GPU_PODS = 8
#: Number of pods that come and go: each changes once in so many events, and five times in its life.
GOING = 1_000
#: Interval at which a kubelet reports the state of its node, in seconds.
HEARTBEAT = 300.0
#: Number of bursts of events per second.
BURSTS = 20

Json = dict[str, Any]


def write_line(**message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def commands() -> asyncio.StreamReader:
    """Standard input, as a stream of lines."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def objects(nodes: int, pods: int) -> Iterator[Json]:
    """Machines that are full: all GPUs are in use, other resources are not."""
    for number in range(nodes):
        yield realistic.node(number)
    names = [realistic.node(number)["metadata"]["name"] for number in range(nodes)]
    for number in range(pods):
        layer = number // nodes
        cpu, gib = 500 + 250 * (number // 50 % 12), 2 + number // 50 % 30
        yield sized(realistic.pod(number, node=names[number % nodes]), cpu=cpu, gib=gib, gpus=1 if layer < GPU_PODS else 0)


class Life:
    """Activity in the cluster: pods are created, bound, started, ended and deleted; kubelets report their nodes."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._draw = random.Random(1)
        self._nodes = list(api.store[NODES].keys)
        self._going: deque[tuple[int, Json]] = deque()
        self._number = 10_000_000

    async def churn(self, rate: float) -> None:
        """Make ``rate`` pod events a second, until cancelled."""
        loop = asyncio.get_running_loop()
        due, beats = loop.time(), 0.0
        while True:
            for _ in range(round(rate / BURSTS)):
                self._event()
            beats += len(self._nodes) / HEARTBEAT / BURSTS
            while beats >= 1:
                self._beat()
                beats -= 1
            due += 1 / BURSTS
            await asyncio.sleep(max(0.001, due - loop.time()))

    def _event(self) -> None:
        if len(self._going) < GOING:
            self._number += 1
            pod = sized(realistic.pod(self._number), cpu=100, gib=1)
            pod["status"] = {"phase": "Pending"}
            step = 0
        else:
            step, pod = self._going.popleft()
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
        self._going.append((step, pod))

    def _beat(self) -> None:
        name = self._draw.choice(self._nodes)
        node = self._api.store[NODES].objects[name].read()
        node |= {"apiVersion": "v1", "kind": "Node"}
        node["status"]["conditions"][0]["lastHeartbeatTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._api.store.put(NODES, node)

    async def demand(self, count: int) -> None:
        """Create ``count`` pods that ask for a whole machine, one after the other."""
        at = {}
        for number in range(count):
            await asyncio.sleep(self._draw.uniform(0.6, 1.4))
            pod = sized(realistic.pod(50_000_000 + number * 50), cpu=4000, gib=16, gpus=8)
            at[f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"] = time.monotonic()
            self._api.store.put(PODS, pod)
        write_line(demanded=at)


async def live(nodes: int, pods: int) -> None:
    api = ApiServer(time.time)
    api.load(objects(nodes, pods))
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    serving = await serve(api, tls=context)
    size = sum(len(stored.body) for stored in api.store[PODS].objects.values())
    write_line(url=serving.url, authority=authority.cert_pem.bytes().decode(), bytes=size)
    life, tasks = Life(api), set[asyncio.Task[None]]()
    async with asyncio.TaskGroup() as group:
        async for line in await commands():
            command = msgspec.json.decode(line)
            part = life.churn(command["churn"]) if "churn" in command else life.demand(command["demand"])
            tasks.add(group.create_task(part))
        for task in tasks:
            task.cancel()
    await serving.close()


if __name__ == "__main__":
    asyncio.run(live(int(sys.argv[1]), int(sys.argv[2])))
