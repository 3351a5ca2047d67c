"""``gpuscaler simulate`` as a user calls it."""

import errno
import gzip
import json
import os
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuscaler.cli.replaying import SCORINGS as OFFERED_SCORINGS
from gpuscaler.cli.replaying import SWEPT
from gpuscaler.cli.simulate import POLICIES as OFFERED
from gpuscaler.cli.simulate import simulate
from gpuscaler.simulation.policies.peers.variants import AXES
from gpuscaler.simulation.policies.policies import NAMES
from gpuscaler.simulation.world.scheduler import SCORINGS

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"
HEADER = "trace,job_id,submit_s,duration_s,n_pods,gpus_per_pod,gpu_milli,cpu_milli,mem_mib,gpu_model,priority,user,start_s,status,note"
ROWS = ("t,a,0,600,1,1,1000,2000,4096,T4,,,,,", "t,b,60,600,2,1,1000,2000,4096,A10,,,,,", "t,c,90,60,1,0,0,500,512,,,,,,")
POOLS = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge, g4dn.12xlarge]
    zones: [us-east-1a]
    markets: [on-demand]
  - name: cpu
    types: [m6i.large]
    zones: [us-east-1a]
    markets: [on-demand]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "trace.csv").write_text("\n".join((HEADER, *ROWS)) + "\n")
    (tmp_path / "pools.yaml").write_text(POOLS)
    return tmp_path


def call(folder: Path, *options: str, trace: str = "trace.csv", pools: str = "pools.yaml") -> Result:
    return CliRunner().invoke(simulate, ["--trace", str(folder / trace), "--pools", str(folder / pools), *options])


def test_the_report_as_json_has_the_documented_keys(folder: Path) -> None:
    done = call(folder, "--json", "--seed", "3")
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    (policy,) = report["policies"]
    assert (policy["name"], policy["seed"], policy["unserved"], policy["evictions"]) == ("gpuscaler", 3, 0, 0)
    assert set(policy["wait"]) == {"mean", "p50", "p95", "p99"}
    assert policy["failover_seconds"] == {"p50": None, "max": None}
    assert 0 < policy["lower_bound"] <= policy["cost"]
    assert policy["gpu_hours_used"] == pytest.approx(0.5)
    assert {"pool", "instance_type", "market", "zone", "hours", "cost"} <= set(policy["machine_hours"][0])
    assert sum(row["cost"] for row in policy["machine_hours"]) == pytest.approx(policy["cost"])
    assert (report["inputs"]["jobs"], report["inputs"]["pods"], report["inputs"]["set_aside"]) == (3, 4, 0)
    assert any("boot delay" in note for note in report["inputs"]["generated"])


def test_the_text_report_names_cost_bound_waits_and_machines(folder: Path) -> None:
    done = call(folder)
    assert done.exit_code == 0
    for words in ("3 jobs, 4 pods", "cost", "no policy can cost less than", "wait, median", "g4dn.", "us-east-1a"):
        assert words in done.stdout
    assert done.stderr == ""


def test_the_same_seed_prints_the_same_report(folder: Path) -> None:
    assert call(folder, "--json").stdout == call(folder, "--json").stdout


def test_skipped_rows_are_counted_and_the_first_is_shown_with_its_line(folder: Path) -> None:
    with (folder / "trace.csv").open("a") as file:
        file.write("t,d,soon,1,1,1,1000,,,,,,,,\n")
    assert "Skipped: 1 malformed row, the first in line 5: submit_s is 'soon', expected a number." in call(folder).stdout
    assert json.loads(call(folder, "--json").stdout)["inputs"]["set_aside_rows"][0]["line"] == 5


def test_with_strict_gpu_models_pods_without_a_product_label_get_a_reason(folder: Path) -> None:
    report = json.loads(call(folder, "--json", "--gpu-model", "strict").stdout)
    (policy,) = report["policies"]
    assert policy["unserved"] == 3
    assert "pool gpu" in policy["unserved_reasons"][0]["reason"]
    assert "Never ran under gpuscaler:" in call(folder, "--gpu-model", "strict").stdout


