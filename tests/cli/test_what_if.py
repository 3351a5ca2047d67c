"""``gpuscaler what-if`` as users call it."""

import html
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuscaler.cli.what_if import what_if
from gpuscaler.simulation.policies.peers.variants import AXES

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "simulation-report.md"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.yaml"
    path.write_text((EXAMPLES / "pools.yaml").read_text().replace("g5.xlarge, g5.2xlarge, ", ""))
    return path


def call(*pools: Path, options: tuple[str, ...] = (), trace: Path = EXAMPLES / "jobs.csv") -> Result:
    named = [word for path in pools for word in ("--pools", str(path))]
    return CliRunner().invoke(what_if, ["--trace", str(trace), *named, *options])


def test_what_if_prints_its_explanation_before_the_figures(other: Path) -> None:
    done = call(EXAMPLES / "pools.yaml", other)
    assert done.exit_code == 0
    words = [
        "9 jobs, 9 pods",
        "Skipped: 1 malformed row",
        f"A: {EXAMPLES / 'pools.yaml'}",
        f"B: {other}",
        "pool gpu: only A has g5.2xlarge",
        "Under gpuscaler:",
        "B costs $",
        "By machine: +$",
        "B - A",
        "Not read from a file:",
    ]
    places = [done.stdout.index(word) for word in words]
    assert places == sorted(places)


def test_json_has_both_reports_and_documented_differences_for_each_policy(other: Path) -> None:
    done = call(
        EXAMPLES / "pools.yaml", other, options=("--json", "--seeds", "2", "--policy", "karpenter", "--policy", "static", "--seed", "5")
    )
    report = json.loads(done.stdout)
    assert report["inputs"]["pools"] == [str(EXAMPLES / "pools.yaml"), str(other)]
    assert [(run["name"], run["seed"]) for run in report["a"]] == [("karpenter", 5), ("karpenter", 6), ("static", 5), ("static", 6)]
    assert [(difference["policy"], difference["seeds"]) for difference in report["differences"]] == [("karpenter", 2), ("static", 2)]
    for number, difference in enumerate(report["differences"]):
        means = [sum(run["cost"] for run in report[side][2 * number : 2 * number + 2]) / 2 for side in "ab"]
        assert (difference["cost"]["a"], difference["cost"]["b"]) == (pytest.approx(means[0]), pytest.approx(means[1]))
        assert sum(row["cost"]["difference"] for row in difference["offerings"]) == pytest.approx(difference["cost"]["difference"])
        assert difference["explanation"][0].startswith("B costs ")
    documented = set(re.findall(r"`([^`\n]+)`", PAGE.read_text()))
    assert {key for difference in report["differences"] for key in difference} | set(report) <= documented
    assert {
        key
        for difference in report["differences"]
        for row in (*difference["waits"], *difference["offerings"], *difference["classes"])
        for key in row
    } <= documented


def test_a_folder_gets_the_comparison_as_data_and_as_a_page_that_explains_it(other: Path, tmp_path: Path) -> None:
    done = call(EXAMPLES / "pools.yaml", other, options=("--json", "--out", str(tmp_path / "report")))
    assert done.stderr == f"Report: {tmp_path}/report/report.html\n"
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report == json.loads(done.stdout)
    page = html.unescape((tmp_path / "report" / "report.html").read_text())
    for words in ("What if the pools were different: jobs.csv", "A: gpuscaler", "B: gpuscaler", "pool gpu: only A has g5.2xlarge"):
        assert words in page
    assert report["differences"][0]["explanation"][0] in page
    for plot in ("Capacity against demand", "Cost over time", "Waiting times", "Machines over time"):
        assert f"<h2>{plot}</h2>" in page


def test_what_if_with_a_sweep_compares_the_best_setting_of_a_peer_for_each_file(other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AXES, "karpenter", {"budget": (0.1, 1.0)})
    monkeypatch.setattr("gpuscaler.simulation.policies.peers.variants._rank", lambda result: result.policy == "karpenter")
    report = json.loads(call(EXAMPLES / "pools.yaml", other, options=("--json", "--policy", "karpenter", "--sweep")).stdout)
    assert [difference["policy"] for difference in report["differences"]] == ["karpenter", "karpenter at its best"]
    assert "karpenter at its best: with A karpenter(budget=1.0), with B karpenter(budget=1.0)" in report["inputs"]["derived"]


def test_waiting_times_that_are_lower_bounds_are_marked_and_not_subtracted(tmp_path: Path) -> None:
    small = tmp_path / "small.yaml"
    small.write_text((EXAMPLES / "pools.yaml").read_text().replace(", g5.12xlarge", ""))
    done = call(EXAMPLES / "pools.yaml", small)
    lines = {line.split("  ")[0]: line.split("  ")[1:] for line in done.stdout.splitlines()}
    cells = [cell.strip() for cell in lines["wait, p95"] if cell.strip()]
    assert (cells[1][0], cells[2]) == ("≥", "-")
    assert "0" in [cell.strip() for cell in lines["evictions"]]
    assert "≥: at least" in done.stdout
    assert "Run only with A: 2 pods with 4-7 GPUs (trace/train-1, trace/train-2)" in done.stdout


def test_what_if_marks_notes_that_apply_to_one_file_only(tmp_path: Path) -> None:
    spot = tmp_path / "spot.yaml"
    spot.write_text((EXAMPLES / "pools.yaml").read_text().replace("markets: [on-demand]", "markets: [spot, on-demand]"))
    done = call(EXAMPLES / "pools.yaml", spot)
    assert "  B: 10 spot offerings of the pools file: omitted" in done.stdout
    assert "B costs the same as A" in done.stdout


@pytest.mark.parametrize("count", [1, 3])
def test_what_if_requires_two_pools_files(count: int) -> None:
    done = call(*[EXAMPLES / "pools.yaml"] * count)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"saw {count}, expected two files" in done.stderr


def test_an_unusable_file_exits_2_and_is_named(other: Path, tmp_path: Path) -> None:
    for done, word in (
        (call(other, tmp_path / "absent.yaml"), "absent.yaml"),
        (call(other, other, trace=tmp_path / "absent.csv"), "absent.csv"),
        (call(other, other, options=("--policy", "optimal-hindsight")), "optimal-hindsight"),
    ):
        assert (done.exit_code, done.stdout) == (2, "")
        assert word in done.stderr
