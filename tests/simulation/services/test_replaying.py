"""Services beside a trace: their replicas need nodes, and machines are removed when replicas are."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.simulation.pools import FIXED, POLICY, trace

from gpuscaler.cli.simulate import simulate
from gpuscaler.simulation.cloud.delays import NO_FAULTS, Faults
from gpuscaler.simulation.replay import run
from gpuscaler.simulation.services import LoadFile
from gpuscaler.simulation.services.loads import LoadSeries
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.world.meter import Result

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
HOURS = 4


JOB = Job("j", 0.0, 60.0, gpus=1)


def replayed(*values: float, jobs: tuple[Job, ...] = (JOB,), faults: Faults = NO_FAULTS) -> Result:
    """Four hours of request rates for one service, beside a small job."""
    times = tuple(HOURS * 3600.0 * number / len(values) for number in range(len(values)))
    load = LoadFile("load.csv", "requests/s", (LoadSeries("chat", times, values),))
    return run(trace(*jobs), POLICY, load=load, seed=29, delays=FIXED, faults=faults)


def test_replicas_of_services_get_nodes_and_serve_nearly_all_of_the_load() -> None:
    result = replayed(20, 20, 40, 40, 20, 20, 10, 10)
    (chat,) = result.services

    assert 0.9 < chat.served / chat.load < 1
    assert chat.most_replicas > 1
    assert result.unserved == 0


def test_replicas_gpu_hours_are_those_of_their_pods_and_the_cost_includes_their_machines() -> None:
    result = replayed(20, 20, 40, 40)
    (chat,) = result.services
    # The job takes a minute; pods run for less time than they exist, since machines take two minutes.
    of_pods = result.gpu_hours_used - 60 / 3600

    assert chat.ready_hours <= of_pods <= chat.replica_hours
    assert result.gpu_hours_used <= result.gpu_hours_paid
    assert result.lower_bound <= result.cost


def test_a_run_of_services_ends_with_the_load_and_removes_all_machines() -> None:
    result = replayed(20, 20)

    assert HOURS * 3600 <= result.ended - result.began <= (HOURS + 1) * 3600
    assert result.timeline[-1].paid == 0
    assert result.timeline[-1].wanted == 0


def test_replicas_on_failing_machines_start_elsewhere_and_lose_no_work() -> None:
    failing = Faults(never_registers=0.0, partial_grants=0.0, gpu_hours_between_failures=5.0)
    calm, troubled = replayed(40, 40), replayed(40, 40, faults=failing)

    assert troubled.failed > 0
    assert troubled.evictions > 0
    assert troubled.lost_gpu_hours == 0
    assert 0.8 * calm.services[0].served < troubled.services[0].served < calm.services[0].served


def test_jobs_that_run_alongside_services_are_served_as_usual() -> None:
    jobs = tuple(Job(f"j{number}", 600.0 * number, 900.0, gpus=1) for number in range(10))
    result = replayed(20, 40, jobs=jobs)
    alone = run(trace(*jobs), POLICY, seed=29, delays=FIXED, faults=NO_FAULTS)

    assert result.unserved == 0
    assert result.gpu_hours_used > alone.gpu_hours_used
    assert alone.services == ()


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = replayed(20, 40, 10), replayed(20, 40, 10)

    assert first == second


def test_a_load_begins_with_the_first_job_of_the_trace() -> None:
    result = replayed(20, 20, jobs=(Job("late", 123_456.25, 60.0, gpus=1),))

    assert math.isclose(result.services[0].load, 20 * HOURS, rel_tol=1e-6)


@pytest.mark.parametrize("policy", ["gpuscaler", "karpenter", "cluster-autoscaler"])
def test_every_policy_serves_a_load_given_on_the_command_line(policy: str) -> None:
    options = ["--trace", str(EXAMPLES / "jobs.csv"), "--pools", str(EXAMPLES / "pools.yaml"), "--load", str(EXAMPLES / "load.csv")]
    done = CliRunner().invoke(simulate, [*options, "--seed", "29", "--policy", policy, "--json"])

    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    (service,) = report["policies"][0]["services"]
    assert (service["name"], service["served"] / service["load"] > 0.9) == ("chat", True)
    assert any("drawn, seed 29" in line for line in report["inputs"]["derived"])


def test_the_command_names_the_missing_column_of_an_invalid_load_file(tmp_path: Path) -> None:
    (tmp_path / "load.csv").write_text("model,t_s\nm,0\n")
    options = ["--trace", str(EXAMPLES / "jobs.csv"), "--pools", str(EXAMPLES / "pools.yaml"), "--load", str(tmp_path / "load.csv")]
    done = CliRunner().invoke(simulate, options)

    assert done.exit_code == 2
    assert "column rate_rps missing" in done.output
