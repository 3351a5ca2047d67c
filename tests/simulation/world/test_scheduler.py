"""The model of kube-scheduler."""

from msgspec.structs import replace
from tests.planning.building import offering
from tests.simulation.pools import C8, G1, G4, GIB, GPU_TAINT, trace

from gpuscaler.lifecycle.node_marks.soft_taints import LIMITS
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.traces.workload import Shaping, members, with_gpu_milli
from gpuscaler.simulation.world.scheduler import MOST_ALLOCATED, Scheduler

SHARED = with_gpu_milli(Policy((Pool("gpu", (offering("g2", pool="gpu", gpus=2),)),))).pools[0].offerings[0]


def spec(job: Job, *, fractional: bool = False) -> PodSpec:
    jobs = trace(job, Job("part", 0, 1, gpus=1, gpu_milli=500)) if fractional else trace(job)
    return next(member.spec for member in members(jobs, Shaping()) if member.name == job.id)


def test_a_pod_is_bound_to_the_node_with_the_most_free_resources() -> None:
    scheduler = Scheduler([C8])
    scheduler.add("a", C8)
    scheduler.add("b", C8)
    pod_spec = spec(Job("j", 0, 1, cpu_milli=1000, memory=4 * GIB))
    assert scheduler.best(pod_spec) == "a"
    scheduler.place(pod_spec, "a")
    assert scheduler.best(pod_spec) == "b"


def test_with_most_allocated_a_pod_is_bound_to_the_fullest_node_that_fits() -> None:
    scheduler = Scheduler([C8], scoring=MOST_ALLOCATED)
    scheduler.add("a", C8)
    scheduler.add("b", C8)
    half = spec(Job("j", 0, 1, cpu_milli=4000, memory=16 * GIB))
    scheduler.place(half, "b")
    assert scheduler.best(half) == "b"
    scheduler.place(half, "b")
    assert scheduler.best(half) == "a"


def test_resources_are_free_again_when_a_pod_ends() -> None:
    scheduler = Scheduler([G1])
    scheduler.add("a", G1)
    gpu = spec(Job("j", 0, 1, gpus=1))
    seat = scheduler.place(gpu, "a")
    assert scheduler.best(gpu) is None
    scheduler.leave(gpu, seat)
    assert scheduler.best(gpu) == "a"


def test_no_pod_is_bound_to_a_closed_or_removed_node() -> None:
    scheduler = Scheduler([C8])
    pod = spec(Job("j", 0, 1, cpu_milli=10))
    scheduler.add("a", C8)
    scheduler.close("a")
    assert (scheduler.best(pod), scheduler.fits(pod, "a")) == (None, False)
    scheduler.remove("a")
    scheduler.add("b", C8)
    assert (scheduler.best(pod), scheduler.fits(pod, "a")) == ("b", False)


def test_a_new_node_in_the_row_of_a_removed_one_starts_empty() -> None:
    scheduler = Scheduler([G1, G4])
    pod = spec(Job("j", 0, 1, gpus=1))
    scheduler.add("a", G1)
    scheduler.place(pod, "a")
    scheduler.remove("a")
    scheduler.add("b", G4)
    assert scheduler.fits(spec(Job("k", 0, 1, gpus=4)), "b")


def test_the_scheduler_model_can_hold_many_nodes() -> None:
    scheduler = Scheduler([G1])
    pod = spec(Job("j", 0, 1, gpus=1))
    for number in range(100):
        scheduler.add(f"n{number}", G1)
    nodes = set()
    while (node := scheduler.best(pod)) is not None:
        scheduler.place(pod, node)
        nodes.add(node)
    assert len(nodes) == 100


def test_the_pod_limit_of_a_node_is_respected() -> None:
    few = replace(C8, allocatable={"cpu": 8000, "memory": GIB, "pods": 1})
    scheduler = Scheduler([few])
    scheduler.add("a", few)
    nothing = spec(Job("j", 0, 1))
    scheduler.place(nothing, "a")
    assert scheduler.best(nothing) is None


def test_a_pod_that_requests_a_resource_of_no_offering_fits_nowhere() -> None:
    scheduler = Scheduler([C8])
    scheduler.add("a", C8)
    assert scheduler.best(spec(Job("j", 0, 1, gpus=1))) is None


def test_only_pods_with_gpus_tolerate_the_taint_of_gpu_pools() -> None:
    tainted = replace(G1, taints=(GPU_TAINT,))
    scheduler = Scheduler([tainted])
    scheduler.add("a", tainted)
    assert scheduler.best(spec(Job("gpu", 0, 1, gpus=1))) == "a"
    assert scheduler.best(spec(Job("cpu", 0, 1, cpu_milli=1))) is None


def test_shares_of_600_thousandths_neither_share_a_gpu_nor_span_two() -> None:
    scheduler = Scheduler([SHARED])
    scheduler.add("a", SHARED)
    part = spec(Job("j", 0, 1, gpus=1, gpu_milli=600))
    seats = [scheduler.place(part, "a"), scheduler.place(part, "a")]
    assert [seat.devices for seat in seats] == [((0, 600),), ((1, 600),)]
    assert scheduler.best(part) is None
    small = spec(Job("s", 0, 1, gpus=1, gpu_milli=400))
    assert scheduler.place(small, "a").devices == ((0, 400),)


def test_requests_for_whole_gpus_need_unused_devices() -> None:
    scheduler = Scheduler([SHARED])
    scheduler.add("a", SHARED)
    both = spec(Job("j", 0, 1, gpus=2), fractional=True)
    part = spec(Job("p", 0, 1, gpus=1, gpu_milli=100))
    seat = scheduler.place(part, "a")
    assert scheduler.best(both) is None
    scheduler.leave(part, seat)
    assert scheduler.place(both, "a").devices == ((0, 1000), (1, 1000))


def test_soft_taints_lead_pods_to_used_machines_and_do_not_prevent_them_from_running() -> None:
    scheduler = Scheduler([G4], soft_taint_shares=LIMITS)
    for name in "abc":
        scheduler.add(name, G4)
    gpu, three = spec(Job("one", 0, 1, gpus=1)), spec(Job("three", 0, 1, gpus=3))
    scheduler.place(gpu, "b")
    scheduler.place(three, "c")
    nodes = []
    for _ in range(8):
        node = scheduler.best(gpu)
        assert node is not None
        scheduler.place(gpu, node)
        nodes.append(node)
    # The machine used to three quarters, then the one used to a quarter, then the idle one; without the taints it is the other way round.
    assert nodes == ["c", "b", "b", "b", "a", "a", "a", "a"]
    assert scheduler.best(gpu) is None