def test_a_mapping_file_gives_gpu_models_their_product_labels(folder: Path) -> None:
    (folder / "map.yaml").write_text("T4: Tesla-T4\nA10: [Tesla-T4, NVIDIA-A10G]\n")
    report = json.loads(call(folder, "--json", "--gpu-model", str(folder / "map.yaml")).stdout)
    assert (report["policies"][0]["unserved"], report["inputs"]["gpu_model"]) == (0, "mapped")


def test_requests_per_gpu_fill_in_missing_values_of_the_trace(folder: Path) -> None:
    (folder / "silent.csv").write_text(f"{HEADER}\nt,a,0,600,1,1,1000,,,,,,,,\n")
    report = json.loads(call(folder, "--json", "--cpu-per-gpu", "20", "--mem-per-gpu", "60Gi", trace="silent.csv").stdout)
    assert report["policies"][0]["machine_hours"][0]["instance_type"] == "g4dn.12xlarge"
    assert "cpu request of 1 job: 20 CPUs per GPU, as requested" in report["inputs"]["derived"]
    silent = json.loads(call(folder, "--json", trace="silent.csv").stdout)
    assert "memory request of 1 job: none: nothing is requested" in silent["inputs"]["derived"]


def test_the_report_contains_the_command_line_options(folder: Path) -> None:
    (folder / "load.csv").write_text("t_s,model,rate_rps\n0,chat,5\n600,chat,0\n")
    result = call(folder, "--json", "--restart-cost", "20m", "--load", str(folder / "load.csv"), "--policy", "optimal-hindsight")
    inputs = json.loads(result.stdout)["inputs"]
    assert (inputs["load"], inputs["restart_cost_seconds"]) == ("load.csv", 1200)
    assert "restart cost of every pod: 1,200 s, as requested: pods may move, and only gpuscaler considers this cost" in inputs["derived"]
    assert "optimal-hindsight: without the services of load.csv, because their replicas depend on the policy" in inputs["derived"]
    assert any(note.startswith("optimal-hindsight: not a policy but a loose lower bound") for note in inputs["derived"])
    silent = json.loads(call(folder, "--json", "--policy", "optimal-hindsight").stdout)["inputs"]
    assert (silent["load"], silent["restart_cost_seconds"]) == (None, None)


def test_a_peer_can_be_run_with_its_default_and_with_other_settings(folder: Path) -> None:
    patient = "cluster-autoscaler(scale_down_unneeded_time=3600,expander=price)"
    report = json.loads(call(folder, "--json", "--policy", "cluster-autoscaler", "--policy", patient).stdout)
    own, custom = report["policies"]
    assert (own["name"], custom["name"]) == ("cluster-autoscaler", patient)
    assert own["hours"] < custom["hours"]


def test_the_report_shows_gangs_and_results_of_several_seeds(folder: Path) -> None:
    (folder / "load.csv").write_text("t_s,model,rate_rps\n0,chat,5\n600,chat,0\n")
    options = ("--json", "--load", str(folder / "load.csv"), "--policy", "optimal-hindsight")
    several = json.loads(call(folder, *options, "--seeds", "2", "--seed", "4", "--no-steering").stdout)["inputs"]["derived"]
    assert "random values are listed for seed 4; each of the other seeds draws its own" in several
    assert "jobs of several pods: gangs, which start together; in any zones" in several
    derived_notes = json.loads(call(folder, *options).stdout)["inputs"]["derived"]
    assert not any("draws its own" in note for note in derived_notes)
    assert any("gpuscaler keeps each gang in one zone and on one GPU product" in note for note in derived_notes)


def test_machines_that_exist_at_the_beginning_serve_pods_immediately_and_are_reported(folder: Path) -> None:
    report = json.loads(call(folder, "--json", "--start", "gpu/g4dn.12xlarge=1", "--start", "cpu=1").stdout)
    assert report["policies"][0]["wait"]["p99"] < 120
    start_notes = [note for note in report["inputs"]["derived"] if note.startswith("at the start: ")]
    assert start_notes == [
        "at the start: 1 x cpu/on-demand/m6i.large/us-east-1a, as requested",
        "at the start: 1 x gpu/on-demand/g4dn.12xlarge/us-east-1a, as requested",
    ]


