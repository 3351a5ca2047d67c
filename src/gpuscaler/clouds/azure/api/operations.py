"""Long operations of Azure: where the progress of a write is read, and what it is.

A write is answered before it is carried out. ``Azure-AsyncOperation`` leads to a status in a body, also when the operation failed;
``Location`` answers 202 until the end. The URL is valid for about a day and may be followed by another process.
https://learn.microsoft.com/azure/azure-resource-manager/management/async-operations
"""

from typing import Any, Final

from msgspec import Struct

from gpuscaler.clouds.azure.api.arm import Arm, ArmError, ArmReply
from gpuscaler.clouds.azure.api.causes import ArmFailure, failure_of
from gpuscaler.clouds.azure.api.throttling import retry_after_of

_SUCCEEDED: Final = "succeeded"
_FAILED: Final = ("failed", "canceled", "cancelled")
#: Statuses that say nothing about the operation: not authorised, no time for the answer, throttled.
_NO_ANSWER: Final = (401, 403, 408, 429)
_NOT_NAMED: Final = "Azure named no reason"


class OperationState(Struct, frozen=True, gc=False):
    """The state of an operation. ``retry_after`` is how many seconds Azure asks to wait before the next read.

    ``gone`` means that Azure no longer knows the operation: what became of it is seen only in the resource itself.
    """

    done: bool
    succeeded: bool = False
    failure: ArmFailure | None = None
    retry_after: float = 0.0
    gone: bool = False


def operation_url(reply: ArmReply) -> str:
    """Where the progress of an accepted write is read; empty if it was carried out at once."""
    return (reply.headers.get("azure-asyncoperation") or reply.headers.get("location") or "").strip()


async def read_operation(arm: Arm, url: str) -> OperationState:
    """The state of the operation at ``url``. Raises CloudError if there is no answer about it, such as when reads are throttled."""
    try:
        reply = await arm.read_url(url)
    except ArmError as error:
        status = error.failure.status
        if status in (404, 410):
            return OperationState(done=True, gone=True)
        if status in _NO_ANSWER or not 400 <= status < 500:
            raise
        # An operation that is followed by Location ends with the answer that the call itself would have had.
        return OperationState(done=True, failure=error.failure)
    return state_of(reply, now=arm.now())


def state_of(reply: ArmReply, *, now: float) -> OperationState:
    """The state of an operation in an answer of either kind."""
    body = reply.body if isinstance(reply.body, dict) else {}
    status, wait = _status_in(body), retry_after_of(reply.headers, now)
    if status in _FAILED:
        return OperationState(done=True, failure=_failure_in(body, status))
    if reply.status == 202 or (status and status != _SUCCEEDED and isinstance(body.get("status"), str)):
        return OperationState(done=False, retry_after=wait)
    return OperationState(done=True, succeeded=True)


def _status_in(body: dict[str, Any]) -> str:
    """The status of an operation, or the provisioning state of a resource, in lower case."""
    properties = body.get("properties")
    state = properties.get("provisioningState") if isinstance(properties, dict) else None
    status = body.get("status")
    return next((value.lower() for value in (status, state) if isinstance(value, str)), "")


def _failure_in(body: dict[str, Any], status: str) -> ArmFailure:
    failure = failure_of(0, body)
    return failure if failure.code or failure.text else ArmFailure(code=status.capitalize(), text=_NOT_NAMED)
