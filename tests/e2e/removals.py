"""Removals of machines with pods: two machines of a pool, of which one is enough once the filler pods are scaled down."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from tests.e2e.objects import deployment, pod, pod_spec
from tests.e2e.stage import NAMESPACE, Json, Stage, until
from tests.objects import budget

from gpuscaler.control.process.running import ControllerProcess, MakeProvider, ProcessContext
from gpuscaler.control.process.settings_file import SettingsFile
from gpuscaler.control.records import service
from gpuscaler.control.records.status.removals import RemovalStatus
from gpuscaler.control.records.status.reporting import parse_status
from gpuscaler.embedded.nodes import providers
from gpuscaler.kube.access import from_kubeconfig
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import NotFound
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.resources import CONFIG_MAPS, POD_DISRUPTION_BUDGETS, PODS
from gpuscaler.kube.transport import Answer, Request, Transport
from gpuscaler.kube.watching import event_of, watch_lines, watch_request
from gpuscaler.model.options import CHECKPOINT_REQUESTED, CHECKPOINTED
from gpuscaler.settings.run_settings import RunSettings

#: Number of pods that a budget covers.
REPLICAS = 3
#: Seconds that such a pod may take to save its work.
GRACE = 600.0


class Sleeping:
    """Clocks of a machine that was suspended for ``slept`` seconds."""

    slept = 0.0

    def wall(self) -> float:
        return time.time() + self.slept

    def monotonic(self) -> float:
        return time.monotonic() + self.slept


@dataclass
class Pulls:
    """The seconds that pulling an image takes, which can be changed."""

    seconds: float = 0.1

    def __call__(self, _node: str) -> float:
        return self.seconds


class Noting:
    """A transport that records evictions: the pod, the time and the status of the answer."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.evictions: list[tuple[str, float, int]] = []

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        asked = time.monotonic()
        async with self._inner.exchange(request) as answer:
            path = request.path.split("/")
            if path[-1] == "eviction":
                self.evictions.append((f"{path[-4]}/{path[-2]}", asked, answer.status))
            yield answer

    async def close(self) -> None:
        await self._inner.close()


@asynccontextmanager
async def controller(made: Stage, run_file: Path, clocks: Sleeping, make_provider: MakeProvider = providers.make) -> AsyncIterator[Noting]:
    """A controller in this process, with ``clocks`` and the rights of the controller's own account."""
    access = from_kubeconfig([await made.kubeconfig()], environ={})

    def records(settings: RunSettings, place: ProcessContext) -> service.Service:
        return service.make_service(settings, place, pod="", host="here", set_level=lambda _level: None)

    async with HttpTransport(access) as inner:
        noting = Noting(inner)
        running = ControllerProcess(
            file=SettingsFile(run_file),
            transport=noting,
            namespace=NAMESPACE,
            identity="removals",
            clocks=clocks,
            make_provider=make_provider,
            make_records=records,
        )
        async with beside(asyncio.create_task(running.run())):
            yield noting


@dataclass
class Diary:
    """The history of pods as a watch reports it, with the number of healthy pods of each app after every event."""

    admin: Client
    healthy: dict[str, list[int]] = field(default_factory=dict)
    #: Pods that were asked to terminate, or are gone.
    ended: set[str] = field(default_factory=set)
    _pods: dict[str, Json] = field(default_factory=dict)

    async def write(self) -> None:
        """Watch pods until cancelled."""
        request = watch_request(PODS, version="0", seconds=3600, silence=3600.0)
        async with aclosing(watch_lines(self.admin, request, silence=lambda: 3600.0)) as pieces:
            async for lines in pieces:
                for line in lines:
                    self._take(line)

    def _take(self, line: bytes) -> None:
        event = event_of(line)
        pod: Json = msgspec.json.decode(event.object)
        if event.type not in {"ADDED", "MODIFIED", "DELETED"}:
            assert event.type == "BOOKMARK", f"the watch broke: {pod}"
            return
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        self._pods[key] = pod
        if event.type == "DELETED":
            del self._pods[key]
        if event.type == "DELETED" or "deletionTimestamp" in pod["metadata"]:
            self.ended.add(key)
        app = f"{pod['metadata']['namespace']}/{pod['metadata'].get('labels', {}).get('app')}"
        self.healthy.setdefault(app, []).append(sum(map(_is_healthy, self.of(app).values())))

    def of(self, app: str) -> dict[str, Json]:
        """The existing pods of an app, by ``namespace/name``."""
        namespace, _, label = app.partition("/")
        return {
            key: pod
            for key, pod in self._pods.items()
            if pod["metadata"]["namespace"] == namespace and pod["metadata"].get("labels", {}).get("app") == label
        }

    def ended_in(self, *namespaces: str) -> frozenset[str]:
        """The pods of these namespaces that were asked to terminate, or are gone."""
        return frozenset(key for key in self.ended if key.split("/")[0] in namespaces)

    def worst(self, app: str) -> int:
        """The lowest number of healthy pods at any moment after all were healthy."""
        counts = self.healthy[app]
        return min(counts[counts.index(REPLICAS) :])