def test_a_sweep_reports_the_best_settings_of_a_peer_or_that_its_defaults_are_best(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AXES, "karpenter", {"budget": (0.1, 1.0)})
    for best, note in (
        (("karpenter",), "karpenter: {} the defaults were the cheapest"),
        (("karpenter", "karpenter(budget=1.0)"), "karpenter(budget=1.0): {} the cheapest"),
    ):
        monkeypatch.setattr("gpuscaler.simulation.policies.peers.variants._rank", lambda result, best=best: result.policy != best[-1])
        report = json.loads(call(folder, "--json", "--policy", "karpenter", "--sweep").stdout)
        assert tuple(policy["name"] for policy in report["policies"]) == best
        assert note.format("of the settings that a sweep tried on this trace,") in report["inputs"]["derived"]


def test_spot_offerings_are_left_out_and_reported(folder: Path) -> None:
    (folder / "both.yaml").write_text(POOLS.replace("markets: [on-demand]", "markets: [spot, on-demand]"))
    report = json.loads(call(folder, "--json", pools="both.yaml").stdout)
    assert {row["market"] for row in report["policies"][0]["machine_hours"]} == {"on-demand"}
    assert any(note.startswith("3 spot offerings of the pools file: omitted") for note in report["inputs"]["derived"])


def test_sizes_that_no_pool_is_for_are_reported(folder: Path) -> None:
    (folder / "hole.yaml").write_text(
        POOLS.replace("types: [g4dn.xlarge, g4dn.12xlarge]", "types: [g4dn.12xlarge]\n    min_gpus_per_pod: 4")
    )
    notes = json.loads(call(folder, "--json", pools="hole.yaml").stdout)["inputs"]["derived"]
    assert any("min_gpus_per_pod: 4, but no pool is for pods with 1 to 3 GPUs" in note for note in notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpu-model", "absent.yaml"], "absent.yaml: No such file"),
        (["--cpu-per-gpu", "many"], "--cpu-per-gpu"),
        (["--mem-per-gpu", "-1Gi"], "expected a quantity from 0 to 8Ti"),
        (["--cpu-per-gpu", "1G"], "expected a quantity from 0 to 1k"),
        (["--seed", "-1"], "--seed"),
        (["--policy", "unheard"], "unheard"),
        (["--policy", "static(size=2)"], "'static(size=2)' is not one of"),
        (["--policy", "karpenter(budget)"], "'karpenter(budget)' is not one of"),
        (["--policy", "karpenter(speed=2)"], "unknown setting speed: expected one of batch_idle"),
        (["--policy", "karpenter(budget=much)"], "karpenter(budget=much): "),
        (["--policy", "karpenter(batch_idle=2,budget=-1)"], "saw budget=-1, expected a number of at least 0"),
        (
            ["--policy", "cluster-autoscaler(scan_interval=0.0)"],
            "saw scan_interval=0.0, expected a number of at least 0 (scan_interval: above 0)",
        ),
        (["--policy", "cluster-autoscaler(expander=cheapest)"], "unknown expander 'cheapest': expected one of random"),
        (["--seeds", "0"], "--seeds"),
        (["--start", "gpu"], "saw gpu, expected POOL=N or POOL/TYPE=N"),
        (["--start", "gpu=-1"], "saw gpu=-1, expected POOL=N"),
        (["--start", "gpu=1", "--start", "gpu=2"], "saw gpu twice"),
        (["--start", "cpus=1"], "pools.yaml: saw the pool cpus, expected one of gpu, cpu"),
        (["--spot-map", "map.yaml"], "give --spot FILE too"),
        (["--sweep", "--policy", "static"], "expected karpenter or cluster-autoscaler among --policy"),
    ],
)
def test_an_unusable_option_exits_with_status_2_and_the_reason(folder: Path, options: list[str], message: str) -> None:
    done = call(folder, *options)
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("T4: Tesla-T4\n", "saw no entry for A10"),
        ("- T4\n", "saw no mapping"),
        ("T4: 5\n", "expected a model with one product label"),
        ("T4: []\n", "expected a model with one product label"),
        ("{", "not YAML or JSON"),
    ],
)
def test_an_unusable_mapping_file_exits_with_status_2_and_the_reason(folder: Path, content: str, message: str) -> None:
    (folder / "map.yaml").write_text(content)
    done = call(folder, "--gpu-model", str(folder / "map.yaml"))
    assert done.exit_code == 2
    assert message in done.stderr


