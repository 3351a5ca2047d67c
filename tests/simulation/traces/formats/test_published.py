"""Traces as they were published: rows taken from the publishers' own descriptions."""

import csv
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.soaking import examples

from gpuscaler.simulation.traces.traces import Job, Trace, TraceError, read_trace

GIB = 1024**3
OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
SPOT = "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type"
PAI_SAMPLE = "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user"
PAI_TASKS = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type"
HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
SEREN = "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time"
KALOS = (
    "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,fail_time,stop_time,"
    "duration,queue,gpu_time"
)
MINUTE, HOUR, DAY = 60, 3600, 86_400


def read(tmp_path: Path, *lines: str, name: str = "trace.csv") -> Trace:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return read_trace(path)


def test_the_run_time_of_openb_pods_is_from_scheduling_to_deletion(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        OPENB,
        "openb-pod-0017,88000,327680,8,1000,,Burstable,Succeeded,9437497,10769854,9437500",
        "openb-pod-0031,16000,32768,1,1000,V100M16|V100M32|V100M32,LS,Running,9961302,9994357,9961304",
        "openb-pod-0061,11908,47104,1,470,,BE,Pending,10001278,10001403,",
        "openb-pod-0063,8000,30517,0,0,,BE,Running,10002000,10002100,10002000",
    )
    assert trace.jobs == (
        Job("openb-pod-0017", 9437497, 1332354, gpus=8, cpu_milli=88000, memory=320 * GIB),
        Job("openb-pod-0031", 9961302, 33053, gpus=1, cpu_milli=16000, memory=32 * GIB, gpu_models=("V100M16", "V100M32")),
        Job("openb-pod-0061", 10001278, 125, gpus=1, gpu_milli=470, cpu_milli=11908, memory=46 * GIB),
        Job("openb-pod-0063", 10002000, 100, cpu_milli=8000, memory=30517 * 2**20),
    )


def test_jobs_of_the_spot_gpu_trace_belong_to_organisations_and_have_priorities(tmp_path: Path) -> None:
    trace = read(tmp_path, SPOT, "239255,13,A10,20,1,1,0,2764799,HP", "437260,57,A100-SXM4-80GB,15,0.5,16,9589663,41060,Spot")
    assert trace.jobs == (
        Job("239255", 0, 2764799, gpus=1, cpu_milli=20_000, gpu_models=("A10",), priority=1, namespace="13"),
        Job("437260", 9589663, 41060, pods=16, gpus=1, gpu_milli=500, cpu_milli=15_000, gpu_models=("A100-SXM4-80GB",), namespace="57"),
    )


def test_instances_of_the_pai_sample_get_their_part_of_the_jobs_gpus(tmp_path: Path) -> None:
    trace = read(tmp_path, PAI_SAMPLE, "7,2,60,12,1.0,MISC,300,ae8ed1", "8,1,61,4,0,CPU,10,ae8ed1", "9,1,62,6,2.5,V100,10,b")
    assert trace.jobs == (
        Job("7", 60, 300, pods=2, gpus=1, gpu_milli=500, cpu_milli=6000, user="ae8ed1"),
        Job("8", 61, 10, cpu_milli=4000, user="ae8ed1"),
        Job("9", 62, 10, gpus=3, cpu_milli=6000, gpu_models=("V100",), user="b"),
    )


def test_pai_tasks_are_read_without_a_header_and_get_users_from_the_table_of_jobs(tmp_path: Path) -> None:
    (tmp_path / "pai_job_table.csv").write_text("4f05,8cb3,58540f,Terminated,1739100.0,1739200.0\nother,1,x,Failed,,\n")
    rows = ("4f05,tensorflow,2.0,Terminated,1739162.0,1739200.0,600.0,29.296875,50.0,T4", "ff,ps,,Failed,1739170,1739190,100,1,,MISC")
    worker = Job(
        "4f05.tensorflow",
        1739100,
        38,
        pods=2,
        gpus=1,
        gpu_milli=500,
        cpu_milli=6000,
        memory=30_000 * 2**20,
        gpu_models=("T4",),
        user="58540f",
    )
    assert read(tmp_path, *rows).jobs == (worker, Job("ff.ps", 1739170, 20, cpu_milli=1000, memory=GIB))
    assert read(tmp_path, PAI_TASKS, *rows).jobs[0] == worker


def test_pai_tasks_alone_make_a_trace_without_users(tmp_path: Path) -> None:
    (job,) = read(tmp_path, "4f05,worker,1.0,Terminated,10.0,20.0,600.0,1.0,100.0,V100").jobs
    assert (job.submit, job.user, job.gpus) == (10, "", 1)


def test_a_damaged_table_of_pai_jobs_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "pai_job_table.csv").write_text("4f05,8cb3,58540f\n")
    with pytest.raises(TraceError, match=r"pai_job_table\.csv: 3 fields, expected job_name"):
        read(tmp_path, "4f05,worker,1.0,Terminated,10.0,20.0,600.0,1.0,100.0,V100")


