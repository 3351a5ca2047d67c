"""The controller in a separate process, assembled as by ``gpuscaler run``, with a watchdog on its event loop.

Commands come on standard input: ``{"mark": NAME}`` prints the measurements since the last mark, the end of the input ends the process.
"""

import asyncio
import gc
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import structlog
from tests.model import realistic

from benchmarks.live_server import open_stdin, write_line
from gpuscaler.clouds.protocol import BuyResult, Notice, Order, Refusal, UnfilledOrder
from gpuscaler.control.process.running import ControllerProcess, ProcessContext, ProviderSetup
from gpuscaler.control.process.settings_file import SettingsFile
from gpuscaler.control.records.events import happening
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.records import Sink
from gpuscaler.control.records.service import Service, make_service
from gpuscaler.kube.access import Access
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.tls import Tls
from gpuscaler.lifecycle.reconcile import Reconciliation
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.pools import Pool
from gpuscaler.planning.plans import Plan
from gpuscaler.settings.run_settings import RunSettings

#: Interval at which the event loop is checked, in seconds.
TICK_SECONDS = 0.005


class GrantingCloud:
    """A cloud that grants everything, with machines that never boot: only the time of the order is measured."""

    name, keeps_tokens, read_lag = "benchmark", True, 0.0

    def __init__(self, pools: Sequence[Pool], nodes: int) -> None:
        self._pools = pools
        self._instances = [self._existing_instance(realistic.node(number)) for number in range(nodes)]
        self.ordered_at: dict[str, float] = {}

    def _existing_instance(self, node: Mapping[str, dict[str, dict[str, str]]]) -> Instance:
        labels = node["metadata"]["labels"]
        instance_type, zone = labels["node.kubernetes.io/instance-type"], labels["topology.kubernetes.io/zone"]
        return Instance(str(node["spec"]["providerID"]), labels["gpuscaler.io/pool"], "on-demand", instance_type, zone)

    async def pools(self) -> Sequence[Pool]:
        return self._pools

    async def inventory(self) -> Inventory:
        return Inventory(time.time(), tuple(self._instances))

    async def buy(self, order: Order) -> BuyResult:
        self.ordered_at.setdefault(order.token, time.monotonic())
        granted = [
            Instance(f"{order.token}-{number}", *order.offerings[0], launched=time.time(), token=order.token)
            for number in range(order.count)
        ]
        self._instances += granted
        return BuyResult(tuple(granted))

    async def follow(self, _orders: Sequence[UnfilledOrder], /) -> Sequence[tuple[str, BuyResult]]:
        """Every answer was final."""
        return ()

    async def withdraw(self, _rest: UnfilledOrder, /) -> None:
        """Everything was granted."""

    async def remove(self, ids: Sequence[str]) -> Mapping[str, Refusal | None]:
        ended = set(ids)
        self._instances = [instance for instance in self._instances if instance.id not in ended]
        return dict.fromkeys(ids)

    async def extend(self, ids: Sequence[str]) -> None:
        """No lifecycle hook holds a machine here."""

    async def protect(self, ids: Sequence[str], *, on: bool) -> None:
        """No group balances zones here."""

    async def notices(self) -> Sequence[Notice]:
        return ()

    async def close(self) -> None:
        """No connection is open."""


class OrderRecorder(Sink):
    """Remembers which pods each order was for, and counts. The first pass runs when everything has been listed."""

    def __init__(self) -> None:
        self.ordered: dict[str, tuple[str, ...]] = {}
        self.counts = {"looks": 0, "plans": 0, "acts": 0}
        self.first_pass, self.first_plan = asyncio.Event(), asyncio.Event()

    def happened(self, event: HistoryEvent, /) -> None:
        if event.kind == happening.ORDERED:
            self.ordered[event.order] = event.pods

    def observed(self, reconciliation: Reconciliation, /) -> None:
        self.counts["looks"] += 1
        self.counts["acts"] += len(reconciliation.acts)
        self.first_pass.set()

    def planned(self, _plan: Plan, /) -> None:
        self.counts["plans"] += 1
        self.first_plan.set()


class LoopWatchdog:
    """How long the event loop was blocked, and the resource use of the process, since the last mark."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()
        self._worst, self._worst_own, self._over = 0.0, 0.0, 0

    def mark(self) -> dict[str, float]:
        wall, cpu = self._wall, self._cpu
        worst, worst_own, over = self._worst, self._worst_own, self._over
        self._wall, self._cpu = time.monotonic(), time.process_time()
        self._worst, self._worst_own, self._over = 0.0, 0.0, 0
        return {"wall": self._wall - wall, "cpu": self._cpu - cpu, "stall": worst, "own_stall": worst_own, "stalls": over}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        wall, cpu = time.monotonic(), time.process_time()

        def tick() -> None:
            nonlocal wall, cpu
            late, cpu_used = time.monotonic() - wall - TICK_SECONDS, time.process_time() - cpu
            # On a shared machine the process may also be late because of others: time that it did not use was taken by them.
            own = min(late, cpu_used)
            self._worst, self._worst_own = max(self._worst, late), max(self._worst_own, own)
            self._over += own > 0.05
            wall, cpu = time.monotonic(), time.process_time()
            # A call of the loop instead of a sleeping task: this halves the watchdog's own cost.
            loop.call_later(TICK_SECONDS, tick)

        loop.call_later(TICK_SECONDS, tick)
        await asyncio.Event().wait()


def peak_memory_mb() -> float:
    """The peak resident memory so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def run_controller(config: Path, url: str, authority: Path, nodes: int) -> None:
    recorder, watchdog, file = OrderRecorder(), LoopWatchdog(), SettingsFile(config)
    cloud = GrantingCloud(file.settings.policy.pools, nodes)

    async def make_provider(_settings: RunSettings, _context: ProcessContext) -> ProviderSetup:
        return ProviderSetup(provider=cloud)

    def make_records(settings: RunSettings, context: ProcessContext) -> Service:
        service = make_service(settings, context, pod="", host="here", set_level=lambda _level: None)
        service.sinks = (*service.sinks, recorder)
        return service

    gc.freeze()
    access = Access(server=url, source="benchmark", tls=Tls(authority_file=authority))
    async with HttpTransport(access) as transport, asyncio.TaskGroup() as tasks:
        controller = ControllerProcess(
            file=file,
            transport=transport,
            namespace="kube-system",
            identity="benchmark",
            clocks=Clocks(),
            make_provider=make_provider,
            make_records=make_records,
        )
        running = [tasks.create_task(watchdog.run()), tasks.create_task(controller.run())]
        await recorder.first_pass.wait()
        write_line(mark="ingest", megabytes=peak_memory_mb(), **watchdog.mark())
        await recorder.first_plan.wait()
        write_line(mark="planned", megabytes=peak_memory_mb(), **watchdog.mark())
        async for line in await open_stdin():
            write_line(mark=msgspec.json.decode(line)["mark"], megabytes=peak_memory_mb(), **watchdog.mark(), **recorder.counts)
        write_line(
            mark="ordered", ordered_at={pod: cloud.ordered_at.get(token, 0.0) for token, pods in recorder.ordered.items() for pod in pods}
        )
        for task in running:
            task.cancel()


class Clocks:
    """The machine's clocks."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    arguments = sys.argv[1:]
    asyncio.run(run_controller(Path(arguments[0]), arguments[1], Path(arguments[2]), int(arguments[3])))
