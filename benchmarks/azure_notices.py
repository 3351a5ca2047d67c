"""From an eviction that Azure announces on a machine to the taint, and to the order for its replacement.

The exporter's watcher, the controller and our Azure account run in virtual time. The eviction is announced in several phases of the
watcher's polls, right after one of them included, so that the next one is as far away as possible.
"""

from collections.abc import Iterator
from functools import partial

from msgspec import Struct
from tests.control.leaving import CHEAP_RESTART
from tests.embedded.azure.memory import URL
from tests.objects import pod, workload

from benchmarks.azure_failover import ON_DEMAND_SIZE, TOLERATIONS
from benchmarks.azure_world import AzureWorld, azure_world
from benchmarks.cloud_world import BOOT
from benchmarks.figures import Figure
from benchmarks.live_scenes import run_in_virtual_time
from gpuscaler.embedded.azure import Conditions, making
from gpuscaler.embedded.azure.wire.requests import Request
from gpuscaler.exporter.scheduled_events.metadata_service import MetadataError
from gpuscaler.exporter.scheduled_events.own_node import OwnNode
from gpuscaler.exporter.scheduled_events.watching import EventWatcher
from gpuscaler.kube.resources import REPLICA_SETS
from gpuscaler.model.azure_names import event_resource
from gpuscaler.model.well_known import LEAVING_TAINT

PHASES = (0.0, 0.5, 1.0, 1.5)
POLL_SECONDS, NOTICE_SECONDS = 2.0, 30.0
TAINT_SECONDS, ORDER_SECONDS = 3.0, 4.0


class Notice(Struct, frozen=True):
    """Seconds from the announcement to the taint, and to the order for a replacement."""

    taint: float
    order: float


class AccountMetadata:
    """The metadata service of a machine of the account, without a network."""

    def __init__(self, here: AzureWorld, machine: str) -> None:
        self._here, self._machine = here, machine
        self.polls = 0

    async def events(self) -> bytes:
        self.polls += 1
        path = f"/_machines/{self._machine}/metadata/scheduledevents"
        return self._here.endpoint.handle(Request("GET", path, {"metadata": "true"}, b"", "api-version=2020-07-01", URL)).body

    async def machine_name(self) -> str:
        raise MetadataError("the name of the node is enough", missing=True)

    async def start(self, event_id: str) -> None:
        raise AssertionError(event_id)


def figures() -> Iterator[Figure]:
    notices = [run_in_virtual_time(partial(play_notice, phase)) for phase in PHASES]
    taint, order = max(notice.taint for notice in notices), max(notice.order for notice in notices)
    yield Figure(
        f"eviction announced on a machine → taint; → replacement ordered; polls every {POLL_SECONDS:g} s",
        "",
        f"≤ {TAINT_SECONDS:g} s; ≤ {ORDER_SECONDS:g} s",
        f"{taint:.1f} s; {order:.1f} s",
        taint <= TAINT_SECONDS and order <= ORDER_SECONDS,
        {"taint": taint, "order": order},
    )


async def play_notice(phase: float) -> Notice:
    """An eviction ``phase`` seconds after a poll."""
    async with azure_world(Conditions(boot=BOOT)) as here:
        making.create_pool(here.account, here.aks, "spot", ON_DEMAND_SIZE, spot=True)
        making.create_pool(here.account, here.aks, "demand", ON_DEMAND_SIZE)
        await here.start()
        await here.sleep(5.0)
        template = pod("web", 1, CHEAP_RESTART, tolerations=TOLERATIONS)
        await here.user.create(REPLICA_SETS, workload("ReplicaSet", "web", template, replicas=1), namespace="default")
        while not await here.count_bound():
            await here.sleep(5.0)
        (scale_set,) = (scale_set for scale_set in here.scale_sets() if scale_set.machines)
        ((key, machine),) = scale_set.machines.items()
        node = machine.computer.lower()
        service = AccountMetadata(here, event_resource(node))
        own = OwnNode(here.cluster.client("exporter"), node)
        watcher = EventWatcher(service, own, node, interval=POLL_SECONDS, log=lambda _level, _text: None, clock=here.now)
        here.run_beside(watcher.run())
        await here.sleep(30.0)
        polls = service.polls
        while service.polls == polls:
            await here.sleep(0.01)
        await here.sleep(phase)
        began, writes = here.now(), len(here.endpoint.log)
        making.evict(here.account, scale_set, key, notice=NOTICE_SECONDS)
        while len(here.endpoint.log) == writes:
            await here.sleep(0.05)
        taints = [
            at for at, _, path, body in here.network.log if at >= began and f"/nodes/{node}" in path and LEAVING_TAINT.encode() in body
        ]
        return Notice(min(taints) - began, here.endpoint.log[writes][0] - began)
