"""The error that counts is found in every form in which Azure writes errors."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuscaler.clouds.azure.api.causes import ErrorMeaning, meaning_of
from gpuscaler.clouds.azure.api.errors import LONGEST_TEXT, ArmFailure, clean, failure_of
from gpuscaler.clouds.protocol import CAPACITY, CAUSES, CONFIGURATION, PRICE, QUOTA, THROTTLED, UNAUTHORISED, UNKNOWN

QUOTA_TEXT = (
    "Operation could not be completed as it results in exceeding approved {name} quota. Additional details - Deployment Model: Resource "
    "Manager, Location: eastus, Current Limit: {limit}, Current Usage: {usage}, Additional Required: {required}, (Minimum) New Limit "
    "Required: {sum}. Submit a request for Quota increase."
)
BUSY = "Operation is not allowed: Another agentpool operation (ScaleAgentPool) is in progress, please wait for it to finish."
NO_CAPACITY = "Allocation failed. We do not have sufficient capacity for the requested VM size in this zone."
RESTRICTED = (
    "The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: Standard_NC24ads_A100_v4' is missing."
)
POLICY = "Resource 'gpu' was disallowed by policy."


def quota_text(name: str, *, limit: int, usage: int, required: int) -> str:
    return QUOTA_TEXT.format(name=name, limit=limit, usage=usage, required=required, sum=usage + required)


FAMILY = quota_text("standardNCADSH100v5Family Cores", limit=200, usage=192, required=40)
SPOT = quota_text("LowPriorityCores", limit=3, usage=0, required=40)


def statuses(state: str, text: str) -> list[dict[str, str]]:
    return [{"code": f"ProvisioningState/{state}", "message": text}]


def error(code: str, text: str, **more: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": text, **more}}


@pytest.mark.parametrize(
    ("status", "code", "text", "cause"),
    [
        (400, "SkuNotAvailable", "The requested VM size 'Standard_NC24ads_A100_v4' is currently not available.", CAPACITY),
        (409, "ZonalAllocationFailed", NO_CAPACITY, CAPACITY),
        (409, "AllocationFailed", "Allocation failed. Please try reducing the VM size or number of VMs.", CAPACITY),
        (409, "OverconstrainedZonalAllocationRequest", "Allocation failed. The condition is too restrictive.", CAPACITY),
        (409, "OverconstrainedAllocationRequest", "Allocation failed. The condition is too restrictive.", CAPACITY),
        (409, "CapacityReservationGroupFull", "The capacity reservation is fully used.", CAPACITY),
        (409, "OperationNotAllowed", FAMILY, QUOTA),
        (403, "OperationNotAllowed", SPOT, QUOTA),
        (400, "QuotaExceeded", quota_text("Total Regional Cores", limit=100, usage=100, required=40), QUOTA),
        (400, "QuotaExceeded", "", QUOTA),
        (400, "ErrCode_InsufficientVCPUQuota", "Insufficient regional vcpu quota left for location westus2.", QUOTA),
        (409, "OperationNotAllowed", BUSY, THROTTLED),
        (400, "OperationNotAllowed", BUSY, THROTTLED),
        (409, "OperationNotAllowed", "The cluster is being changed.", THROTTLED),
        (409, "Conflict", "", THROTTLED),
        (409, "", "", THROTTLED),
        (200, "OperationPreempted", "Operation execution has been preempted by a more recent operation.", THROTTLED),
        (429, "OperationNotAllowed", "The server rejected the request because too many requests have been received.", THROTTLED),
        (429, "SubscriptionRequestsThrottled", "Number of 'read' requests for subscription exceeded.", THROTTLED),
        (429, "Throttled", "The request was throttled.", THROTTLED),
        (429, "", "", THROTTLED),
        (412, "PreconditionFailed", "The condition specified using HTTP conditional header(s) is not met.", THROTTLED),
        (412, "", "", THROTTLED),
        (400, "OperationNotAllowed", "Changing property 'properties.priority' is not allowed.", UNKNOWN),
        (400, "SpotPriceGreaterThanProvidedMaxPrice", "Unable to perform operation since the provided max price is lower.", PRICE),
        (400, "VMPriceGreaterThanMaxPrice", "", PRICE),
        (400, "SubnetIsFull", "Subnet aks with address prefix 10.0.0.0/24 does not have enough capacity.", CONFIGURATION),
        (400, "PrivateIPAddressInUse", "", CONFIGURATION),
        (403, "RequestDisallowedByPolicy", POLICY, CONFIGURATION),
        (409, "ScopeLocked", "The scope cannot perform write operation because following scope(s) are locked.", CONFIGURATION),
        (409, "MissingSubscriptionRegistration", "The subscription is not registered to use namespace 'Microsoft.Compute'.", CONFIGURATION),
        (403, "AuthorizationFailed", "The client does not have authorization to perform action 'Microsoft.Compute/x/write'.", UNAUTHORISED),
        (403, "DenyAssignmentAuthorizationFailed", "Access is denied because of the deny assignment.", UNAUTHORISED),
        (409, "ReadOnlyDisabledSubscription", "The subscription is disabled and therefore marked as read only.", UNAUTHORISED),
        (401, "InvalidAuthenticationToken", "The access token is invalid.", UNAUTHORISED),
        (403, "", "", UNAUTHORISED),
        (200, "VMExtensionProvisioningError", "VM has reported a failure when processing extension 'vmssCSE'.", UNKNOWN),
        (200, "OSProvisioningTimedOut", "OS Provisioning did not finish in the allotted time.", UNKNOWN),
        (400, "InvalidParameter", "The value of parameter sku.name is invalid.", CONFIGURATION),
        (400, "MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required.", CONFIGURATION),
        (404, "ResourceGroupNotFound", "Resource group 'rg' could not be found.", CONFIGURATION),
        (500, "InternalServerError", "An internal error occurred.", UNKNOWN),
        (200, "NeverHeardOf", "", UNKNOWN),
        (200, "", "", UNKNOWN),
    ],
)  # fmt: skip
def test_every_known_error_has_a_cause(status: int, code: str, text: str, cause: str) -> None:
    assert meaning_of(failure_of(status, error(code, text))).cause == cause


THROTTLED_READ = {
    "code": "OperationNotAllowed",
    "message": "The server rejected the request because too many requests have been received for this subscription.",
    "details": [
        {
            "code": "TooManyRequests",
            "target": "HighCostGet30Min",
            "message": '{"operationGroup":"HighCostGet30Min","allowedRequestCount":800,"measuredRequestCount":1238}',
        }
    ],
}


def test_a_throttled_read_names_its_bucket_and_has_a_readable_text() -> None:
    failure = failure_of(429, THROTTLED_READ)

    assert (failure.code, failure.target) == ("TooManyRequests", "HighCostGet30Min")
    assert failure.text.startswith("The server rejected the request")


@pytest.mark.parametrize(
    "body",
    [
        error("DeploymentFailed", "At least one resource failed.", details=[{"code": "ZonalAllocationFailed", "message": NO_CAPACITY}]),
        error("ReconcileVMSSAgentPoolFailed", "", innererror={"code": "ZonalAllocationFailed", "message": NO_CAPACITY}),
        error("CreateVMSSAgentPoolFailed", json.dumps(error("ZonalAllocationFailed", NO_CAPACITY))),
        error("CreateVMSSAgentPoolFailed", f"Failed: {json.dumps(error('ZonalAllocationFailed', NO_CAPACITY))} in pool gpu"),
        error("CreateVMSSAgentPoolFailed", f'original error: Code="ZonalAllocationFailed" Message="{NO_CAPACITY}" Target="7"'),
        error("CreateVMSSAgentPoolFailed", f"VMSSAgentPoolReconciler retry failed: Code='ZonalAllocationFailed' Message='{NO_CAPACITY}'"),
        {"status": "Failed", **error("ZonalAllocationFailed", NO_CAPACITY)},
        {"properties": {"status": {"provisioningError": error("ZonalAllocationFailed", NO_CAPACITY)}}},
        {"instanceView": {"statuses": [{"code": "PowerState/running"}, *statuses("failed/ZonalAllocationFailed", NO_CAPACITY)]}},
        json.dumps(error("ZonalAllocationFailed", NO_CAPACITY)),
        error("Conflict", "", details={"code": "BadRequest", "details": [{"code": "ZonalAllocationFailed", "message": NO_CAPACITY}]}),
        error("ZonalAllocationFailed", NO_CAPACITY, details=[{"code": "InvalidRequestContent", "message": "see above"}, {"code": "X1"}]),
        error("ZonalAllocationFailed", NO_CAPACITY, details=[{"code": None, "message": 7}, "x", 5, None]),
    ],
)  # fmt: skip
def test_the_innermost_known_error_counts_in_all_forms(body: Any) -> None:
    failure = failure_of(409, body)

    assert (failure.code, failure.text) == ("ZonalAllocationFailed", NO_CAPACITY)
    assert meaning_of(failure).cause == CAPACITY


def test_a_quota_that_aks_writes_as_code_and_message_is_read_with_its_numbers() -> None:
    body = error(
        "QuotaExceeded", f'Code="OperationNotAllowed" Message="{FAMILY}"', details=[{"code": "OperationNotAllowed", "message": ""}]
    )

    meaning = meaning_of(failure_of(0, body))

    assert (meaning.cause, meaning.family, meaning.room) == (QUOTA, "standardNCADSH100v5Family", 8)


@pytest.mark.parametrize(
    ("text", "scope", "family", "room", "seconds"),
    [
        (FAMILY, "family", "standardNCADSH100v5Family", 8, 600),
        (quota_text("Standard NCADSH100v5 Family Cores", limit=0, usage=0, required=4), "family", "Standard NCADSH100v5 Family", 0, 3600),
        (quota_text("Total Regional Cores", limit=100, usage=88, required=40), "region", "", 12, 600),
        (quota_text("cores", limit=100, usage=120, required=40), "region", "", 0, 600),
        (SPOT, "spot", "", 3, 3600),
        ("exceeding approved LowPriorityCores quota. Current Limit: 3, Additional Required: 8.", "spot", "", None, 3600),
        ("exceeding approved LowPriorityCores quota. Current Limit: 1,000, Current Usage: 996", "spot", "", 4, 3600),
        ("Insufficient vcpu quota requested 48, remaining 32 for family standardDSv5Family", "family", "standardDSv5Family", 32, 600),
        ("Insufficient regional vcpu quota left for location x. left regional vcpu quota 4, requested quota 6.", "region", "", 4, 600),
        ("Insufficient regional spot vcpu quota left for location westus2. left regional vcpu quota 4", "spot", "", 4, 3600),
    ],
)  # fmt: skip
def test_a_quota_is_read_with_what_is_left_of_it(text: str, scope: str, family: str, room: int | None, seconds: float) -> None:
    meaning = meaning_of(failure_of(409, error("OperationNotAllowed", text)))

    assert (meaning.cause, meaning.scope, meaning.family, meaning.room, meaning.seconds) == (QUOTA, scope, family, room, seconds)


@pytest.mark.parametrize(
    ("code", "text", "size", "zone"),
    [
        ("SkuNotAvailable", f"{RESTRICTED} Please try another size or a different zone.", "Standard_NC24ads_A100_v4", ""),
        ("ZonalAllocationFailed", "no VM size Standard_ND96isr_H100_v5 in zone eastus2-3. Read", "Standard_ND96isr_H100_v5", "eastus2-3"),
        ("ZonalAllocationFailed", "- Availability Zone (2)\n - VM Size (Standard_NV6ads_A10_v5)", "Standard_NV6ads_A10_v5", "2"),
        ("ZonalAllocationFailed", NO_CAPACITY, "", ""),
    ],
)  # fmt: skip
def test_the_size_and_the_zone_of_an_error_are_read(code: str, text: str, size: str, zone: str) -> None:
    meaning = meaning_of(failure_of(409, error(code, text)))

    assert (meaning.instance_type, meaning.zone) == (size, zone)


def test_a_denial_names_the_action_that_is_missing() -> None:
    text = (
        "The client 'a' with object id 'b' does not have authorization to perform action 'Microsoft.Compute/virtualMachineScaleSets/write' "
        "over scope '/subscriptions/s' or the scope is invalid."
    )

    assert failure_of(403, error("AuthorizationFailed", text)).action == "Microsoft.Compute/virtualMachineScaleSets/write"
    assert failure_of(403, error("AuthorizationFailed", "no")).action == ""


def test_texts_are_short_and_in_one_line_without_control_characters() -> None:
    failure = failure_of(400, error("Odd\x1b[31m", "first\r\nsecond\t\u202ethird\x00" + "x" * 10_000))

    assert failure.text.startswith("first second third x")
    assert len(failure.text) == LONGEST_TEXT
    assert failure.text.endswith("…")
    assert failure.code == "Odd [31m"
    assert len(meaning_of(failure).detail) <= 400
    assert clean("a b") == "a b"


def test_a_machine_that_is_fine_has_no_error() -> None:
    assert failure_of(0, {"statuses": statuses("succeeded", "Provisioning succeeded")}) == ArmFailure()
    assert failure_of(0, error("Microsoft.Compute/Odd", "odd")).code == "Odd"


def test_a_status_without_an_error_is_named() -> None:
    assert meaning_of(failure_of(503, None)).detail == "HTTP 503"
    assert meaning_of(failure_of(0, {})).detail == "no reason was given"


KEYS = st.sampled_from(["code", "message", "error", "details", "innererror", "target", "status"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS | st.text(), inner),
    max_leaves=30,
)


@given(st.integers(0, 599), JSON)
@example(400, {"message": "[" * 100_000})
@example(400, {"message": '{"a":' * 100_000})
@example(400, "{" * 100_000)
@example(400, {"message": "Code='" * 10_000})
@example(400, {"message": "exceeding approved " * 10_000})
@example(400, {"message": "current limit: " + "9" * 10_000})
@example(400, {"details": [{"code": "X"}] * 100_000})
def test_no_answer_makes_reading_an_error_fail(status: int, body: Any) -> None:
    failure = failure_of(status, body)
    meaning = meaning_of(failure)

    assert isinstance(failure, ArmFailure)
    assert isinstance(meaning, ErrorMeaning)
    assert meaning.cause in CAUSES
    assert len(meaning.detail) <= 400
    assert meaning.detail.isprintable()


def test_an_error_in_itself_is_read_to_a_limit() -> None:
    nested: dict[str, Any] = error("AllocationFailed", "no room")
    for _ in range(500):
        nested = {"error": nested}
    loop: dict[str, Any] = {"code": "Outer"}
    loop["details"] = [loop]

    assert failure_of(400, nested) == ArmFailure(400)
    assert failure_of(400, loop).code == "Outer"
