"""The requests of a reflector, and what it passes on, whatever the server does."""

import asyncio
import json

import pytest
from tests.kube.scripted import (
    BROKEN,
    NO_STREAMS,
    SILENCE,
    Json,
    ReceivedObjects,
    Reply,
    Scripted,
    bookmark,
    event,
    failure,
    listed,
    page,
    pod,
    reflect,
    reflector_of,
    run_for,
    status_object,
)

from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.reflector import IN_PROCESS
from gpuscaler.kube.resources import DEVICE_CLASSES, JOB_SETS, NODES, PODS, WORKLOADS
from gpuscaler.model.aside import object_name
from gpuscaler.model.pods import Pod
from gpuscaler.model.workloads import PodGroup


async def test_the_list_is_streamed_and_the_same_request_continues_as_a_watch() -> None:
    server = Scripted(Reply([listed(pod("a"), pod("b")), event("ADDED", pod("c", version=101)), SILENCE]))
    reflected, reflector = await reflect(server)
    assert reflected.names == ["a", "b", "c"]
    assert reflector.synced
    query = server.watches[0]
    assert (query["sendInitialEvents"], query["resourceVersionMatch"], query["allowWatchBookmarks"]) == ("true", "NotOlderThan", "true")
    assert "resourceVersion" not in query
    assert 300 <= int(query["timeoutSeconds"]) <= 600
    assert len(server.requests) == 1


async def test_nothing_is_synced_before_the_bookmark_that_ends_the_list() -> None:
    reflected, reflector = await reflect(Scripted(Reply([event("ADDED", pod("a")), bookmark(50), SILENCE])))
    assert reflected.names == ["a"]
    assert not reflector.synced
    assert reflector.fresh_at is None


@pytest.mark.parametrize("refusal", [NO_STREAMS, failure(400, "BadRequest")], ids=["422", "400"])
async def test_a_server_without_streaming_lists_is_read_in_pages_and_then_watched(refusal: Reply) -> None:
    server = Scripted(
        refusal, page(pod("a"), more="t1"), page(pod("b"), version=100), Reply([event("ADDED", pod("c", version=101)), SILENCE])
    )
    reflected, reflector = await reflect(server)
    assert reflected.names == ["a", "b", "c"]
    assert reflector.synced
    assert [request.query.get("continue") for request in server.requests[1:3]] == [None, "t1"]
    assert server.requests[1].query["limit"] == "500"
    assert server.watches[-1]["resourceVersion"] == "100"
    assert "sendInitialEvents" not in server.watches[-1]


async def test_a_server_without_streaming_lists_is_not_asked_for_a_stream_again() -> None:
    server = Scripted(NO_STREAMS, page(pod("a")), Reply([event("ERROR", status_object(410, "Expired"))]), page(pod("b")))
    reflected, _ = await reflect(server, seconds=10)
    assert reflected.names == ["b"]
    assert sum("sendInitialEvents" in query for query in server.watches) == 1


async def test_a_server_that_ignores_the_request_for_a_list_is_read_in_pages_at_the_third_try() -> None:
    server = Scripted(Reply([event("ADDED", pod("a")), SILENCE]), Reply([event("ADDED", pod("a")), SILENCE]), page(pod("a"), pod("b")))
    reflected, reflector = await reflect(server, seconds=120)
    assert reflector.synced
    assert reflected.names == ["a", "b"]


async def test_a_watch_that_the_server_ends_is_resumed_at_the_last_event() -> None:
    server = Scripted(Reply([listed(pod("a")), 5.0, event("MODIFIED", pod("a", node="n1", version=107))]))
    reflected, _ = await reflect(server, seconds=6)
    assert server.watches[1]["resourceVersion"] == "107"
    assert reflected.held["team/a"].node_name == "n1"  # type: ignore[union-attr]


async def test_a_bookmark_updates_the_version_to_resume_at() -> None:
    server = Scripted(Reply([listed(pod("a")), event("ADDED", pod("b", version=101)), 5.0, bookmark(250), 1.0]))
    await reflect(server, seconds=8)
    assert server.watches[1]["resourceVersion"] == "250"


async def test_a_deleted_object_is_gone() -> None:
    reflected, _ = await reflect(Scripted(Reply([listed(pod("a"), pod("b")), event("DELETED", pod("a", version=101)), SILENCE])))
    assert reflected.names == ["b"]


