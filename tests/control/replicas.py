"""Several processes of the controller for one cluster, each with its own clocks and network; any of them may stop and continue."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tests.control.violations import stop_on_violation
from tests.control.world import ONE_GPU_MACHINES, CallObserver, CountingRecorder, ProviderRelay, World, in_pieces, world

from gpuscaler.clouds.protocol import LostAnswerError, Provider
from gpuscaler.control.loop.controller import Controller
from gpuscaler.control.loop.failing import CALL_SECONDS
from gpuscaler.control.process.running import ControllerProcess, ProcessContext, ProviderSetup
from gpuscaler.control.process.settings_file import SettingsFile
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.errors import NotFound, Unreachable
from gpuscaler.kube.resources import LEASES
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.settings.run_settings import RunSettings
from gpuscaler.simulation.cloud.provider import CallFaults

T = TypeVar("T")

#: How long a write to the API server may take, in seconds; a client passes it to its fence.
WRITE_SECONDS = 5.0
FILE = f"cloud: simulated\n{ONE_GPU_MACHINES}    idle_after: 60s\n"


@dataclass
class WriteChecker:
    """Checks each write and call when it begins: only the leader's are allowed, and none while another process may still write (I10)."""

    here: World
    until: dict[str, float] = field(default_factory=dict)
    writers: list[str] = field(default_factory=list)
    calls: int = 0

    async def begin(self, replica: str, what: str, seconds: float) -> None:
        leader = await lease_holder(self.here)
        assert leader == replica, f"I10: {replica} began {what} while {leader} leads"
        now = asyncio.get_running_loop().time()
        for other, until in self.until.items():
            assert other == replica or until <= now, f"I10: {replica} began {what} while {other} may write for {until - now:.1f} s more"
        self.until[replica] = max(self.until.get(replica, 0.0), now + seconds)
        if not self.writers or self.writers[-1] != replica:
            self.writers.append(replica)
        self.calls += 1


@dataclass
class Suspension:
    """A process that is suspended. The call at which it stops is sent once it continues, and so are other reads; nothing else is.

    ``at`` is a word of the call at which it stops: one that the fence has admitted, or a read before a fence.
    """

    at: str | None = None
    stopped: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def through(self, call: Callable[[], Awaitable[Any]], *, what: str = "") -> Any:
        """Make ``call``; ``what`` names it if it passed a fence."""
        if self.at is not None and what and self.at in what:
            self.stop()
            late = asyncio.ensure_future(self._late(call))
            late.add_done_callback(lambda made: None if made.cancelled() else made.exception())
            return await asyncio.shield(late)
        if self.stopped:
            await self.over.wait()
            if what.startswith("GET"):
                return await call()
            raise Unreachable("the process was stopped, and this was never sent")
        return await call()

    async def _late(self, call: Callable[[], Awaitable[Any]]) -> Any:
        await self.over.wait()
        return await call()

    def stop(self) -> None:
        self.at, self.stopped = None, True
        self.reached.set()

    def resume(self) -> None:
        self.at, self.stopped = None, False
        self.reached.clear()
        self.over.set()
        self.over = asyncio.Event()


class ReplicaTransport:
    """The network of one process. With ``deaf``, answers to renewals of the lease are lost."""

    def __init__(self, inner: MemoryTransport, name: str, register: WriteChecker, pause: Suspension) -> None:
        self.inner, self.name, self.register, self.pause = inner, name, register, pause
        self.deaf = False
        self.methods: set[str] = set()

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        self.methods.add(request.method)
        if request.method == "GET":
            await self.pause.through(_do_nothing, what=f"GET {request.path}")
            async with self.inner.exchange(request) as answer:
                yield answer
            return
        of_lease = "/leases" in request.path
        what = "" if of_lease else f"{request.method} {request.path}"
        if of_lease and b'"holderIdentity":""' in request.body:
            # A process that releases the lease has no calls in progress any more.
            self.register.until.pop(self.name, None)
        if what and not self.pause.stopped:
            with stop_on_violation():
                await self.register.begin(self.name, what, WRITE_SECONDS)
                await self.register.here.watchman.write(request)

        async def call() -> tuple[int, Mapping[str, str], bytes]:
            async with self.inner.exchange(request) as answer:
                return answer.status, answer.headers, b"".join([piece async for piece in answer.pieces])

        status, headers, body = await self.pause.through(call, what=what)
        if of_lease and self.deaf:
            raise Unreachable(f"{request.method} {request.path}: the answer was lost")
        yield Answer(status, headers, in_pieces(body))

    async def close(self) -> None:
        await self.inner.close()


async def _do_nothing() -> None:
    return None


class ReplicaProvider(ProviderRelay):
    """The connection to the cloud of a process that may be suspended."""

    def __init__(self, inner: Provider, name: str, register: WriteChecker, pause: Suspension) -> None:
        super().__init__(inner)
        self._name, self._register, self._pause = name, register, pause
        self.writes = 0

    async def read(self, call: Callable[[], Awaitable[T]]) -> T:
        return await self._through(call)

    async def write(self, what: str, call: Callable[[], Awaitable[T]], /) -> T:
        self.writes += 1
        if not self._pause.stopped:
            with stop_on_violation():
                await self._register.begin(self._name, what, CALL_SECONDS)
        return await self._through(call, what=what)

    async def _through(self, call: Callable[[], Awaitable[T]], *, what: str = "") -> T:
        try:
            made: T = await self._pause.through(call, what=what)
        except Unreachable as error:
            raise LostAnswerError(str(error)) from error
        return made

    async def show(self, see: Callable[[CallObserver], Awaitable[None]]) -> None:
        if not self._pause.stopped:
            with stop_on_violation():
                await see(self._register.here.watchman)


