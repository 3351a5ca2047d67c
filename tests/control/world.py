"""A whole cluster with one controller in virtual time; its process can die at any step and start again."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from tests.control.violations import stop_on_violation
from tests.objects import pod
from tests.running_cluster import RunningCluster

from gpuscaler.clouds.protocol import BuyResult, Notice, Order, Provider, Refusal, UnfilledOrder
from gpuscaler.control.loop.attempts import Attempts
from gpuscaler.control.loop.cloud import OrderAnswer
from gpuscaler.control.loop.cluster_writes import Outcome
from gpuscaler.control.loop.controller import Controller
from gpuscaler.control.loop.ending import EndResult
from gpuscaler.control.loop.holding import HoldWatcher, write_holds
from gpuscaler.control.loop.store import MemoryStore
from gpuscaler.control.process.pools import DiscoveredPools
from gpuscaler.embedded.serving.cluster import Conditions, EmbeddedCluster
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.resources import PODS
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.lifecycle.interruptions import Remark
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.observed.machine_index import Unpooled
from gpuscaler.lifecycle.pacing import Pace
from gpuscaler.lifecycle.reconcile import Reconciliation
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.holds import Hold
from gpuscaler.model.instances import Inventory
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.model.scheduled_events import ScheduledEvent
from gpuscaler.planning.plans import Cut, Plan
from gpuscaler.planning.state import State
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.settings.pools_file import parse_policy
from gpuscaler.simulation.cloud.delays import Delay, Delays
from gpuscaler.simulation.cloud.provider import CallFaults

T = TypeVar("T")

#: Times that make a run short: tests check the order of steps, and not durations.
QUICK = Delays(boot=Delay(15.0, 20.0, 40.0), device_plugin=Delay(2.0, 5.0, 10.0), answer=Delay(0.5, 1.0, 3.0), image_pull=Delay(0, 0, 0))
#: The wall clock at the beginning.
BEGAN = 1_800_000_000.0

ONE_GPU_MACHINES = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
"""


class Death(BaseException):
    """The death of the process."""


class DeathPlan:
    """Kills the controller after a number of steps; a step is a write to the API server or a call to the cloud.

    With ``before``, the last step is not made.
    """

    def __init__(self, at: int | None = None, *, before: bool = False) -> None:
        self.at = at
        self.before = before
        self.steps = 0
        self.dead = asyncio.Event()

    async def step(self, call: Callable[[], Awaitable[Any]]) -> Any:
        if self.dead.is_set():
            await asyncio.Event().wait()
        self.steps += 1
        if self.steps == self.at and self.before:
            self.dead.set()
            await asyncio.Event().wait()
        # Calls in progress are not recalled when a process dies.
        made = asyncio.ensure_future(call())
        made.add_done_callback(_ignore_result)
        answer = await asyncio.shield(made)
        if self.at is not None and self.steps >= self.at:
            self.dead.set()
            await asyncio.Event().wait()
        return answer


def _ignore_result(made: asyncio.Future[Any]) -> None:
    """Ignore the result of a call after the process has died."""
    if not made.cancelled():
        made.exception()


class CallObserver:
    """Gets everything that leaves the controller's process, before it does."""

    async def write(self, request: Request) -> None:
        """A write to the API server."""

    async def buy(self, order: Order) -> None:
        """A purchase."""

    async def remove(self, ids: Sequence[str]) -> None:
        """The end of machines."""


class MortalTransport:
    """A transport with writes as steps, and with watches that are ``watch_lag`` seconds behind, as those of a busy API server are."""

    def __init__(self, inner: MemoryTransport, deaths: DeathPlan, watchman: CallObserver, watch_lag: float = 0.0) -> None:
        self._inner, self._deaths, self._watchman, self._watch_lag = inner, deaths, watchman, watch_lag

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        if request.method == "GET":
            async with self._inner.exchange(request) as answer:
                if self._watch_lag and "watch" in request.query:
                    async with delayed(answer.pieces, self._watch_lag) as pieces:
                        yield Answer(answer.status, answer.headers, pieces)
                else:
                    yield answer
            return

        with stop_on_violation():
            await self._watchman.write(request)

        async def call() -> Answer:
            async with self._inner.exchange(request) as answer:
                body = b"".join([piece async for piece in answer.pieces])
                return Answer(answer.status, answer.headers, in_pieces(body))

        yield await self._deaths.step(call)

    async def close(self) -> None:
        await self._inner.close()


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    yield body


