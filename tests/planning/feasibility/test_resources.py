"""NodeResourcesFit, and GPUs shared in thousandths."""

import pytest
from tests.planning.building import bare_node, pod, spec
from tests.planning.feasibility.kit import rejection, room, rows

from gpuscaler.model.accelerators import GPU_MILLI
from gpuscaler.model.labels import NO_LABELS

OFFERS = {
    "cpu": 4000,
    "memory": 2**33,
    "ephemeral-storage": 2**34,
    "hugepages-2Mi": 2**22,
    "nvidia.com/gpu": 2,
    "example.com/licence": 1,
    "pods": 3,
}


@pytest.mark.parametrize(
    ("requests", "copies"),
    [
        ({}, 3),
        ({"cpu": 0, "nvidia.com/gpu": 0}, 3),
        ({"cpu": 4000}, 1),
        ({"cpu": 4001}, 0),
        ({"cpu": 2000, "memory": 2**32}, 2),
        ({"ephemeral-storage": 2**33}, 2),
        ({"hugepages-2Mi": 2**22}, 1),
        ({"hugepages-1Gi": 1}, 0),
        ({"nvidia.com/gpu": 1}, 2),
        ({"nvidia.com/gpu": 2, "example.com/licence": 1}, 1),
        ({"amd.com/gpu": 1}, 0),
        ({"kubernetes.io/batch": 1}, 0),
        ({"attachable-volumes-csi-x": 1}, 0),
        ({"pods": 7}, 3),
        # Names without a domain and quota names are not counted.
        ({"storage": 10**9}, 3),
        ({"requests.nvidia.com/gpu": 10**9}, 3),
    ],
)
def test_a_node_takes_copies_until_a_requested_resource_or_the_pod_limit_is_used_up(requests: dict[str, int], copies: int) -> None:
    here = room(bare_node("a", allocatable=OFFERS))
    wanted = spec(requests=requests)
    assert here.fits(wanted).tolist() == [copies]
    assert here.capacity(wanted, NO_LABELS).tolist() == [copies]
    assert rows(here, wanted) == (["a"] if copies else [])


def test_an_overcommitted_node_takes_pods_that_do_not_request_the_missing_resource() -> None:
    here = room(bare_node("a", allocatable=OFFERS), pod("p", spec(requests={"cpu": 9000}), on="a"))
    assert rows(here, spec(requests={"memory": 1})) == ["a"]
    assert rows(here, spec(requests={"cpu": 0})) == ["a"]
    assert here.free("cpu").tolist() == [-5000]
    assert rejection(here, spec(requests={"cpu": 1000}), "a") == ("NodeResourcesFit", "node(s) had 0 free cpu, 1 requested")


def test_a_node_without_an_allocatable_pod_number_takes_no_pod() -> None:
    here = room(bare_node("a", allocatable={"cpu": 1000}))
    assert rows(here, spec(requests={})) == []
    assert rejection(here, spec(requests={}), "a") == ("NodeResourcesFit", "node(s) had room for 0 pods, all taken")


def test_terminating_pods_use_resources_of_their_node() -> None:
    here = room(bare_node("a", allocatable=OFFERS), pod("p", spec(requests={"nvidia.com/gpu": 2}), on="a", deleted=1.0))
    assert rows(here, spec(requests={"nvidia.com/gpu": 1})) == []


def test_pods_bound_to_unknown_nodes_use_no_resources() -> None:
    here = room(bare_node("a", allocatable=OFFERS), pod("p", spec(requests={"cpu": 4000}), on="gone"))
    assert rows(here, spec(requests={"cpu": 4000})) == ["a"]


@pytest.mark.parametrize(
    ("held", "amount", "copies"),
    [
        ((), 300, 6),
        ((), 1000, 2),
        ((), 1500, 1),
        ((), 2000, 1),
        ((), 3000, 0),
        ((600, 600), 500, 0),
        ((600, 600), 400, 2),
        ((500, 400), 1000, 1),
        ((700, 500, 300, 500), 1, 0),
        ((2000,), 1, 0),
        ((700, 700, 700, 700), 300, 0),
        # Placing the smallest first would leave the last request of 600 without a device, and 400 free on each.
        ((300, 300, 600, 600), 200, 0),
    ],
)
def test_shared_gpus_are_filled_largest_request_first_on_the_fullest_device_that_fits(
    held: tuple[int, ...], amount: int, copies: int
) -> None:
    pods = [pod(f"p{n}", spec(requests={GPU_MILLI: milli}), on="a") for n, milli in enumerate(held)]
    here = room(bare_node("a", allocatable={GPU_MILLI: 2000, "pods": 50}), *pods)
    wanted = spec(requests={GPU_MILLI: amount})
    assert here.fits(wanted).tolist() == [copies]
    assert rows(here, wanted) == (["a"] if copies else [])


def test_gpu_shares_that_fit_no_device_are_assigned_to_none() -> None:
    here = room(bare_node("a", allocatable={GPU_MILLI: 2000, "pods": 50}))
    share = spec(requests={GPU_MILLI: 700})
    here.place(share, NO_LABELS, 0, 3)
    assert here.device_free(0) == (300, 300)
    assert here.free(GPU_MILLI).tolist() == [-100]
    here.remove(share, NO_LABELS, 0, 3)
    assert here.device_free(0) == (1000, 1000)


def test_nodes_without_shared_gpus_take_no_gpu_shares() -> None:
    here = room(bare_node("a", allocatable={GPU_MILLI: 1000, "pods": 5}), bare_node("b"))
    share = spec(requests={GPU_MILLI: 500})
    assert rows(here, share) == ["a"]
    here.place(share, NO_LABELS, 1)
    here.remove(share, NO_LABELS, 1)
    assert here.device_free(1) == ()
    assert here.device_free(0) == (1000,)


def test_appended_nodes_have_their_own_devices() -> None:
    here = room(bare_node("a", allocatable={GPU_MILLI: 1000, "pods": 5}))
    share = spec(requests={GPU_MILLI: 700})
    here.place(share, NO_LABELS, 0)
    more = here.extended([bare_node("b", allocatable={GPU_MILLI: 3000, "pods": 5})])
    more.place(share, NO_LABELS, 1)
    assert (more.device_free(0), more.device_free(1)) == ((300,), (300, 1000, 1000))
    assert here.device_free(0) == (300,)
    assert room(bare_node("c")).extended([bare_node("d", allocatable={GPU_MILLI: 2000, "pods": 5})]).device_free(1) == (1000, 1000)


def test_a_request_for_several_whole_gpus_is_freed_completely() -> None:
    here = room(bare_node("a", allocatable={GPU_MILLI: 3000, "pods": 5}))
    two = spec(requests={GPU_MILLI: 2000})
    here.place(two, NO_LABELS, 0)
    assert here.device_free(0) == (0, 0, 1000)
    here.remove(two, NO_LABELS, 0)
    assert here.device_free(0) == (1000, 1000, 1000)
