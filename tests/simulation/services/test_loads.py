"""Files of loads."""

import gzip
from pathlib import Path

import pytest

from gpuscaler.simulation.services import read_load
from gpuscaler.simulation.services.loads import LoadSeries, sum_series
from gpuscaler.simulation.traces.traces import TraceError

DATA = Path(__file__).parents[3].parent / "shared" / "data"
RATES, DUTY_CYCLES = "llm_rate_servegen_10min.csv.gz", "genai_v2026_pod_metrics.csv.gz"


def written(folder: Path, *rows: str) -> Path:
    path = folder / "load.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_request_rates_of_models_are_read_in_order_of_time(tmp_path: Path) -> None:
    load = read_load(written(tmp_path, "model,t_s,rate_rps,active_clients", "b,600,4.5,1", "b,0,3,1", "a,0,1,1"))

    assert load.unit == "requests/s"
    assert load.series == (LoadSeries("a", (0.0,), (1.0,)), LoadSeries("b", (0.0, 600.0), (3.0, 4.5)))


def test_duty_cycles_of_pods_are_read_as_busy_gpus_and_gaps_are_counted(tmp_path: Path) -> None:
    load = read_load(written(tmp_path, "t_s,pod,gpu_duty_cycle_pct,mem_util", "0,a,50,0.1", "57,a,,0.1", "114,a,100,0.2"))

    assert (load.unit, load.gaps, load.set_aside) == ("busy GPUs", 1, 0)
    assert load.series == (LoadSeries("a", (0.0, 114.0), (0.5, 1.0)),)


def test_load_files_compressed_with_gzip_are_read(tmp_path: Path) -> None:
    path = tmp_path / "load.csv.gz"
    path.write_bytes(gzip.compress(b"model,t_s,rate_rps\nm,0,1\n"))

    assert [series.name for series in read_load(path).series] == ["m"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("m,0", "2 fields, expected 3"),
        ('"m"x,0,1', "not a row of CSV"),
        (",0,1", "model is ''"),
        ("a/b,0,1", "without '/'"),
        ("m,x,1", "t_s is 'x', expected a number"),
        ("m,-1,1", "t_s is -1, expected a number from 0"),
        ("m,0,", "rate_rps is '', expected a number"),
        ("m,0,nan", "rate_rps is nan"),
        ("m,0,-3", "rate_rps is -3"),
        ("m,0,inf", "rate_rps is inf"),
        ("good,0,2", "model good has a value at t_s 0 already"),
    ],
)
def test_an_invalid_row_of_a_load_file_is_skipped_with_its_line_and_reason(tmp_path: Path, row: str, reason: str) -> None:
    load = read_load(written(tmp_path, "model,t_s,rate_rps", "good,0,1", row))

    assert load.set_aside == 1
    assert load.bad_rows[0].line == 3
    assert reason in load.bad_rows[0].reason
    assert [series.name for series in load.series] == ["good"]


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        ("model,rate_rps", "column t_s missing"),
        ("model,t_s", "column rate_rps missing"),
        ("t_s,pod,duty", "column gpu_duty_cycle_pct missing"),
        ("job_id,submit_s", "columns t_s, model, rate_rps missing; seen: job_id, submit_s"),
        ("", "seen: a, b, c"),
    ],
)
def test_the_error_for_a_load_file_names_the_missing_column(tmp_path: Path, header: str, missing: str) -> None:
    with pytest.raises(TraceError, match=missing):
        read_load(written(tmp_path, header, "a,b,c"))


def test_a_load_file_without_a_usable_row_is_an_error_with_its_first_problem(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no usable load.*line 2: model is ''"):
        read_load(written(tmp_path, "model,t_s,rate_rps", ",0,1"))


def test_a_missing_load_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_load(tmp_path / "none.csv")


def test_load_series_are_summed_each_from_its_beginning_to_its_end() -> None:
    series, other = LoadSeries("a", (0.0, 60.0), (0.5, 0.25)), LoadSeries("b", (60.0, 120.0, 180.0), (1.0, 0.5, 0.1))

    assert sum_series("sum", (series, other)) == LoadSeries("sum", (0.0, 60.0, 120.0, 180.0, 240.0), (0.5, 1.25, 0.5, 0.1, 0.0))


@pytest.mark.skipif(not (DATA / RATES).exists(), reason="../shared/data is not there")
def test_every_row_of_the_published_request_rates_is_read() -> None:
    load = read_load(DATA / RATES)

    assert (load.set_aside, {series.name: len(series.times) for series in load.series}) == (0, {"deepseek-r1": 144, "m-large": 2016})


@pytest.mark.skipif(not (DATA / DUTY_CYCLES).exists(), reason="../shared/data is not there")
def test_every_row_with_a_pod_of_the_published_duty_cycles_is_read() -> None:
    load = read_load(DATA / DUTY_CYCLES)

    assert (len(load.series), load.set_aside) == (143, 49)
    assert "pod is ''" in load.bad_rows[0].reason