async def test_an_object_added_deleted_and_added_again_in_one_piece_exists_once() -> None:
    changes = event("ADDED", pod("b")) + event("DELETED", pod("b")) + event("ADDED", pod("b", node="n2", version=105))
    reflected, _ = await reflect(Scripted(Reply([listed(pod("a")) + changes, SILENCE])))
    assert reflected.names == ["a", "b"]
    assert reflected.held["team/b"].node_name == "n2"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "expired",
    [Reply([event("ERROR", status_object(410, "Expired"))]), failure(410, "Gone"), failure(400, "Expired")],
    ids=["in the stream", "as a status", "as a reason"],
)
async def test_an_expired_version_leads_to_a_new_list_and_only_differences_are_passed_on(expired: Reply) -> None:
    server = Scripted(Reply([listed(pod("a"), pod("b")), 2.0]), expired, Reply([listed(pod("b"), pod("c"), version=900), SILENCE]))
    reflected, reflector = await reflect(server, seconds=10)
    assert reflected.names == ["b", "c"]
    assert reflector.synced
    assert "resourceVersion" not in server.watches[2]
    assert reflected.batches[-1].changes == {"team/a": None}


async def test_an_object_seen_only_in_an_interrupted_list_is_removed_after_the_next_list() -> None:
    server = Scripted(Reply([event("ADDED", pod("a")), event("ADDED", pod("b")), BROKEN]), Reply([listed(pod("b")), SILENCE]))
    reflected, _ = await reflect(server, seconds=10)
    assert reflected.names == ["b"]


async def test_an_object_deleted_while_pages_are_read_again_is_removed() -> None:
    first = [NO_STREAMS, page(pod("a"), pod("b"), pod("c")), Reply([event("ERROR", status_object(410, "Expired"))])]
    server = Scripted(*first, page(pod("a"), more="t"), page(pod("c"), version=300))
    reflected, _ = await reflect(server, seconds=10)
    assert reflected.names == ["a", "c"]
    assert server.watches[-1]["resourceVersion"] == "300"


async def test_a_list_that_expires_between_pages_is_restarted_with_larger_pages() -> None:
    server = Scripted(NO_STREAMS, page(pod("a"), more="t"), failure(410, "Expired"), page(pod("b"), pod("c")))
    reflected, reflector = await reflect(server, seconds=10)
    assert reflected.names == ["b", "c"]
    assert reflector.synced
    assert server.requests[3].query == {"limit": "1000"}


async def test_a_bookmark_older_than_the_last_event_leads_to_a_new_list() -> None:
    server = Scripted(Reply([listed(pod("a"), version=1000), 5.0, bookmark(400), SILENCE]), Reply([listed(pod("b"), version=400), SILENCE]))
    reflected, _ = await reflect(server, seconds=15)
    assert reflected.names == ["b"]


async def test_pauses_grow_after_failures_and_are_never_longer_than_a_minute() -> None:
    server = Scripted(*[Unreachable("nothing listens")] * 12)
    _, reflector = await reflect(server, seconds=600)
    pauses = [after - before for before, after in zip(server.times, server.times[1:], strict=False)]
    assert 0.8 <= pauses[0] <= 1.6
    assert all(later > 1.2 * earlier or later >= 30 for earlier, later in zip(pauses, pauses[2:], strict=False))
    assert max(pauses[:11]) <= 60
    assert "nothing listens" not in reflector.trouble, "the server is back"


async def test_the_trouble_of_a_reflector_names_the_resource_and_the_error() -> None:
    _, reflector = await reflect(Scripted(*[Unreachable("nothing listens on 10.0.0.1:6443")] * 5), seconds=5)
    assert reflector.trouble == "pods: nothing listens on 10.0.0.1:6443"


async def test_retry_after_is_observed() -> None:
    server = Scripted(failure(429, "TooManyRequests", headers={"retry-after": "17"}), Reply([listed(pod("a")), SILENCE]))
    reflected, _ = await reflect(server, seconds=30)
    assert server.times[1] - server.times[0] >= 17
    assert reflected.names == ["a"]


