"""Machines whose nodes announce that the cloud takes them away, as Azure's Scheduled Events do."""

import asyncio
from typing import Any

import msgspec
from tests.control.leaving import CHEAP_RESTART, run
from tests.control.test_reclaiming import SPOT, reclaim_count
from tests.control.world import CallObserver, World, world

from gpuscaler.clouds.protocol import Order
from gpuscaler.exporter.scheduled_events.metadata_service import MetadataError
from gpuscaler.exporter.scheduled_events.own_node import OwnNode
from gpuscaler.exporter.scheduled_events.watching import EventWatcher
from gpuscaler.kube.resources import NODES
from gpuscaler.kube.transport import Request
from gpuscaler.model.options import CHECKPOINT_REQUESTED
from gpuscaler.model.scheduled_events import FREEZE, PREEMPT, REDEPLOY, SCHEDULED_EVENT, ScheduledEvent, format_scheduled_event
from gpuscaler.model.well_known import LEAVING_TAINT


class Times(CallObserver):
    """When the controller first did what an interrupted machine needs, by what it was."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.graces: list[int | None] = []

    def note(self, what: str) -> None:
        self.first.setdefault(what, asyncio.get_running_loop().time())

    async def write(self, request: Request) -> None:
        if "/nodes/" in request.path and LEAVING_TAINT.encode() in request.body:
            self.note("taint")
        if CHECKPOINT_REQUESTED.encode() in request.body:
            self.note("checkpoint")
        if request.path.endswith("/eviction") and "/namespaces/default/" in request.path:
            self.note("eviction")
            self.graces.append(msgspec.json.decode(request.body)["deleteOptions"].get("gracePeriodSeconds"))

    async def buy(self, order: Order) -> None:
        self.note(f"order from {order.pool}")


async def announce(here: World, node: str, event: ScheduledEvent | None) -> None:
    """Write an event on a node, as an agent there does."""
    value = None if event is None else format_scheduled_event(event)
    await here.user.merge_patch(NODES, node, {"metadata": {"annotations": {SCHEDULED_EVENT: value}}})


async def a_machine_with(here: World, *names: str, **more: Any) -> str:
    """A controller with one machine that has a pod of each workload; returns the machine's name."""
    here.start()
    await here.sleep(2.0)
    for name in names:
        await run(here, name, **more)
    await here.sleep(120.0)
    (machine,) = here.cluster.core.list()
    return machine.id


async def test_a_preempt_event_leads_to_the_taint_within_a_second_then_to_an_order_then_to_evictions_with_a_cut_grace() -> None:
    async with world(SPOT) as here:
        home = await a_machine_with(here, "web", terminationGracePeriodSeconds=600)
        here.watchman = times = Times()
        await here.kill()
        here.start()
        await here.sleep(30.0)
        began = asyncio.get_running_loop().time()
        await announce(here, home, ScheduledEvent(PREEMPT, "e-1", here.now() + 30.0))
        await here.until(lambda: "eviction" in times.first, 30.0)

        assert times.first["taint"] - began <= 1.0
        assert times.first["taint"] <= times.first["order from gpu"] <= times.first["eviction"]
        assert times.first["order from gpu"] - began <= 2.0
        (grace,) = times.graces
        assert grace is not None
        assert 20 <= grace <= 30
        assert reclaim_count(here) == 1


async def test_a_pod_that_can_save_its_work_is_asked_to_before_it_is_evicted_from_a_preempted_machine() -> None:
    async with world(SPOT) as here:
        home = await a_machine_with(
            here, "web", annotations={**CHEAP_RESTART, "gpuscaler.io/grace": "60s"}, terminationGracePeriodSeconds=10
        )
        here.watchman = times = Times()
        await here.kill()
        here.start()
        await here.sleep(30.0)
        await announce(here, home, ScheduledEvent(PREEMPT, "e-1", here.now() + 30.0))
        await here.until(lambda: "eviction" in times.first, 30.0)

        assert times.first["taint"] <= times.first["checkpoint"] < times.first["eviction"]


