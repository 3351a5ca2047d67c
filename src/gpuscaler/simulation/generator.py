"""A seeded day of GPU work whose marginals are those of a published trace.

Source: Alibaba's openb trace of 2023 (8,152 pods), published with "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent" (USENIX ATC 2023). Requests are its most frequent ones with their counts, durations its quantiles, and
the hours of the day its submissions by hour. What is not published about a day is drawn independently.
"""

import bisect
import math
import random

from gpuscaler.simulation.traces import MIB, Job, Trace

DAY = 86_400.0

#: GPUs, thousandths of one, millicores, MiB, and how many of the trace's pods asked for exactly that: 6,118 of 8,152, and all
#: requests for several GPUs.
REQUESTS = (
    (0, 0, 8000, 30517, 163),
    (0, 0, 12500, 57344, 364),
    (0, 0, 15400, 51200, 120),
    (0, 0, 32000, 49152, 284),
    (1, 320, 4000, 22888, 111),
    (1, 470, 8000, 30517, 360),
    (1, 470, 11908, 47104, 388),
    (1, 650, 11908, 47104, 237),
    (1, 810, 3152, 5600, 1047),
    (1, 1000, 3152, 5600, 470),
    (1, 1000, 9810, 41560, 195),
    (1, 1000, 11300, 49152, 857),
    (1, 1000, 11400, 48128, 534),
    (1, 1000, 11908, 47104, 153),
    (1, 1000, 12000, 24576, 158),
    (1, 1000, 15700, 58368, 158),
    (1, 1000, 16000, 32768, 108),
    (1, 1000, 18708, 64512, 255),
    (2, 1000, 16200, 66560, 16),
    (4, 1000, 32200, 132096, 12),
    (4, 1000, 60200, 320512, 3),
    (8, 1000, 64200, 263168, 21),
    (8, 1000, 88000, 327680, 18),
    (8, 1000, 120200, 640000, 5),
)

#: Quantiles of the duration in seconds. The longest 3 in 100 run for up to months; a day cannot hold them and they are cut here.
DURATIONS = (
    (0.0, 20.0),
    (0.05, 40.0),
    (0.1, 60.0),
    (0.25, 145.0),
    (0.5, 485.0),
    (0.75, 1922.0),
    (0.9, 6518.0),
    (0.95, 16257.0),
    (1.0, 25559.0),
)

#: Pods submitted in each hour of the trace's day.
HOURS = (515, 456, 362, 436, 426, 318, 291, 331, 242, 146, 222, 204, 152, 149, 137, 271, 301, 425, 550, 466, 352, 430, 432, 538)

#: What a report says about where the workload comes from.
SOURCE = "requests, durations and hours of submission: drawn from the marginals of Alibaba's openb trace of 2023"


def generate(*, seed: int, jobs: int) -> Trace:
    """``jobs`` single-pod jobs submitted over one day; the same seed gives the same jobs."""
    draw = random.Random(f"workload/{seed}")
    requests = draw.choices(REQUESTS, weights=[count for *_, count in REQUESTS], k=jobs)
    hours = draw.choices(range(24), weights=HOURS, k=jobs)
    submits = sorted(3600.0 * hour + draw.uniform(0.0, 3600.0) for hour in hours)
    return Trace(
        name=f"generated day, seed {seed}",
        jobs=tuple(
            Job(
                id=f"job-{number:05d}",
                submit=submit,
                duration=round(duration(draw.random()), 1),
                gpus=gpus,
                gpu_milli=gpu_milli or 1000,
                cpu_milli=cpu,
                memory=memory * MIB,
            )
            for number, (submit, (gpus, gpu_milli, cpu, memory, _)) in enumerate(zip(submits, requests, strict=True))
        ),
    )


def duration(quantile: float) -> float:
    """Seconds at a quantile between 0 and 1, between the published ones on a logarithmic scale."""
    right = min(max(1, bisect.bisect_left(DURATIONS, (quantile, 0.0))), len(DURATIONS) - 1)
    (low, short), (high, long) = DURATIONS[right - 1], DURATIONS[right]
    share = (quantile - low) / (high - low)
    return math.exp(math.log(short) + share * (math.log(long) - math.log(short)))
