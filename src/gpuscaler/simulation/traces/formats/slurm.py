"""Logs of Slurm clusters: Helios (SenseTime, SC 2021) and Acme (Shanghai AI Laboratory, NSDI 2024)."""

from gpuscaler.simulation.traces.formats.fields import GIB, Fields, Layout, parse_timestamp, split_over_nodes
from gpuscaler.simulation.traces.jobs import MOST_GPUS, MOST_MILLICORES, Job


def slurm_job(row: Fields) -> Job:
    """Read a job on some nodes. GPUs and cores are those of all nodes, memory that of one; a virtual cluster is a namespace."""
    pods = row.pods("node_num")
    gpus = row.whole("gpu_num", default=0, most=MOST_GPUS)
    if gpus:
        pods, gpus = split_over_nodes(gpus, pods)
    cores = row.number("cpu_num", most=MOST_MILLICORES / 1000) if row.text("cpu_num") else None
    return Job(
        id=row.identity("job_id"),
        submit=parse_timestamp(row.text("submit_time"), "submit_time"),
        duration=row.seconds("duration"),
        pods=pods,
        gpus=gpus,
        cpu_milli=None if cores is None else int(-(-cores * 1000 // pods)),
        memory=row.memory("mem_per_pod_GB", unit=GIB),
        user=row.label("user"),
        namespace=row.label("vc"),
    )


SLURM = Layout(
    "cluster_log.csv of Helios, or a job trace of Acme",
    ("job_id", "user", "gpu_num", "cpu_num", "node_num", "submit_time", "duration"),
    slurm_job,
    calendar=True,
)