async def test_a_watch_resumes_at_the_same_version_after_an_error_other_than_expiry() -> None:
    server = Scripted(Reply([listed(pod("a")), event("ADDED", pod("b", version=140)), event("ERROR", status_object(500, "InternalError"))]))
    reflected, reflector = await reflect(server, seconds=10)
    assert reflected.names == ["a", "b"]
    assert server.watches[1]["resourceVersion"] == "140"
    assert reflector.lists == 1


async def test_a_version_that_the_server_rejects_leads_to_a_new_list() -> None:
    server = Scripted(Reply([listed(pod("a"))]), failure(400, "BadRequest"), Reply([listed(pod("b")), SILENCE]))
    reflected, _ = await reflect(server, seconds=20)
    assert reflected.names == ["b"]


async def test_a_silent_watch_is_given_up_and_resumed_at_once() -> None:
    server = Scripted(Reply([listed(pod("a")), SILENCE]), Reply([event("ADDED", pod("b", version=101)), SILENCE]))
    reflected, _ = await reflect(server, seconds=100)
    assert server.times[1] == pytest.approx(90, abs=0.1)
    assert server.watches[1]["resourceVersion"] == "100"
    assert reflected.names == ["a", "b"]


async def test_a_quiet_watch_is_kept() -> None:
    bookmarks: list[bytes | float | str] = [piece for number in range(5) for piece in (60.0, bookmark(101 + number))]
    server = Scripted(Reply([listed(pod("a")), *bookmarks, SILENCE]))
    _, reflector = await reflect(server, seconds=330)
    assert len(server.requests) == 1
    assert reflector.fresh_at == pytest.approx(300)


async def test_a_connection_within_the_process_is_watched_silently_for_an_hour_without_bookmarks() -> None:
    server = Scripted(page(pod("a"), version=100), Reply([3000.0, event("ADDED", pod("b", version=101)), SILENCE]))
    reflected, reflector = await reflect(server, seconds=3500, pace=IN_PROCESS)
    assert reflected.names == ["a", "b"]
    assert reflector.synced
    (query,) = server.watches
    assert "allowWatchBookmarks" not in query
    assert "sendInitialEvents" not in query
    assert 3600 <= int(query["timeoutSeconds"]) < IN_PROCESS.silence


async def test_watches_that_end_immediately_are_not_restarted_in_a_tight_loop() -> None:
    server = Scripted(Reply([listed(pod("a"))]), *[Reply([])] * 100)
    await reflect(server, seconds=60)
    assert len(server.requests) < 12


async def test_an_unreadable_object_is_reported_and_the_rest_continues() -> None:
    odd: Json = pod("odd")
    odd["spec"]["containers"] = "none"
    reflected, reflector = await reflect(Scripted(Reply([listed(odd, pod("a")), SILENCE])))
    assert reflected.names == ["a"]
    assert reflected.aside.keys() == {"Pod team/odd"}
    assert reflector.synced


async def test_an_object_that_becomes_unreadable_keeps_its_last_record() -> None:
    odd: Json = pod("a", version=101)
    odd["metadata"]["labels"] = 7
    reflected, _ = await reflect(Scripted(Reply([listed(pod("a", node="n1")), event("MODIFIED", odd), SILENCE])))
    assert reflected.names == ["a"]
    assert reflected.aside.keys() == {"Pod team/a"}


async def test_an_unreadable_object_that_is_deleted_is_reported_as_gone() -> None:
    odd: Json = pod("odd")
    odd["spec"]["containers"] = "none"
    reflected, _ = await reflect(Scripted(Reply([listed(odd), event("DELETED", odd), SILENCE])))
    assert reflected.batches[-1].changes == {"team/odd": None}


async def test_an_object_without_a_name_is_reported_as_skipped() -> None:
    nameless: Json = pod("x")
    del nameless["metadata"]["name"]
    reflected, _ = await reflect(Scripted(Reply([listed(nameless, pod("a")), SILENCE])))
    assert reflected.names == ["a"]
    assert "metadata.name" in next(iter(reflected.aside.values()))


async def test_an_event_in_another_json_layout_is_read() -> None:
    line = json.dumps({"object": pod("b", version=101), "type": "ADDED"}).encode() + b"\n"
    trailing = b'{"type":"ADDED","object":' + json.dumps(pod("c", version=102)).encode() + b',"extra":{}}\r\n'
    reflected, _ = await reflect(Scripted(Reply([listed(pod("a")), line + trailing, SILENCE])))
    assert reflected.names == ["a", "b", "c"]
    assert reflected.aside == {}


