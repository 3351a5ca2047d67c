"""The control path."""

from typing import Any

import pytest
from tests.embedded.azure.conftest import SIZE, Azure

from gpuscaler.embedded.azure import SUBSCRIPTION, making


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("faults", {"method": "GET", "code": "InternalServerError"}),
        ("troubles", {"code": "AllocationFailed", "market": "spot", "times": 1}),
        ("capacity", {"machines": 3, "market": "spot", "code": "OverconstrainedAllocationRequest"}),
        ("quotas", {"name": "lowPriorityCores", "limit": 96}),
        ("restrictions", {"size": SIZE, "zones": ["1"]}),
        ("throttling", {"name": "HighCostGetVMScaleSet30Min", "seconds": 60}),
        ("deletions", 1),
    ],
)
async def test_what_is_put_is_shown_until_it_is_deleted(azure: Azure, name: str, body: Any) -> None:
    empty = (await azure.call("GET", f"/_control/{name}"))[1]
    status, shown, _ = await azure.call("PUT", f"/_control/{name}", body)
    assert status == 200
    assert shown not in ([], {}, empty)
    assert (await azure.call("DELETE", f"/_control/{name}"))[1] == empty


async def test_a_capacity_without_a_market_is_that_of_each_market(azure: Azure) -> None:
    scale_sets = [making.create_scale_set(azure.account, "rg", name, SIZE, spot=name == "spot") for name in ("spot", "on-demand")]
    await azure.call("PUT", "/_control/capacity", {"machines": 1, "size": SIZE})
    for scale_set in scale_sets:
        await azure.call("PATCH", scale_set.id, {"sku": {"capacity": 2}})
    azure.later(300)
    for scale_set in scale_sets:
        assert sorted(machine.state for machine in scale_set.machines.values()) == ["Failed", "Succeeded"]


@pytest.mark.parametrize("body", [{"machines": 1, "market": "Spot"}, {"code": "AllocationFailed", "market": "Spot"}])
async def test_an_unknown_market_is_refused(azure: Azure, body: dict[str, Any]) -> None:
    path = "capacity" if "machines" in body else "troubles"
    status, refused, _ = await azure.call("PUT", f"/_control/{path}", body)
    assert status == 400
    assert refused["message"].startswith("saw the market 'Spot', expected one of spot, on-demand; leave market out for each of them")
    assert (await azure.call("GET", f"/_control/{path}"))[1] == []


async def test_conditions_change_by_name(azure: Azure, workers: str) -> None:
    status, shown, _ = await azure.call("PUT", "/_control/conditions", {"read_lag": 30, "failed": "vanish"})
    assert (status, shown["read_lag"], shown["failed"]) == (200, 30.0, "vanish")
    await azure.call("PATCH", workers, {"sku": {"capacity": 1}})
    azure.later(20)
    assert (await azure.call("GET", f"{workers}/virtualMachines"))[1]["value"] == []
    for wrong in ({"read_lag": "x"}, {"none": 1}):
        assert (await azure.call("PUT", "/_control/conditions", wrong))[0] == 400
    assert (await azure.call("DELETE", "/_control/conditions"))[1]["read_lag"] == 0


async def test_groups_are_locked_and_operations_lost(azure: Azure, workers: str) -> None:
    assert (await azure.call("PUT", "/_control/locks", {"group": "RG", "lockdown": True}))[1] == ["rg"]
    assert (await azure.call("PATCH", workers, {"sku": {"capacity": 1}}))[0] == 403
    assert (await azure.call("PUT", "/_control/locks", {"group": "rg", "locked": False}))[1] == []
    assert (await azure.call("PUT", "/_control/locks", {"group": "rg"}))[1] == ["rg"]
    assert (await azure.call("DELETE", "/_control/locks"))[1] == []
    await azure.call("PATCH", workers, {"sku": {"capacity": 1}})
    assert len((await azure.call("GET", "/_control/operations"))[1]) == 1
    assert (await azure.call("DELETE", "/_control/operations"))[1] == []


@pytest.mark.parametrize(("path", "body", "status"), [("interrupt", {"machine": "none"}, 400), ("none", {}, 404), ("locks", {"x": 1}, 400)])
async def test_wrong_requests_are_named(azure: Azure, path: str, body: Any, status: int) -> None:
    seen, refused, _ = await azure.call("PUT", f"/_control/{path}", body)
    assert seen == status
    assert "message" in refused


async def test_a_machine_breaks_without_notice(azure: Azure) -> None:
    making.create_scale_set(azure.account, "rg", "own", SIZE, count=1)
    await azure.call("PUT", "/_control/interrupt", {"machine": "own_0", "breaks": True})
    assert azure.account.scale_set(SUBSCRIPTION, "rg", "own").capacity == 0
