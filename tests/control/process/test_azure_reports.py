"""What `gpuscaler run` says about an Azure account: partial grants, machines that failed, and calls that fail."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.control.azure_stage import azure_stage

from gpuscaler.embedded.azure import SUBSCRIPTION, making


def of_kind(logs: Iterable[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [log for log in logs if log.get("kind") == kind]


@pytest.mark.parametrize("fails_fast", [False, True])
@pytest.mark.parametrize("came", [1, 4])
async def test_a_partial_grant_is_counted_against_all_machines_of_its_order(came: int, fails_fast: bool, tmp_path: Path) -> None:
    async with azure_stage(tmp_path, fails_fast=fails_fast) as here:
        here.pool("spot", spot=True)
        here.pool("demand")
        here.limit(came, market="spot", code="OverconstrainedAllocationRequest")
        with capture_logs() as logs:
            here.start()
            await here.submit("one", "two", "three", "four", "five")
            await here.until(here.all_bound, 200)
        token = of_kind(logs, "ordered")[0]["order"]
        texts = [log["event"] for log in of_kind(logs, "answered") if log["order"] == token]
        assert texts
        for text in texts:
            assert text.startswith(f"{came} of 5 machines granted: {came} x ")
        assert f"; {5 - came} not granted: " in texts[-1]
        machines = [log["machine"] for log in of_kind(logs, "granted") if log["order"] == token]
        assert (len(machines), len(set(machines))) == (came, came)
        # Nothing is bought twice because the answer came in parts.
        assert (here.count_registered("spot"), here.count_registered("demand")) == (came, 5 - came)


async def test_a_machine_whose_extension_failed_is_shown_with_azures_text_and_replaced_within_minutes(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("gpus")
        making.add_trouble(here.account, "VMExtensionProvisioningError", times=1)
        with capture_logs() as logs:
            here.start()
            await here.submit("train")
            await here.until(lambda: of_kind(logs, "noticed"), 60)
            await here.sleep(15)
            status = await here.status()
            (failed,) = here.machines()
            await here.until(here.all_bound, 240)
            await here.sleep(60)
        noticed, *_ = of_kind(logs, "noticed")
        (lost,) = of_kind(logs, "lost")
        (trouble,) = status.troubles
        (waiting,) = status.waiting
        for text in (noticed["event"], lost["event"], trouble, waiting.reason):
            assert "vmssCSE: VM has reported a failure when processing extension 'vmssCSE'" in text
        assert noticed["machine"] == lost["machine"]
        assert 120 <= lost["at"] - noticed["at"] <= 190
        assert failed not in here.machines()
        assert len(here.machines()) == here.capacity("gpus") == 1
        assert (await here.status()).troubles == ()


def outage_lines(logs: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """The lines about failing calls: the message, what it is about, and the cause."""
    return [(log["event"], log["about"], log.get("cause", "")) for log in logs if log["event"].startswith("calls to the cloud")]


BEGIN, END = "calls to the cloud fail", "calls to the cloud work again"


@pytest.mark.parametrize(
    ("code", "status", "cause"),
    [("AuthorizationFailed", 403, "unauthorised"), ("TooManyRequests", 429, "throttled"), ("Odd", 500, "unknown")],
)
async def test_a_list_that_cannot_be_read_is_logged_once_with_its_cause_and_again_when_it_can(
    code: str, status: int, cause: str, tmp_path: Path
) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("gpus")
        with capture_logs() as logs:
            here.start()
            await here.sleep(30)
            assert outage_lines(logs) == []
            here.fault(path="*virtualMachineScaleSets", method="GET", code=code, status=status)
            await here.sleep(150)
            assert outage_lines(logs)[:1] == [(BEGIN, "machines", cause)]
            assert any("azure" in trouble for trouble in (await here.status()).troubles)
            here.endpoint.faults.all.clear()
            await here.sleep(400)
        lines = outage_lines(logs)
        assert lines.count((BEGIN, "machines", cause)) == lines.count((END, "machines", "")) == 1
        assert {about.partition(":")[0] for _, about, _ in lines} <= {"machines", "account"}
        assert (await here.status()).troubles == ()


async def test_a_part_of_the_account_that_cannot_be_read_is_logged_with_its_name(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("gpus")
        with capture_logs() as logs:
            here.start()
            await here.sleep(30)
            here.fault(path="*managedClusters/aks", method="GET", code="AuthorizationFailed", status=403)
            await here.sleep(1000)
            here.endpoint.faults.all.clear()
            await here.sleep(300)
        about = f"account: Cluster {SUBSCRIPTION}/rg/aks"
        assert outage_lines(logs) == [(BEGIN, about, "unauthorised"), (END, about, "")]


async def test_an_order_that_azure_refuses_as_a_whole_is_logged_with_its_pool_and_cause(tmp_path: Path) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("gpus")
        with capture_logs() as logs:
            here.start()
            await here.sleep(15)
            here.fault(method="PUT", path="*virtualMachineScaleSets*", code="AuthorizationFailed", status=403)
            await here.submit("train")
            await here.sleep(30)
        (line, *_) = of_kind(logs, "answered")
        assert (line["log_level"], line["pool"], line["cause"]) == ("warning", "gpus", "unauthorised")
