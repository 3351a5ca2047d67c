"""Marginals of published traces, from which workloads are drawn: requests, durations and hours with their frequencies."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

#: Quantiles of a duration: (quantile, seconds), both ascending, from 0 to 1.
Quantiles = tuple[tuple[float, float], ...]


class Request(NamedTuple):
    """The request of a job, and the number of ``jobs`` of the trace with it. Per pod: GPUs, thousandths of each, millicores, MiB.

    ``cpu`` and ``memory`` are None if the trace does not say. ``runs`` selects the durations of the profile.
    """

    gpus: int
    gpu_milli: int
    cpu: int | None
    memory: int | None
    jobs: int
    pods: int = 1
    runs: int = 0


class Profile(NamedTuple):
    """A trace's marginals. ``hours`` and ``weekdays`` count the jobs submitted in each, ``namespaces`` the jobs of each.

    ``source`` is the report's line about the origin of a workload drawn from it.
    """

    name: str
    source: str
    requests: tuple[Request, ...]
    durations: tuple[Quantiles, ...]
    hours: tuple[int, ...]
    weekdays: tuple[int, ...]
    namespaces: tuple[int, ...] = ()


#: Alibaba's openb trace of 2023: 8,152 pods, published with "Beware of Fragmentation" (USENIX ATC 2023). Requests are its most frequent
#: ones, those of 6,118 pods, and all for several GPUs. The longest 3 in 100 run for up to months; they do not fit a day and are cut. Its
#: days are treated as equal: it was recorded over months, most of it in a few days.
OPENB = Profile(
    name="openb",
    source="requests, durations and hours of submission: drawn from the marginals of Alibaba's openb trace of 2023",
    requests=(
        Request(0, 1000, 8000, 30517, 163),
        Request(0, 1000, 12500, 57344, 364),
        Request(0, 1000, 15400, 51200, 120),
        Request(0, 1000, 32000, 49152, 284),
        Request(1, 320, 4000, 22888, 111),
        Request(1, 470, 8000, 30517, 360),
        Request(1, 470, 11908, 47104, 388),
        Request(1, 650, 11908, 47104, 237),
        Request(1, 810, 3152, 5600, 1047),
        Request(1, 1000, 3152, 5600, 470),
        Request(1, 1000, 9810, 41560, 195),
        Request(1, 1000, 11300, 49152, 857),
        Request(1, 1000, 11400, 48128, 534),
        Request(1, 1000, 11908, 47104, 153),
        Request(1, 1000, 12000, 24576, 158),
        Request(1, 1000, 15700, 58368, 158),
        Request(1, 1000, 16000, 32768, 108),
        Request(1, 1000, 18708, 64512, 255),
        Request(2, 1000, 16200, 66560, 16),
        Request(4, 1000, 32200, 132096, 12),
        Request(4, 1000, 60200, 320512, 3),
        Request(8, 1000, 64200, 263168, 21),
        Request(8, 1000, 88000, 327680, 18),
        Request(8, 1000, 120200, 640000, 5),
    ),
    durations=(
        (
            (0.0, 20.0),
            (0.05, 40.0),
            (0.1, 60.0),
            (0.25, 145.0),
            (0.5, 485.0),
            (0.75, 1922.0),
            (0.9, 6518.0),
            (0.95, 16257.0),
            (1.0, 25559.0),
        ),
    ),
    hours=(515, 456, 362, 436, 426, 318, 291, 331, 242, 146, 222, 204, 152, 149, 137, 271, 301, 425, 550, 466, 352, 430, 432, 538),
    weekdays=(1, 1, 1, 1, 1, 1, 1),
)

#: Microsoft's Philly trace of 2017 (Jeon and others, USENIX ATC 2019), the 41,125 jobs of its first 47 days that ran. Durations depend on
#: the size of the job, and reach up to weeks. Hours and days are counted from its first job, whose time of day is unknown. It does not
#: contain the jobs' CPU and memory requests. Namespaces are its virtual clusters.
PHILLY = Profile(
    name="philly",
    source="sizes, durations by size, times of submission and namespaces: drawn from the marginals of Microsoft's Philly trace of 2017",
    requests=(
        Request(1, 1000, None, None, 39278),
        Request(2, 1000, None, None, 678, runs=1),
        Request(4, 1000, None, None, 565, runs=1),
        Request(8, 1000, None, None, 541, runs=2),
        Request(8, 1000, None, None, 45, pods=2, runs=3),
        Request(8, 1000, None, None, 18, pods=4, runs=3),
    ),
    durations=(
        (
            (0.0, 1.0),
            (0.05, 51.0),
            (0.1, 65.0),
            (0.25, 271.0),
            (0.5, 1796.0),
            (0.75, 3315.0),
            (0.9, 8204.0),
            (0.95, 13709.0),
            (0.99, 94512.0),
            (1.0, 3256045.0),
        ),
        (
            (0.0, 2.0),
            (0.05, 11.0),
            (0.1, 13.0),
            (0.25, 18.0),
            (0.5, 2281.0),
            (0.75, 91106.0),
            (0.9, 228229.0),
            (0.95, 403248.0),
            (0.99, 1159343.0),
            (1.0, 2750674.0),
        ),
        (
            (0.0, 22.0),
            (0.05, 150.0),
            (0.1, 561.0),
            (0.25, 5643.0),
            (0.5, 100375.0),
            (0.75, 231337.0),
            (0.9, 525631.0),
            (0.95, 763613.0),
            (0.99, 2106031.0),
            (1.0, 4628226.0),
        ),
        (
            (0.0, 32.0),
            (0.05, 50.0),
            (0.1, 118.0),
            (0.25, 2744.0),
            (0.5, 52548.0),
            (0.75, 101594.0),
            (0.9, 497864.0),
            (0.95, 521519.0),
            (1.0, 657879.0),
        ),
    ),
    hours=(
        *(1326, 1743, 1165, 1169, 1063, 1214, 1719, 795, 853, 1823, 1726, 1766),
        *(1235, 2393, 2380, 2502, 2316, 564, 1472, 2147, 3392, 2556, 2319, 1487),
    ),
    weekdays=(5719, 5090, 8343, 8261, 5266, 3491, 4884),
    namespaces=(25921, 5493, 4009, 3431, 573, 486, 425, 266, 208, 167, 138, 8),
)

PROFILES: Mapping[str, Profile] = MappingProxyType({profile.name: profile for profile in (OPENB, PHILLY)})
