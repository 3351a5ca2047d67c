"""Small pools for tests."""

from tests.planning.building import offering

from gpuscaler.model.pools import Policy, Pool
from gpuscaler.model.taints import Taint
from gpuscaler.simulation.cloud.delays import Delay, Delays
from gpuscaler.simulation.traces.traces import Job, Trace

GIB = 2**30
#: A GPU machine is open 120 s after purchase, a CPU machine after 100 s.
NONE = Delay(0, 0, 0)
FIXED = Delays(boot=Delay(100, 100, 100), device_plugin=Delay(20, 20, 20), answer=NONE, image_pull=NONE)


G1 = offering("g1", 3.6, pool="gpu")
G4 = offering("g4", 12.0, pool="gpu", gpus=4, cpu=32, memory=128)
C8 = offering("c8", 0.36, pool="cpu", gpus=0)
GPU_TAINT = Taint("nvidia.com/gpu", "present")
POLICY = Policy((Pool("gpu", (G1, G4), idle_after=300), Pool("cpu", (C8,), idle_after=300)))


def trace(*jobs: Job) -> Trace:
    return Trace("test", tuple(sorted(jobs, key=lambda job: job.submit)))
