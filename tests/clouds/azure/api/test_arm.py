"""Calls of Azure Resource Manager over HTTP."""

import asyncio
import json
import logging
import socket
from typing import Any

import pytest
from tests.clouds.azure.api.scripted import Say, calling, serving
from tests.clouds.azure.api.test_errors import BUSY, FAMILY, THROTTLED_READ, error

from gpuscaler.clouds.azure.api.arm import (
    COMPUTE,
    LONGEST_WAIT,
    MOST_READS,
    TRIES,
    Arm,
    ArmError,
    ArmReply,
    GoneError,
    PreconditionFailedError,
    etag_of,
)
from gpuscaler.clouds.azure.api.ids import scale_set_path
from gpuscaler.clouds.protocol import CAPACITY, CONFIGURATION, QUOTA, THROTTLED, UNAUTHORISED, UNKNOWN, CloudError, LostAnswerError

pytestmark = pytest.mark.looptime(False)
PATH = scale_set_path("sub", "MC_rg", "aks-gpu-vmss")
DENIED = (
    "The client 'c' with object id 'o' does not have authorization to perform action 'Microsoft.Compute/virtualMachineScaleSets/write' "
    "over scope '/subscriptions/sub' or the scope is invalid."
)


class Renewed:
    """Credentials whose token changes each time it is rejected."""

    def __init__(self) -> None:
        self.number = 1

    async def token(self) -> str:
        return f"token-{self.number}"

    def reject(self, token: str) -> None:
        assert token == await_token(self)
        self.number += 1


def await_token(credentials: Renewed) -> str:
    return f"token-{credentials.number}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_read_sends_the_version_the_token_and_the_parameters() -> None:
    async with calling(Say(body={"name": "gpu"}, headers={"ETag": '"1"'})) as caller:
        reply = await caller.arm.read(PATH, version=COMPUTE, parameters={"$expand": "instanceView", "$filter": "location eq 'eastus'"})

    (asked,) = caller.server.asked
    assert (asked.method, asked.path, asked.token) == ("GET", PATH, "token-1")
    assert asked.query == {"api-version": COMPUTE, "$expand": "instanceView", "$filter": "location eq 'eastus'"}
    assert (reply.status, reply.body, reply.headers["etag"]) == (200, {"name": "gpu"}, '"1"')
    assert caller.fenced == []


async def test_a_write_sends_the_etag_behind_the_fence_exactly_once() -> None:
    async with calling(Say(status=201, body={"etag": '"8"'}, headers={"Azure-AsyncOperation": "{url}/op"})) as caller:
        reply = await caller.arm.write("PATCH", PATH, version=COMPUTE, body={"sku": {"capacity": 3}}, etag='"7"', seconds=9)

    (asked,) = caller.server.asked
    assert (asked.method, json.loads(asked.body), asked.headers["if-match"]) == ("PATCH", {"sku": {"capacity": 3}}, '"7"')
    assert asked.headers["content-type"] == "application/json"
    assert caller.fenced == [9]
    assert (reply.status, etag_of(reply)) == (201, '"8"')


async def test_the_fence_stops_a_write() -> None:
    def stop(_: float) -> None:
        raise CloudError(UNKNOWN, "not the leader")

    async with calling() as caller:
        arm = Arm(Renewed(), endpoint_url=caller.server.url, fence=stop, now=lambda: 0.0, sleep=asyncio.sleep)
        with pytest.raises(CloudError, match="not the leader"):
            await arm.write("PUT", PATH, version=COMPUTE, body={})
        await arm.close()

    assert caller.server.asked == []


@pytest.mark.parametrize(
    ("headers", "body", "etag"),
    [
        ({"etag": "a"}, {"etag": "b"}, "a"),
        ({}, {"etag": "b"}, "b"),
        ({}, {"eTag": "c"}, "c"),
        ({}, {"properties": {"eTag": "d"}}, "d"),
        ({}, {"etag": 5, "properties": []}, ""),
        ({}, None, ""),
    ],
)
async def test_the_etag_is_found_where_each_service_has_it(headers: dict[str, str], body: Any, etag: str) -> None:
    assert etag_of(ArmReply(200, headers, body)) == etag