async def test_a_malformed_line_of_a_watch_is_requested_again() -> None:
    server = Scripted(
        Reply([listed(pod("a")) + event("ADDED", pod("b", version=105)) + b'{"type":"ADDED","object":{"metada\n', SILENCE]),
        Reply([event("ADDED", pod("c", version=106)), SILENCE]),
    )
    reflected, _ = await reflect(server, seconds=10)
    assert server.watches[1]["resourceVersion"] == "105"
    assert reflected.names == ["a", "b", "c"]
    assert reflected.aside == {}


async def test_a_line_of_a_watch_that_is_malformed_twice_is_skipped() -> None:
    damaged = b"<html>\n"
    again = Reply([damaged, event("ADDED", pod("c", version=106)), SILENCE])
    reflected, _ = await reflect(Scripted(Reply([listed(pod("a")), damaged, SILENCE]), again), seconds=10)
    assert reflected.names == ["a", "c"]
    assert "not JSON" in reflected.aside["Pod"]


async def test_a_watch_that_breaks_in_the_middle_of_an_event_is_resumed_before_it() -> None:
    half = event("ADDED", pod("b", version=105))[:40]
    server = Scripted(Reply([listed(pod("a")), 2.0, half]), Reply([event("ADDED", pod("b", version=105)), SILENCE]))
    reflected, _ = await reflect(server, seconds=10)
    assert server.times[1] >= 2.8, "a fault, not an end in order"
    assert server.watches[1]["resourceVersion"] == "100"
    assert reflected.names == ["a", "b"]


async def test_a_missing_optional_resource_counts_as_synced_and_is_checked_again_after_ten_minutes() -> None:
    reflected, reflector = await reflect(server := Scripted(*[failure(404, "NotFound")] * 2), JOB_SETS, seconds=500)
    assert reflector.absent
    assert reflector.synced
    assert reflector.trouble == ""
    assert len(server.requests) == 1
    assert reflected.batches == []


async def test_older_versions_of_a_resource_are_tried_before_it_is_absent() -> None:
    answer = Reply([event("ADDED", {"apiVersion": "resource.k8s.io/v1beta1", "kind": "DeviceClass", "metadata": {"name": "gpu"}})])
    server = Scripted(failure(404), failure(404), Reply([*answer.pieces, bookmark(5, end=True), SILENCE]))
    reflected, reflector = await reflect(server, DEVICE_CLASSES)
    assert [request.path.split("/")[3] for request in server.requests] == ["v1", "v1beta2", "v1beta1"]
    assert reflected.names == ["gpu"]
    assert not reflector.absent


async def test_the_objects_of_a_resource_that_the_server_no_longer_has_are_gone() -> None:
    job_set: Json = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "train", "namespace": "team"}}
    reflected, reflector = await reflect(Scripted(Reply([listed(job_set), 2.0]), failure(404)), JOB_SETS, seconds=10)
    assert reflected.names == []
    assert reflector.absent


async def test_known_pods_are_kept_if_the_server_stops_knowing_the_resource_pods() -> None:
    reflected, reflector = await reflect(Scripted(Reply([listed(pod("a"), pod("b")), 2.0]), *[failure(404)] * 20), PODS, seconds=60)
    assert reflected.names == ["a", "b"]
    assert not reflector.absent
    assert reflector.trouble.startswith("pods: ")


async def test_a_forbidden_resource_is_reported_with_the_permissions_to_grant() -> None:
    server = Scripted(*[failure(403, "Forbidden")] * 30)
    _, reflector = await reflect(server, NODES, seconds=200)
    assert not reflector.settled
    assert "nodes" in reflector.trouble
    assert "grant both verbs" in reflector.trouble
    # Seven within the first minute and a half, then one per minute.
    assert len(server.requests) < 12


async def test_a_server_that_just_started_and_knows_no_roles_is_retried_within_seconds() -> None:
    server = Scripted(failure(403, "Forbidden"), failure(403, "Forbidden"), Reply([listed(pod("a")), 60.0]))
    reflected, reflector = await reflect(server, PODS, seconds=6)
    assert reflected.names == ["a"]
    assert not reflector.trouble


