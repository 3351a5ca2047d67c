"""Two machines of eight GPUs with pods that end at chosen times, and movable pods."""

from collections.abc import Sequence
from typing import Any

from tests.planning.building import offering
from tests.simulation.policies.peers.recording import Recording, replay
from tests.simulation.pools import GIB, trace

from gpuscaler.model.pools import Offering, Policy, Pool
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.traces.workload import Shaping
from gpuscaler.simulation.world.autoscaler import Autoscaler
from gpuscaler.simulation.world.meter import Result

MOVABLE = Shaping(restart_cost=0.0)
#: When the short jobs of :func:`leaving` end, and when the long ones do.
SHORT, LONG = 3000.0, 20000.0
#: How long pods wait for a machine: the jobs of Cluster Autoscaler's tests end that much later than their durations suggest.
DELAY = 152.0


def machine(instance_type: str, gpus: int, price: float, *, market: str = "on-demand", zone: str = "z0", cpu: int = 64000) -> Offering:
    return offering(instance_type, price, pool="gpu", market=market, zone=zone, gpus=gpus, cpu=cpu / 1000, memory=512, pods=50)


def pool(*offerings: Offering, most: int | None = None) -> Policy:
    return Policy((Pool("gpu", offerings, max=most),))


def wave(prefix: str, submit: float, *, long: int, of: int = 8, cpu_milli: int = 1000, short: float = SHORT) -> list[Job]:
    """``of`` pods of one GPU, of which ``long`` continue when the others have ended: at ``short``, plus the time they waited."""
    ends = [LONG if number < long else short for number in range(of)]
    return [Job(f"{prefix}{number}", submit, end - submit, gpus=1, cpu_milli=cpu_milli, memory=GIB) for number, end in enumerate(ends)]


def leaving(first: int, second: int) -> list[Job]:
    """Two machines of eight pods each, the second full before the first has room, that keep so many pods after :data:`SHORT`."""
    return wave("a", 0.0, long=first) + wave("b", 400.0, long=second)


def recorded(jobs: Sequence[Job], policy: Policy, scaler: Autoscaler, **options: Any) -> tuple[Recording, Result]:
    recording = Recording(scaler)
    options.setdefault("shaping", MOVABLE)
    return recording, replay(trace(*jobs), policy, recording, **options)
