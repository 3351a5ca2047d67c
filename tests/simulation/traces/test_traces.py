"""Reading traces."""

import gzip
from pathlib import Path

import pytest

from gpuscaler.simulation.traces.traces import Job, Trace, TraceError, read_trace

HEADER = "trace,job_id,submit_s,duration_s,n_pods,gpus_per_pod,gpu_milli,cpu_milli,mem_mib,gpu_model,priority,user,start_s,status,note"
GOOD = "t,a,10,60,1,1,500,4000,1024,T4|A10,LS,me,10,Running,"
DATA = Path(__file__).parents[3] / ".." / "shared" / "data"


def read(tmp_path: Path, *rows: str, header: str = HEADER) -> Trace:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    return read_trace(path)


def test_a_trace_row_becomes_a_job_in_base_units(tmp_path: Path) -> None:
    (job,) = read(tmp_path, GOOD).jobs
    assert job == Job(
        "a", 10, 60, pods=1, gpus=1, gpu_milli=500, cpu_milli=4000, memory=1024 * 2**20, gpu_models=("A10", "T4"), priority=0, user="me"
    )
    assert job.gpu_share == 0.5


def test_gzip_is_recognised_by_content_and_not_by_the_file_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(gzip.compress(f"{HEADER}\n{GOOD}\n".encode()))
    assert len(read_trace(path).jobs) == 1


def test_jobs_of_a_trace_are_sorted_by_submission_time(tmp_path: Path) -> None:
    trace = read(tmp_path, "t,late,9,1,1,0,,,,,,,,,", "t,early,3,1,1,0,,,,,,,,,")
    assert [job.id for job in trace.jobs] == ["early", "late"]


def test_empty_fields_are_read_as_missing_values(tmp_path: Path) -> None:
    (job,) = read(tmp_path, "t,a,0,1,,2,,,,,5,,,,").jobs
    assert (job.pods, job.gpus, job.gpu_milli, job.cpu_milli, job.memory, job.priority) == (1, 2, 1000, None, None, 5)


def test_blank_lines_are_ignored_and_lines_are_counted_as_in_an_editor(tmp_path: Path) -> None:
    trace = read(tmp_path, HEADER, "", GOOD, "broken", header="")
    assert (len(trace.jobs), trace.bad_rows[0].line) == (1, 5)


def test_the_namespace_of_a_job_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, f"{GOOD},team", header=f"{HEADER},namespace").jobs[0].namespace == "team"


def test_only_the_necessary_columns_are_required_in_any_order(tmp_path: Path) -> None:
    trace = read(tmp_path, "1,0,4,1000,,,a,1", header="duration_s,submit_s,gpus_per_pod,gpu_milli,cpu_milli,mem_mib,job_id,n_pods")
    assert trace.jobs == (Job("a", 0, 1, pods=1, gpus=4),)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("t,b,x,60,1,1,1000,,,,,,,,", "submit_s is 'x', expected a number"),
        ("t,b,nan,60,1,1,1000,,,,,,,,", "submit_s is nan"),
        ("t,b,0,-5,1,1,1000,,,,,,,,", "duration_s is -5"),
        ("t,b,0,inf,1,1,1000,,,,,,,,", "duration_s is inf"),
        ("t,b,0,60,0,1,1000,,,,,,,,", "n_pods is 0, expected a number from 1 to 100000"),
        ("t,b,1e300,60,1,1,1000,,,,,,,,", "submit_s is 1e300"),
        ("t,b,0,60,1,1,1000,,1e18,,,,,,", "mem_mib is 1e18"),
        ("t,b,0,60,1,1.5,1000,,,,,,,,", "gpus_per_pod is 1.5, expected a whole number"),
        ("t,b,0,60,1,1,1200,,,,,,,,", "gpu_milli is 1200, expected a number from 1 to 1000"),
        ("t,b,0,60,1,2,500,,,,,,,,", "only a single GPU can be shared"),
        ("t,b,0,60,1,1", "6 fields, expected 15"),
        ("t,,0,60,1,1,1000,,,,,,,,", "job_id is ''"),
        ("t,a,0,60,1,1,1000,,,,,,,,", "job_id a was used before"),
    ],
)
def test_a_malformed_row_is_skipped_with_its_line_and_the_rest_is_read(tmp_path: Path, row: str, reason: str) -> None:
    trace = read(tmp_path, GOOD, row, "t,c,0,60,1,1,1000,,,,,,,,")
    assert {job.id for job in trace.jobs} == {"a", "c"}
    assert trace.set_aside == 1
    assert trace.bad_rows[0].line == 3
    assert reason in trace.bad_rows[0].reason


def test_a_stray_quote_skips_its_row_and_an_unclosed_quote_is_an_error(tmp_path: Path) -> None:
    trace = read(tmp_path, '"a"b,0', GOOD)
    assert (len(trace.jobs), trace.set_aside, trace.bad_rows[0].line) == (1, 1, 2)
    assert trace.bad_rows[0].reason.startswith("not a row of CSV: ")
    with pytest.raises(TraceError, match=r"not a CSV file \(unexpected end of data\)"):
        read(tmp_path, GOOD, '"open,0')


def test_notes_on_jobs_of_a_trace_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = ["note,job_id,submit_s,duration_s,n_pods,gpus_per_pod,gpu_milli,cpu_milli,mem_mib", "pods_derived;,a,0,9,1,1,,,"]
    path.write_text("\n".join([*rows, "pods_derived; cut\x1b,b,0,9,1,1,,,", "lost,b,0,9,1,1,,,", ",c,0,9,1,1,,,"]) + "\n")
    trace = read_trace(path)
    assert (trace.set_aside, trace.notes) == (1, (("pods_derived", 2), ("cut?", 1)))


def test_every_malformed_row_is_counted_though_few_are_kept(tmp_path: Path) -> None:
    trace = read(tmp_path, GOOD, *["broken"] * 250)
    assert (trace.set_aside, len(trace.bad_rows)) == (250, 100)


def test_a_missing_column_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace\.csv: columns submit_s, n_pods missing; seen: job_id"):
        read(tmp_path, header="job_id,duration_s,gpus_per_pod,gpu_milli,cpu_milli,mem_mib")


def test_a_file_without_a_usable_job_reports_the_first_problem(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no usable job.*line 2: 1 fields"):
        read(tmp_path, "broken")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no header"),
        (b"\xff\xfe\x00bad", "not UTF-8"),
        (gzip.compress(b"pai_task_table.csv\0\0\0ustar\n", mtime=0), "an archive or another binary file.*unpack it first"),
        (b"\x1b[2Jjob_id,submit_s\n", r"seen: \?\[2Jjob_id, submit_s"),
        (gzip.compress(f"{HEADER}\n{GOOD}\n".encode(), mtime=0)[:-12], "damaged gzip"),
        (b"\x1f\x8bnonsense", "damaged gzip"),
    ],
)
def test_a_file_that_is_not_a_trace_raises_a_trace_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "odd.csv"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_a_missing_trace_file_raises_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "absent.csv")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path)


def test_every_row_of_the_openb_trace_is_read() -> None:
    path = DATA / "jobs_openb_v2023.csv.gz"
    if not path.exists():
        pytest.skip("needs ../shared/data beside the project")
    trace = read_trace(path)
    assert (len(trace.jobs), trace.set_aside, trace.fractional) == (8152, 0, True)
