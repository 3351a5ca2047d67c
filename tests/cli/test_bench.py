"""``gpuscaler bench``: tables on series of spot availability."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuscaler.cli import main

HEADER = "kind,dataset,cloud,zone,instance_type,max_nodes_probed,t_s,nodes_available\n"


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """Two zones for four days: one alternates every six hours, one always has capacity."""
    changes = [f"availability,d,aws,z1,t,1,{6 * 3600 * number},{number % 2}" for number in range(16)]
    path = tmp_path / "spot.csv"
    path.write_text(
        HEADER + "\n".join([*changes, "availability,d,aws,z2,t,1,0,1", *(f"availability,d,aws,z{z},t,1,345600," for z in "12")])
    )
    return path


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


@pytest.mark.parametrize("name", ["cant-be-late", "skyserve"])
def test_a_bench_table_shows_published_values_our_values_differences_and_unmatched_inputs(name: str, series: Path) -> None:
    result = bench(name, "--spot", series)

    assert result.exit_code == 0
    for word in ("published", "ours", "difference", "gpuscaler", "Not matched:"):
        assert word in result.output


def test_notes_of_bench_on_unmatched_inputs_describe_the_series_of_the_file(series: Path) -> None:
    assert "those of the file: 2, of 4 days." in bench("cant-be-late", "--spot", series).output


@pytest.mark.parametrize(("name", "policy"), [("cant-be-late", "Uniform Progress"), ("skyserve", "SpotHedge")])
def test_bench_json_has_the_difference_to_every_published_value(name: str, policy: str, series: Path) -> None:
    document = json.loads(bench(name, "--spot", series, "--json").stdout)
    (row,) = [row for row in document["rows"] if row["policy"] == policy]

    assert row["difference"] == pytest.approx(row["ours"] - row["published"])
    assert all(row["difference"] is None for row in document["rows"] if row["published"] is None)


def test_bench_counts_malformed_rows_and_quotes_the_first(series: Path) -> None:
    series.write_text(series.read_text() + "\navailability,d,aws,z1,t,1,soon,1\n")
    result = bench("skyserve", "--spot", series, "--json")

    assert result.exit_code == 0
    assert "1 malformed row" in result.stderr
    assert json.loads(result.stdout)["name"] == "skyserve"


@pytest.mark.parametrize("name", ["cant-be-late", "skyserve"])
def test_bench_rejects_a_series_file_of_another_format(name: str, tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    result = bench(name, "--spot", path)

    assert result.exit_code == 2
    assert "missing" in result.output


def test_bench_rejects_an_unknown_table() -> None:
    result = bench("nothing")

    assert result.exit_code == 2
    assert "nothing" in result.output


def test_bench_without_a_table_lists_every_table() -> None:
    result = bench("--help")

    assert result.exit_code == 0
    for name in ("cant-be-late", "skyserve"):
        assert name in result.output
