"""The text report of a simulation."""

import pytest
from msgspec.structs import replace

from gpuscaler.cli.reporting import SHARES, print_report
from gpuscaler.simulation.measures.shares import Share
from gpuscaler.simulation.measures.waits import ClassWait, Wait
from gpuscaler.simulation.results.report import Inputs
from gpuscaler.simulation.world.meter import Failover, MachineHours, Result

POOL = "gpu-training-with-a-name-that-tells-all-about-it"
TYPE = "Standard_ND96amsr_A100_v4"
ZONE = "southcentralus-availability-zone-3"

INPUTS = Inputs(
    trace="trace.csv",
    pools="pools.yaml",
    spot=(),
    jobs=1,
    pods=1,
    set_aside=0,
    set_aside_rows=(),
    days=1.0,
    gpu_model="A100",
    scheduler_scoring="MostAllocated",
    steering=True,
    checkpoint_seconds=0.0,
    seed=1,
    seeds=1,
    lower_bound="resources",
    generated=(),
    derived=(),
)


def result(policy: str, **changes: object) -> Result:
    result = Result(
        policy=policy,
        seed=1,
        cost=123.45,
        lower_bound=100.0,
        gpu_hours_used=1.0,
        gpu_hours_paid=2.0,
        wait=Wait(60, 30, 90, 7200),
        served=1,
        unserved=0,
        unserved_reasons=(),
        evictions=0,
        lost_gpu_hours=0.0,
        machine_hours=(MachineHours(POOL, TYPE, "on-demand", ZONE, 12.5, 123.45, 3),),
        kept=1,
        broken=0,
        failover=Failover(),
        reclaimed=0,
        failed=0,
        capacity_errors=0,
        plans=1,
        began=0.0,
        ended=3600.0,
        services=(),
        timeline=(),
        decisions=(),
        gpu_hours_held=1.5,
        wait_by_class=(ClassWait("1 GPU", 2, 1, Wait()),),
    )
    return replace(result, **changes)


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Return the lines of the report by their first column, as lists of the other columns."""
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    return {cells[0]: [cell.strip() for cell in cells[1:] if cell.strip()] for cells in lines}


def test_tables_of_a_simulation_report_are_not_cut_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    policies = [f"policy-number-{number}-with-a-long-name" for number in range(4)]
    print_report(INPUTS, [result(policy) for policy in policies])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert policies in lines
    assert lines.count([POOL, TYPE, "on-demand", ZONE, "3", "12.5", "$123.45"]) == 4


def test_policies_are_shown_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(INPUTS, [result("ours"), result("theirs", cost=200.0, gpu_hours_held=None)])
    printed = rows(capsys)
    assert printed["cost"] == ["$123.45", "$200.00"]
    assert printed["GPU-hours idle"] == ["0.5", "-"]
    assert printed["paid GPUs allocated"] == ["75.0%", "-"]
    assert printed["wait, p99"] == ["2.0 h", "2.0 h"]
    assert "capacity errors" not in printed


def test_counts_that_only_one_policy_has_get_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(INPUTS, [result("ours"), result("theirs", capacity_errors=3, failover=Failover(0.0, 90.0))])
    printed = rows(capsys)
    assert printed["capacity errors"] == ["0", "3"]
    assert printed["failover time, median"] == ["-", "0.0 s"]
    assert printed["failover time, longest"] == ["-", "90.0 s"]


def test_results_of_several_seeds_become_one_column_of_means_and_deviations(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(replace(INPUTS, seeds=2), [result("ours", cost=100.0), result("ours", seed=2, cost=110.0, machine_hours=())])
    printed = rows(capsys)
    assert printed["cost"] == ["$105.00 ± 7.07"]
    assert printed["GPU-hours paid"] == ["2.0"]
    assert printed["Machines of ours, on average"] == []
    assert printed[POOL] == [TYPE, "on-demand", ZONE, "2", "6.2", "$61.73"]
    assert "Mean ± standard deviation of 2 seeds, starting at 1." in printed


def test_a_wait_that_is_a_lower_bound_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(INPUTS, [result("ours", wait=Wait(60, 30, 90, 7200, ("p99",)))])
    printed = rows(capsys)
    assert (printed["wait, p95"], printed["wait, p99"]) == (["90.0 s"], ["≥ 2.0 h"])
    assert any(line.startswith("≥: at least") for line in printed)


def test_waits_by_size_of_pods_are_shown_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = (ClassWait("1 GPU", 2, 1, Wait(3, 1, 5, 9, ("p95",))), ClassWait("gangs", 4, 4, Wait(3, 180, 240, 9)))
    print_report(INPUTS, [result("ours", wait_by_class=kinds), result("theirs", wait_by_class=kinds[1:])])
    printed = rows(capsys)
    assert printed["1 GPU"] == ["2", "1.0 s, ≥ 5.0 s", "-, -"]
    assert printed["gangs"] == ["4", "3.0 min, 4.0 min", "3.0 min, 4.0 min"]


def test_users_with_low_cost_are_summed_in_one_row_and_markup_in_names_is_printed_as_is(capsys: pytest.CaptureFixture[str]) -> None:
    users = [
        Share("[red]ana[/red]", 50.0, 1),
        Share("", 40.0, 1),
        *(Share(f"u{number}", 1.0, 1) for number in range(SHARES)),
        Share(None, 7.0, 0),
    ]
    print_report(INPUTS, [result("ours", users=tuple(users))])
    printed = rows(capsys)
    assert printed["[red]ana[/red]"] == ["$50.00"]
    assert printed["(unknown)"] == ["$40.00"]
    assert printed["2 more"] == ["$2.00"]
    assert printed["unattributed: boot and idle time"] == ["$7.00"]


def test_a_trace_without_users_has_no_table_of_users(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(INPUTS, [result("ours", users=(Share("", 40.0, 1), Share(None, 7.0, 0)))])
    assert "Cost by user" not in rows(capsys)