def test_unusable_files_exit_with_status_2_and_are_named(folder: Path) -> None:
    (folder / "wrong.csv").write_text("job_id,submit_s\na,0\n")
    (folder / "wrong.yaml").write_text("pools: [{name: gpu, kind: odd}]\n")
    (folder / "spot.yaml").write_text(POOLS.replace("markets: [on-demand]", "markets: [spot]"))
    for options, message in (
        ({"trace": "wrong.csv"}, "wrong.csv: columns duration_s"),
        ({"trace": "absent.csv"}, "absent.csv: cannot be read"),
        ({"pools": "wrong.yaml"}, "kind"),
        ({"pools": "absent.yaml"}, "absent.yaml"),
        ({"pools": "spot.yaml"}, "saw only spot offerings"),
    ):
        done = call(folder, **options)
        assert (done.exit_code, done.stdout) == (2, "")
        assert message in done.stderr


def test_the_command_offers_all_policies_of_the_simulation() -> None:
    assert OFFERED == NAMES
    assert set(SWEPT) == set(AXES)
    assert OFFERED_SCORINGS == SCORINGS


def test_real_jobs_are_replayed_and_none_is_lost(folder: Path) -> None:
    source = DATA / "jobs_openb_v2023.csv.gz"
    if not source.exists():
        pytest.skip("needs ../shared/data beside the project")
    lines = gzip.decompress(source.read_bytes()).decode().splitlines()
    (folder / "some.csv").write_text("\n".join([lines[0], *lines[1:400]]) + "\n")
    (folder / "large.yaml").write_text(
        POOLS.replace("g4dn.12xlarge", "g4dn.12xlarge, g4dn.metal, g5.48xlarge").replace("m6i.large", "m6i.16xlarge")
    )
    (policy,) = json.loads(call(folder, "--json", trace="some.csv", pools="large.yaml").stdout)["policies"]
    assert (policy["served"], policy["unserved"]) == (399, 0)
    assert policy["lower_bound"] < policy["cost"] < 5 * policy["lower_bound"]


def test_the_report_is_written_to_a_folder_as_json_and_html(folder: Path) -> None:
    done = call(folder, "--json", "--out", str(folder / "new" / "report"))
    assert done.exit_code == 0
    assert done.stderr == f"Report: {folder}/new/report/report.html\n"
    assert json.loads((folder / "new" / "report" / "report.json").read_text()) == json.loads(done.stdout)
    assert "<title>Simulation of trace.csv</title>" in (folder / "new" / "report" / "report.html").read_text()


def test_file_names_that_are_not_valid_utf8_can_be_reported(folder: Path) -> None:
    odd = os.fsdecode(b"od\xffd\x1b.csv")
    (folder / odd).write_bytes((folder / "trace.csv").read_bytes())
    done = call(folder, "--json", "--out", str(folder / "report"), trace=odd)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["inputs"]["trace"] == "od\\udcffd\\x1b.csv"
    assert "od\\udcffd\\x1b.csv" in (folder / "report" / "report.html").read_text()


def test_results_are_printed_even_if_the_disk_of_the_output_folder_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path, __: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    done = call(folder, "--out", str(folder / "report"))
    assert done.exit_code == 2
    assert "no policy can cost less than" in done.stdout
    assert "report: No space left on device; expected a writable folder" in done.stderr


def test_a_replay_process_that_is_killed_is_reported_without_a_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise BrokenProcessPool("a process was terminated abruptly")

    monkeypatch.setattr("gpuscaler.simulation.results.campaign.run_all", killed)
    done = call(folder, "--seeds", "2")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "saw a worker process killed" in done.stderr


def test_an_output_folder_that_is_not_writable_is_reported_before_the_replay(folder: Path) -> None:
    for out in (folder / "trace.csv", folder / "trace.csv" / "inside"):
        done = call(folder, "--out", str(out))
        assert (done.exit_code, done.stdout) == (2, "")
        assert "--out" in done.stderr
