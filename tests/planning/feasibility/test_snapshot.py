"""The room as a whole: capacity, placing, copies, appended rows and reasons."""

import numpy as np
from tests.planning.building import bare_node, pod, selector, spec
from tests.planning.feasibility.kit import rejection, room, rows

from gpuscaler.model.accelerators import GPU_MILLI
from gpuscaler.model.labels import NO_LABELS, LabelSet
from gpuscaler.model.pods import HostPort, PodAffinityTerm

GPU = {"nvidia.com/gpu": 8, "cpu": 96_000, "memory": 2**40, "pods": 110}


def test_bound_pods_use_resources_and_finished_ones_do_not() -> None:
    one_gpu = spec(requests={"nvidia.com/gpu": 4})
    here = room(bare_node("a", allocatable=GPU), pod("p", one_gpu, on="a"), pod("q", one_gpu, on="a", phase="Succeeded"))
    assert here.capacity(one_gpu, NO_LABELS).tolist() == [1]
    assert here.free("nvidia.com/gpu").tolist() == [4]
    assert here.used("pods").tolist() == [1]


def test_a_placed_pod_uses_resources_until_it_is_removed() -> None:
    two_gpus = spec(requests={"nvidia.com/gpu": 2})
    here = room(bare_node("a", allocatable=GPU))
    here.place(two_gpus, NO_LABELS, 0, 3)
    assert here.capacity(two_gpus, NO_LABELS).tolist() == [1]
    here.remove(two_gpus, NO_LABELS, 0)
    assert here.capacity(two_gpus, NO_LABELS).tolist() == [2]


def test_a_pod_class_is_placed_on_many_nodes_at_once() -> None:
    share = spec(requests={GPU_MILLI: 500, "cpu": 1000})
    here = room(*(bare_node(name, allocatable={GPU_MILLI: 2000, "cpu": 8000, "pods": 9}) for name in "abc"))
    here.place_all(share, LabelSet(app="x"), np.array([0, 2]), np.array([3, 1]))
    assert here.free("cpu").tolist() == [5000, 8000, 7000]
    assert here.device_free(0) == (0, 500)
    assert here.matching(("default",), None, selector(app="x")).tolist() == [3, 0, 1]


def test_placements_in_a_copy_of_a_room_do_not_affect_the_original() -> None:
    alone = spec(anti_affinity=(PodAffinityTerm("kubernetes.io/hostname", selector(app="x"), ("default",)),))
    ported = spec(host_ports=(HostPort(80),))
    here = room(bare_node("a"), bare_node("b"))
    assert rows(here, alone, app="x") == ["a", "b"]
    other = here.copy()
    other.place(alone, LabelSet(app="x"), 0)
    here.place(ported, NO_LABELS, 1)
    assert rows(other, alone, app="x") == ["b"]
    assert rows(here, alone, app="x") == ["a", "b"]
    assert rows(other, ported) == ["a", "b"]
    assert rows(here, ported) == ["a"]


def test_appended_nodes_are_empty_and_earlier_placements_stay() -> None:
    whole = spec(requests={"nvidia.com/gpu": 8})
    here = room(bare_node("a", allocatable=GPU))
    here.place(whole, NO_LABELS, 0)
    more = here.extended([bare_node(f"new-{n}", allocatable=GPU) for n in range(3)])
    assert more.capacity(whole, NO_LABELS).tolist() == [0, 1, 1, 1]
    assert len(here) == 1


def test_a_shared_gpu_request_must_fit_one_device() -> None:
    here = room(bare_node("a", allocatable={GPU_MILLI: 2000, "pods": 9}))
    most = spec(requests={GPU_MILLI: 600})
    here.place(most, NO_LABELS, 0, 2)
    assert here.device_free(0) == (400, 400)
    assert here.free(GPU_MILLI).tolist() == [800]
    assert here.capacity(most, NO_LABELS).tolist() == [0]
    assert rejection(here, most, "a")[1] == f"node(s) had devices with [400, 400] free {GPU_MILLI}, 600 requested"


def test_a_request_for_whole_gpus_takes_unused_devices() -> None:
    here = room(bare_node("a", allocatable={GPU_MILLI: 4000, "pods": 9}), pod("p", spec(requests={GPU_MILLI: 100}), on="a"))
    assert here.capacity(spec(requests={GPU_MILLI: 2000}), NO_LABELS).tolist() == [1]
    assert here.capacity(spec(requests={GPU_MILLI: 1000}), NO_LABELS).tolist() == [3]


def test_a_small_shared_request_uses_the_fullest_device_that_fits() -> None:
    here = room(bare_node("a", allocatable={GPU_MILLI: 2000, "pods": 9}))
    for amount in (500, 700, 300):
        here.place(spec(requests={GPU_MILLI: amount}), NO_LABELS, 0)
    assert here.device_free(0) == (500, 0)
    here.remove(spec(requests={GPU_MILLI: 700}), NO_LABELS, 0)
    assert here.device_free(0) == (500, 700)


def test_the_reason_names_every_resource_that_a_node_lacks() -> None:
    here = room(bare_node("a", allocatable=GPU), pod("p", spec(requests={"nvidia.com/gpu": 6}), on="a"))
    wanted = spec(requests={"nvidia.com/gpu": 4, "memory": 2**41})
    filter_name, detail = rejection(here, wanted, "a")
    assert filter_name == "NodeResourcesFit"
    assert "node(s) had 2 free nvidia.com/gpu, 4 requested" in detail
    assert "node(s) had 1024Gi free memory, 2048Gi requested" in detail
