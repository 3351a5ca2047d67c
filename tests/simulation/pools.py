"""Small pools for tests."""

from gpuscaler.model.pools import Offering, Policy, Pool
from gpuscaler.model.taints import Taint
from gpuscaler.simulation.cloud.delays import Delay, Delays
from gpuscaler.simulation.traces.traces import Job, Trace

GIB = 2**30
#: A GPU machine is open 120 s after it was bought, a CPU machine after 100 s.
NONE = Delay(0, 0, 0)
FIXED = Delays(boot=Delay(100, 100, 100), device_plugin=Delay(20, 20, 20), answer=NONE, image_pull=NONE)


def offering(pool: str, instance_type: str, *, price: float, gpus: int = 0, cpu: int = 8000, memory: int = 32 * GIB) -> Offering:
    allocatable = {"cpu": cpu, "memory": memory, "pods": 50, **({"nvidia.com/gpu": gpus} if gpus else {})}
    labels = {"nvidia.com/gpu.product": "Tesla-T4"} if gpus else {}
    return Offering(pool, "on-demand", instance_type, "z1", price, allocatable, labels)


G1 = offering("gpu", "g1", price=3.6, gpus=1)
G4 = offering("gpu", "g4", price=12.0, gpus=4, cpu=32000, memory=128 * GIB)
C8 = offering("cpu", "c8", price=0.36)
GPU_TAINT = Taint("nvidia.com/gpu", "present")
POLICY = Policy((Pool("gpu", (G1, G4), idle_after=300), Pool("cpu", (C8,), idle_after=300)))


def trace(*jobs: Job) -> Trace:
    return Trace("test", tuple(sorted(jobs, key=lambda job: job.submit)))
