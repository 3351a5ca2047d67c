"""Authorization: reviews by the API server for the path of a request, cached for a while; without a review, access is refused."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from tests.metrics.api.scene import HPA, ReviewServer, pod, scene

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.reviews import BusyError, Reviews, Ttl
from gpuscaler.kube.users import ANONYMOUS_USER, Attributes, User
from gpuscaler.serving.connections import Bounds

REAL = pytest.mark.looptime(False)
V1 = "/apis/custom.metrics.k8s.io/v1beta1"
ASKED = Attributes("get", "/x", "custom.metrics.k8s.io", "v1beta1", "pods", "m", "n", "*")
JANE = User("jane", ("system:authenticated",))


@REAL
async def test_an_access_review_has_the_attributes_of_the_request_path(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.values = [pod("a", "1")]
        for path in (
            f"{V1}/namespaces/default/pods/%2A/duty_cycle_current",
            f"{V1}/namespaces/default/jobs.batch/train/m",
            f"{V1}/nodes/n1/m",
            f"{V1}/namespaces/default/metrics/m",
            "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue",
        ):
            await made.get(path)
        await made.get("/apis")
        custom = {"verb": "get", "group": "custom.metrics.k8s.io", "version": "v1beta1"}
        assert [spec.get("resourceAttributes", spec.get("nonResourceAttributes")) for spec in made.reviewing.specs] == [
            {**custom, "resource": "pods", "subresource": "duty_cycle_current", "namespace": "default", "name": "*"},
            {**custom, "resource": "jobs.batch", "subresource": "m", "namespace": "default", "name": "train"},
            {**custom, "resource": "nodes", "subresource": "m", "name": "n1"},
            {**custom, "resource": "metrics", "namespace": "default", "name": "m"},
            {"verb": "list", "group": "external.metrics.k8s.io", "version": "v1beta1", "resource": "queue", "namespace": "default"},
            {"verb": "get", "path": "/apis"},
        ]


@REAL
async def test_a_refusal_names_the_missing_right_in_exactly_the_text_of_kubernetes(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.reviewing.allows = lambda _: False
        answer = await made.get(f"{V1}/namespaces/n/pods/%2A/m", user="u")
        assert (answer.status, answer.headers["content-type"]) == (403, "application/json")
        assert answer.body == (
            b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
            b'"message":"pods.custom.metrics.k8s.io \\"*\\" is forbidden: User \\"u\\" cannot get resource \\"pods/m\\" '
            b'in API group \\"custom.metrics.k8s.io\\" in the namespace \\"n\\"",'
            b'"reason":"Forbidden","details":{"name":"*","group":"custom.metrics.k8s.io","kind":"pods"},"code":403}\n'
        )
        made.reviewing.reason = "no such role"
        assert (await made.get("/metrics", user="a<b>")).json["message"] == (
            'forbidden: User "a&lt;b&gt;" cannot get path "/metrics": no such role'
        )
        assert (await made.get(f"{V1}/nodes/n1/m", user="u")).json["message"].endswith("at the cluster scope: no such role")
        assert made.source.asked == []


@REAL
async def test_probes_and_the_group_system_masters_need_no_access_review(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.reviewing.allows = lambda _: False
        for path in ("/healthz", "/livez", "/readyz"):
            assert (await made.ask(path, None)).body == b"ok"
        made.source.values = [pod("a", "1")]
        path = f"{V1}/namespaces/default/pods/a/duty_cycle_current"
        assert (await made.get(path, headers=[("X-Remote-Group", "system:masters")])).status == 200
        assert made.reviewing.specs == []
        assert (await made.ask("/healthz/ping", None)).status == 403


@REAL
async def test_access_is_refused_if_rights_cannot_be_checked(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.reviewing.away = True
        answer = await made.get(f"{V1}/namespaces/n/pods/a/m")
        assert (answer.status, answer.json["reason"]) == (500, "InternalError")
        assert made.source.asked == []


async def test_an_access_review_is_cached_for_a_while_and_shared_by_concurrent_requests() -> None:
    plane, now = ReviewServer(allows=lambda spec: spec["user"] == "jane"), [0.0]
    reviews = Reviews(Client(plane), Client(plane), clock=lambda: now[0], ttl=Ttl(allowed=10.0, denied=5.0))
    assert all(verdict.allowed for verdict in await asyncio.gather(*(reviews.verdict(JANE, ASKED) for _ in range(20))))
    assert not (await reviews.verdict(User("joe"), ASKED)).allowed
    assert len(plane.specs) == 2
    now[0] = 6.0
    assert reviews.cached_verdict(JANE, ASKED) is not None
    assert reviews.cached_verdict(User("joe"), ASKED) is None
    now[0] = 10.0
    plane.allows = lambda _: False
    assert not (await reviews.verdict(JANE, ASKED)).allowed
    assert len(plane.specs) == 3


def about(path: str) -> Attributes:
    return Attributes("get", path)


@pytest.mark.parametrize("user", [ANONYMOUS_USER, User("tenant")])
async def test_reviews_for_callers_without_a_certificate_wait_at_most_a_second_and_come_after_others(user: User) -> None:
    """The test's clock does not advance, so the number of reviews is the burst plus the reviews of one second."""
    plane = ReviewServer()
    reviews = Reviews(Client(plane), Client(plane), clock=lambda: 0.0)
    verdicts = await asyncio.gather(*(reviews.verdict(user, about(f"/made/up/{number}")) for number in range(1000)), return_exceptions=True)
    busy = [outcome for outcome in verdicts if isinstance(outcome, BusyError)]
    began = asyncio.get_running_loop().time()
    assert (await reviews.verdict(JANE, ASKED, vouched=True)).allowed
    assert asyncio.get_running_loop().time() - began < 0.1
    assert len(plane.specs) == 1001 - len(busy) <= 151


