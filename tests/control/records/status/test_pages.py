"""The leader's pages over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.control.records.deciding import removal_decision
from tests.control.records.history.test_history import history_event, memory
from tests.control.records.status.test_why import WAITS, latest

from gpuscaler.control.records.events.happening import DECIDED, ORDERED, HistoryEvent
from gpuscaler.control.records.history.inputs import unpack_decision
from gpuscaler.control.records.history.keeping import HistoryWriter
from gpuscaler.control.records.history.replaying import replay_decision
from gpuscaler.control.records.status.pages import Pages
from gpuscaler.control.records.status.reporting import Reporter
from gpuscaler.control.records.status.status import Process
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.planning.plans import Plan, Reason, Unplaced
from gpuscaler.serving.server import serve

pytestmark = pytest.mark.looptime(False)
STUCK = Plan(unplaced=(Unplaced(WAITS.key, (Reason("gpu", "taint", "g.1 has a taint"),)),))


def shown_events(*happenings: HistoryEvent) -> list[str]:
    """The events that the status shows."""
    client = Client(MemoryTransport(ApiServer(lambda: 0.0)))
    reporter = Reporter(
        client, latest(), namespace="here", process=lambda: Process("me"), troubles=lambda: (), leading=lambda: True, now=lambda: 1_000.0
    )
    for event in happenings:
        reporter.happened(event)
    return [entry.text for entry in asyncio.run(reporter.refresh()).happened]


def removal(number: int, *, decision: str = "d-1", seconds: int = 60, why: str = "idle for") -> HistoryEvent:
    return HistoryEvent(1.0, DECIDED, f"node n{number} will be removed: {why} {seconds}s", node=f"n{number}", decision=decision)


def test_the_status_shows_nodes_removed_by_one_decision_for_the_same_reason_on_one_line() -> None:
    removals = [removal(number, seconds=60 + number) for number in range(5)]
    other = [removal(8, why="its pods fit elsewhere, which saves"), removal(9, decision="d-2")]

    assert shown_events(*removals, *other) == [
        "each of 5 nodes (n0, n1, n2 and 2 more) will be removed: idle for 60s",
        "node n8 will be removed: its pods fit elsewhere, which saves 60s",
        "node n9 will be removed: idle for 60s",
    ]


def test_the_status_still_shows_other_events_after_many_nodes_were_removed() -> None:
    assert shown_events(HistoryEvent(0.5, ORDERED, "one ordered"), *map(removal, range(300)))[0] == "one ordered"


@asynccontextmanager
async def serve_pages(most_bytes: int = 1_000_000, *, leads: bool = True) -> AsyncIterator[tuple[str, HistoryWriter]]:
    """The pages of a leader that has made a decision and cannot place a pod."""
    latest_state = latest(WAITS, plan=STUCK)
    keeper = HistoryWriter(memory(most_bytes=most_bytes))
    keeper.decided(removal_decision())
    keeper.happened(history_event(5, pods=(WAITS.key,), decision="d-1"))
    client = Client(MemoryTransport(ApiServer(lambda: 0.0)))
    reporter = Reporter(
        client,
        latest_state,
        namespace="here",
        process=lambda: Process("me"),
        troubles=lambda: (),
        leading=lambda: True,
        now=lambda: 1_000.0,
    )
    server = await serve(
        Pages(latest_state, keeper, reporter, leading=lambda: leads, now=lambda: 1_000.0).routes(), host="127.0.0.1", port=0
    )
    try:
        yield f"http://127.0.0.1:{server.port}", keeper
    finally:
        await server.close()


async def get(url: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        kind = answer.headers["Content-Type"]
        return answer.status, await (answer.json() if "json" in kind else answer.text() if "text" in kind else answer.read())


async def test_the_page_of_a_pod_shows_its_events() -> None:
    async with serve_pages() as (url, _):
        status, answer = await get(f"{url}/why/pod/{WAITS.key}")

    assert status == 200
    assert answer["now"] == ["no machine of any pool fits it:", "  pool gpu: taint: g.1 has a taint"]
    assert answer["happened"] == [{"about": "ordered", "text": "number 5", "at": 5.0, "decision": "d-1"}]


async def test_pages_of_unknown_pods_nodes_and_decisions_return_404() -> None:
    async with serve_pages() as (url, _):
        pod, node, decision = [await get(f"{url}/{path}") for path in ("why/pod/x/y", "why/node/n", "decisions/d-9")]

    assert (pod[0], pod[1]["now"]) == (404, ["there is no such pod now"])
    assert (node[0], node[1]["now"]) == (404, ["there is no such node now"])
    assert decision == (
        404,
        "decision d-9: saw no decision with that id, expected one that is kept; gpuscaler replay without an id lists them\n",
    )


async def test_pages_list_decisions_and_show_each_one_with_its_events() -> None:
    async with serve_pages() as (url, _):
        listed, shown = await get(f"{url}/decisions"), await get(f"{url}/decisions/d-1")

    assert [(entry["id"], entry["size"] > 0) for entry in listed[1]] == [("d-1", True)]
    assert shown[1]["happened"] == ["number 5"]
    assert shown[1]["inputs"] == "/decisions/d-1/inputs"
    assert shown[1]["plan"]["removals"][0]["node"] == "n1"


async def test_replaying_the_downloaded_inputs_of_a_decision_gives_the_same_plan() -> None:
    async with serve_pages() as (url, _):
        status, data = await get(f"{url}/decisions/d-1/inputs")

    assert status == 200
    assert replay_decision(unpack_decision(data)[0]).identical


async def test_the_page_of_deleted_inputs_returns_410_and_the_reason() -> None:
    async with serve_pages(most_bytes=10) as (url, _):
        status, text = await get(f"{url}/decisions/d-1/inputs")

    assert status == 410
    assert text.startswith("decision d-1: the inputs of newer decisions take the 10 bytes")


async def test_the_status_page_works_before_the_config_map_is_written() -> None:
    async with serve_pages() as (url, _):
        _, status = await get(f"{url}/status")

    assert status["unplaced"] == 1
    assert status["leader"]["identity"] == "me"


async def test_the_page_reports_an_unreadable_history() -> None:
    async with serve_pages() as (url, keeper):
        keeper.history.close()
        status, text = await get(f"{url}/decisions")

    assert status == 503
    assert text.startswith("the history of decisions cannot be read: ")


async def test_a_standby_says_that_it_does_not_lead_and_still_serves_its_history() -> None:
    async with serve_pages(leads=False) as (url, _):
        now = [await get(f"{url}/{path}") for path in ("status", f"why/pod/{WAITS.key}", "why/node/n1")]
        before = await get(f"{url}/decisions")

    assert now == [(503, "this process does not lead; gpuscaler status shows the leader\n")] * 3
    assert [entry["id"] for entry in before[1]] == ["d-1"]
