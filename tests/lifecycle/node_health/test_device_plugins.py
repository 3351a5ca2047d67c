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


def test_a_node_that_loses_its_devices_still_counts_with_them_for_five_minutes() -> None:
    now_empty = cluster(EMPTY)
    away = observe({}, cluster(WHOLE).nodes, now_empty, 100.0)

    assert away == {"n": AbsentDevices("u", {GPU: 8}, 100.0)}
    assert observe(away, now_empty.nodes, now_empty, 200.0) is away
    assert as_before(now_empty, away, 399.0).nodes["n"].allocatable == WHOLE.allocatable
    assert as_before(now_empty, away, 100.0 + COUNTED_SECONDS) is now_empty
    assert list(reports(away, 399.0)) == []
    (report,) = reports(away, 400.0)
    assert report.startswith("node n had 8 nvidia.com/gpu and has shown none for 5 min; plans use what it shows; check the ")


def test_missing_devices_are_tracked_until_they_return_and_again_when_they_disappear() -> None:
    away = observe({}, cluster(WHOLE).nodes, cluster(EMPTY), 100.0)
    whole = cluster(WHOLE)

    assert observe(away, cluster(EMPTY).nodes, whole, 500.0) == {}
    assert observe({}, whole.nodes, cluster(EMPTY), 900.0) == {"n": AbsentDevices("u", {GPU: 8}, 900.0)}


def test_devices_hidden_by_a_kubelet_restart_are_taken_from_the_previous_observation() -> None:
    nothing = replace(EMPTY, capacity={"cpu": 8000, GPU: 0, EFA: 0}, allocatable={"cpu": 8000, GPU: 0, EFA: 0})
    away = observe({}, cluster(WHOLE).nodes, cluster(nothing), 100.0)

    assert away["n"].amounts == {GPU: 8, EFA: 4}
    assert observe({}, {}, cluster(nothing), 100.0) == {}


def test_after_a_restart_missing_devices_are_inferred_from_the_node_capacity() -> None:
    assert observe({}, {}, cluster(EMPTY), 100.0)["n"].amounts == {GPU: 8}


def test_a_machine_that_is_not_open_yet_has_no_missing_devices() -> None:
    arriving = replace(EMPTY, taints=(Taint(ARRIVING_TAINT),))

    assert observe({}, cluster(replace(WHOLE, taints=arriving.taints)).nodes, cluster(arriving), 100.0) == {}


def test_repartitioned_gpus_are_not_missing() -> None:
    divided = replace(EMPTY, allocatable={"cpu": 8000, GPU: 0, MIG: 56, EFA: 4})

    assert observe({}, cluster(WHOLE).nodes, cluster(divided), 100.0) == {}


def test_a_new_machine_with_the_same_node_name_does_not_inherit_missing_devices() -> None:
    away = observe({}, cluster(WHOLE).nodes, cluster(EMPTY), 100.0)
    other = replace(EMPTY, uid="v", capacity={"cpu": 8000})

    assert observe(away, cluster(EMPTY).nodes, cluster(other), 110.0) == {}
    assert as_before(cluster(other), away, 110.0).nodes["n"].allocatable == other.allocatable


def test_a_timestamp_from_a_fast_clock_does_not_extend_the_wait_for_missing_devices() -> None:
    away = {"n": AbsentDevices("u", {GPU: 8}, 5000.0)}

    assert coming_back(recalled(away, 100.0), 100.0 + COUNTED_SECONDS) == frozenset()
