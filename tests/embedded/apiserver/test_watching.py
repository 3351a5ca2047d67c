"""Watches, in virtual time."""

import asyncio
from typing import Any

import pytest
from tests.embedded.asking import CONFIG_MAPS, MERGE, PODS, TABLE, Asker, Lines, asker, config_map, pod, virtual_clock

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.kube.errors import Unreachable

STREAMED: dict[str, Any] = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}


async def _revision(ask: Asker, path: str = CONFIG_MAPS) -> str:
    return str((await ask.ok("GET", path))["metadata"]["resourceVersion"])


async def test_a_watch_reports_every_change_after_its_revision() -> None:
    ask = asker()
    await ask.ok("POST", CONFIG_MAPS, config_map("old"))
    async with ask.watch(CONFIG_MAPS, resourceVersion=await _revision(ask)) as lines:
        await ask.ok("POST", CONFIG_MAPS, config_map("a"))
        await ask.ok("PATCH", f"{CONFIG_MAPS}/a", {"data": {"x": "y"}}, media=MERGE)
        await ask.ok("DELETE", f"{CONFIG_MAPS}/a")
        assert await lines.names(3) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_watch_can_begin_at_an_earlier_revision_and_revisions_only_grow() -> None:
    ask = asker()
    start = await _revision(ask)
    for name in ("a", "b", "c"):
        await ask.ok("POST", CONFIG_MAPS, config_map(name))
    await ask.ok("DELETE", f"{CONFIG_MAPS}/b")
    async with ask.watch(CONFIG_MAPS, resourceVersion=start) as lines:
        events = [await lines.next() for _ in range(4)]
    assert [(type_, obj["metadata"]["name"]) for type_, obj in events] == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c"), ("DELETED", "b")]
    revisions = [int(obj["metadata"]["resourceVersion"]) for _, obj in events]
    assert revisions == sorted(set(revisions))
    assert revisions[0] > int(start)
    assert events[0][1]["kind"] == "ConfigMap"


async def test_without_a_revision_a_watch_begins_with_the_existing_objects() -> None:
    ask = asker()
    await ask.ok("POST", CONFIG_MAPS, config_map("a"))
    async with ask.watch(CONFIG_MAPS) as lines:
        await ask.ok("POST", CONFIG_MAPS, config_map("b"))
        assert await lines.names(2) == [("ADDED", "a"), ("ADDED", "b")]


async def test_a_streamed_list_ends_with_a_marked_bookmark() -> None:
    ask = asker()
    for name in ("a", "b"):
        await ask.ok("POST", CONFIG_MAPS, config_map(name))
    async with ask.watch(CONFIG_MAPS, **STREAMED) as lines:
        assert await lines.names(2) == [("ADDED", "a"), ("ADDED", "b")]
        type_, mark = await lines.next()
        assert (type_, mark["kind"], mark["metadata"]["annotations"]) == ("BOOKMARK", "ConfigMap", {"k8s.io/initial-events-end": "true"})
        assert mark["metadata"]["resourceVersion"] == await _revision(ask)
        await ask.ok("POST", CONFIG_MAPS, config_map("c"))
        assert await lines.names(1) == [("ADDED", "c")]


async def test_a_server_of_an_older_version_refuses_streamed_lists() -> None:
    ask = asker(ApiServer(virtual_clock, streaming_lists=False))
    status, answer = await ask("GET", CONFIG_MAPS, watch="true", **STREAMED)
    assert (status, answer["reason"]) == (422, "Invalid")
    assert "WatchList feature gate" in answer["message"]


async def test_a_streamed_list_requires_a_resource_version_match() -> None:
    status, answer = await asker()("GET", CONFIG_MAPS, watch="true", sendInitialEvents="true")
    assert (status, answer["details"]["causes"][0]["field"]) == (422, "resourceVersionMatch")


async def test_a_watch_without_events_gets_a_bookmark_every_minute() -> None:
    ask = asker()
    loop = asyncio.get_running_loop()
    async with ask.watch(CONFIG_MAPS, resourceVersion=await _revision(ask), allowWatchBookmarks="true") as lines:
        began = loop.time()
        await ask.ok("POST", PODS, pod())
        type_, mark = await lines.next()
        assert type_ == "BOOKMARK"
        assert loop.time() - began == pytest.approx(60)
        assert mark["metadata"]["resourceVersion"] == await _revision(ask)
        await lines.next()
        assert loop.time() - began == pytest.approx(120)


async def test_a_watch_ends_after_the_requested_timeout() -> None:
    ask = asker()
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with ask.watch(CONFIG_MAPS, resourceVersion=await _revision(ask), timeoutSeconds="300") as lines:
        with pytest.raises(StopAsyncIteration):
            await lines.next()
    assert loop.time() - began == pytest.approx(300)


async def test_a_watch_without_a_timeout_ends_within_an_hour() -> None:
    ask = asker()
    async with ask.watch(CONFIG_MAPS, resourceVersion=await _revision(ask)) as lines:
        with pytest.raises(StopAsyncIteration):
            await lines.next()
    assert 1800 <= asyncio.get_running_loop().time() <= 3600