class ReplicaRecords(CountingRecorder):
    """Records that exist as long as the process."""

    def led_by(self, controller: Controller | None, /) -> None:
        self.controller = controller

    def settings_changed(self, settings: RunSettings, /) -> None:
        """Settings are not recorded."""

    async def run(self) -> None:
        await asyncio.Event().wait()


class Replica:
    """One process of `gpuscaler run`. ``skew`` is the error of its wall clock in seconds; its monotonic clock has another origin."""

    def __init__(self, here: World, file: Path, name: str, register: WriteChecker, *, skew: float = 0.0, dry_run: bool = False) -> None:
        self.name, self.skew, self._looked = name, skew, 0.0
        self.here, self.register = here, register
        self.pause = Suspension()
        self.place: ProcessContext | None = None
        self.network = MemoryTransport(here.cluster.api)
        self.line = ReplicaTransport(self.network, name, register, self.pause)
        self.desk = ReplicaProvider(here.cluster.provider, name, register, self.pause)
        self.record = ReplicaRecords()
        self.running = ControllerProcess(
            file=SettingsFile(file),
            transport=self.line,
            namespace="kube-system",
            identity=name,
            clocks=self,
            make_provider=self._provider,
            make_records=lambda _settings, _place: self.record,
            dry_run=dry_run,
        )
        self._task = asyncio.get_running_loop().create_task(self.running.run())

    async def _provider(self, _settings: RunSettings, place: ProcessContext) -> ProviderSetup:
        self.place = place
        return ProviderSetup(provider=self.desk)

    def wall(self) -> float:
        return self.here.now() + self.skew

    def monotonic(self) -> float:
        """The monotonic clock. A suspended process does not read it, so it stands still until the process continues."""
        if not self.pause.stopped:
            self._looked = asyncio.get_running_loop().time() + 1000.0 * len(self.name)
        return self._looked

    async def kill(self) -> None:
        """End the process at once, without releasing the lease."""
        self.network.cut()
        self.pause.stop()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.register.until.pop(self.name, None)

    async def end(self) -> None:
        """End the process in good order."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def check(self) -> None:
        if self._task.done() and not self._task.cancelled():
            self._task.result()


async def lease_holder(here: World) -> str:
    """The holder of the lease."""
    try:
        lease = msgspec.json.decode(await here.user.get(LEASES, "gpuscaler", namespace="kube-system"))
    except NotFound:
        return ""
    return str(lease["spec"].get("holderIdentity") or "")


class ReplicaPair:
    """Two replicas, ``one`` and ``second``, with wall clocks that are minutes apart."""

    def __init__(self, here: World, file: Path) -> None:
        self.here, self.file = here, file
        self.register = WriteChecker(here)
        self.pods = 0
        self.replicas = [self.replica("one", 120.0), self.replica("second", -120.0)]

    def replica(self, name: str, skew: float) -> Replica:
        return Replica(self.here, self.file, name, self.register, skew=skew)

    async def sleep(self, seconds: float) -> None:
        while seconds > 0:
            await self.here.sleep(min(seconds, 5.0))
            seconds -= 5.0
            for replica in self.replicas:
                replica.check()
            await self.check_nothing_lost()

    async def check_nothing_lost(self) -> None:
        """Check that running pods keep their machines."""
        machines = {machine.id for machine in self.here.cluster.core.list()}
        for pod in await self.here.pods():
            node = pod["spec"].get("nodeName")
            lost = node and pod["status"].get("phase") == "Running" and node not in machines
            assert not lost, f"machine {node} was ended under pod {pod['metadata']['name']}"

    async def submit(self, runs: str = "") -> None:
        await self.here.submit(f"p{self.pods}", 1, **({"gpuscaler.io/run-for": runs} if runs else {}))
        self.pods += 1

    async def leader(self) -> Replica:
        name = await lease_holder(self.here)
        return next(replica for replica in self.replicas if replica.name == name)

    def other(self, replica: Replica) -> Replica:
        return next(other for other in self.replicas if other is not replica)

    async def until_taken_over(self, after: Replica, *, within: float) -> float:
        """Seconds until another process than ``after`` leads."""
        began = self.here.now()
        while await lease_holder(self.here) in ("", after.name):
            assert self.here.now() < began + within, f"no process took over from {after.name} within {within:g} s"
            await asyncio.sleep(0.1)
        return self.here.now() - began

    async def restart(self, replica: Replica) -> None:
        self.replicas[self.replicas.index(replica)] = self.replica(replica.name + "x", replica.skew)

    async def close(self) -> None:
        for replica in self.replicas:
            replica.network.mend()
            await replica.kill()


@asynccontextmanager
async def pair(folder: Path, *, text: str = FILE, seed: int = 0, calls: CallFaults | None = None) -> AsyncIterator[ReplicaPair]:
    file = folder / "run.yaml"
    file.write_text(text)
    async with world(text.removeprefix("cloud: simulated\n"), seed=seed, calls=calls) as here:
        made = ReplicaPair(here, file)
        try:
            await made.sleep(5.0)
            yield made
        finally:
            await made.close()
