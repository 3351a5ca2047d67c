"""The demo put together: the embedded cluster behind a real HTTP server, the controller of `gpuscaler run`, and a submitter of jobs."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from random import Random

from gpuscaler.control.loop.controller import Controller
from gpuscaler.control.process.running import ControllerProcess, ProcessContext, ProviderSetup
from gpuscaler.control.process.settings_file import SettingsFile
from gpuscaler.control.records.events.announcing import Announcer
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.records import Records, Sink
from gpuscaler.embedded.controlplane.cluster import RealCluster
from gpuscaler.embedded.controlplane.plane import ControlPlane
from gpuscaler.embedded.demo.frames import Frame, pending_of, pools_of
from gpuscaler.embedded.demo.scenario import Scenario, conditions
from gpuscaler.embedded.demo.tally import GPU, Tally
from gpuscaler.embedded.demo.workload import NAMESPACE, submissions
from gpuscaler.embedded.serving.cluster import EmbeddedCluster
from gpuscaler.embedded.serving.pacing import PacedLoop
from gpuscaler.embedded.serving.server import serve
from gpuscaler.kube.access import Access
from gpuscaler.kube.client import Client
from gpuscaler.kube.events import EventRecorder
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.resources import JOBS, NODES, PODS
from gpuscaler.lifecycle.reconcile import Reconciliation
from gpuscaler.planning.plans import Plan
from gpuscaler.settings.run_settings import RunSettings
from gpuscaler.simulation.cloud.machines import LOST, CloudEvent

#: Seconds of cluster time between two checks of the state and of the end.
SAMPLE_SECONDS = 15.0
#: Number of events in a frame.
RECENT = 60


@dataclass(slots=True)
class DemoSink(Sink):
    """A sink that keeps the events, and counts promises and plans."""

    happenings: list[HistoryEvent] = field(default_factory=list)
    kept: int = 0
    broken: int = 0
    plans: int = 0

    def happened(self, what: HistoryEvent, /) -> None:
        self.happenings.append(what)

    def observed(self, reconciliation: Reconciliation, /) -> None:
        self.kept = reconciliation.memory.promises.kept
        self.broken = reconciliation.memory.promises.broken

    def planned(self, _plan: Plan, /) -> None:
        self.plans += 1


class DemoRecords(Records):
    """The controller's records, which also write Events."""

    def __init__(self, place: ProcessContext, notes: DemoSink) -> None:
        # Events have a rate limit of their own, so that nothing waits behind them.
        client = Client(place.client.transport, limit=RateLimit())
        self.events = EventRecorder(client.fenced(place.client.fence), place.now)
        super().__init__(sinks=())
        self.sinks = (notes, Announcer(self.events, self.latest))
        self.place = place

    def led_by(self, controller: Controller | None, /) -> None:
        """There is only one."""

    def settings_changed(self, settings: RunSettings, /) -> None:
        """The settings do not change."""

    async def run(self) -> None:
        await self.events.run()


