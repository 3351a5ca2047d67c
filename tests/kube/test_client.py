"""The client: its requests, which of them are repeated, and which never are."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.kube.doubles import Scripted, answer, refusal

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import (
    Conflict,
    CredentialsError,
    Forbidden,
    Gone,
    NotApiServerError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from gpuscaler.kube.eviction import AlreadyDeleted, Evicted, MultipleBudgets, Refused
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.requests import RequestKind
from gpuscaler.kube.resources import CONFIG_MAPS, LEASES, NODES, PODS
from gpuscaler.kube.transport import Answer, Request

BUDGET = {"causes": [{"reason": "DisruptionBudget", "message": "The disruption budget web needs 2 healthy pods and has 2 currently"}]}


def make_client(*answers: object, **options: object) -> tuple[Client, Scripted]:
    transport = Scripted(list(answers))  # type: ignore[arg-type]
    return Client(transport, **options), transport  # type: ignore[arg-type]


def sent_requests(transport: Scripted) -> list[tuple[str, str]]:
    return [(request.method, request.path) for request in transport.requests]


async def test_an_object_is_returned_as_the_server_sent_it() -> None:
    client, transport = make_client(answer(body=b'{"kind":"Node","spec":{}}'))
    assert await client.get(NODES, "n/1") == b'{"kind":"Node","spec":{}}'
    assert sent_requests(transport) == [("GET", "/api/v1/nodes/n%2F1")]


async def test_a_list_is_read_to_its_last_page() -> None:
    first = answer(body={"metadata": {"continue": "more"}, "items": [{"a": 1}, {"a": 2}]})
    client, transport = make_client(first, answer(body={"metadata": {}, "items": [{"a": 3}]}))
    assert await client.list_all(PODS, namespace="ns", query={"labelSelector": "a=b"}) == [b'{"a":1}', b'{"a":2}', b'{"a":3}']
    assert transport.requests[1].query == {"limit": "500", "continue": "more", "labelSelector": "a=b"}
    assert transport.requests[1].path == "/api/v1/namespaces/ns/pods"


async def test_a_list_that_expires_between_pages_is_restarted_by_the_client_once() -> None:
    first = {"metadata": {"continue": "more"}, "items": [{"a": 1}]}
    expired = refusal(410, "too old", reason="Expired")
    client, _ = make_client(answer(body=first), expired, answer(body={"items": [{"a": 4}]}))
    assert await client.list_all(PODS) == [b'{"a":4}']
    other, _ = make_client(answer(body=first), expired, answer(body=first), refusal(410, "too old"))
    with pytest.raises(Gone):
        await other.list_all(PODS)


async def test_a_list_whose_items_are_null_is_empty() -> None:
    client, _ = make_client(answer(body={"items": None}))
    assert await client.list_all(PODS) == []


async def test_a_read_is_repeated_while_the_server_is_unreachable_or_failing() -> None:
    client, transport = make_client(
        Unreachable("away"), refusal(503, "starting"), refusal(429, "busy", retry_after="3"), answer(body=b"{}")
    )
    start = asyncio.get_running_loop().time()
    assert await client.get(NODES, "n") == b"{}"
    assert len(transport.requests) == 4
    assert asyncio.get_running_loop().time() - start == pytest.approx(0.25 + 0.5 + 3)
    assert client.metrics.retries[RequestKind("get", "nodes")] == 3


async def test_a_failing_read_is_repeated_only_a_few_times() -> None:
    client, transport = make_client(Unreachable("away"))
    with pytest.raises(Unreachable):
        await client.get(NODES, "n")
    assert len(transport.requests) == 4


async def test_a_read_with_a_retry_after_of_a_minute_fails_at_once() -> None:
    client, transport = make_client(refusal(429, "busy", retry_after="60"))
    with pytest.raises(TooManyRequests) as raised:
        await client.get(NODES, "n")
    assert raised.value.retry_after == 60
    assert len(transport.requests) == 1


async def test_an_answer_that_is_not_json_counts_as_unreachable() -> None:
    page = Answer(200, {"content-type": "text/html; charset=utf-8"}, answer(body=b"<html>").pieces)
    client, _ = make_client(page)
    with pytest.raises(NotApiServerError, match="saw status 200 with a web page, expected the JSON of a Kubernetes API server"):
        await client.create(PODS, b"{}", namespace="default")
    client, _ = make_client(Answer(200, {"content-type": "text/plain"}, answer(body=b"ok").pieces))
    with pytest.raises(NotApiServerError, match="saw an answer of text/plain, expected the JSON of a Kubernetes API server"):
        await client.create(PODS, b"{}", namespace="default")


async def test_a_web_page_with_the_status_404_does_not_mean_that_an_object_is_gone() -> None:
    client, transport = make_client(answer(404, b"<html><h1>Not Found</h1></html>", content_type="text/html"))

    with pytest.raises(NotApiServerError, match="saw status 404 with a web page"):
        await client.get(NODES, "n")

    assert len(transport.requests) == 4


async def test_a_read_without_credentials_is_not_repeated() -> None:
    client, transport = make_client(CredentialsError("no such program"))
    with pytest.raises(CredentialsError):
        await client.get(NODES, "n")
    assert len(transport.requests) == 1


async def test_a_read_of_a_missing_object_is_not_repeated() -> None:
    client, transport = make_client(refusal(404, 'pods "p" not found', reason="NotFound"))
    with pytest.raises(NotFound):
        await client.get(PODS, "p", namespace="ns")
    assert len(transport.requests) == 1


@pytest.mark.parametrize("failure", [Unreachable("broken"), refusal(503, "no"), refusal(429, "busy", retry_after="1")])
async def test_a_write_is_never_repeated(failure: Exception | Answer) -> None:
    client, transport = make_client(failure)
    with pytest.raises((Unreachable, ServerError, TooManyRequests)):
        await client.create(CONFIG_MAPS, {"metadata": {"name": "c"}}, namespace="ns")
    assert len(transport.requests) == 1


async def test_writes_name_their_field_manager_and_patch_type() -> None:
    client, transport = make_client(answer(201, body=b"{}"), *[answer(body=b"{}") for _ in range(5)], field_manager="me")
    await client.create(CONFIG_MAPS, b'{"a":1}', namespace="ns")
    await client.replace(LEASES, "l", {"a": 1}, namespace="ns")
    await client.merge_patch(NODES, "n", {"spec": {"taints": None}}, subresource="status")
    await client.apply(CONFIG_MAPS, "c", {"b": 2}, namespace="ns")
    await client.apply(CONFIG_MAPS, "c", {"b": 2}, namespace="ns", force=False)
    assert sent_requests(transport) == [
        ("POST", "/api/v1/namespaces/ns/configmaps"),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"),
        ("PATCH", "/api/v1/nodes/n/status"),
        ("PATCH", "/api/v1/namespaces/ns/configmaps/c"),
        ("PATCH", "/api/v1/namespaces/ns/configmaps/c"),
    ]
    assert [request.headers["content-type"] for request in transport.requests] == [
        "application/json",
        "application/json",
        "application/merge-patch+json",
        "application/apply-patch+yaml",
        "application/apply-patch+yaml",
    ]
    assert [request.body for request in transport.requests[:3]] == [b'{"a":1}', b'{"a":1}', b'{"spec":{"taints":null}}']
    assert all(request.query["fieldManager"] == "me" for request in transport.requests)
    assert ["force" in request.query for request in transport.requests] == [False, False, False, True, False]


async def test_a_delete_request_contains_its_preconditions() -> None:
    client, transport = make_client(answer())
    await client.delete(NODES, "n", uid="u", resource_version="7", grace=0, propagation="Background")
    assert msgspec.json.decode(transport.requests[0].body) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "gracePeriodSeconds": 0,
        "propagationPolicy": "Background",
    }


async def test_a_pod_is_bound_to_a_node() -> None:
    client, transport = make_client(answer(201))
    await client.bind("ns", "p", "n", uid="u")
    body = msgspec.json.decode(transport.requests[0].body)
    assert sent_requests(transport) == [("POST", "/api/v1/namespaces/ns/pods/p/binding")]
    assert (body["target"]["name"], body["metadata"]["uid"]) == ("n", "u")


async def test_an_eviction_request_contains_precondition_grace_period_and_dry_run() -> None:
    client, transport = make_client(answer(201))
    assert await client.evict("ns", "p", uid="u", grace=30, dry_run=True) == Evicted()
    body = msgspec.json.decode(transport.requests[0].body)
    assert body["deleteOptions"] == {"preconditions": {"uid": "u"}, "gracePeriodSeconds": 30, "dryRun": ["All"]}
    assert sent_requests(transport) == [("POST", "/api/v1/namespaces/ns/pods/p/eviction")]


OVERLAPPING = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
PRECONDITION = (
    'Operation cannot be fulfilled on Pod "p": the UID in the precondition (u) does not match the UID in record (v). '
    "The object might have been deleted and then recreated"
)
ANSWERS = {
    "a budget": (
        refusal(429, "Cannot evict pod as it would violate the pod's disruption budget.", reason="TooManyRequests", details=BUDGET),
        Refused(BUDGET["causes"][0]["message"]),
    ),
    "a budget in the making": (
        refusal(429, "Cannot evict pod", details={**BUDGET, "retryAfterSeconds": 10}),
        Refused(BUDGET["causes"][0]["message"], 10.0),
    ),
    "no pod": (refusal(404, 'pods "p" not found', reason="NotFound", details={"name": "p", "kind": "pods"}), AlreadyDeleted()),
    "another pod of that name": (refusal(409, PRECONDITION, reason="Conflict", details={"name": "p", "kind": "Pod"}), AlreadyDeleted()),
    "two budgets": (refusal(500, OVERLAPPING), MultipleBudgets(OVERLAPPING)),
    "a budget with too many": (
        refusal(403, "DisruptedPods map too big", reason="Forbidden", details={"name": "web", "kind": "poddisruptionbudget.policy"}),
        Refused("DisruptedPods map too big"),
    ),
    "a contended budget": (
        refusal(
            504,
            'Timeout: couldn\'t update PodDisruptionBudget "web" due to conflicts',
            reason="Timeout",
            details={"retryAfterSeconds": 10},
        ),
        Refused('Timeout: couldn\'t update PodDisruptionBudget "web" due to conflicts', 10.0),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_eviction_returns_the_result_for_the_pod(name: str) -> None:
    answer, expected = ANSWERS[name]
    client, _ = make_client(answer)
    assert await client.evict("ns", "p", uid="u") == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (refusal(429, "too many requests, please try again later", reason="TooManyRequests", retry_after="1"), TooManyRequests),
        (refusal(403, 'pods "p" is forbidden: cannot create pods/eviction', reason="Forbidden", details={"kind": "pods"}), Forbidden),
        (refusal(409, "the object has been modified", reason="Conflict"), Conflict),
        (refusal(404, "the server could not find the requested resource", reason="NotFound"), NotFound),
        (refusal(500, "etcdserver: request timed out"), ServerError),
    ],
)
async def test_an_error_that_is_not_about_the_pod_is_raised(said: Answer, expected: type[Exception]) -> None:
    client, _ = make_client(said)
    with pytest.raises(expected):
        await client.evict("ns", "p", uid="u")


async def test_a_dry_run_writes_nothing_and_counts_withheld_writes() -> None:
    client, transport = make_client(answer(body=b"{}"), dry_run=True)
    assert await client.create(CONFIG_MAPS, {"a": 1}, namespace="ns") == b'{"a":1}'
    assert await client.evict("ns", "p") == Evicted()
    await client.delete(NODES, "n")
    async with client.exchange(Request("PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l")) as said:
        assert said.status == 200
    await client.get(NODES, "n")
    assert sent_requests(transport) == [("GET", "/api/v1/nodes/n")]
    assert client.metrics.withheld == {
        RequestKind("create", "configmaps"): 1,
        RequestKind("create", "pods/eviction"): 1,
        RequestKind("delete", "nodes"): 1,
        RequestKind("update", "leases.coordination.k8s.io"): 1,
    }


class Lost(Exception):  # noqa: N818
    """The exception that a fence raises here."""


async def test_a_fence_stops_writes_and_lets_reads_through() -> None:
    def fence(timeout: float) -> None:
        raise Lost(timeout)

    plain, transport = make_client(answer(body=b"{}"), write_timeout=4.0)
    fenced = plain.fenced(fence)
    await fenced.get(NODES, "n")
    with pytest.raises(Lost) as raised:
        await fenced.merge_patch(NODES, "n", {})
    assert raised.value.args == (4.0,)
    await plain.merge_patch(NODES, "n", {})
    assert [method for method, _ in sent_requests(transport)] == ["GET", "PATCH"]


async def test_a_fence_that_closes_while_a_write_waits_its_turn_stops_it() -> None:
    loop = asyncio.get_running_loop()

    def fence(timeout: float) -> None:
        if loop.time() + timeout > 8:
            raise Lost

    client, transport = make_client(answer(body=b"{}"), limit=RateLimit(0.25, 1), fence=fence)
    await client.merge_patch(NODES, "n", {})
    with pytest.raises(Lost):
        await client.merge_patch(NODES, "n", {})
    assert loop.time() == 4
    assert len(transport.requests) == 1


async def test_a_write_ends_within_its_time_whatever_the_transport_does() -> None:
    async def never(_: Request) -> None:
        await asyncio.sleep(3600)

    client, _ = make_client(never, write_timeout=5.0)
    with pytest.raises(Unreachable, match=r"PATCH /api/v1/nodes/n: no answer within 5 s"):
        await client.merge_patch(NODES, "n", {})
    assert asyncio.get_running_loop().time() == 5
    assert client.metrics.requests == {(RequestKind("patch", "nodes"), 0): 1}


async def test_a_write_that_waited_long_for_its_turn_still_has_its_full_time() -> None:
    async def slow(_: Request) -> Answer:
        await asyncio.sleep(4)
        return answer(body=b"{}")

    client, _ = make_client(slow, limit=RateLimit(0.1, 1))
    await client.merge_patch(NODES, "n", {})
    await client.merge_patch(NODES, "n", {})
    assert asyncio.get_running_loop().time() == pytest.approx(14)


async def test_an_urgent_client_shares_the_rate_limit_and_does_not_wait_for_it() -> None:
    client, _ = make_client(*(answer(body=b"{}") for _ in range(4)), limit=RateLimit(0.1, 1))
    await client.merge_patch(NODES, "n", {})
    await client.urgently().merge_patch(NODES, "n", {})
    assert asyncio.get_running_loop().time() == 0
    await client.merge_patch(NODES, "n", {})
    assert asyncio.get_running_loop().time() == pytest.approx(20)


async def test_requests_are_counted_with_their_answer_and_time() -> None:
    async def slow(_: Request) -> Answer:
        await asyncio.sleep(0.3)
        return refusal(409, "changed", reason="Conflict")

    client, _ = make_client(slow)
    with pytest.raises(Conflict):
        await client.replace(LEASES, "l", {}, namespace="ns")
    kind = RequestKind("update", "leases.coordination.k8s.io")
    assert client.metrics.requests == {(kind, 409): 1}
    assert client.metrics.latencies[kind].total == pytest.approx(0.3)
    assert client.metrics.latencies[kind].counts[4] == 1


async def test_a_response_with_an_incomplete_body_is_counted_as_answered() -> None:
    async def broken(_: Request) -> Answer:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"{"
            raise Unreachable("cut")

        return Answer(200, {}, pieces())

    client, _ = make_client(broken)
    with pytest.raises(Unreachable):
        await client.create(PODS, {}, namespace="ns")
    assert client.metrics.requests == {(RequestKind("create", "pods"), 200): 1}