class Metadata:
    """The metadata service of a machine. ``asked`` is set whenever it was asked for events."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {"DocumentIncarnation": 1, "Events": []}
        self.asked = asyncio.Event()

    def preempt(self, machine: str) -> None:
        event = {"EventId": "e-1", "EventType": PREEMPT, "ResourceType": "VirtualMachine", "EventStatus": "Scheduled"}
        self.document = {"DocumentIncarnation": 2, "Events": [{**event, "Resources": [machine], "NotBefore": ""}]}

    async def events(self) -> bytes:
        self.asked.set()
        return msgspec.json.encode(self.document)

    async def machine_name(self) -> str:
        raise MetadataError("no such page", missing=True)

    async def start(self, event_id: str) -> None:
        raise AssertionError(event_id)


async def test_from_the_event_on_the_machine_it_takes_three_seconds_to_the_taint_and_four_to_the_order_at_most() -> None:
    async with world(SPOT) as here:
        home = await a_machine_with(here, "web")
        here.watchman = times = Times()
        await here.kill()
        here.start()
        metadata, now = Metadata(), asyncio.get_running_loop().time
        exporter = here.cluster.client("exporter")
        watcher = EventWatcher(metadata, OwnNode(exporter, home), home, interval=2.0, log=lambda _level, _text: None, clock=now)
        here.support(watcher.run())
        await here.sleep(30.0)
        metadata.asked.clear()
        await metadata.asked.wait()
        # Right after a poll, so that the next one is as far away as possible.
        metadata.preempt(home)
        began = now()
        await here.until(lambda: "order from gpu" in times.first, 30.0)

        assert times.first["taint"] - began <= 3.0
        assert times.first["order from gpu"] - began <= 4.0


async def test_an_event_that_is_only_on_an_exporters_page_counts_like_one_on_the_node() -> None:
    async with world(SPOT) as here:
        home = await a_machine_with(here, "web")
        here.watchman = times = Times()
        await here.kill()
        here.start()
        await here.sleep(30.0)
        here.page_events[home] = ScheduledEvent(PREEMPT, "e-1", here.now() + 30.0)
        assert here.controller is not None
        here.controller.turn_soon()
        began = asyncio.get_running_loop().time()
        await here.until(lambda: "eviction" in times.first, 30.0)

        assert times.first["taint"] - began <= 1.0
        assert times.first["taint"] <= times.first["order from gpu"] <= times.first["eviction"]


async def test_only_the_node_with_the_annotation_is_drained_and_what_cannot_be_read_is_reported_and_ignored() -> None:
    async with world(SPOT) as here:
        home = await a_machine_with(here, "p")
        await here.user.create(NODES, {"metadata": {"name": "elsewhere"}, "spec": {"providerID": "azure:///elsewhere"}})
        await announce(here, "elsewhere", ScheduledEvent(PREEMPT, "e-1", here.now() + 30.0))
        odd = {"metadata": {"annotations": {SCHEDULED_EVENT: '{"kind":"Vanish","id":"e-1"}'}}}
        await here.user.merge_patch(NODES, home, odd)
        await here.sleep(60.0)

        assert set((await here.bound()).values()) == {home}
        assert here.notes.last is not None
        (warning,) = [warning for warning in here.notes.last.warnings if SCHEDULED_EVENT in warning]
        assert warning.startswith(f"Node {home}: {SCHEDULED_EVENT}: saw a value of 28 characters, expected a kind of Preempt")


async def test_a_machine_that_is_redeployed_is_drained_before_and_one_that_only_pauses_keeps_its_pods() -> None:
    async with world(SPOT) as here:
        home = await a_machine_with(here, "p")
        await announce(here, home, ScheduledEvent(FREEZE, "e-1", here.now() + 900.0))
        await here.sleep(60.0)
        assert set((await here.bound()).values()) == {home}
        await announce(here, home, ScheduledEvent(REDEPLOY, "e-2", here.now() + 600.0))
        await here.until(lambda: home not in {machine.id for machine in here.cluster.core.list()}, 300.0)

        assert [remark.text.rpartition(" of machine")[0] for remark in here.notes.remarks] == [
            "the cloud announces maintenance (Freeze)",
            "the cloud announces maintenance (Redeploy)",
        ]
        assert reclaim_count(here) == 0


async def test_maintenance_that_is_cancelled_in_time_moves_nothing() -> None:
    async with world(SPOT) as here:
        home = await a_machine_with(here, "p")
        await announce(here, home, ScheduledEvent(REDEPLOY, "e-1", here.now() + 7200.0))
        await here.sleep(60.0)
        await announce(here, home, None)
        await here.sleep(7200.0)

        assert set((await here.bound()).values()) == {home}