class Demo:
    """One demo, to be run in a :class:`~gpuscaler.embedded.serving.pacing.PacedLoop`.

    ``began`` is the wall clock at the start, in seconds since the epoch. With a ``plane`` the demo runs on that, in any loop.
    """

    def __init__(self, file: SettingsFile, scenario: Scenario, *, began: float, speed: float, plane: ControlPlane | None = None) -> None:
        self.scenario, self.began, self.speed = scenario, began, speed
        self.policy = file.settings.policy
        self.pools_name = file.path.name
        self.last: Frame | None = None
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._zero = self._loop.time()
        weather = conditions(scenario, self.policy, began)
        # No kubelet dies here, and Leases of nodes would be half of all requests. A real control plane needs them anyway.
        self.cluster: EmbeddedCluster | RealCluster = (
            EmbeddedCluster(self.policy, now=self.wall, conditions=replace(weather, leases=False))
            if plane is None
            else RealCluster(self.policy, plane, now=self.wall, conditions=weather)
        )
        self.cluster.listeners.append(self._heard)
        self.tally = Tally(self.wall)
        self.notes = DemoSink()
        self.lost: list[CloudEvent] = []
        self.server = ""
        self._records: DemoRecords | None = None
        self._seen: Picture | None = None

    # Clocks of the controller

    def wall(self) -> float:
        return self.began + self.elapsed

    def monotonic(self) -> float:
        return self._loop.time()

    @property
    def elapsed(self) -> float:
        """Seconds of cluster time since the start."""
        return self._loop.time() - self._zero

    def _heard(self, event: CloudEvent) -> None:
        if event.kind == LOST:
            self.lost.append(event)

    # Running

    async def run(self) -> None:
        """Run until all work is done and every machine is removed, or until the time is over."""
        async with AsyncExitStack() as stack:
            access = await self._serve_api(stack)
            self.server = access.server
            transport = await stack.enter_async_context(HttpTransport(access))
            user = await stack.enter_async_context(HttpTransport(access))
            client = Client(user, field_manager="demo", limit=RateLimit(qps=1e6, burst=1_000_000))
            self._seen = Picture(client, clock=self.monotonic, random=Random(self.scenario.seed), resources=(NODES, PODS))
            self._seen.listen(self.tally.hear)
            running = ControllerProcess(
                file=self._file,
                transport=transport,
                namespace="kube-system",
                identity="demo",
                clocks=self,
                make_provider=self._make_provider,
                make_records=self._make_records,
            )
            lives = [
                asyncio.create_task(coroutine) for coroutine in (self.cluster.run(), self._seen.run(), running.run(), self._submit(client))
            ]
            try:
                await self._until_done(lives)
            finally:
                self.last = await self.frame()
                for life in lives:
                    life.cancel()
                await asyncio.gather(*lives, return_exceptions=True)

    async def _serve_api(self, stack: AsyncExitStack) -> Access:
        """The transport to the API server, which exists until ``stack`` is closed."""
        if isinstance(self.cluster, RealCluster):
            return self.cluster.plane.access()
        serving = await serve(self.cluster.api)
        stack.push_async_callback(serving.close)
        return Access(serving.url, "the demo")

    async def _make_provider(self, _settings: RunSettings, _place: ProcessContext) -> ProviderSetup:
        return ProviderSetup(provider=self.cluster.provider)

    def _make_records(self, _settings: RunSettings, place: ProcessContext) -> DemoRecords:
        self._records = DemoRecords(place, self.notes)
        return self._records

    async def _submit(self, client: Client) -> None:
        for submission in submissions(self.scenario.trace):
            await asyncio.sleep(max(0.0, submission.at - self.elapsed))
            await client.create(JOBS, submission.job, namespace=NAMESPACE)
        await asyncio.Event().wait()

    async def _until_done(self, lives: list[asyncio.Task[None]]) -> None:
        wanted = sum(job.pods for job in self.scenario.trace.jobs)
        while self.elapsed < self.scenario.span:
            await asyncio.sleep(SAMPLE_SECONDS / self.scenario.haste)
            for life in lives:
                if life.done():
                    life.result()
            core, now = self.cluster.core, self.wall()
            paid = sum(machine.offering.allocatable.get(GPU, 0) for machine in core.list())
            self.tally.sample(paid=paid, dollars_per_hour=core.dollars_per_hour(now))
            if sum(life.finished for life in self.tally.lives) >= wanted and not core.list():
                return

    # Frames

    async def frame(self) -> Frame | None:
        """The current state; None before anything is known."""
        if self._seen is None or self._records is None:
            return None
        cluster, latest = (await self._seen.take()).cluster, self._records.latest
        core, now = self.cluster.core, self.wall()
        lives = self.tally.lives
        return Frame(
            elapsed=self.elapsed,
            span=self.scenario.span,
            speed=self.speed,
            behind=self._loop.behind if isinstance(self._loop, PacedLoop) else 0.0,
            pools=pools_of(cluster, latest, core, now),
            pending=pending_of(cluster, latest, now),
            running=sum(life.started is not None and life.ended is None for life in lives),
            finished=sum(life.finished for life in lives),
            dollars_per_hour=core.dollars_per_hour(now),
            spent=sum(core.cost(machine, now) for machine in core.history()),
            troubles=self._records.place.troubles(),
            server=self.server,
            happenings=tuple(self.notes.happenings[-RECENT:]),
        )