@pytest.mark.parametrize(
    ("say", "kind", "cause"),
    [
        (Say(404, error("ResourceNotFound", "not found")), GoneError, CONFIGURATION),
        (Say(412, error("PreconditionFailed", "changed")), PreconditionFailedError, THROTTLED),
        (Say(409, error("OperationNotAllowed", BUSY)), ArmError, THROTTLED),
        (Say(409, error("OperationNotAllowed", FAMILY)), ArmError, QUOTA),
        (Say(409, error("AllocationFailed", "Allocation failed.")), ArmError, CAPACITY),
        (Say(403, error("AuthorizationFailed", DENIED)), ArmError, UNAUTHORISED),
        (Say(403), ArmError, UNAUTHORISED),
        (Say(400, "<html>"), ArmError, CONFIGURATION),
        (Say(302, headers={"Location": "http://127.0.0.1:9/elsewhere"}), ArmError, UNKNOWN),
        (Say(500, error("AllocationFailed", "Allocation failed.")), ArmError, CAPACITY),
        (Say(503, error("ServerBusy", "The server is busy.")), ArmError, THROTTLED),
    ],
)
async def test_a_refused_write_is_not_repeated_and_has_a_cause(say: Say, kind: type[ArmError], cause: str) -> None:
    async with calling(say) as caller:
        with pytest.raises(ArmError) as raised:
            await caller.arm.write("PUT", PATH, version=COMPUTE, body={})

    assert (type(raised.value), raised.value.cause, raised.value.failure.status) == (kind, cause, say.status)
    assert raised.value.detail.startswith((f"PUT {PATH}: answered {say.status}: ", "Azure does not allow"))
    assert (len(caller.server.asked), caller.waited) == (1, [])


async def test_a_missing_right_is_named_with_what_to_do() -> None:
    async with calling(Say(403, error("AuthorizationFailed", DENIED))) as caller:
        with pytest.raises(ArmError, match=r"Azure does not allow Microsoft\.Compute/virtualMachineScaleSets/write; add it to the role"):
            await caller.arm.write("PUT", PATH, version=COMPUTE, body={})


@pytest.mark.parametrize(
    "say", [Say(sever="before"), Say(500), Say(502, "<html>"), Say(504, error("GatewayTimeout", "late")), Say(408), Say(endless=True)]
)
async def test_a_write_without_an_answer_may_have_happened_and_is_not_repeated(say: Say) -> None:
    async with calling(say) as caller:
        with pytest.raises(LostAnswerError, match=f"PUT {PATH}: "):
            await caller.arm.write("PUT", PATH, version=COMPUTE, body={}, seconds=0.1 if say.endless else 10.0)

    assert (len(caller.server.asked), caller.waited) == (1, [])


@pytest.mark.parametrize("method", ["PUT", "PATCH", "POST", "DELETE"])
async def test_a_write_over_a_connection_that_broke_is_not_repeated(method: str) -> None:
    async with calling(Say(body={}), Say(sever="before"), Say(body={})) as caller:
        await caller.arm.read(PATH, version=COMPUTE)
        with pytest.raises(LostAnswerError):
            await caller.arm.write(method, PATH, version=COMPUTE)

    assert [asked.method for asked in caller.server.asked] == ["GET", method]


@pytest.mark.parametrize(
    "say", [Say(200, sever="body", headers={"Azure-AsyncOperation": "op"}), Say(202, "{", {"Azure-AsyncOperation": "op"})]
)
async def test_a_write_whose_answer_broke_off_after_the_head_was_accepted(say: Say) -> None:
    async with calling(say) as caller:
        reply = await caller.arm.write("PUT", PATH, version=COMPUTE, body={})

    assert (reply.status, reply.body, reply.headers["azure-asyncoperation"]) == (say.status, None, "op")


async def test_a_write_that_was_not_sent_changed_nothing() -> None:
    async with calling(url=f"http://127.0.0.1:{free_port()}") as caller:
        with pytest.raises(CloudError, match="cannot connect to 127"):
            await caller.arm.write("PUT", PATH, version=COMPUTE, body={})


async def test_a_token_that_is_not_accepted_is_renewed_once() -> None:
    async with calling(Say(401, error("ExpiredAuthenticationToken", "expired")), Say(200, {}), credentials=Renewed()) as caller:
        await caller.arm.write("PUT", PATH, version=COMPUTE, body={})
        await caller.arm.read(PATH, version=COMPUTE)

    assert [asked.token for asked in caller.server.asked] == ["token-1", "token-2", "token-2"]
    assert len(caller.fenced) == 2


async def test_a_second_token_that_is_not_accepted_is_an_error() -> None:
    async with calling(Say(401, error("InvalidAuthenticationToken", "wrong")), credentials=Renewed()) as caller:
        for call in (caller.arm.write("PUT", PATH, version=COMPUTE), caller.arm.read(PATH, version=COMPUTE)):
            with pytest.raises(ArmError) as raised:
                await call
            assert raised.value.cause == UNAUTHORISED

    assert len(caller.server.asked) == 4


