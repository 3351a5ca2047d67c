"""Seeded workloads with the marginals of a published trace.

Where no joint distribution is published, values are drawn independently: which request comes when, and how long it runs given its size.
"""

import bisect
import math
import random

from gpuscaler.simulation.traces.jobs import MIB, Job, Trace
from gpuscaler.simulation.traces.marginals import OPENB, Profile, Quantiles

DAY = 86_400.0


def generate(*, seed: int, jobs: int, profile: Profile = OPENB, days: int = 1) -> Trace:
    """``jobs`` jobs submitted over some days; the same seed gives the same jobs."""
    draw = random.Random(f"workload/{seed}")
    requests = draw.choices(profile.requests, weights=[request.jobs for request in profile.requests], k=jobs)
    hours = draw.choices(range(24), weights=profile.hours, k=jobs)
    submits = [3600.0 * hour + draw.uniform(0.0, 3600.0) for hour in hours]
    if days > 1:
        weights = [profile.weekdays[day % 7] for day in range(days)]
        submits = [submit + DAY * day for submit, day in zip(submits, draw.choices(range(days), weights=weights, k=jobs), strict=True)]
    runs = [round(duration(draw.random(), profile.durations[request.runs]), 1) for request in requests]
    teams = draw.choices(range(len(profile.namespaces)), weights=profile.namespaces, k=jobs) if profile.namespaces else [-1] * jobs
    return Trace(
        name=f"generated day, seed {seed}" if days == 1 else f"generated {days} days, seed {seed}",
        jobs=tuple(
            Job(
                id=f"job-{number:05d}",
                submit=submit,
                duration=lasts,
                pods=request.pods,
                gpus=request.gpus,
                gpu_milli=request.gpu_milli,
                cpu_milli=request.cpu,
                memory=None if request.memory is None else request.memory * MIB,
                namespace=f"{profile.name}-{team + 1:02d}" if team >= 0 else "",
            )
            for number, (submit, request, lasts, team) in enumerate(zip(sorted(submits), requests, runs, teams, strict=True))
        ),
    )


def duration(quantile: float, durations: Quantiles) -> float:
    """The duration in seconds at a quantile between 0 and 1, interpolated on a logarithmic scale."""
    right = min(max(1, bisect.bisect_left(durations, (quantile, 0.0))), len(durations) - 1)
    (low, short), (high, long) = durations[right - 1], durations[right]
    share = (quantile - low) / (high - low)
    return math.exp(math.log(short) + share * (math.log(long) - math.log(short)))
