"""Derives services from a load. A load does not say what serves it: a seed draws the servers, and the report lists them."""

import math
import random
from typing import NamedTuple

from gpuscaler.simulation.horizontal.specs import Autoscaler, Metric, ObjectReference, Target
from gpuscaler.simulation.services.loads import LoadFile, LoadSeries, sum_series

#: Pods of a file of duty cycles are distributed over so many services.
GROUPS = 8
#: Target utilization of a replica: in percent for duty cycles, as a share of its capacity for requests.
DUTY_CYCLE_TARGET, REQUEST_TARGET = 60, 0.7
#: GPUs of a replica, and replicas of a series at its peak: the published rates contain neither.
GPUS, LEAST_PEAK, MOST_PEAK = (1, 2, 4, 8), 4, 64
#: Ratio of the maximum replicas to those that the peak needs.
HEADROOM = 1.25


class Service(NamedTuple):
    """A service of equal replicas. ``capacity`` is the load that one replica of ``gpus`` GPUs serves, in the load's unit."""

    name: str
    load: LoadSeries
    capacity: float
    gpus: int
    autoscaler: Autoscaler

    @property
    def by_requests(self) -> bool:
        """Whether its autoscaler sees all requests, as a gateway counts them, rather than the utilization of each replica."""
        return self.autoscaler.metrics[0].type == "External"


def services_of(load: LoadFile, *, seed: int = 0) -> tuple[tuple[Service, ...], tuple[str, ...]]:
    """The services of a load, and a line for the report about everything that was derived."""
    if load.unit == "requests/s":
        services = tuple(_of_requests(series, random.Random(f"{seed}/service/{series.name}")) for series in load.series)
        lines = [
            f"{load.name}: {service.name}: a replica on {service.gpus} GPUs serves {service.capacity:.3g} requests/s, "
            f"kept at {REQUEST_TARGET:.0%} "
            f"(drawn, seed {seed}), 1 to {service.autoscaler.max_replicas} replicas"
            for service in services
        ]
    else:
        services = _of_duty_cycles(load, seed)
        dealt = f"{len(load.series)} pods distributed over {len(services)} services (drawn, seed {seed}), each replica on one GPU"
        lines = [f"{load.name}: {dealt}, kept at a duty cycle of {DUTY_CYCLE_TARGET} %"]
    lines.append(f"{load.name}: replicas load their model for 30 to 120 s (assumed)")
    return services, tuple(lines)


def derived_from(load: LoadFile, *, seed: int = 0) -> tuple[str, ...]:
    """Report lines about a load: everything that was derived, and parts of the file that were not used."""
    lines = services_of(load, seed=seed)[1]
    if load.gaps:
        lines = (*lines, f"{load.name}: {load.gaps} rows without a measurement, for which the previous value holds")
    if load.set_aside:
        first = load.bad_rows[0]
        lines = (*lines, f"{load.name}: {load.set_aside} rows skipped, the first in line {first.line}: {first.reason}")
    return lines


def _of_requests(series: LoadSeries, rng: random.Random) -> Service:
    gpus = rng.choice(GPUS)
    replicas = round(math.exp(rng.uniform(math.log(LEAST_PEAK), math.log(MOST_PEAK))))
    # A series of zeros has no peak; any capacity serves it.
    capacity = max(series.values) / replicas or 1.0
    target = Target("AverageValue", average_value=max(1, int(1000 * REQUEST_TARGET * capacity)))
    autoscaler = _autoscaler(series.name, Metric("External", "requests_per_second", target), most=replicas / REQUEST_TARGET)
    return Service(series.name, series, capacity, gpus, autoscaler)


def _of_duty_cycles(load: LoadFile, seed: int) -> tuple[Service, ...]:
    pods = list(load.series)
    random.Random(f"{seed}/services").shuffle(pods)
    groups = [tuple(pods[number::GROUPS]) for number in range(min(GROUPS, len(pods)))]
    services = []
    for number, group in enumerate(groups, 1):
        series = sum_series(f"service-{number}", group)
        target = Target("AverageValue", average_value=1000 * DUTY_CYCLE_TARGET)
        metric = Metric("Pods", "duty_cycle_current", target)
        autoscaler = _autoscaler(series.name, metric, most=max(series.values) * 100 / DUTY_CYCLE_TARGET)
        services.append(Service(series.name, series, 1.0, 1, autoscaler))
    return tuple(services)


def _autoscaler(name: str, metric: Metric, *, most: float) -> Autoscaler:
    """An autoscaler without a behaviour, as most are."""
    target = ObjectReference("Deployment", name, "apps/v1")
    return Autoscaler("trace", name, target, max_replicas=max(2, math.ceil(HEADROOM * most)), metrics=(metric,))
