"""Devices of a node whose device plugin is gone."""

from msgspec.structs import replace

from gpuscaler.lifecycle.node_health.device_plugins import (
    COUNTED_SECONDS,
    AbsentDevices,
    as_before,
    coming_back,
    observe,
    recalled,
    reports,
)
from gpuscaler.model.cluster import Cluster, Delta
from gpuscaler.model.nodes import Node
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import ARRIVING_TAINT

GPU, MIG, EFA = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "vpc.amazonaws.com/efa"
WHOLE = Node("n", {}, {"cpu": 8000, GPU: 8, EFA: 4}, {"cpu": 8000, GPU: 8, EFA: 4}, uid="u")
EMPTY = replace(WHOLE, allocatable={"cpu": 8000, GPU: 0, EFA: 4})


def cluster(*nodes: Node) -> Cluster:
    return Cluster().apply(Delta(upserts=nodes))


def test_a_node_without_its_devices_counts_as_it_was_for_five_minutes() -> None:
    now_empty = cluster(EMPTY)
    away = observe({}, cluster(WHOLE).nodes, now_empty, 100.0)

    assert away == {"n": AbsentDevices("u", {GPU: 8}, 100.0)}
    assert observe(away, now_empty.nodes, now_empty, 200.0) is away
    assert as_before(now_empty, away, 399.0).nodes["n"].allocatable == WHOLE.allocatable
    assert as_before(now_empty, away, 100.0 + COUNTED_SECONDS) is now_empty
    assert list(reports(away, 399.0)) == []
    (report,) = reports(away, 400.0)
    assert report.startswith("node n had 8 nvidia.com/gpu and has shown none for 5 min; plans use what it shows; check the ")


def test_returned_devices_are_forgotten_and_count_again_when_they_go() -> None:
    away = observe({}, cluster(WHOLE).nodes, cluster(EMPTY), 100.0)
    whole = cluster(WHOLE)

    assert observe(away, cluster(EMPTY).nodes, whole, 500.0) == {}
    assert observe({}, whole.nodes, cluster(EMPTY), 900.0) == {"n": AbsentDevices("u", {GPU: 8}, 900.0)}


def test_devices_that_a_restarting_kubelet_hides_are_known_from_before() -> None:
    nothing = replace(EMPTY, capacity={"cpu": 8000, GPU: 0, EFA: 0}, allocatable={"cpu": 8000, GPU: 0, EFA: 0})
    away = observe({}, cluster(WHOLE).nodes, cluster(nothing), 100.0)

    assert away["n"].amounts == {GPU: 8, EFA: 4}
    assert observe({}, {}, cluster(nothing), 100.0) == {}


def test_a_new_process_knows_missing_devices_from_the_capacity() -> None:
    assert observe({}, {}, cluster(EMPTY), 100.0)["n"].amounts == {GPU: 8}


def test_a_machine_that_has_not_opened_yet_never_had_anything() -> None:
    arriving = replace(EMPTY, taints=(Taint(ARRIVING_TAINT),))

    assert observe({}, cluster(replace(WHOLE, taints=arriving.taints)).nodes, cluster(arriving), 100.0) == {}


def test_repartitioned_gpus_are_not_missing() -> None:
    divided = replace(EMPTY, allocatable={"cpu": 8000, GPU: 0, MIG: 56, EFA: 4})

    assert observe({}, cluster(WHOLE).nodes, cluster(divided), 100.0) == {}


def test_a_new_machine_of_the_same_name_does_not_inherit_devices() -> None:
    away = observe({}, cluster(WHOLE).nodes, cluster(EMPTY), 100.0)
    other = replace(EMPTY, uid="v", capacity={"cpu": 8000})

    assert observe(away, cluster(EMPTY).nodes, cluster(other), 110.0) == {}
    assert as_before(cluster(other), away, 110.0).nodes["n"].allocatable == other.allocatable


def test_timestamps_of_a_fast_clock_do_not_extend_the_time() -> None:
    away = {"n": AbsentDevices("u", {GPU: 8}, 5000.0)}

    assert coming_back(recalled(away, 100.0), 100.0 + COUNTED_SECONDS) == frozenset()