@asynccontextmanager
async def delayed(pieces: AsyncIterator[bytes], seconds: float) -> AsyncIterator[AsyncIterator[bytes]]:
    """``pieces``, each ``seconds`` after it came."""
    loop = asyncio.get_running_loop()
    come = asyncio.Queue[tuple[float, bytes | BaseException | None]]()

    async def receive() -> None:
        try:
            async for piece in pieces:
                come.put_nowait((loop.time(), piece))
        except Exception as error:  # noqa: BLE001  # it is raised where the pieces are read
            come.put_nowait((loop.time(), error))
        else:
            come.put_nowait((loop.time(), None))

    async def pass_on() -> AsyncIterator[bytes]:
        while True:
            at, piece = await come.get()
            await asyncio.sleep(at + seconds - loop.time())
            if piece is None:
                return
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    receiving = asyncio.create_task(receive())
    try:
        yield pass_on()
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)


class ProviderRelay:
    """The connection of one process to the cloud; subclasses decide how reads and writes are passed on and who sees them before."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner
        self.name, self.keeps_tokens, self.read_lag = inner.name, inner.keeps_tokens, inner.read_lag

    async def read(self, call: Callable[[], Awaitable[T]]) -> T:
        return await call()

    async def write(self, what: str, call: Callable[[], Awaitable[T]], /) -> T:
        raise NotImplementedError

    async def show(self, see: Callable[[CallObserver], Awaitable[None]]) -> None:
        raise NotImplementedError

    async def pools(self) -> Sequence[Pool]:
        return await self.read(self._inner.pools)

    async def inventory(self) -> Inventory:
        return await self.read(self._inner.inventory)

    async def notices(self) -> Sequence[Notice]:
        return await self.read(self._inner.notices)

    async def buy(self, order: Order) -> BuyResult:
        await self.show(lambda watchman: watchman.buy(order))
        return await self.write("buy", lambda: self._inner.buy(order))

    async def follow(self, orders: Sequence[UnfilledOrder], /) -> Sequence[tuple[str, BuyResult]]:
        return await self._inner.follow(orders)

    async def withdraw(self, rest: UnfilledOrder, /) -> None:
        await self.write("withdraw", lambda: self._inner.withdraw(rest))

    async def remove(self, ids: Sequence[str]) -> Mapping[str, Refusal | None]:
        await self.show(lambda watchman: watchman.remove(ids))
        return await self.write("remove", lambda: self._inner.remove(ids))

    async def extend(self, ids: Sequence[str]) -> None:
        await self.write("extend", lambda: self._inner.extend(ids))

    async def protect(self, ids: Sequence[str], *, on: bool) -> None:
        await self.write("protect", lambda: self._inner.protect(ids, on=on))

    async def close(self) -> None:
        """The cloud outlives the process."""


class MortalProvider(ProviderRelay):
    """A provider with changing calls as steps."""

    def __init__(self, inner: Provider, deaths: DeathPlan, watchman: CallObserver, more: Sequence[Notice] = ()) -> None:
        super().__init__(inner)
        self._deaths, self._watchman, self._more = deaths, watchman, more

    async def write(self, _what: str, call: Callable[[], Awaitable[T]], /) -> T:
        made: T = await self._deaths.step(call)
        return made

    async def show(self, see: Callable[[CallObserver], Awaitable[None]]) -> None:
        with stop_on_violation():
            await see(self._watchman)

    async def notices(self) -> Sequence[Notice]:
        return (*await super().notices(), *self._more)


@dataclass
class CountingRecorder:
    """A recorder that counts."""

    orders: list[ledger.Order] = field(default_factory=list)
    plans: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    kept: list[tuple[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    unpooled: tuple[Unpooled, ...] = ()
    unlisted: frozenset[str] = frozenset()
    #: The times at which consolidation was considered.
    weighed: list[float] = field(default_factory=list)
    last: Plan | None = None
    #: The inputs of the last plan, and its time.
    state: State | None = None
    planned_at: float = 0.0
    #: The cloud's list as the controller has it now, as of the last observation, and as the last plan counted it: while a plan is made,
    #: and until its orders are saved, another list may come.
    newest_list: Callable[[], Inventory | None] = lambda: None
    seen_list: Inventory | None = None
    planned_list: Inventory | None = None
    #: Machines that the hard stop cut from plans; there should be none.
    cut: list[Cut] = field(default_factory=list)
    decisions: int = 0
    decision_ids: Mapping[str, str] = field(default_factory=dict)

    def set_discovered_pools(self, _found: DiscoveredPools | None, /) -> None:
        """Ignored: the pools are those of the file."""

    def observed(self, seen: Reconciliation, _cluster: Cluster, _now: float, /) -> None:
        self.seen_list = self.newest_list()
        self.kept += seen.kept
        self.stray += seen.stray
        self.remarks += seen.remarks
        self.unpooled, self.unlisted = seen.unpooled, seen.unlisted
        for outcome in seen.outcomes:
            self.outcomes[type(outcome).__name__] += 1

    def planned(self, plan: Plan, _cluster: Cluster, state: State, _policy: Policy, now: float, /) -> None:
        self.plans += 1
        self.weighed += [now] * state.consolidating
        self.last, self.state, self.planned_at, self.planned_list = plan, state, now, self.seen_list
        self.cut += plan.cut

    def sent(self, order: ledger.Order, _machines: tuple[ledger.OrderedMachine, ...], _memory: Memory, _now: float, /) -> None:
        self.orders.append(order)

    def answered(self, _answer: OrderAnswer, _now: float, /) -> None:
        """Ignored: the cloud counts answers."""

    def acted(self, outcome: Outcome, _now: float, /) -> None:
        if outcome.detail:
            self.failures.append(outcome.detail)

    def ended(self, ended: EndResult, _now: float, /) -> None:
        if ended.detail:
            self.failures.append(ended.detail)

    def failed(self, what: str, error: BaseException, _now: float, /) -> None:
        self.failures.append(f"{what}: {error}")


class World(RunningCluster):
    """An embedded cluster for ``policy``, and a controller that lives from :meth:`start` to :meth:`kill`.

    The controller's watches are ``watch_lag`` seconds behind. The wall clock starts at ``began``.
    """

    def __init__(
        self, policy: Policy, *, conditions: Conditions, pace: Pace | None = None, watch_lag: float = 0.0, began: float = BEGAN
    ) -> None:
        loop = asyncio.get_running_loop()
        ahead = began - loop.time()
        self.now: Callable[[], float] = lambda: ahead + loop.time()
        self.policy = policy
        self.pace = pace or Pace()
        self.watch_lag = watch_lag
        super().__init__(EmbeddedCluster(policy, now=self.now, conditions=conditions))
        self.controller: Controller | None = None
        self.notes = CountingRecorder(newest_list=lambda: None if self.controller is None else self.controller.cloud.inventory)
        #: Whether a test causes unexpected errors in the controller.
        self.fails_on_purpose = False
        self.deaths = DeathPlan()
        self.watchman = CallObserver()
        #: Notices that the cloud repeats at each request, beside its own.
        self.announced: list[Notice] = []
        #: Scheduled events of nodes on pages of exporters.
        self.page_events: dict[str, ScheduledEvent] = {}
        self.network: MemoryTransport | None = None

    def start(self, deaths: DeathPlan | None = None) -> None:
        """Start a new process of the controller."""
        loop = asyncio.get_running_loop()
        self.deaths = deaths or DeathPlan()
        self.network = MemoryTransport(self.cluster.api)
        client = Client(
            MortalTransport(self.network, self.deaths, self.watchman, self.watch_lag),
            field_manager="gpuscaler",
            limit=RateLimit(qps=1e9, burst=1_000_000),
        )
        picture = self.cluster.picture(client)
        attempts = Attempts(client)
        self.hold_watcher = HoldWatcher(client, namespace="kube-system", now=self.now)
        self.controller = Controller(
            picture=picture,
            client=client,
            provider=MortalProvider(self.cluster.provider, self.deaths, self.watchman, self.announced),
            store=MemoryStore(client, namespace="kube-system"),
            policy=self.policy,
            recorder=self.notes,
            now=self.now,
            attempts=attempts,
            pace=self.pace,
            hold_watcher=self.hold_watcher,
            page_events=lambda: self.page_events,
        )
        parts = (picture.run(), attempts.run(), self.controller.run(), self.hold_watcher.run(self.controller.plan_soon))
        self._lives += [loop.create_task(part) for part in parts]

    async def kill(self) -> None:
        """Kill the process between two of its steps."""
        self.deaths.dead.set()
        await super().kill()

    async def until_dead(self, within: float) -> bool:
        """Wait for the planned death; False if it did not come ``within`` seconds."""
        try:
            async with asyncio.timeout(within):
                await self.deaths.dead.wait()
        except TimeoutError:
            return False
        await self.kill()
        return True

    async def hold(self, **changes: Hold | None) -> None:
        """Set holds as ``gpuscaler hold`` and ``resume`` do: ``buying`` or ``removing``, None to resume."""
        await write_holds(self.user, "kube-system", changes)

    async def submit(self, name: str, gpus: int = 1, **annotations: str) -> None:
        await self.user.create(PODS, pod(name, gpus, annotations), namespace="default")


@asynccontextmanager
async def world(
    pools: str = ONE_GPU_MACHINES,
    *,
    seed: int = 0,
    delays: Delays = QUICK,
    calls: CallFaults | None = None,
    pace: Pace | None = None,
    watch_lag: float = 0.0,
    began: float = BEGAN,
    **more: Any,
) -> AsyncIterator[World]:
    """A world that is closed at the end."""
    conditions = Conditions(seed=seed, delays=delays, calls=calls or CallFaults(), **more)
    made = World(parse_policy(pools), conditions=conditions, pace=pace, watch_lag=watch_lag, began=began)
    try:
        yield made
    finally:
        await made.close()


def seeded_random(seed: int, *what: object) -> Random:
    """Random numbers that depend only on ``seed`` and ``what``."""
    return Random("/".join(map(str, (seed, *what))))
