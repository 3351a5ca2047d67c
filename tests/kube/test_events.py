"""Events: written soon, counted when repeated, bounded, and never blocking."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from tests.kube.doubles import Scripted, answer, refusal

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.events import EventRecorder, Reference, cut_to_bytes
from gpuscaler.kube.leases import NotLeaderError
from gpuscaler.kube.transport import Answer, Request

START = 1_700_000_000.0
POD = Reference("Pod", "web-0", "ns", "uid-1")
NODE = Reference("Node", "gpu-1", uid="gpu-1")


async def fine(_: Request) -> Answer:
    return answer(201, {})


def recorder(*answers: object, **options: Any) -> tuple[EventRecorder, Scripted]:
    transport = Scripted(list(answers) or [fine])  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    client = Client(transport, dry_run=options.pop("dry_run", False), fence=options.pop("fence", lambda _: None))
    return EventRecorder(client, lambda: START + loop.time(), **options), transport


@asynccontextmanager
async def running(events: EventRecorder) -> AsyncIterator[None]:
    task = asyncio.create_task(events.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def bodies(transport: Scripted) -> list[dict[str, Any]]:
    return [msgspec.json.decode(request.body) for request in transport.requests]


async def test_an_event_names_what_happened_and_the_object() -> None:
    events, transport = recorder(component="gpuscaler", instance="gpuscaler-7f")
    async with running(events):
        events.record(POD, "Ordered", "1 p5.48xlarge for $55/h", action="Buying", related=NODE)
        await asyncio.sleep(0.01)
    (request,) = transport.requests
    assert (request.method, request.path) == ("POST", "/apis/events.k8s.io/v1/namespaces/ns/events")
    (body,) = bodies(transport)
    name = body["metadata"].pop("name")
    assert name.startswith("web-0.")
    assert body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "ns"},
        "eventTime": "2023-11-14T22:13:20.000000Z",
        "reportingController": "gpuscaler",
        "reportingInstance": "gpuscaler-7f",
        "type": "Normal",
        "reason": "Ordered",
        "action": "Buying",
        "note": "1 p5.48xlarge for $55/h",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "web-0", "namespace": "ns", "uid": "uid-1"},
        "related": {"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": "gpu-1"},
    }


async def test_an_event_of_a_node_is_in_the_default_namespace() -> None:
    events, transport = recorder()
    events.record(NODE, "Leaving", "idle for 10m", action="Removing", warning=True)
    await events.flush()
    assert transport.requests[0].path == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert bodies(transport)[0]["type"] == "Warning"


async def test_the_count_of_a_repeated_event_is_written_at_most_once_a_minute() -> None:
    events, transport = recorder()
    async with running(events):
        for _ in range(13):
            events.record(POD, "Waiting", "no room", action="Planning")
            await asyncio.sleep(11)
    assert [request.method for request in transport.requests] == ["POST", "PATCH", "PATCH"]
    name = bodies(transport)[0]["metadata"]["name"]
    assert transport.requests[1].path == f"/apis/events.k8s.io/v1/namespaces/ns/events/{name}"
    assert [body["series"]["count"] for body in bodies(transport)[1:]] == [7, 13]
    assert bodies(transport)[2]["series"]["lastObservedTime"] == "2023-11-14T22:15:32.000000Z"


async def test_repetitions_before_the_first_write_become_one_event_with_a_count() -> None:
    events, transport = recorder()
    for _ in range(3):
        events.record(POD, "Waiting", "no room", action="Planning")
    await events.flush()
    assert [body["series"]["count"] for body in bodies(transport)] == [3]


async def test_an_event_with_another_note_is_written_separately() -> None:
    events, transport = recorder()
    events.record(POD, "Waiting", "no room", action="Planning")
    events.record(POD, "Waiting", "no quota", action="Planning")
    await events.flush()
    assert [body["note"] for body in bodies(transport)] == ["no room", "no quota"]
    assert len({body["metadata"]["name"] for body in bodies(transport)}) == 2


async def test_an_event_repeated_much_later_is_written_as_a_new_event() -> None:
    events, transport = recorder()
    async with running(events):
        events.record(POD, "Waiting", "no room", action="Planning")
        await asyncio.sleep(601)
        events.record(POD, "Waiting", "no room", action="Planning")
        await asyncio.sleep(1)
    assert [request.method for request in transport.requests] == ["POST", "POST"]
    assert "series" not in bodies(transport)[1]


async def test_an_event_that_the_server_deleted_is_written_again() -> None:
    events, transport = recorder(answer(201), refusal(404, "not found", reason="NotFound", details={"name": "e"}), answer(201))
    async with running(events):
        events.record(POD, "Waiting", "no room", action="Planning")
        await asyncio.sleep(1)
        events.record(POD, "Waiting", "no room", action="Planning")
        await asyncio.sleep(61)
    assert [request.method for request in transport.requests] == ["POST", "PATCH", "POST"]
    assert bodies(transport)[2]["series"]["count"] == 2
    assert events.written == 2


async def test_a_lost_answer_does_not_double_an_event() -> None:
    events, transport = recorder(Unreachable("cut"), refusal(409, "exists", reason="AlreadyExists"))
    async with running(events):
        events.record(POD, "Waiting", "no room", action="Planning")
        await asyncio.sleep(10)
    assert len({body["metadata"]["name"] for body in bodies(transport)}) == 1
    assert (events.written, events.dropped) == (1, 0)


async def test_an_event_is_given_up_after_a_few_tries() -> None:
    events, transport = recorder(Unreachable("away"))
    async with running(events):
        events.record(POD, "Waiting", "no room", action="Planning")
        await asyncio.sleep(600)
    assert len(transport.requests) == 5
    assert (events.written, events.dropped) == (0, 1)


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_a_refused_event_is_dropped_and_others_continue(status: int) -> None:
    events, transport = recorder(refusal(status, "no"), answer(201))
    async with running(events):
        events.record(POD, "Waiting", "no room", action="Planning")
        events.record(NODE, "Leaving", "idle", action="Removing")
        await asyncio.sleep(1)
    assert len(transport.requests) == 2
    assert (events.written, events.dropped) == (1, 1)


async def test_a_process_that_lost_leadership_writes_no_events() -> None:
    def fence(_: float) -> None:
        raise NotLeaderError

    events, transport = recorder(fence=fence)
    async with running(events):
        events.record(POD, "Waiting", "no room", action="Planning")
        await asyncio.sleep(1)
        events.record(NODE, "Leaving", "idle", action="Removing")
        await asyncio.sleep(1)
    assert transport.requests == []
    assert events.dropped == 2


async def test_a_dry_run_writes_no_events() -> None:
    events, transport = recorder(dry_run=True)
    events.record(POD, "Waiting", "no room", action="Planning")
    await events.flush()
    assert transport.requests == []


async def test_a_flapping_object_gets_few_events_and_others_get_theirs() -> None:
    events, transport = recorder()
    async with running(events):
        for number in range(100):
            events.record(POD, "Flapping", f"number {number}", action="Planning")
        events.record(NODE, "Leaving", "idle", action="Removing")
        await asyncio.sleep(301)
        events.record(POD, "Flapping", "number 101", action="Planning")
        await asyncio.sleep(1)
    kinds = [body["regarding"]["kind"] for body in bodies(transport)]
    assert (kinds.count("Pod"), kinds.count("Node")) == (26, 1)
    assert events.dropped == 75


async def test_a_slow_server_does_not_delay_recording() -> None:
    async def slow(_: Request) -> Answer:
        await asyncio.sleep(4)
        return answer(201)

    events, transport = recorder(slow)
    async with running(events):
        for number in range(3):
            events.record(Reference("Pod", f"p{number}", "ns"), "Waiting", "no room", action="Planning")
        await asyncio.sleep(13)
    assert len(transport.requests) == 3


async def test_the_number_of_remembered_events_is_bounded() -> None:
    events, _ = recorder(most=10)
    for number in range(50):
        events.record(Reference("Pod", f"p{number}", "ns"), "Waiting", "no room", action="Planning")
    assert (len(events._series), len(events._limits)) == (10, 10)
    await events.flush()
    assert (events.written, events.dropped) == (10, 40)


async def test_long_texts_are_cut_to_the_servers_limits() -> None:
    events, transport = recorder()
    events.record(Reference("Pod", "p" * 253, "ns"), "R" * 200, "ü" * 1000, action="A" * 200)
    await events.flush()
    (body,) = bodies(transport)
    assert [len(body[key].encode()) for key in ("reason", "action")] == [128, 128]
    assert len(body["note"].encode()) <= 1024
    assert body["note"].endswith("ü…")
    assert len(body["metadata"]["name"]) == 253


@pytest.mark.parametrize(("text", "most", "expected"), [("abc", 3, "abc"), ("abcdef", 5, "ab…"), ("üüü", 5, "ü…"), ("", 3, "")])
def test_a_text_is_shortened_by_bytes(text: str, most: int, expected: str) -> None:
    assert cut_to_bytes(text, most) == expected


async def test_simultaneous_events_have_different_names() -> None:
    events, transport = recorder()
    events.now = lambda: START
    for note in "abc":
        events.record(POD, "Waiting", note, action="Planning")
    await events.flush()
    assert len({body["metadata"]["name"] for body in bodies(transport)}) == 3