async def test_invented_tokens_do_not_delay_callers_with_a_certificate() -> None:
    plane = ReviewServer()
    reviews = Reviews(Client(plane), Client(plane), clock=lambda: 0.0)
    users = await asyncio.gather(*(reviews.user_of(f"made-up-{number}") for number in range(1000)), return_exceptions=True)
    assert sum(isinstance(outcome, BusyError) for outcome in users) == 1000 - len(plane.specs) >= 849
    assert (await reviews.verdict(JANE, ASKED, vouched=True)).allowed


@REAL
async def test_too_many_anonymous_requests_are_refused_while_a_proxys_are_answered(tmp_path: Path) -> None:
    # The server accepts all connections immediately, so that only the number of reviews is limited.
    async with scene(tmp_path, bounds=Bounds(turns=10_000, peer_turns=10_000)) as made:
        made.source.values = [pod("a", "1")]
        connector = aiohttp.TCPConnector(ssl=made.context(None), limit=30)
        async with aiohttp.ClientSession(made.url, connector=connector) as session:

            async def ask(number: int) -> int:
                async with session.get(f"/made/up/{number}") as answer:
                    return answer.status

            statuses = await asyncio.gather(*(ask(number) for number in range(100)))
        assert 429 in statuses
        assert (await made.get(f"{V1}/namespaces/default/pods/a/duty_cycle_current")).status == 200
        reviewed = [spec for spec in made.reviewing.specs if spec["user"] == "system:anonymous"]
        assert len(reviewed) < 60


async def test_a_caller_that_disconnects_does_not_cancel_the_review_for_other_callers() -> None:
    plane = ReviewServer()
    reviews = Reviews(Client(plane), Client(plane), clock=lambda: 0.0)
    first, second = (asyncio.ensure_future(reviews.verdict(JANE, ASKED)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).allowed
    assert len(plane.specs) == 1


async def test_a_failed_review_fails_all_requests_that_wait_for_it_and_is_retried_for_the_next_one() -> None:
    plane = ReviewServer(away=True)
    reviews = Reviews(Client(plane), Client(plane), clock=lambda: 0.0)
    gone = asyncio.ensure_future(reviews.verdict(JANE, ASKED))
    waiting = [asyncio.ensure_future(reviews.verdict(JANE, ASKED)) for _ in range(3)]
    await asyncio.sleep(0)
    gone.cancel()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unreachable] * 3
    plane.away = False
    assert (await reviews.verdict(JANE, ASKED)).allowed


@REAL
async def test_a_user_does_not_have_the_rights_of_another_with_the_same_name(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.reviewing.allows = lambda spec: "admins" in spec["groups"]
        made.source.values = [pod("a", "1")]
        path = f"{V1}/namespaces/default/pods/a/duty_cycle_current"
        assert (await made.get(path, user=HPA, headers=[("X-Remote-Group", "admins")])).status == 200
        assert (await made.get(path, user=HPA)).status == 403
