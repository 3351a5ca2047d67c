"""`gpuscaler run` beside a simulated account of a cloud in virtual time: an API server, the account, and one process after the other."""

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tests.control.world import BEGAN, QUICK
from tests.objects import pod, workload
from tests.running_cluster import RunningCluster

from gpuscaler.control.process.running import ControllerProcess, MakeProvider
from gpuscaler.control.process.settings_file import SettingsFile
from gpuscaler.control.records import service
from gpuscaler.control.records.status.reporting import NAME, parse_status
from gpuscaler.control.records.status.status import Status
from gpuscaler.embedded.serving.cluster import Conditions as ClusterConditions
from gpuscaler.embedded.serving.cluster import EmbeddedCluster
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.resources import CONFIG_MAPS, DEPLOYMENTS, NODES, PODS
from gpuscaler.model.pools import Policy


class Clocks:
    """Both clocks, on the time of the event loop that creates this; threads read them too."""

    def __init__(self) -> None:
        self.monotonic = asyncio.get_running_loop().time

    def wall(self) -> float:
        return BEGAN + self.monotonic()


class SteppedAccount(Protocol):
    """An account whose clock stands still between two steps."""

    def advance(self) -> None: ...

    def next_event(self) -> float | None: ...


class AccountStage(RunningCluster):
    """A cluster beside an account. A process of the controller lives from :meth:`start` to :meth:`stop`."""

    pause = 1.0
    #: Fields of all pods that :meth:`submit` and :meth:`deploy` create.
    pod_spec: Mapping[str, Any] = {}

    def __init__(self, folder: Path) -> None:
        self.now: Callable[[], float] = Clocks().wall
        super().__init__(EmbeddedCluster(Policy(pools=()), now=self.now, conditions=ClusterConditions(delays=QUICK)))
        self.path = folder / "run.yaml"
        #: What cuts the connections of the processes so far.
        self._cuts: list[Callable[[], None]] = []
        self._crashed: list[asyncio.Task[None]] = []
        #: Set when a test does something, after which the account may have events sooner than known: while no controller lives, hours may
        #: pass without a call to it.
        self._touched = asyncio.Event()

    async def pass_time_of(self, account: SteppedAccount) -> None:
        """Let the account's time pass, until cancelled."""
        while True:
            account.advance()
            self._touched.clear()
            following = account.next_event()
            pause = math.inf if following is None else max(0.001, following - self.now())
            if self._lives:
                # Delayed effects of a call show within half a second.
                await asyncio.sleep(min(0.5, pause))
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(60.0, pause)):
                        await self._touched.wait()

    def touch(self) -> None:
        """Look at the account's next event soon."""
        self._touched.set()

    # The controller

    def settings(self) -> str:
        """A run file."""
        raise NotImplementedError

    def provider_maker(self) -> MakeProvider:
        """What makes the provider of one process."""
        raise NotImplementedError

    def start(self, text: str = "", *, identity: str = "one", dry_run: bool = False) -> None:
        self.path.write_text(text or self.settings())
        transport = MemoryTransport(self.cluster.api)
        self._cuts.append(transport.cut)
        running = ControllerProcess(
            file=SettingsFile(self.path),
            transport=transport,
            namespace="kube-system",
            identity=identity,
            clocks=Clocks(),
            make_provider=self.provider_maker(),
            make_records=partial(service.make_service, pod="", host="here", set_level=lambda _level: None),
            dry_run=dry_run,
        )
        self._lives.append(asyncio.get_running_loop().create_task(running.run()))
        self.touch()

    async def stop(self) -> None:
        life = self._lives.pop(0)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    def crash(self) -> None:
        """End all processes at once, as SIGKILL does: the lease stays held, and nothing is finished that has not arrived yet.

        Only what cuts the connections of providers that :meth:`provider_maker` has added to ``_cuts`` ends them, too.
        """
        for cut in self._cuts:
            cut()
        self._cuts.clear()
        while self._lives:
            life = self._lives.pop()
            life.cancel()
            # What is left of its tasks reaches nothing any more, and ends by itself.
            self._crashed.append(life)

    async def status(self) -> Status:
        return parse_status(await self.user.get(CONFIG_MAPS, NAME, namespace="kube-system"))

    # The cluster

    async def submit(self, *names: str, gpus: int = 1, **annotations: str) -> None:
        for name in names:
            await self.user.create(PODS, self._pod(name, gpus, annotations), namespace="default")

    async def deploy(self, name: str, replicas: int = 1, **annotations: str) -> None:
        """A Deployment of pods with a GPU each."""
        made = workload("Deployment", name, self._pod(name, 1, annotations), replicas=replicas)
        await self.user.create(DEPLOYMENTS, made, namespace="default")

    def _pod(self, name: str, gpus: int, annotations: Mapping[str, str]) -> dict[str, Any]:
        pod_annotations = {f"gpuscaler.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
        return pod(name, gpus, pod_annotations, **self.pod_spec)

    async def all_bound(self) -> bool:
        return all((await self.bound()).values())

    async def relabel(self, node: str, labels: Mapping[str, str | None]) -> None:
        """Change labels of a node; None removes one."""
        await self.user.merge_patch(NODES, node, {"metadata": {"labels": dict(labels)}})

    async def no_nodes(self) -> bool:
        return not await self.nodes()

    async def leave_behind(self, node: Mapping[str, Any]) -> None:
        """Add a Node without a machine, which no cloud controller has deleted."""
        metadata = {"name": node["metadata"]["name"], "labels": node["metadata"]["labels"]}
        unknown_status = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
        status = {**node["status"], "conditions": [unknown_status]}
        await self.user.create(NODES, {"metadata": metadata, "spec": {"providerID": node["spec"]["providerID"]}, "status": status})
