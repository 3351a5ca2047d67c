"""Paths of resources; every kind that is read is watched."""

from gpuscaler.kube.resources import COSCHEDULING_POD_GROUPS, EVENTS, NODES, POD_GROUPS, PODS, RESOURCE_SLICES, WATCHED, WORKLOADS
from gpuscaler.model.decoding.kinds import reader_of


def test_resource_paths_are_those_of_the_api_server() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ns") == "/api/v1/namespaces/ns/pods"
    assert PODS.path("ns", "p", "status") == "/api/v1/namespaces/ns/pods/p/status"
    assert NODES.path(name="n") == "/api/v1/nodes/n"
    assert EVENTS.path("ns", "e") == "/apis/events.k8s.io/v1/namespaces/ns/events/e"


def test_a_cluster_scoped_resource_has_no_namespace_in_its_path() -> None:
    assert NODES.path("ns", "n") == "/api/v1/nodes/n"


def test_names_are_escaped_in_paths() -> None:
    assert PODS.path("a/b", "../secrets?x") == "/api/v1/namespaces/a%2Fb/pods/..%2Fsecrets%3Fx"


def test_a_resource_has_an_api_version_and_a_label() -> None:
    assert (PODS.api_version, PODS.label) == ("v1", "pods")
    assert (EVENTS.api_version, EVENTS.label) == ("events.k8s.io/v1", "events.events.k8s.io")
    assert RESOURCE_SLICES.at("v1beta1").path() == "/apis/resource.k8s.io/v1beta1/resourceslices"


def test_every_watched_kind_can_be_read_in_all_its_versions() -> None:
    for resource in WATCHED:
        for version in (resource.version, *resource.older):
            assert reader_of(resource.at(version).api_version, resource.kind) is not None, resource


def test_pods_come_last_and_every_resource_once() -> None:
    assert WATCHED[-2:] == (NODES, PODS)
    assert len(set(WATCHED)) == len(WATCHED)


def test_gangs_are_found_where_each_kubernetes_from_1_35_to_1_37_declares_them() -> None:
    kinds = {(resource.kind, version) for resource in (WORKLOADS, POD_GROUPS) for version in (resource.version, *resource.older)}
    assert kinds == {("Workload", "v1alpha1"), ("PodGroup", "v1alpha2"), ("PodGroup", "v1alpha3"), ("PodGroup", "v1beta1")}


def test_resources_missing_from_many_clusters_are_optional() -> None:
    assert COSCHEDULING_POD_GROUPS.optional
    assert RESOURCE_SLICES.optional
    assert not PODS.optional