@pytest.mark.parametrize("say", [Say(500), Say(503, error("ServerBusy", "busy"), {"Retry-After": "2"}), Say(sever="body"), Say(408)])
async def test_a_read_is_repeated_after_short_failures_up_to_a_limit(say: Say) -> None:
    async with calling(say) as caller:
        with pytest.raises(CloudError) as raised:
            await caller.arm.read(PATH, version=COMPUTE)

    if raised.value.retry_after == 0:
        assert (len(caller.server.asked), len(caller.waited)) == (TRIES, TRIES - 1)
        assert caller.waited == sorted(caller.waited)
        assert max(caller.waited) <= LONGEST_WAIT


async def test_a_read_succeeds_once_a_failure_is_over() -> None:
    async with calling(Say(500), Say(sever="before"), Say(sever="before"), Say(200, {"name": "gpu"})) as caller:
        assert (await caller.arm.read(PATH, version=COMPUTE)).body == {"name": "gpu"}


async def test_a_read_without_a_connection_is_repeated() -> None:
    async with calling(url=f"http://127.0.0.1:{free_port()}") as caller:
        with pytest.raises(CloudError, match="cannot connect to 127"):
            await caller.arm.read(PATH, version=COMPUTE)

    assert len(caller.waited) == TRIES - 1


@pytest.mark.parametrize("say", [Say(404), Say(403), Say(400), Say(409, error("OperationNotAllowed", BUSY))])
async def test_a_read_is_not_repeated_if_that_would_not_help(say: Say) -> None:
    async with calling(say) as caller:
        with pytest.raises(ArmError):
            await caller.arm.read(PATH, version=COMPUTE)

    assert (len(caller.server.asked), caller.waited) == (1, [])


async def test_a_throttled_read_waits_as_long_as_azure_asks() -> None:
    async with calling(Say(429, headers={"Retry-After": "2"}), Say(200, {})) as caller:
        await caller.arm.read(PATH, version=COMPUTE)

    assert caller.waited == [2]


async def test_the_waits_of_a_read_are_short_in_all_so_that_its_caller_hears_that_it_is_throttled() -> None:
    async with calling(Say(429, THROTTLED_READ, {"Retry-After": "2"})) as caller:
        with pytest.raises(CloudError, match="answered 429") as raised:
            await caller.arm.read(PATH, version=COMPUTE)

    assert raised.value.cause == THROTTLED
    assert sum(caller.waited) <= LONGEST_WAIT


async def test_a_long_wait_is_reported_instead_of_slept() -> None:
    async with calling(Say(429, THROTTLED_READ, {"Retry-After": "1200"}), Say(200, {})) as caller:
        for _ in range(2):
            with pytest.raises(CloudError) as raised:
                await caller.arm.read(PATH, version=COMPUTE)
            assert (raised.value.cause, raised.value.retry_after) == (THROTTLED, 1200)
        assert (len(caller.server.asked), caller.waited) == (1, [])

        await caller.arm.write("PUT", PATH, version=COMPUTE, body={})
        await caller.arm.read(scale_set_path("sub", "MC_other", "a"), version=COMPUTE)
        caller.time[0] += 1201
        await caller.arm.read(PATH, version=COMPUTE)
        assert len(caller.server.asked) == 4


async def test_a_throttled_write_is_not_sent_again_before_its_time() -> None:
    async with calling(Say(429, error("Throttled", "slow down"), {"Retry-After": "60"}), Say(200, {})) as caller:
        for _ in range(2):
            with pytest.raises(CloudError) as raised:
                await caller.arm.write("PUT", PATH, version=COMPUTE, body={})
            assert (raised.value.cause, raised.value.retry_after) == (THROTTLED, 60)
        await caller.arm.write("PUT", scale_set_path("sub", "MC_rg", "other"), version=COMPUTE, body={})

        assert len(caller.server.asked) == 2


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\xff"])
async def test_an_answer_that_is_no_json_is_an_error(text: str) -> None:
    async with calling(Say(200, text)) as caller:
        with pytest.raises(CloudError, match="no JSON; is a proxy in between"):
            await caller.arm.read(PATH, version=COMPUTE)


async def test_an_empty_answer_has_no_body() -> None:
    async with calling(Say(204)) as caller:
        assert (await caller.arm.read(PATH, version=COMPUTE)).body is None


async def test_all_pages_of_a_list_are_read() -> None:
    async with calling() as caller:
        link = f"{caller.server.url}/next?page=2&api-version=x"
        caller.server.answers = [Say(200, {"value": [1, 2], "nextLink": link}), Say(200, {"value": [3], "nextLink": ""})]
        assert await caller.arm.pages(PATH, version=COMPUTE) == [1, 2, 3]

    assert [(asked.path, asked.query) for asked in caller.server.asked] == [
        (PATH, {"api-version": COMPUTE}), ("/next", {"page": "2", "api-version": "x"})
    ]  # fmt: skip


