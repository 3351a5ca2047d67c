"""Jobs as pods."""

import pytest
from tests.simulation.pools import G1, GIB, POLICY, trace

from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.traces.workload import Shaping, UnmappedModelsError, members, with_gpu_milli


def test_a_trace_job_becomes_a_pod_owned_by_a_kubernetes_job() -> None:
    (member,) = members(trace(Job("a", 5, 9, gpus=2, cpu_milli=3000, memory=GIB, priority=7)), Shaping())
    pod = member.pod(created=100.0)
    assert pod.spec.requests == {"cpu": 3000, "memory": GIB, "nvidia.com/gpu": 2}
    assert (pod.key, pod.owner.kind, pod.spec.priority, pod.unschedulable, pod.created) == ("trace/a", "Job", 7, True, 100.0)
    running = member.pod(created=100.0, node="n", started=130.0)
    assert (running.phase, running.node_name, running.unschedulable, running.started) == ("Running", "n", None, 130.0)


def test_jobs_with_the_same_requests_share_one_pod_specification() -> None:
    member, two, other = members(trace(Job("a", 0, 1, gpus=1), Job("b", 3, 4, gpus=1, user="u"), Job("c", 4, 1, gpus=2)), Shaping())
    assert member.spec is two.spec
    assert member.spec.digest != other.spec.digest


def test_if_one_job_requests_part_of_a_gpu_the_whole_trace_is_in_thousandths() -> None:
    part, whole = members(trace(Job("a", 0, 1, gpus=1, gpu_milli=250), Job("b", 1, 1, gpus=8)), Shaping())
    assert part.spec.requests == {"gpuscaler.io/gpu-milli": 250}
    assert whole.spec.requests == {"gpuscaler.io/gpu-milli": 8000}
    assert (part.gpus, whole.gpus) == (0.25, 8)


def test_pools_for_gpu_shares_still_offer_whole_gpus() -> None:
    gpu, cpu = with_gpu_milli(POLICY).pools
    assert gpu.offerings[0].allocatable == {**G1.allocatable, "gpuscaler.io/gpu-milli": 1000}
    assert cpu == POLICY.pools[1]


def test_requests_per_gpu_apply_only_to_missing_values_of_the_trace() -> None:
    shaping = Shaping(cpu_per_gpu=4000, memory_per_gpu=GIB)
    silent, loud, cpu = members(trace(Job("a", 0, 1, gpus=2), Job("b", 1, 1, gpus=2, cpu_milli=100, memory=5), Job("c", 2, 1)), shaping)
    assert silent.spec.requests == {"cpu": 8000, "memory": 2 * GIB, "nvidia.com/gpu": 2}
    assert loud.spec.requests == {"cpu": 100, "memory": 5, "nvidia.com/gpu": 2}
    assert cpu.spec.requests == {"cpu": 4000, "memory": GIB}


def test_a_job_with_several_pods_becomes_a_gang() -> None:
    gang = members(trace(Job("a", 0, 1, gpus=8, pods=3)), Shaping())
    assert [member.key for member in gang] == ["trace/a#0", "trace/a#1", "trace/a#2"]
    assert {(member.options.gang, member.options.gang_size) for member in gang} == {("a", 3)}


@pytest.mark.parametrize(
    ("choice", "products"),
    [
        ("ignore", None),
        ("strict", ("A10", "T4")),
        ({"A10": ("NVIDIA-A10G",), "T4": ("Tesla-T4", "NVIDIA-A10G")}, ("NVIDIA-A10G", "Tesla-T4")),
    ],
)
def test_the_gpu_model_of_a_job_is_ignored_required_literally_or_mapped(choice: object, products: tuple[str, ...] | None) -> None:
    (member,) = members(trace(Job("a", 0, 1, gpus=1, gpu_models=("A10", "T4"))), Shaping(gpu_model=choice))  # type: ignore[arg-type]
    affinity = member.spec.node_affinity
    wanted = affinity.terms[0].expressions[0] if affinity is not None else None
    assert (wanted.values if wanted is not None else None) == products
    assert wanted is None or wanted.key == "nvidia.com/gpu.product"


def test_the_error_names_a_gpu_model_missing_from_the_mapping() -> None:
    with pytest.raises(UnmappedModelsError, match="V100") as caught:
        members(trace(Job("a", 0, 1, gpus=1, gpu_models=("T4", "V100"))), Shaping(gpu_model={"T4": ("Tesla-T4",)}))
    assert caught.value.models == ("V100",)