def _is_healthy(pod: Json) -> bool:
    """Whether a pod is healthy, by the rule of the disruption controller."""
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in pod["status"].get("conditions", ()))
    return ready and "deletionTimestamp" not in pod["metadata"]


@asynccontextmanager
async def beside(task: "asyncio.Task[None]") -> AsyncIterator[None]:
    """Run ``task`` until the block ends; raise its error if it ended before."""
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def written(admin: Client) -> tuple[Diary, AbstractAsyncContextManager[None]]:
    diary = Diary(admin)
    return diary, beside(asyncio.create_task(diary.write()))


@dataclass
class Pair:
    """Two full machines of a pool, in a namespace with the pool's name.

    One runs the pods of ``web``, which a budget covers and which save their work before they go. The other one runs a pod that must not be
    moved. The rest of each machine is filled with pods that can be scaled down.
    """

    stage: Stage
    name: str
    leaves: str = ""
    stays: str = ""

    async def fill(self) -> None:
        made, name = self.stage, self.name
        await made.namespace(name)
        await made.admin.create(POD_DISRUPTION_BUDGETS, budget("web", minAvailable=0), namespace=name)
        web = deployment("web", REPLICAS, pod_spec(name))
        notes = {"gpuscaler.io/grace": f"{GRACE:g}s", "gpuscaler.io/disruption": "allow"}
        web["spec"]["template"]["metadata"]["annotations"] = notes
        await made.create(web, name)
        await made.create(deployment("fills", 1, pod_spec(name)), name)
        (self.leaves,) = set((await made.bound(name, REPLICAS + 1)).values())
        await made.create(deployment("goes", 1, pod_spec(name, gpus=3)), name)
        await made.create(pod("alone", name), name)
        (self.stays,) = set((await made.bound(name, REPLICAS + 3)).values()) - {self.leaves}

    async def empty(self) -> set[str]:
        """Scale down the filler pods of both machines; returns the pods of ``web`` once they are asked to save their work."""
        await self.allow(REPLICAS, of=0)
        for name in ("fills", "goes"):
            await self.stage.scale("Deployment", name, self.name, 0)

        async def asked() -> set[str]:
            pods = await self.stage.pods(self.name)
            names = {pod["metadata"]["name"] for pod in pods if CHECKPOINT_REQUESTED in pod["metadata"].get("annotations", {})}
            return names if len(names) == REPLICAS else set()

        names: set[str] = await until(f"the pods of {self.name} are asked to save their work", asked)
        return names

    async def save(self, pods: set[str]) -> None:
        """Mark pods as having saved their work."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {"metadata": {"annotations": {CHECKPOINTED: now}}}
        await asyncio.gather(*(self.stage.admin.merge_patch(PODS, pod, body, namespace=self.name) for pod in pods))

    async def allow(self, count: int, *, of: int) -> None:
        """Set the budget's minimum to ``of`` pods, and wait until it allows ``count`` disruptions."""
        admin = self.stage.admin
        body = {"spec": {"minAvailable": of}}
        changed = msgspec.json.decode(await admin.merge_patch(POD_DISRUPTION_BUDGETS, "web", body, namespace=self.name))
        generation = changed["metadata"]["generation"]

        async def observed() -> bool:
            budget = await self.stage.find(POD_DISRUPTION_BUDGETS, "web", self.name)
            status = (budget or {}).get("status", {})
            return bool(status.get("observedGeneration") == generation and status.get("disruptionsAllowed") == count)

        await until(f"the budget of {self.name} allows {count}", observed)


async def removals(made: Stage) -> tuple[RemovalStatus, ...]:
    """The removals in the controller's latest status."""
    try:
        return parse_status(await made.admin.get(CONFIG_MAPS, "gpuscaler-status", namespace=NAMESPACE)).removals
    except NotFound:
        return ()
