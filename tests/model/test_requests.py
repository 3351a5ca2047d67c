"""Effective requests, against PodRequests of component-helpers 1.35 and the API server's defaults."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscaler.model.requests import LARGEST, Container, ContainerStatus, ResourceRequirements, node_resources, pod_requests
from gpuscaler.model.wire import UnreadableError


def containers(*raws: dict[str, Any]) -> list[Container]:
    return msgspec.convert(list(raws), list[Container])


def requesting(**requests: str) -> dict[str, Any]:
    return {"resources": {"requests": {name.replace("gpu", "nvidia.com/gpu"): amount for name, amount in requests.items()}}}


def statuses(*raws: dict[str, Any]) -> list[ContainerStatus]:
    return msgspec.convert(list(raws), list[ContainerStatus])


def test_requests_of_containers_add_up_in_millicores_bytes_and_counts() -> None:
    both = containers(requesting(cpu="1", memory="1Gi", gpu="1"), requesting(cpu="500m", memory="1G"))
    assert pod_requests(both) == {"cpu": 1500, "memory": 2**30 + 10**9, "nvidia.com/gpu": 1}


def test_a_limit_replaces_only_a_missing_request() -> None:
    main = containers({"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "4", "nvidia.com/gpu": "2", "memory": "0"}}})
    assert pod_requests(main) == {"cpu": 1000, "nvidia.com/gpu": 2}


def test_an_explicit_request_of_zero_is_not_replaced_by_the_limit_and_is_dropped() -> None:
    assert pod_requests(containers({"resources": {"requests": {"cpu": "0"}, "limits": {"cpu": "4"}}})) == {}


def test_the_largest_init_container_counts_if_it_exceeds_the_sum_of_the_containers() -> None:
    init = containers(requesting(cpu="3"), requesting(cpu="2", memory="5Gi"))
    assert pod_requests(containers(requesting(cpu="1", memory="1Gi")), init) == {"cpu": 3000, "memory": 5 * 2**30}


def test_requests_of_sidecars_are_added_to_containers_and_later_init_containers() -> None:
    sidecar = requesting(cpu="2") | {"restartPolicy": "Always"}
    main = containers(requesting(cpu="1"))
    assert pod_requests(main, containers(sidecar, requesting(cpu="4"))) == {"cpu": 6000}
    assert pod_requests(main, containers(requesting(cpu="4"), sidecar)) == {"cpu": 4000}
    assert pod_requests(main, containers(sidecar, sidecar)) == {"cpu": 5000}


def test_overhead_is_added_to_the_total_requests() -> None:
    init = containers(requesting(cpu="4"))
    assert pod_requests(containers(requesting(cpu="1")), init, overhead={"cpu": "250m", "memory": "1"}) == {"cpu": 4250, "memory": 1}


def test_pod_level_requests_replace_only_cpu_memory_and_huge_pages_of_containers() -> None:
    level = ResourceRequirements(requests={"cpu": "8", "hugepages-2Mi": "4Mi", "nvidia.com/gpu": "9"})
    requests = pod_requests(containers(requesting(cpu="1", memory="1Gi", gpu="1")), pod_level=level)
    assert requests == {"cpu": 8000, "memory": 2**30, "hugepages-2Mi": 4 * 2**20, "nvidia.com/gpu": 1}


def test_pod_level_limits_imply_requests_only_if_no_container_has_requests() -> None:
    level = ResourceRequirements(limits={"cpu": "8", "memory": "2Gi"})
    assert pod_requests(containers(requesting(cpu="1")), pod_level=level) == {"cpu": 1000, "memory": 2 * 2**30}


def test_with_pod_level_resources_huge_page_limits_of_containers_become_requests_of_the_pod() -> None:
    holders = containers({"resources": {"limits": {"hugepages-2Mi": "4Mi"}}}, {"resources": {"limits": {"hugepages-2Mi": "2Mi"}}})
    level = ResourceRequirements(limits={"cpu": "1"})
    assert pod_requests(holders, pod_level=level) == {"cpu": 1000, "hugepages-2Mi": 6 * 2**20}


RESIZED = {"name": "main", "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "3"}}


@pytest.mark.parametrize(
    ("desired", "infeasible", "expected"), [("1", False, 3000), ("5", False, 5000), ("5", True, 3000), ("1", True, 3000)]
)
def test_a_resize_counts_the_largest_of_desired_allocated_and_actual(desired: str, infeasible: bool, expected: int) -> None:
    main = containers(requesting(cpu=desired) | {"name": "main"})
    assert pod_requests(main, statuses=statuses(RESIZED), infeasible=infeasible) == {"cpu": expected}


def test_a_container_status_without_resources_is_ignored() -> None:
    main = containers(requesting(cpu="1") | {"name": "main"})
    assert pod_requests(main, statuses=statuses({"name": "main", "allocatedResources": {"cpu": "9"}})) == {"cpu": 1000}


def test_sidecars_can_be_resized_and_other_init_containers_cannot() -> None:
    sidecar = requesting(cpu="1") | {"name": "main", "restartPolicy": "Always"}
    assert pod_requests([], containers(sidecar), statuses=statuses(RESIZED)) == {"cpu": 3000}
    assert pod_requests([], containers(requesting(cpu="1") | {"name": "main"}), statuses=statuses(RESIZED)) == {"cpu": 1000}


def test_resources_that_the_scheduler_does_not_count_are_omitted() -> None:
    main = containers({"resources": {"requests": {"foo": "1", "storage": "1Gi", "example.com/foo": "1", "ephemeral-storage": "1k"}}})
    assert pod_requests(main) == {"example.com/foo": 1, "ephemeral-storage": 1000}


def test_fractions_of_bytes_are_summed_before_rounding_up() -> None:
    assert pod_requests(containers(requesting(memory="400m"), requesting(memory="500m"))) == {"memory": 1}


@pytest.mark.parametrize(
    ("amount", "expected"),
    [("1xyz", "a quantity"), ("-1", "zero or more"), (str(LARGEST + 1), "at most"), ("9Ei", "int64")],
)
def test_an_invalid_request_is_rejected_and_the_error_names_the_field(amount: str, expected: str) -> None:
    with pytest.raises(UnreadableError, match=expected) as caught:
        pod_requests(containers({}, requesting(gpu=amount)))
    assert caught.value.path == "containers[1].resources.requests.nvidia.com/gpu"
    assert amount in caught.value.seen


def test_excessive_resources_of_a_node_are_capped() -> None:
    boast: dict[str, str | int | float | None] = {"cpu": "1500m", "memory": "7Ei", "pods": 110, "odd": "-4", "empty": None}
    assert node_resources(boast, "status.allocatable") == {"cpu": 1500, "memory": LARGEST, "pods": 110, "odd": 0, "empty": 0}
    with pytest.raises(UnreadableError, match=r"status\.allocatable\.cpu: saw 'lots'"):
        node_resources({"cpu": "lots"}, "status.allocatable")


amounts = st.dictionaries(st.sampled_from(("cpu", "memory", "nvidia.com/gpu")), st.integers(0, 9).map(str))
drawn = st.builds(Container, resources=st.builds(ResourceRequirements, requests=amounts), restart_policy=st.sampled_from((None, "Always")))


@given(st.lists(drawn, max_size=3), st.lists(drawn, max_size=4))
def test_a_pod_requests_at_least_the_sum_of_containers_and_sidecars(main: list[Container], init: list[Container]) -> None:
    """A pod also requests no more than if all its containers ran at once."""
    requests = pod_requests(main, init)
    running = pod_requests([*main, *(container for container in init if container.sidecar)])
    unordered = pod_requests([*main, *init])
    assert all(requests[name] >= amount for name, amount in running.items())
    assert all(amount <= unordered[name] for name, amount in requests.items())