async def test_a_native_workload_that_loses_a_group_loses_its_record() -> None:
    def workload(*groups: str) -> Json:
        pod_groups = [{"name": name, "policy": {"gang": {"minCount": 2}}} for name in groups]
        metadata = {"name": "train", "namespace": "team", "resourceVersion": "120"}
        return {"apiVersion": "scheduling.k8s.io/v1alpha1", "kind": "Workload", "metadata": metadata, "spec": {"podGroups": pod_groups}}

    first = Reply(
        [listed(workload("a", "b")), 1.0, event("MODIFIED", workload("b", "c")), 1.0, event("DELETED", workload("b", "c")), SILENCE]
    )
    reflected = ReceivedObjects()
    reflector = reflector_of(Scripted(first), reflected, WORKLOADS)
    seen = []
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(reflector.run())
        for _ in range(3):
            await asyncio.sleep(0.75)
            seen.append(sorted(reflected.held))
            await asyncio.sleep(0.25)
        running.cancel()
    assert seen == [["workload/team/train/a", "workload/team/train/b"], ["workload/team/train/b", "workload/team/train/c"], []]


async def test_a_workload_without_groups_is_no_longer_reported_as_skipped_once_it_can_be_read() -> None:
    metadata = {"name": "train", "namespace": "team", "resourceVersion": "120"}
    whole: Json = {"apiVersion": "scheduling.k8s.io/v1alpha1", "kind": "Workload", "metadata": metadata, "spec": {"podGroups": []}}
    reflected, _ = await reflect(Scripted(Reply([listed({**whole, "spec": 7}), event("MODIFIED", whole), SILENCE])), WORKLOADS)
    assert reflected.aside.keys() == {"Workload team/train"}
    [(key, deleted)] = reflected.batches[-1].changes.items()
    assert object_name(PodGroup, key) == "Workload team/train"
    assert deleted is None


async def test_an_object_of_any_size_in_pieces_of_any_size_is_read() -> None:
    large: Json = pod("large")
    large["metadata"]["annotations"] = {"notes": "x" * 3_000_000}
    stream = listed(large, pod("a"))
    pieces = [stream[begin : begin + 1000] for begin in range(0, len(stream), 1000)]
    reflected, _ = await reflect(Scripted(Reply([*pieces, SILENCE])))
    assert reflected.names == ["a", "large"]


async def test_a_long_list_lets_the_event_loop_run_in_between() -> None:
    stream = listed(*[pod(f"p{number}") for number in range(3000)])
    reflected = ReceivedObjects()
    task = asyncio.create_task(run_for(reflector_of(Scripted(Reply([stream, SILENCE])), reflected), 1.0))
    most = before = 0
    while before < 3000:
        await asyncio.sleep(0)
        most, before = max(most, len(reflected.held) - before), len(reflected.held)
    await task
    assert len(stream) > 4 * 262_144 - 300_000
    assert most < 1500


async def test_records_are_small_and_do_not_keep_their_page_in_memory() -> None:
    reflected, _ = await reflect(Scripted(Reply([listed(pod("a", node="n1")), SILENCE])))
    record = reflected.held["team/a"]
    assert isinstance(record, Pod)
    assert record.spec.requests["nvidia.com/gpu"] == 1


async def test_refused_credentials_are_tried_again_soon() -> None:
    server = Scripted(failure(401, "Unauthorized"), failure(401, "Unauthorized"), Reply([listed(pod("a")), SILENCE]))
    reflected, reflector = await reflect(server, seconds=10)
    assert reflected.names == ["a"]
    assert reflector.trouble == ""


async def test_a_list_without_a_version_to_watch_from_is_an_error() -> None:
    nowhere = Reply([b'{"kind":"PodList","metadata":{},"items":[]}'])
    _, reflector = await reflect(Scripted(NO_STREAMS, *[nowhere] * 5), seconds=5)
    assert not reflector.synced
    assert "metadata.resourceVersion" in reflector.trouble


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b"", b'{"items":7}'])
async def test_a_malformed_page_is_not_treated_as_an_empty_list(body: bytes) -> None:
    reflected, reflector = await reflect(Scripted(Reply([listed(pod("a"))]), failure(410), NO_STREAMS, *[Reply([body])] * 9), seconds=20)
    assert reflected.names == ["a"]
    assert "not a List in JSON" in reflector.trouble or "metadata.resourceVersion" in reflector.trouble
