"""Our own columns: one job per row, documented in docs/reference/traces.md."""

import csv
from typing import TextIO

from gpuscaler.simulation.traces.formats.fields import Fields, Layout
from gpuscaler.simulation.traces.jobs import MIB, MOST_GPUS, Job, Trace

#: Required columns, followed by optional ones.
COLUMNS = ("job_id", "submit_s", "duration_s", "n_pods", "gpus_per_pod", "gpu_milli", "cpu_milli", "mem_mib")
MORE_COLUMNS = ("gpu_model", "priority", "user", "namespace", "note")


def tidy_job(row: Fields) -> Job:
    gpus = row.whole("gpus_per_pod", default=0, most=MOST_GPUS)
    gpu_milli = row.whole("gpu_milli", default=1000, least=1, most=1000) if gpus else 1000
    if gpus > 1 and gpu_milli < 1000:
        raise ValueError(f"gpu_milli is {gpu_milli} with {gpus} GPUs, expected 1000: only a single GPU can be shared")
    priority = row.text("priority")
    return Job(
        id=row.identity("job_id"),
        submit=row.seconds("submit_s"),
        duration=row.seconds("duration_s"),
        pods=row.pods("n_pods"),
        gpus=gpus,
        gpu_milli=gpu_milli,
        cpu_milli=row.milli("cpu_milli"),
        memory=row.memory("mem_mib", unit=MIB),
        gpu_models=row.models("gpu_model"),
        # Kubernetes' priorities are numbers; QoS names, which some traces have here, have no effect on the scheduler's order.
        priority=int(priority) if priority.lstrip("-").isdecimal() else 0,
        user=row.label("user"),
        namespace=row.label("namespace"),
    )


def write_trace(trace: Trace, file: TextIO, *, note: str = "") -> None:
    """Write jobs so that reading them gives the same again, memory to the MiB. Each row has the ``note``, which reports show."""
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow((*COLUMNS, *MORE_COLUMNS))
    for job in trace.jobs:
        memory = "" if job.memory is None else job.memory // MIB
        cpu = "" if job.cpu_milli is None else job.cpu_milli
        amounts = (job.pods, job.gpus, job.gpu_milli, cpu, memory)
        rows.writerow((job.id, job.submit, job.duration, *amounts, "|".join(job.gpu_models), job.priority, job.user, job.namespace, note))


TIDY = Layout("a trace of this program", COLUMNS, tidy_job, note="note")
