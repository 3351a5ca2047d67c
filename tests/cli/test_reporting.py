"""What a person reads after a simulation."""

import pytest

from gpuscaler.cli.reporting import print_report
from gpuscaler.simulation.meter import MachineHours, Result, Wait
from gpuscaler.simulation.report import Inputs

POOL = "gpu-training-with-a-name-that-tells-all-about-it"
TYPE = "Standard_ND96amsr_A100_v4"
ZONE = "southcentralus-availability-zone-3"

INPUTS = Inputs(
    trace="trace.csv",
    pools="pools.yaml",
    jobs=1,
    pods=1,
    set_aside=0,
    set_aside_rows=(),
    days=1.0,
    gpu_model="A100",
    scheduler_scoring="MostAllocated",
    seed=1,
    lower_bound="resources",
    generated=(),
    derived=(),
)


def result(policy: str) -> Result:
    return Result(
        policy=policy,
        seed=1,
        cost=123.45,
        lower_bound=100.0,
        gpu_hours_used=1.0,
        gpu_hours_paid=2.0,
        wait=Wait(),
        served=1,
        unserved=0,
        unserved_reasons=(),
        evictions=0,
        lost_gpu_hours=0.0,
        machine_hours=(MachineHours(POOL, TYPE, "on-demand", ZONE, 12.5, 123.45, 3),),
        kept=1,
        broken=0,
        plans=1,
        began=0.0,
        ended=3600.0,
        timeline=(),
        decisions=(),
    )


def test_tables_are_whole_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    policies = [f"policy-number-{number}-with-a-long-name" for number in range(4)]
    print_report(INPUTS, [result(policy) for policy in policies])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert policies in lines
    assert lines.count([POOL, TYPE, "on-demand", ZONE, "3", "12.5", "$123.45"]) == 4
