"""`gpuscaler run` with its records and a simulated cloud in virtual time, and smoke tests on it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from tests.control.managing import managed
from tests.control.process.test_running import Ticking

from gpuscaler.cli.doctor.following import SmokeRun
from gpuscaler.control.process.running import ControllerProcess
from gpuscaler.control.process.settings_file import SettingsFile
from gpuscaler.control.records import service
from gpuscaler.control.records.status.reporting import NAME
from gpuscaler.doctor.smoke.job import SmokeTest
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.nodes import providers
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import CONFIG_MAPS, JOBS, PODS, Resource

RUN_FILE = """
region: us-east-1
cloud: simulated
simulated: {boot: 20s, device_plugin_delay: 5s, capacity_error_delay: 1s, image_pull: 3s}
http: {enabled: false}
pages: {enabled: false}
pools:
  - name: gpu
    types: [g4dn.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
    idle_after: 60s
"""


@dataclass
class Stage:
    """An API server with a scheduler and workload controllers, a controller that leads, and what runs of the smoke test said."""

    api: ApiServer
    user: Client
    life: asyncio.Task[None] | None = None
    said: list[str] = field(default_factory=list)

    def run(self, *, new_machine: bool = False, client: Client | None = None, **test: Any) -> SmokeRun:
        return SmokeRun(
            client=client or Client(MemoryTransport(self.api)),
            test=SmokeTest(**{"name": "gpuscaler-smoke-1", **test}),
            namespace="kube-system",
            now=Ticking().wall,
            say=self.said.append,
            idle_after={"gpu": 60.0},
            new_machine=new_machine,
        )

    async def all(self, resource: Resource) -> list[dict[str, Any]]:
        """All objects, except pods of the cluster's own namespace."""
        namespace = "default" if resource is PODS else ""
        return [msgspec.json.decode(data) for data in await self.user.list_all(resource, namespace=namespace)]

    async def left(self) -> list[str]:
        """The Jobs and pods that exist."""
        return [document["metadata"]["name"] for resource in (JOBS, PODS) for document in await self.all(resource)]

    async def until(self, resource: Resource, many: int = 1) -> list[dict[str, Any]]:
        """Wait until there are ``many`` objects."""
        for _ in range(600):
            if len(found := await self.all(resource)) == many:
                return found
            await asyncio.sleep(0.5)
        raise AssertionError(f"saw {len(found)} {resource.plural}, expected {many}")

    async def until_said(self, text: str) -> None:
        """Wait until a line that contains ``text`` was said."""
        for _ in range(60_000):
            if any(text in line for line in self.said):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"saw {self.said}, expected {text}")

    async def until_status(self) -> None:
        for _ in range(600):
            if b"planned_at" in b"".join(await self.user.list_all(CONFIG_MAPS, query={"fieldSelector": f"metadata.name={NAME}"})):
                return
            await asyncio.sleep(0.5)
        raise AssertionError("no status was written")

    async def stop(self) -> None:
        """End the controller, which releases its Lease."""
        if self.life is not None:
            self.life.cancel()
            await asyncio.gather(self.life, return_exceptions=True)
            self.life = None

    async def fail_pod(self, message: str) -> None:
        """Fail the container of the only pod."""
        (pod,) = await self.until(PODS)
        name = pod["metadata"]["name"]
        ended = {"exitCode": 9, "reason": "Error", "message": message, "finishedAt": pod["metadata"]["creationTimestamp"]}
        status = {"phase": "Failed", "containerStatuses": [{"name": "smoke-test", "state": {"terminated": ended}}]}
        await self.user.merge_patch(PODS, name, {"status": status}, namespace="default", subresource="status")


@asynccontextmanager
async def stage(folder: Path, *, running: bool = True, pull: str = "3s") -> AsyncIterator[Stage]:
    """A stage, with a controller if ``running``; ``pull`` is how long machines pull an image."""
    clocks = Ticking()
    api = ApiServer(clocks.wall)
    path = folder / "run.yaml"
    path.write_text(RUN_FILE.replace("image_pull: 3s", f"image_pull: {pull}"))
    made = Stage(api, Client(MemoryTransport(api)))
    async with managed(api, clocks.wall):
        if running:
            process = ControllerProcess(
                file=SettingsFile(path),
                transport=MemoryTransport(api),
                namespace="kube-system",
                identity="one",
                clocks=clocks,
                make_provider=providers.make,
                make_records=partial(service.make_service, pod="", host="here", set_level=lambda _level: None),
                dry_run=False,
            )
            made.life = asyncio.get_running_loop().create_task(process.run())
            await made.until_status()
        try:
            yield made
        finally:
            await made.stop()