async def test_few_reads_are_made_at_the_same_time_and_none_of_them_delays_a_write() -> None:
    async with calling(*[Say(200, {}, endless=True)] * MOST_READS, Say(200, {})) as caller:
        server = caller.server
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3 * MOST_READS):
                tasks.create_task(caller.arm.read(PATH, version=COMPUTE))
            async with server.arrived:
                await server.arrived.wait_for(lambda: len(server.asked) == MOST_READS)
            await caller.arm.write("PUT", PATH, version=COMPUTE, body={})
            assert [asked.method for asked in server.asked] == ["GET"] * MOST_READS + ["PUT"]
            server.over.set()

    assert len(server.asked) == 3 * MOST_READS + 1


async def test_a_clock_that_lags_behind_a_wait_only_adds_a_short_one() -> None:
    async with calling(Say(429, headers={"Retry-After": "2"}), Say(200, {})) as caller:

        async def sleep(seconds: float) -> None:
            caller.waited.append(seconds)
            caller.time[0] += seconds - 0.001

        caller.arm.sleep = sleep
        await caller.arm.read(PATH, version=COMPUTE)

    assert len(caller.waited) == 2
    assert caller.waited[0] == 2


@pytest.mark.parametrize(
    "link",
    [
        "http://169.254.169.254/metadata/instance",
        "https://127.0.0.1/next",
        "http://127.0.0.1:1/next",
        "//127.0.0.1/next",
        "http://user:secret@127.0.0.1/next",
        "http://127.0.0.1:99999/next",
        "file:///etc/passwd",
        "next",
    ],
)
async def test_a_next_page_elsewhere_is_not_read(link: str) -> None:
    async with calling(Say(200, {"value": [1], "nextLink": link})) as caller:
        with pytest.raises(CloudError, match="expected one at http://127"):
            await caller.arm.pages(PATH, version=COMPUTE)

    assert len(caller.server.asked) == 1


async def test_an_operation_elsewhere_is_not_read() -> None:
    async with calling() as caller, serving(Say()) as other:
        with pytest.raises(CloudError, match="saw an address at"):
            await caller.arm.read_url(f"{other.url}/op?secret=1")

    assert other.asked == []


@pytest.mark.parametrize("link", ["{url}/same", 5])
async def test_pages_that_lead_nowhere_end_with_an_error(link: Any) -> None:
    async with calling(Say(200, {"value": []})) as caller:
        link = link.replace("{url}", caller.server.url) if isinstance(link, str) else link
        caller.server.answers = [Say(200, {"value": [], "nextLink": link})]
        with pytest.raises(CloudError, match="leads nowhere new"):
            await caller.arm.pages(PATH, version=COMPUTE)

    assert len(caller.server.asked) <= 2


@pytest.mark.parametrize("body", [{}, {"value": {}}, [], None, "x"])
async def test_a_list_without_values_is_an_error_and_not_an_empty_list(body: Any) -> None:
    async with calling(Say(200, json.dumps(body))) as caller:
        with pytest.raises(CloudError, match="no list under value"):
            await caller.arm.pages(PATH, version=COMPUTE)


@pytest.mark.parametrize("path", ["/subscriptions/../x", "subscriptions/s", "//evil/x", "/a/./b", "/a/", ""])
async def test_an_odd_path_is_not_sent(path: str) -> None:
    async with calling() as caller:
        with pytest.raises(CloudError, match="expected the id of a resource"):
            await caller.arm.read(path, version=COMPUTE)

    assert caller.server.asked == []


async def test_characters_of_a_name_do_not_change_the_request() -> None:
    async with calling(Say(200, {})) as caller:
        await caller.arm.read("/subscriptions/s/resourceGroups/a?b#c%2f d", version=COMPUTE)
        await caller.arm.write("PUT", PATH, version=COMPUTE, etag='"1"\r\nx-evil: 1')

    assert caller.server.asked[0].path == "/subscriptions/s/resourceGroups/a?b#c%2f d"
    assert caller.server.asked[0].query == {"api-version": COMPUTE}
    assert "x-evil" not in caller.server.asked[1].headers


async def test_errors_and_logs_hold_no_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    texts = []
    for say in (Say(401), Say(sever="before"), Say(500), Say(302, headers={"Location": "http://127.0.0.1:9/x"}), Say(200, "{")):
        async with calling(say) as caller:
            for call in (caller.arm.write("PUT", PATH, version=COMPUTE), caller.arm.read(PATH, version=COMPUTE)):
                failure = (await asyncio.gather(call, return_exceptions=True))[0]
                if isinstance(failure, Exception):
                    texts.append(f"{failure!r} {failure.__cause__!r} {failure.__context__!r} {vars(failure)}")

    assert len(texts) >= 9
    assert "token-1" not in " ".join(texts)
    assert "token-1" not in caplog.text
