"""The work of a demo: jobs, generated or from a trace, as objects for the API server."""

import math
import random
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.simulation.traces.jobs import MIB, Job, Trace, TraceError

NAMESPACE = "default"
#: Jobs of the generated workload, and when they are submitted: from one fraction of the whole time to another, what percentage.
JOBS = 80
WAVES = ((0.0, 0.25, 50), (0.25, 0.45, 12), (0.45, 0.65, 38))
#: Shapes of jobs: pods, GPUs of each, and the percentage of jobs with this shape. Several pods are a gang.
SHAPES = ((1, 1, 48), (1, 2, 16), (1, 4, 14), (1, 8, 10), (4, 1, 6), (2, 8, 6))
#: Run times: the median in seconds, the spread, the shortest and the longest.
MEDIAN, SPREAD, SHORTEST, LONGEST = 720.0, 0.6, 240.0, 2100.0
#: Requests of a job beside each GPU: millicores, bytes.
CPU, MEMORY = 3000, 12 * 1024 * MIB
#: Number of jobs that make a part of a trace a busy one, and the maximum number of pods that are taken.
BUSY, MOST = 60, 300
#: The longest run time of a job; no demo is watched for longer than a year.
YEAR = 365 * 86_400.0


class Submission(Struct, frozen=True):
    """A Job that is submitted ``at`` seconds after the start, with this number of ``pods``."""

    at: float
    pods: int
    job: dict[str, Any]


def draw_trace(seed: int, span: float) -> Trace:
    """A trace of :data:`JOBS` jobs for a demo of ``span`` seconds; the same seed gives the same jobs."""
    rng = random.Random(f"demo/{seed}")
    # The first jobs are submitted right at the start.
    waves = rng.choices(WAVES, weights=[weight for _, _, weight in WAVES], k=JOBS - 3)
    submits = sorted([1.0, 5.0, 10.0, *(span * rng.uniform(begin, end) for begin, end, _ in waves)])
    shapes = rng.choices(SHAPES, weights=[weight for _, _, weight in SHAPES], k=JOBS)
    jobs = []
    for number, (submit, (pods, gpus, _)) in enumerate(zip(submits, shapes, strict=True)):
        lasts = min(LONGEST, max(SHORTEST, rng.lognormvariate(math.log(MEDIAN), SPREAD)))
        kind = "gang" if pods > 1 else "train"
        jobs.append(
            Job(
                id=f"{kind}-{number:03d}",
                submit=submit,
                duration=round(lasts),
                pods=pods,
                gpus=gpus,
                cpu_milli=CPU * gpus,
                memory=MEMORY * gpus,
            )
        )
    return Trace(f"a generated workload, seed {seed}", tuple(jobs))


def cut_trace(trace: Trace, span: float) -> tuple[Trace, float]:
    """The busy part of ``trace``, with its first submission at second 0, and the second of the trace at which it begins.

    That is the first ``span`` seconds in which :data:`BUSY` jobs are submitted, or the busiest ``span`` if there are never so many. Of more
    pods than :data:`MOST` the first are taken. Raises :class:`TraceError` if every job has more pods than that.
    """
    fitting = [job for job in trace.jobs if job.pods <= MOST]
    if not fitting:
        least = min(job.pods for job in trace.jobs)
        raise TraceError(
            f"{trace.name}: saw only jobs of at least {least:,} pods, expected some of at most {MOST}; simulate takes larger ones"
        )
    submits = [job.submit for job in fitting]
    counts = [bisect_left(submits, submit + span) - number for number, submit in enumerate(submits)]
    first = next((number for number, count in enumerate(counts) if count >= BUSY), counts.index(max(counts)))
    jobs, pods = [], 0
    for job in fitting[first : first + counts[first]]:
        pods += job.pods
        if pods > MOST:
            break
        jobs.append(replace(job, submit=job.submit - submits[first]))
    return replace(trace, jobs=tuple(jobs)), submits[first]


def submissions(trace: Trace) -> Iterator[Submission]:
    """The Jobs to submit, with their times. A job of several pods is a gang; one that requests a part of a GPU gets a whole one."""
    taken: set[str] = set()
    for number, job in enumerate(trace.jobs):
        name = name_of(job.id, number)
        while name in taken:
            name += "-x"
        taken.add(name)
        yield Submission(job.submit, job.pods, _job(job, name))


def name_of(job: str, number: int) -> str:
    """A valid Kubernetes name like that of ``job``, the ``number``-th of its trace: ids in traces can be anything."""
    plain = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")[:40].strip("-")
    return plain if plain and plain == job else f"{plain or 'job'}-{number}"


def _job(job: Job, name: str) -> dict[str, Any]:
    """A Job that replaces evicted pods without counting them as failures."""
    annotations = {"gpuscaler.io/run-for": f"{min(max(1.0, job.duration), YEAR):.3f}s"}
    if job.pods > 1:
        annotations |= {"gpuscaler.io/gang": name, "gpuscaler.io/gang-size": str(job.pods)}
    evicted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "parallelism": job.pods,
            "completions": job.pods,
            "backoffLimit": 6,
            "podFailurePolicy": {"rules": [evicted]},
            "template": {"metadata": {"annotations": annotations}, "spec": _pod(job)},
        },
    }


def _pod(job: Job) -> dict[str, Any]:
    requests = {"cpu": f"{job.cpu_milli}m" if job.cpu_milli else "", "memory": str(job.memory) if job.memory else ""}
    resources: dict[str, Mapping[str, str]] = {"requests": {key: amount for key, amount in requests.items() if amount}}
    tolerations = []
    if job.gpus:
        resources["limits"] = {"nvidia.com/gpu": str(job.gpus)}
        # The admission plug-in ExtendedResourceToleration adds this on a real cluster.
        tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return {
        "restartPolicy": "Never",
        "tolerations": tolerations,
        "containers": [{"name": "main", "image": "registry.example/train:1", "resources": resources}],
    }
