"""Scheduled events of one machine, from the metadata service on a socket to the Node in an API server."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from tests import objects
from tests.exporter.scheduled_events.azure import MACHINE, NODE, Azure, azure, event
from tests.exporter.scraping import Scrape, scrape

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.exporter.exposition import Page
from gpuscaler.exporter.scheduled_events.metadata_service import MOST_BYTES, MetadataService
from gpuscaler.exporter.scheduled_events.own_node import OwnNode
from gpuscaler.exporter.scheduled_events.watching import (
    FORBIDDEN_SECONDS,
    LONGEST_PAUSE,
    NAME_SECONDS,
    REPEAT_SECONDS,
    EventWatcher,
)
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.model.scheduled_events import SCHEDULED_EVENT, ScheduledEvent, parse_scheduled_event
from gpuscaler.model.well_known import LEAVING_TAINT

pytestmark = pytest.mark.looptime(False)

FORBIDDEN = Failure(403, "Forbidden", 'nodes is forbidden: User "exporter" cannot patch resource "nodes"')
CLOSED = {"taints": [{"key": LEAVING_TAINT, "effect": "NoSchedule"}]}


@dataclass
class Machine:
    """A machine of Azure with an exporter, which polls when a test says so."""

    azure: Azure
    api: ApiServer
    user: Client
    log: list[str] = field(default_factory=list)
    now: float = 1000.0
    watcher: EventWatcher = field(init=False)

    async def poll(self, after: float = 2.0) -> float:
        """Let time pass, and poll; returns the pause until the next time."""
        self.now += after
        return await self.watcher.poll()

    async def node(self, name: str = NODE) -> dict[str, Any]:
        body: dict[str, Any] = msgspec.json.decode(await self.user.get(NODES, name))
        return body

    async def annotation(self, name: str = NODE) -> ScheduledEvent | None:
        value = (await self.node(name))["metadata"].get("annotations", {}).get(SCHEDULED_EVENT)
        return None if value is None else parse_scheduled_event(value)

    async def version(self) -> str:
        version: str = (await self.node())["metadata"]["resourceVersion"]
        return version

    def page(self) -> Scrape:
        page = Page()
        self.watcher.add_metrics(page)
        return scrape(page.text())


@asynccontextmanager
async def machine(*, node: str = NODE, acknowledges: bool = False, writes: bool = True) -> AsyncIterator[Machine]:
    async with azure() as service, MetadataService(service.url) as metadata:
        api = ApiServer(lambda: 1_800_000_000.0)
        made = Machine(service, api, Client(MemoryTransport(api), field_manager="user"))
        for name in (node, "another"):
            await made.user.create(NODES, {"metadata": {"name": name, "annotations": {"theirs": "x"}}, "spec": {}})
        writer = OwnNode(Client(MemoryTransport(api), field_manager="gpuscaler-exporter"), node)
        made.watcher = EventWatcher(
            metadata,
            writer if writes else None,
            node,
            interval=2.0,
            log=lambda level, text: made.log.append(f"{level}: {text}"),
            clock=lambda: made.now,
            acknowledges=acknowledges,
        )
        yield made


async def test_a_preempt_of_this_machine_is_annotated_on_its_own_node_only_and_removed_once_it_is_over() -> None:
    async with machine() as here:
        assert await here.poll() == 2.0
        assert await here.annotation() is None
        here.azure.schedule(event(Description="Spot capacity is needed elsewhere."))
        await here.poll()

        assert await here.annotation() == ScheduledEvent("Preempt", "e-1", 1_800_000_030.0, "Spot capacity is needed elsewhere.")
        assert (await here.node())["metadata"]["annotations"]["theirs"] == "x"
        assert await here.annotation("another") is None
        here.azure.schedule()
        await here.poll()
        assert await here.annotation() is None
        assert [line for line in here.log if "Preempt" in line] == [
            "warning: scheduled events: Preempt of this machine, e-1: Spot capacity is needed elsewhere."
        ]


async def test_each_poll_is_one_request_with_the_metadata_header_and_the_version() -> None:
    async with machine() as here:
        await here.poll()
        await here.poll()

        (first, second) = here.azure.requests
        assert first[:2] == second[:2] == ("GET", {"api-version": "2020-07-01"})
        assert first[2]["metadata"] == "true"


async def test_no_proxy_of_the_environment_sees_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with machine() as here:
        await here.poll()

        assert here.watcher.reading == ""


@pytest.mark.parametrize(
    ("node", "name", "resource"),
    [
        # Z12.
        ("aks-gpu-12345678-vmss00000a", "", "aks-gpu-12345678-vmss_10"),
        ("aks-gpu-12345678-vmss00000a", "", "AKS-GPU-12345678-vmss_10"),
        ("aks-gpu-12345678-vms0", "", "aks-gpu-12345678-vms0"),
        # A scale set that gives its machines host names with another prefix.
        ("trainer00000a", "gpu-set_10", "gpu-set_10"),
    ],
)
async def test_the_names_in_events_are_those_that_azure_knows(node: str, name: str, resource: str) -> None:
    async with machine(node=node) as here:
        here.azure.name = name
        here.azure.schedule(event(Resources=[resource]))
        await here.poll()

        assert (await here.annotation(node)) is not None


async def test_a_name_that_is_learned_later_applies_to_events_that_were_read_before() -> None:
    async with machine(node="trainer00000a") as here:
        here.azure.name_status = 503
        here.azure.schedule(event(Resources=["gpu-set_10"]))
        await here.poll()
        assert here.watcher.events == ()
        here.azure.name = "gpu-set_10"
        await here.poll(after=NAME_SECONDS)

        assert await here.annotation("trainer00000a") is not None


async def test_a_preempt_of_another_machine_changes_nothing_and_the_same_incarnation_is_no_second_notice() -> None:
    async with machine() as here:
        here.azure.schedule(event(Resources=["aks-gpu-12345678-vmss_1"]))
        await here.poll()
        assert await here.annotation() is None
        here.azure.schedule(event())
        await here.poll()
        version = await here.version()
        here.azure.events = [event(), event("Terminate", id="e-9")]
        await here.poll()

        assert await here.version() == version
        assert len(here.watcher.events) == 1
        assert len([line for line in here.log if "of this machine" in line]) == 1


async def test_of_several_events_the_most_urgent_is_annotated_and_all_are_on_the_page() -> None:
    async with machine() as here:
        here.azure.schedule(event("Freeze", id="e-3"), event("Reboot", id="e-2"), event("Preempt", Resources=[MACHINE, "other"]))
        await here.poll()

        annotated = await here.annotation()
        assert annotated is not None
        assert annotated.kind == "Preempt"
        metric = "gpuscaler_exporter_scheduled_event_timestamp_seconds"
        assert [labels["kind"] for labels, _ in here.page().samples[metric]] == ["Preempt", "Reboot", "Freeze"]
        assert here.page().value(metric, kind="Preempt", event_id="e-1", status="Scheduled", node_name=NODE) == 1_800_000_030.0


async def test_an_event_that_starts_keeps_its_time() -> None:
    async with machine() as here:
        here.azure.schedule(event())
        await here.poll()
        version = await here.version()
        here.azure.schedule(event(at="", EventStatus="Started"))
        await here.poll()

        assert await here.version() == version
        assert here.page().value("gpuscaler_exporter_scheduled_event_timestamp_seconds", status="Started") == 1_800_000_030.0


async def test_the_report_of_an_earlier_process_is_removed_if_there_is_no_event_any_more() -> None:
    async with machine() as here:
        stale = '{"kind":"Redeploy","id":"old"}'
        await here.user.merge_patch(NODES, NODE, {"metadata": {"annotations": {SCHEDULED_EVENT: stale}}})
        await here.poll()

        assert await here.annotation() is None


async def test_a_report_that_something_else_removed_is_written_again() -> None:
    async with machine() as here:
        here.azure.schedule(event())
        await here.poll()
        await here.user.merge_patch(NODES, NODE, {"metadata": {"annotations": {SCHEDULED_EVENT: None}}})
        await here.poll()
        assert await here.annotation() is None
        await here.poll(after=REPEAT_SECONDS)

        assert await here.annotation() is not None


async def test_events_that_cannot_be_read_are_counted_and_logged_and_the_others_reported() -> None:
    async with machine() as here:
        here.azure.schedule(event("Vanish"), event(id="e-2", at="soon"))
        await here.poll()

        annotated = await here.annotation()
        assert annotated == ScheduledEvent("Preempt", "e-2")
        assert here.page().value("gpuscaler_exporter_scheduled_events_set_aside_total") == 2
        assert here.page().value("gpuscaler_exporter_working", part="events") == 1
        assert any("EventType 'Vanish'" in line for line in here.log)


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda service: setattr(service, "status", 500), "saw HTTP status 500"),
        (lambda service: setattr(service, "status", 429), "saw HTTP status 429"),
        # A redirect is not followed.
        (lambda service: setattr(service, "status", 302), "saw HTTP status 302"),
        (lambda service: setattr(service, "body", b"<html>"), "expected JSON"),
        (lambda service: setattr(service, "body", b" " * (MOST_BYTES + 1)), f"saw more than {MOST_BYTES} bytes"),
    ],
)
async def test_a_service_that_does_not_answer_leaves_the_report_in_place_and_is_asked_less_often(
    break_it: Callable[[Azure], None], words: str
) -> None:
    async with machine() as here:
        here.azure.schedule(event())
        await here.poll()
        break_it(here.azure)
        pauses = [await here.poll() for _ in range(5)]

        assert pauses == [2.0, 4.0, 8.0, LONGEST_PAUSE, LONGEST_PAUSE]
        assert await here.annotation() is not None
        assert here.page().value("gpuscaler_exporter_working", part="events") == 0
        assert len([line for line in here.log if words in line]) == 1
        here.azure.status, here.azure.body = 200, None
        assert await here.poll() == 2.0
        assert here.page().value("gpuscaler_exporter_working", part="events") == 1


async def test_without_a_service_the_exporter_says_so() -> None:
    async with MetadataService("http://127.0.0.1:9") as metadata:
        watcher = EventWatcher(metadata, None, NODE, interval=2.0, log=lambda _level, _text: None, clock=lambda: 0.0)
        await watcher.poll()

    assert list(watcher.troubles()) == [f"scheduled events: {watcher.reading}"]
    assert "is this a machine of Azure?" in watcher.reading


async def test_without_the_right_to_write_events_are_on_the_page_and_the_write_is_tried_again_now_and_then() -> None:
    async with machine() as here:
        here.api.faults.add(Fault(method="PATCH", path="/nodes/", times=3, refusal=FORBIDDEN))
        await here.poll()
        # A new event is tried at once.
        here.azure.schedule(event())
        await here.poll()
        await here.poll()
        assert here.page().value("gpuscaler_exporter_working", part="node") == 0
        assert here.page().values("gpuscaler_exporter_scheduled_event_timestamp_seconds") == [1_800_000_030.0]
        assert any("only on this exporter's page" in line for line in here.log)
        await here.poll(after=FORBIDDEN_SECONDS)
        assert await here.annotation() is None
        await here.poll(after=FORBIDDEN_SECONDS)

        assert await here.annotation() is not None
        assert here.page().value("gpuscaler_exporter_working", part="node") == 1


async def test_an_api_server_that_fails_is_asked_again_at_the_next_poll() -> None:
    async with machine() as here:
        here.azure.schedule(event())
        here.api.faults.add(Fault(method="PATCH", path="/nodes/", times=1, refusal=Failure(500, "InternalError", "etcd is gone")))
        await here.poll()
        assert await here.annotation() is None
        await here.poll()

        assert await here.annotation() is not None


async def test_without_access_to_an_api_server_events_are_on_the_page() -> None:
    async with machine(writes=False) as here:
        here.azure.schedule(event())
        await here.poll()

        assert await here.annotation() is None
        assert here.page().values("gpuscaler_exporter_scheduled_event_timestamp_seconds") == [1_800_000_030.0]
        assert here.page().values("gpuscaler_exporter_working", part="node") == []


# Acknowledgements


async def put(here: Machine, name: str, **more: Any) -> None:
    body = objects.pod(name, 0)
    body["spec"]["nodeName"] = NODE
    body["metadata"].update(more)
    await here.user.create(PODS, body, namespace="default")


def owned_by(kind: str) -> dict[str, Any]:
    return {"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": "u", "controller": True}]}


async def test_an_event_is_acknowledged_once_and_only_after_the_node_is_closed_and_has_no_pods_that_matter() -> None:
    async with machine(acknowledges=True) as here:
        here.azure.schedule(event())
        await put(here, "job")
        await put(here, "logs", **owned_by("DaemonSet"))
        await put(here, "proxy", annotations={"kubernetes.io/config.mirror": "x"})
        await here.poll()
        assert here.azure.started == []
        await here.user.delete(PODS, "job", namespace="default", grace=0)
        await here.poll()
        # Another pod might still come.
        assert here.azure.started == []
        await here.user.merge_patch(NODES, NODE, {"spec": CLOSED})
        await here.poll()
        await here.poll()

        assert here.azure.started == ["e-1"]


@pytest.mark.parametrize(
    "shown",
    [event(Resources=[MACHINE, "aks-gpu-12345678-vmss_1"]), event(EventStatus="Started"), event(Resources=["aks-gpu-12345678-vmss_1"])],
    ids=["also of another machine", "started", "of another machine"],
)
async def test_events_that_concern_others_or_have_started_are_not_acknowledged(shown: dict[str, Any]) -> None:
    async with machine(acknowledges=True) as here:
        await here.user.merge_patch(NODES, NODE, {"spec": CLOSED})
        here.azure.schedule(shown)
        await here.poll()

        assert here.azure.started == []


async def test_nothing_is_acknowledged_unless_that_is_asked_for() -> None:
    async with machine() as here:
        await here.user.merge_patch(NODES, NODE, {"spec": CLOSED})
        here.azure.schedule(event())
        await here.poll()

        assert here.azure.started == []


async def test_an_acknowledgement_that_failed_is_repeated() -> None:
    async with machine(acknowledges=True) as here:
        await here.user.merge_patch(NODES, NODE, {"spec": CLOSED})
        here.azure.schedule(event())
        here.api.faults.add(Fault(method="GET", path="/pods", times=1, refusal=FORBIDDEN))
        await here.poll()
        assert here.azure.started == []
        assert any("no acknowledgement" in line for line in here.log)
        await here.poll()

        assert here.azure.started == ["e-1"]


async def test_the_page_for_controllers_has_the_most_urgent_event_and_whether_it_is_on_the_node() -> None:
    async with machine() as here:
        before = msgspec.json.decode(here.watcher.page())
        here.azure.schedule(event(), event("Freeze", id="e-2"))
        await here.poll()
        written = msgspec.json.decode(here.watcher.page())
        here.azure.schedule(event("Terminate", id="e-3"))
        here.api.faults.add(Fault(method="PATCH", path="/nodes/", refusal=FORBIDDEN))
        await here.poll()
        refused = msgspec.json.decode(here.watcher.page())

    assert before == {"written": False, "event": None}
    assert (written["written"], written["event"]["id"], written["event"]["at"]) == (True, "e-1", "2027-01-15T08:00:30Z")
    assert (refused["written"], refused["event"]["kind"]) == (False, "Terminate")