async def test_a_watch_from_an_expired_revision_gets_a_410_event() -> None:
    api = ApiServer(virtual_clock, history=5)
    ask = asker(api)
    start = await _revision(ask)
    for i in range(12):
        await ask.ok("POST", CONFIG_MAPS, config_map(f"c{i}"))
    async with ask.watch(CONFIG_MAPS, resourceVersion=start) as lines:
        type_, status = await lines.next()
        assert (type_, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
        assert status["message"].startswith(f"too old resource version: {start} (")
        with pytest.raises(StopAsyncIteration):
            await lines.next()


async def test_a_watch_that_reads_too_slowly_expires() -> None:
    api = ApiServer(virtual_clock, history=5)
    ask = asker(api)
    async with ask.watch(CONFIG_MAPS, resourceVersion=await _revision(ask)) as lines:
        for i in range(12):
            await ask.ok("POST", CONFIG_MAPS, config_map(f"c{i}"))
        events = [await lines.next()]
        while events[-1][0] == "ADDED":
            events.append(await lines.next())
    assert events[-1][1]["code"] == 410


async def test_a_request_for_a_future_revision_times_out() -> None:
    status, answer = await asker()("GET", CONFIG_MAPS, watch="true", resourceVersion="9999")
    assert (status, answer["details"]["causes"][0]["reason"]) == (504, "ResourceVersionTooLarge")


async def test_a_watch_adds_and_deletes_objects_that_start_or_stop_matching_its_selector() -> None:
    ask = asker()
    async with ask.watch(PODS, resourceVersion=await _revision(ask), labelSelector="gpu=yes") as lines:
        await ask.ok("POST", PODS, pod("plain"))
        await ask.ok("POST", PODS, pod("p"))
        await ask.ok("PATCH", f"{PODS}/p", {"metadata": {"labels": {"gpu": "yes"}}}, media=MERGE)
        await ask.ok("PATCH", f"{PODS}/p", {"metadata": {"labels": {"x": "y"}}}, media=MERGE)
        await ask.ok("PATCH", f"{PODS}/p", {"metadata": {"labels": {"gpu": "no"}}}, media=MERGE)
        await ask.ok("DELETE", f"{PODS}/p")
        await ask.ok("POST", PODS, pod("q", labels={"gpu": "yes"}))
        assert await lines.names(4) == [("ADDED", "p"), ("MODIFIED", "p"), ("DELETED", "p"), ("ADDED", "q")]


async def test_a_watch_with_a_field_selector_of_a_node_adds_a_pod_once_it_is_bound() -> None:
    ask = asker()
    await ask.ok("POST", PODS, pod())
    async with ask.watch("/api/v1/pods", resourceVersion=await _revision(ask), fieldSelector="spec.nodeName=n") as lines:
        await ask.ok("POST", f"{PODS}/p/binding", {"target": {"name": "n"}})
        assert await lines.names(1) == [("ADDED", "p")]


async def test_a_watch_of_one_namespace_or_one_object_shows_no_other() -> None:
    ask = asker()
    revision = await _revision(ask)
    other = CONFIG_MAPS.replace("default", "kube-system")
    async with ask.watch(CONFIG_MAPS, resourceVersion=revision) as inside, ask.watch(f"{other}/b", resourceVersion=revision) as lines:
        for path, name in ((other, "a"), (other, "b"), (CONFIG_MAPS, "c")):
            await ask.ok("POST", path, config_map(name))
        assert await inside.names(1) == [("ADDED", "c")]
        assert await lines.names(1) == [("ADDED", "b")]


async def test_a_watch_can_show_tables() -> None:
    ask = asker()
    await ask.ok("POST", CONFIG_MAPS, config_map("a", x="y"))
    from gpuscaler.kube.transport import Request

    async with ask.transport.exchange(Request("GET", CONFIG_MAPS, {"watch": "1"}, TABLE, timeout=None)) as answer:
        _, table = await Lines(answer.pieces).next()
    assert (table["kind"], table["rows"][0]["cells"]) == ("Table", ["a", 1, "0s"])


@pytest.mark.parametrize("sever", [True, False])
async def test_open_watches_can_be_disconnected(sever: bool) -> None:
    api = ApiServer(virtual_clock)
    ask = asker(api)
    async with ask.watch(CONFIG_MAPS, resourceVersion=await _revision(ask)) as lines:
        waiting = asyncio.create_task(lines.next())
        await asyncio.sleep(1)
        api.drop_watches(sever=sever)
        with pytest.raises(Unreachable if sever else StopAsyncIteration):
            await waiting


async def test_all_concurrent_watches_get_the_same_events() -> None:
    ask = asker()
    revision = await _revision(ask)

    async def follow() -> list[tuple[str, str]]:
        async with ask.watch(CONFIG_MAPS, resourceVersion=revision) as lines:
            return await lines.names(50)

    followers = [asyncio.create_task(follow()) for _ in range(20)]
    for i in range(50):
        await ask.ok("POST", CONFIG_MAPS, config_map(f"c{i}"))
    results = await asyncio.gather(*followers)
    assert all(names == [("ADDED", f"c{i}") for i in range(50)] for names in results)
