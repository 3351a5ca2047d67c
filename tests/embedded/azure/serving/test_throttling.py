"""Budgets of calls, their headers, and both forms of 429."""

import json

from tests.embedded.azure.conftest import Azure

from gpuscaler.embedded.azure import SUBSCRIPTION, Conditions, Fault


async def test_answers_say_what_is_left(azure: Azure, workers: str) -> None:
    _, _, headers = await azure.call("GET", f"{workers}/virtualMachines")
    assert headers["x-ms-ratelimit-remaining-subscription-reads"] == "249"
    left = "Microsoft.Compute/HighCostGetVMScaleSet3Min;179,Microsoft.Compute/HighCostGetVMScaleSet30Min;899"
    assert headers["x-ms-ratelimit-remaining-resource"] == left
    _, _, headers = await azure.call("PATCH", workers, {"sku": {"capacity": 0}})
    assert headers["x-ms-ratelimit-remaining-subscription-writes"] == "199"


async def test_arms_bucket_runs_dry_and_fills_again(azure: Azure, workers: str) -> None:
    azure.endpoint.throttling.drain("writes")
    status, refused, headers = await azure.call("PATCH", workers, {"sku": {"capacity": 1}})
    assert (status, refused["error"]["code"], headers["retry-after"]) == (429, "SubscriptionRequestsThrottled", "1")
    assert (await azure.call("GET", workers))[0] == 200
    azure.later(1)
    assert (await azure.call("PATCH", workers, {"sku": {"capacity": 1}}))[0] == 200


async def test_computes_refusal_names_the_policy_as_target_and_closes_only_it(azure: Azure, workers: str) -> None:
    azure.endpoint.throttling.close("HighCostGetVMScaleSet30Min", 600)
    status, refused, headers = await azure.call("GET", f"{workers}/virtualMachines")
    assert (status, refused["error"]["code"], headers["retry-after"]) == (429, "OperationNotAllowed", "600")
    (detail,) = refused["error"]["details"]
    assert (detail["code"], detail["target"]) == ("TooManyRequests", "HighCostGetVMScaleSet30Min")
    assert json.loads(detail["message"])["operationGroup"] == "HighCostGetVMScaleSet30Min"
    assert refused["error"]["innererror"] == {"internalErrorCode": "TooManyRequestsReceived"}
    assert (await azure.call("PATCH", workers, {"sku": {"capacity": 1}}))[0] == 200
    azure.later(601)
    assert (await azure.call("GET", f"{workers}/virtualMachines"))[0] == 200


async def test_lists_of_machines_are_counted_in_three_minutes(azure: Azure, workers: str) -> None:
    azure.endpoint.throttling.compute["high-get-set"] = ("HighCostGetVMScaleSet", 2, 900)
    assert [(await azure.call("GET", f"{workers}/virtualMachines"))[0] for _ in range(3)] == [200, 200, 429]
    azure.later(181)
    assert (await azure.call("GET", f"{workers}/virtualMachines"))[0] == 200


async def test_throttling_can_be_switched_off(azure: Azure, workers: str) -> None:
    azure.account.conditions = Conditions(throttling=False)
    azure.endpoint.throttling.drain("reads")
    status, _, headers = await azure.call("GET", workers)
    assert (status, "x-ms-ratelimit-remaining-subscription-reads" in headers) == (200, False)


async def test_calls_fail_by_hand_with_any_status_and_header(azure: Azure) -> None:
    fault = Fault(method="GET", path="*/skus", code="ServerTimeout", status=503, headers={"retry-after": "7"}, times=1)
    azure.endpoint.faults.all.append(fault)
    path = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/skus"
    status, refused, headers = await azure.call("GET", path)
    assert (status, refused["error"]["code"], headers["retry-after"]) == (503, "ServerTimeout", "7")
    assert (await azure.call("GET", path))[0] == 200
    assert azure.endpoint.count("GET", "Microsoft.Compute/skus") == 2
