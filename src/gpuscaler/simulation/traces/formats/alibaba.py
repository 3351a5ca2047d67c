"""Alibaba's GPU traces, github.com/alibaba/clusterdata: v2020 (PAI), v2023 (openb), v2026 (spot GPUs)."""

import csv
from pathlib import Path

from msgspec.structs import replace

from gpuscaler.simulation.traces.formats.fields import (
    GIB,
    Fields,
    Layout,
    device_share,
    duration_between,
    parse_identity,
    parse_label,
    parse_number,
)
from gpuscaler.simulation.traces.jobs import MIB, MOST_GPUS, MOST_SECONDS, Job, TraceError, open_text

#: The possible statuses of a task or a job of the PAI trace.
STATUSES = frozenset({"Terminated", "Failed", "Running", "Waiting"})
#: The tables of the PAI trace are published without headers, which are in separate files.
PAI_TASK_COLUMNS = tuple("job_name task_name inst_num status start_time end_time plan_cpu plan_mem plan_gpu gpu_type".split())
PAI_JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
PAI_JOB_FILES = ("pai_job_table.csv", "pai_job_table.csv.gz")
#: Models that mean no request: jobs without GPUs, and GPUs of any older generation.
ANY_MODEL = frozenset({"", "CPU", "MISC"})


def openb_job(row: Fields) -> Job:
    """Read a pod. A pod that was never scheduled gets the time until its deletion, as if it had run that long."""
    created = row.seconds("creation_time")
    begun = row.seconds("scheduled_time") if row.text("scheduled_time") else created
    gpus = row.whole("num_gpu", default=0, most=MOST_GPUS)
    milli = row.whole("gpu_milli", default=1000, most=1000) if gpus == 1 else 1000
    if milli < 1:
        raise ValueError("gpu_milli is 0 with 1 GPU, expected a number from 1 to 1000")
    return Job(
        id=row.identity("name"),
        submit=created,
        duration=duration_between(row.seconds("deletion_time") - begun, "deletion_time minus scheduled_time"),
        gpus=gpus,
        gpu_milli=milli,
        cpu_milli=row.milli("cpu_milli"),
        memory=row.memory("memory_mib", unit=MIB),
        gpu_models=row.models("gpu_spec"),
    )


def spot_job(row: Fields) -> Job:
    """Read a job of workers of one kind. High-priority jobs come before preemptible ones; an organisation is a namespace."""
    gpus, milli = device_share(row.number("gpu_request", most=MOST_GPUS))
    return Job(
        id=row.identity("job_name"),
        submit=row.seconds("submit_time"),
        duration=row.seconds("duration"),
        pods=row.pods("worker_num"),
        gpus=gpus,
        gpu_milli=milli,
        cpu_milli=row.milli("cpu_request", unit=1000),
        gpu_models=row.models("gpu_model") if gpus else (),
        priority=1 if row.text("job_type") == "HP" else 0,
        namespace=row.label("organization"),
    )


def pai_sample_job(row: Fields) -> Job:
    """Read a job of the PAI simulator's sample. GPUs and cores are those of all its instances, as that simulator takes them."""
    pods = row.pods("num_inst")
    gpus, milli = device_share(row.number("num_gpu", most=MOST_GPUS) / pods)
    return Job(
        id=row.identity("job_id"),
        submit=row.seconds("submit_time"),
        duration=row.seconds("duration"),
        pods=pods,
        gpus=gpus,
        gpu_milli=milli,
        cpu_milli=row.milli("num_cpu", unit=1000 / pods),
        gpu_models=_models(row.label("gpu_type")) if gpus else (),
        user=row.label("user"),
    )


def pai_task_job(row: Fields) -> Job:
    """Read a task: instances of one role of a job. Requests are in hundredths of a core and of a GPU, and in GiB."""
    begun = row.seconds("start_time")
    gpus, milli = device_share(parse_number(row.text("plan_gpu") or "0", "plan_gpu", most=100 * MOST_GPUS) / 100)
    return Job(
        id=parse_identity(f"{row.text('job_name')}.{row.text('task_name')}", "job_name.task_name"),
        submit=begun,
        duration=duration_between(row.seconds("end_time") - begun, "end_time minus start_time"),
        pods=row.pods("inst_num"),
        gpus=gpus,
        gpu_milli=milli,
        cpu_milli=row.milli("plan_cpu", unit=10),
        memory=row.memory("plan_mem", unit=GIB),
        gpu_models=_models(row.label("gpu_type")) if gpus else (),
    )


def with_pai_jobs(jobs: list[Job], path: Path) -> list[Job]:
    """Add users and times of submission from the table of jobs, if it is in the same folder."""
    table = next((beside for name in PAI_JOB_FILES if (beside := path.parent / name).exists()), None)
    if table is None:
        return jobs
    ids = {job.id.partition(".")[0] for job in jobs}
    submissions: dict[str, tuple[str, float]] = {}
    with open_text(table) as text:
        for row in csv.reader(text, strict=True):
            if len(row) != len(PAI_JOB_COLUMNS):
                raise TraceError(f"{table}: {len(row)} fields, expected {', '.join(PAI_JOB_COLUMNS)}; correct the file or move it away")
            name, _, user, _, submitted, _ = row
            if name in ids and submitted:
                try:
                    submissions[name] = parse_label(user, "user"), parse_number(submitted, "start_time", most=MOST_SECONDS)
                except ValueError:
                    # The table only adds to the tasks: a job that is not in it keeps the values of its tasks.
                    continue
    result = []
    for job in jobs:
        user, submitted_at = submissions.get(job.id.partition(".")[0], ("", job.submit))
        result.append(replace(job, user=user, submit=min(submitted_at, job.submit)))
    return result


def columns_without_header(row: list[str]) -> tuple[str, ...] | None:
    """The columns of a table that comes without a header, identified by its first row."""
    for columns in (PAI_TASK_COLUMNS, PAI_JOB_COLUMNS):
        if len(row) == len(columns) and row[columns.index("status")].strip() in STATUSES:
            return columns
    return None


def _models(kind: str) -> tuple[str, ...]:
    return () if kind in ANY_MODEL else (kind,)


OPENB = Layout(
    "a list of pods of Alibaba's openb trace (v2023)",
    ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time"),
    openb_job,
)
SPOT = Layout(
    "job_info_df.csv of Alibaba's spot GPU trace (v2026)",
    ("job_name", "organization", "cpu_request", "gpu_request", "worker_num", "submit_time", "duration", "job_type"),
    spot_job,
)
PAI_SAMPLE = Layout(
    "a list of jobs of the PAI simulator (Alibaba's v2020)",
    ("job_id", "num_inst", "num_cpu", "num_gpu", "submit_time", "duration"),
    pai_sample_job,
)
PAI_TASKS = Layout(
    "pai_task_table of Alibaba's PAI trace (v2020)",
    ("job_name", "task_name", "inst_num", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu"),
    pai_task_job,
    finish=with_pai_jobs,
)