def test_the_table_of_pai_jobs_alone_is_not_accepted_as_a_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"columns plan_gpu, plan_cpu missing.*pai_task_table\.csv"):
        read(tmp_path, "4f05,8cb3,58540f,Terminated,1739100.0,1739200.0")


def test_helios_jobs_keep_the_day_of_the_week_and_split_over_their_nodes(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        HELIOS,
        "1425511,uXBbc,vcJkd,16,33,2,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0",
        "1425512,uVMrF,vchbv,10,16,4,FAILED,2020-06-15 00:01:00,2020-06-15 00:01:00,2020-06-15 00:05:09,249,0",
        "1425513,uVMrF,vchbv,0,16,1,FAILED,2020-06-15 00:02:00,2020-06-15 00:02:00,2020-06-15 00:02:09,9,0",
    )
    # 9 June 2020 was a Tuesday.
    tuesday = DAY + 18 * HOUR + 41 * MINUTE + 1
    assert trace.jobs == (
        Job("1425511", tuesday, 36848, pods=2, gpus=8, cpu_milli=16_500, user="uXBbc", namespace="vcJkd"),
        Job("1425512", 7 * DAY + MINUTE, 249, pods=5, gpus=2, cpu_milli=3200, user="uVMrF", namespace="vchbv"),
        Job("1425513", 7 * DAY + 2 * MINUTE, 9, cpu_milli=16_000, user="uVMrF", namespace="vchbv"),
    )


def test_acme_jobs_are_read_with_offsets_and_memory(tmp_path: Path) -> None:
    (seren,) = read(
        tmp_path,
        SEREN,
        "5778432,u5907,1,8,128,Other,FAILED,2023-03-01 08:18:22+08:00,2023-03-01 08:18:54+08:00,2023-03-01 08:20:51+08:00,117,32,936.0",
    ).jobs
    # 1 March 2023 was a Wednesday.
    assert seren == Job("5778432", 2 * DAY + 18 * MINUTE + 22, 117, gpus=8, cpu_milli=128_000, user="u5907")
    (kalos,) = read(
        tmp_path,
        KALOS,
        "dlctk,uf794,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,2023-05-17 11:01:16+00:00,"
        "2023-05-17 11:01:16+00:00,,18,10.0,1152.0",
    ).jobs
    assert (kalos.pods, kalos.gpus, kalos.cpu_milli, kalos.memory) == (8, 8, 120_000, 1000 * GIB)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((OPENB, "a,1,1,1,1000,,LS,Running,10,5,6"), "deletion_time minus scheduled_time is -1 s"),
        ((OPENB, "a,1,1,1,0,,LS,Running,10,15,10"), "gpu_milli is 0 with 1 GPU"),
        ((OPENB, "a,1,1,9999999,1000,,LS,Running,10,15,10"), "num_gpu is 9999999"),
        ((SPOT, "1,13,A10,20,-1,1,0,1,HP"), "gpu_request is -1"),
        ((SPOT, "1,13,A10,20,1,0,0,1,HP"), "worker_num is 0"),
        ((PAI_SAMPLE, "7,2,60,12,many,MISC,300,u"), "num_gpu is 'many'"),
        ((PAI_TASKS, "a,b,1,Running,10,,100,1,100,T4"), "end_time is ''"),
        ((PAI_TASKS, "a/b,c,1,Failed,10,11,100,1,100,T4"), "job_name.task_name is 'a/b.c'"),
        ((HELIOS, "1,u,v,1,1,1,FAILED,yesterday,,,1,0"), "submit_time is 'yesterday', expected a date with a time"),
        ((HELIOS, "1,u,v,1,1,0,FAILED,2020-06-15 00:02:00,,,1,0"), "node_num is 0"),
        ((HELIOS, "1,u,v,1.5,1,1,FAILED,2020-06-15 00:02:00,,,1,0"), "gpu_num is 1.5, expected a whole number"),
    ],
)
def test_a_malformed_row_is_skipped_with_its_line(tmp_path: Path, lines: tuple[str, str], reason: str) -> None:
    good = {
        OPENB: "good,1,1,1,1000,,LS,Running,10,15,10",
        SPOT: "2,13,A10,20,1,1,0,1,HP",
        PAI_SAMPLE: "8,1,61,4,0,CPU,10,u",
        PAI_TASKS: "x,b,1,Failed,10,12,100,1,100,T4",
        HELIOS: "2,u,v,1,1,1,FAILED,2020-06-15 00:02:00,,,1,0",
    }[lines[0]]
    trace = read(tmp_path, *lines, good)
    assert (len(trace.jobs), trace.set_aside, trace.bad_rows[0].line) == (1, 1, 2)
    assert reason in trace.bad_rows[0].reason


