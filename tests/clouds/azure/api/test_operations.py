"""Operations are followed to their end in both forms, also by another process."""

from typing import Any

import pytest
from tests.clouds.azure.api.scripted import START, Say, calling
from tests.clouds.azure.api.test_errors import FAMILY, NO_CAPACITY, error

from gpuscaler.clouds.azure.api.arm import COMPUTE, ArmReply
from gpuscaler.clouds.azure.api.ids import scale_set_path
from gpuscaler.clouds.azure.api.operations import OperationState, operation_url, read_operation, state_of
from gpuscaler.clouds.protocol import THROTTLED, CloudError

pytestmark = pytest.mark.looptime(False)
PATH = "/subscriptions/s/providers/Microsoft.Compute/locations/eastus/operations/o?p=1&api-version=2026-04-01&t=signed"
FULL = {"code": "AllocationFailed", "message": "Allocation failed."}


async def state(*answers: Say) -> OperationState:
    async with calling(*answers) as caller:
        return await read_operation(caller.arm, f"{caller.server.url}{PATH}")


@pytest.mark.parametrize(
    ("headers", "url"),
    [
        ({"azure-asyncoperation": "https://a/op", "location": "https://a/result"}, "https://a/op"),
        ({"location": " https://a/result "}, "https://a/result"),
        ({}, ""),
    ],
)
def test_the_address_of_an_operation_is_in_the_headers(headers: dict[str, str], url: str) -> None:
    assert operation_url(ArmReply(202, headers)) == url


@pytest.mark.parametrize("status", ["InProgress", "Running", "Accepted", "Updating", "Deleting", "something else"])
async def test_an_operation_goes_on_until_its_status_is_final(status: str) -> None:
    assert await state(Say(200, {"status": status}, {"Retry-After": "30"})) == OperationState(done=False, retry_after=30)


async def test_an_operation_succeeds() -> None:
    assert await state(Say(200, {"status": "Succeeded"})) == OperationState(done=True, succeeded=True)


async def test_an_operation_fails_with_http_200_and_the_innermost_reason() -> None:
    answer = {
        "status": "Failed",
        **error("ReconcileVMSSAgentPoolFailed", "failed", details=[{"code": "ZonalAllocationFailed", "message": NO_CAPACITY}]),
    }

    result = await state(Say(200, answer))

    assert (result.done, result.succeeded, result.gone) == (True, False, False)
    assert result.failure is not None
    assert (result.failure.status, result.failure.code, result.failure.text) == (0, "ZonalAllocationFailed", NO_CAPACITY)


@pytest.mark.parametrize("status", ["Failed", "Canceled", "Cancelled"])
async def test_an_operation_that_failed_without_a_reason_says_so(status: str) -> None:
    result = await state(Say(200, {"status": status}))

    assert result.failure is not None
    assert (result.failure.code, result.failure.text) == (status, "Azure named no reason")


async def test_an_operation_that_another_one_replaced_has_that_code() -> None:
    result = await state(Say(200, {"status": "Canceled", **error("OperationPreempted", "preempted by a more recent operation")}))

    assert result.failure is not None
    assert result.failure.code == "OperationPreempted"


async def test_a_location_answers_202_until_the_end() -> None:
    assert await state(Say(202, None, {"Retry-After": "7"})) == OperationState(done=False, retry_after=7)
    assert await state(Say(202, {"status": "Succeeded"})) == OperationState(done=False)
    for end in (Say(204), Say(200), Say(200, {"name": "gpu", "properties": {"provisioningState": "Succeeded"}}), Say(200, [])):
        assert await state(end) == OperationState(done=True, succeeded=True)


@pytest.mark.parametrize(("status", "body"), [(409, {"error": FULL}), (400, error("OperationNotAllowed", FAMILY))])
async def test_a_location_may_end_with_the_error_of_the_call(status: int, body: Any) -> None:
    result = await state(Say(status, body))

    assert (result.done, result.succeeded) == (True, False)
    assert result.failure is not None
    assert result.failure.status == status


async def test_a_resource_at_a_location_that_failed_is_a_failure() -> None:
    result = await state(Say(200, {"properties": {"provisioningState": "Failed", "status": {"provisioningError": {"error": FULL}}}}))

    assert result.failure is not None
    assert result.failure.code == "AllocationFailed"


@pytest.mark.parametrize("status", [404, 410])
async def test_an_operation_that_azure_no_longer_knows_is_gone(status: int) -> None:
    """Z16: the inventory decides then."""
    assert await state(Say(status, error("ResourceNotFound", "not found"))) == OperationState(done=True, gone=True)


async def test_an_operation_is_followed_by_another_process_from_its_address() -> None:
    """Z16."""
    set_path = scale_set_path("s", "MC_rg", "aks-gpu-vmss")
    async with calling(
        Say(201, {}, {"Azure-AsyncOperation": "{url}/op?t=1"}), Say(200, {"status": "InProgress"}), Say(200, {"status": "Succeeded"})
    ) as first:
        url = operation_url(await first.arm.write("PUT", set_path, version=COMPUTE, body={}))
        assert not (await read_operation(first.arm, url)).done
        async with calling(url=first.server.url) as second:
            assert (await read_operation(second.arm, url)).succeeded

    assert [asked.path for asked in first.server.asked] == [set_path, "/op", "/op"]


@pytest.mark.parametrize("say", [Say(429, None, {"Retry-After": "600"}), Say(500), Say(401), Say(403), Say(sever="before"), Say(200, "{")])
async def test_without_an_answer_nothing_is_known_of_an_operation(say: Say) -> None:
    with pytest.raises(CloudError) as raised:
        await state(say)

    assert say.status != 429 or (raised.value.cause, raised.value.retry_after) == (THROTTLED, 600)
    assert "signed" not in str(raised.value)


@pytest.mark.parametrize(
    "body", [None, [], "x", 5, {"status": 5}, {"status": None, "properties": []}, {"properties": {"provisioningState": []}}]
)
def test_odd_bodies_are_no_failures(body: Any) -> None:
    assert state_of(ArmReply(200, {}, body), now=START) == OperationState(done=True, succeeded=True)