ODD = st.one_of(
    st.sampled_from(["", "0", "-1", "1e308", "nan", "1", "2020-06-09 18:41:01", "0001-01-01T00:00:00+14:00"]), st.text(max_size=8)
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=st.sampled_from([OPENB, SPOT, PAI_SAMPLE, PAI_TASKS, HELIOS, KALOS]), data=st.data())
def test_any_row_of_a_published_trace_is_read_or_skipped(tmp_path: Path, header: str, data: st.DataObject) -> None:
    names = header.split(",")
    rows = data.draw(st.lists(st.lists(ODD, min_size=len(names), max_size=len(names)), min_size=1, max_size=4))
    path = tmp_path / "trace.csv"
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        csv.writer(file).writerows([names, *([value.encode(errors="ignore").decode() for value in row] for row in rows)])
    try:
        trace = read_trace(path)
    except TraceError:
        return
    assert len(trace.jobs) + trace.set_aside == len(rows)
    assert all(0 <= job.duration < 1e12 and job.pods >= 1 and 1 <= job.gpu_milli <= 1000 for job in trace.jobs)
    assert min(job.submit for job in trace.jobs) >= 0


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (OPENB.replace("num_gpu,", ""), "column num_gpu missing; seen: name, cpu_milli.*read as a list of pods of Alibaba's openb trace"),
        (SPOT.replace("worker_num,", ""), "column worker_num missing.*job_info_df.csv"),
        (PAI_SAMPLE.replace("num_gpu,", ""), "column num_gpu missing.*PAI simulator"),
        (PAI_TASKS.replace("plan_gpu,", ""), "column plan_gpu missing.*pai_task_table"),
        (HELIOS.replace("gpu_num,", ""), "column gpu_num missing.*Helios"),
    ],
)
def test_a_published_file_without_a_column_is_an_error_that_names_it(tmp_path: Path, header: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read(tmp_path, header)


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, object]:
    servers = [{"ip": f"m{server}", "gpus": [f"gpu{number}" for number in range(count)]} for server, count in enumerate(gpus)]
    return {"start_time": start, "end_time": end, "detail": servers}


def entry(jobid: str, *attempts: dict[str, object], submitted: str = "2017-10-07 01:11:39") -> dict[str, object]:
    return {"status": "Pass", "vc": "ee9e8c", "jobid": jobid, "attempts": list(attempts), "submitted_time": submitted, "user": "ce2f4c"}


FIRST = attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", 8)
SECOND = attempt("2017-10-07 01:13:30", "2017-10-07 01:14:30", 8, 4)


def test_philly_jobs_have_the_total_duration_of_all_attempts_and_the_gpus_of_the_last_one(tmp_path: Path) -> None:
    (job,) = read(tmp_path, json.dumps([entry("application_1", FIRST, SECOND)], indent=1), name="cluster_job_log").jobs
    # 7 October 2017 was a Saturday.
    submitted = 5 * DAY + HOUR + 11 * MINUTE + 39
    assert job == Job("application_1", submitted, 74 + 60, pods=3, gpus=4, user="ce2f4c", namespace="ee9e8c")


def test_philly_jobs_that_never_ran_are_skipped_with_the_line_where_they_begin(tmp_path: Path) -> None:
    log = [
        entry("a", FIRST),
        entry("b"),
        entry("c", attempt("2017-10-07 01:12:09", None, 1)),
        entry("d", attempt("None", "None", 1)),
        entry("e", attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23")),
        entry("f", attempt("2017-10-07 01:12:09", "2017-10-06 01:13:23", 1)),
        entry("a", FIRST),
        {"jobid": 7},
        {**entry("h", FIRST), "user": "\ud800"},
        entry("g", FIRST, submitted="soon"),
    ]
    trace = read(tmp_path, "[", ",\n".join(json.dumps(item) for item in log), "]", name="cluster_job_log")
    assert [job.id for job in trace.jobs] == ["a"]
    assert trace.set_aside == 9
    assert [row.line for row in trace.bad_rows] == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    reasons = [row.reason for row in trace.bad_rows]
    assert reasons[0].startswith("attempts has 0 attempts, expected one with a start")
    assert reasons[4].startswith("attempt is -")
    assert reasons[5] == "job_id a was used before"
    assert reasons[6].startswith("Expected `str`, got `int` - at `$.jobid`")
    assert reasons[7].startswith("user is '\\ud800', expected at most 240 printable characters")
    assert reasons[8] == "submitted_time is 'soon', expected a date with a time"


def test_a_compressed_philly_trace_with_one_object_per_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps(entry(name, FIRST)) for name in "ab").encode()))
    assert [job.id for job in read_trace(path).jobs] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[\n{"jobid": "a",\n oops}]', r"cluster_job_log:3: not JSON"),
        ('[{"jobid": "a"}]', "keys submitted_time, attempts missing in the first entry; seen: jobid"),
        ('{"jobid": "a", "submitted_time": ""}', "key attempts missing"),
        ('\n{"jobid": ' + "[" * 100_000, r"cluster_job_log:2: JSON that cannot be a job"),
        ('{"jobid": ' + "9" * 5000 + "}", r"cluster_job_log:1: JSON that cannot be a job"),
        ("[1, 2]", "keys jobid, submitted_time, attempts missing in the first entry; seen: no object"),
        ("[]", "no usable job"),
    ],
)
def test_json_that_is_not_a_job_log_raises_a_trace_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read(tmp_path, text, name="cluster_job_log")
