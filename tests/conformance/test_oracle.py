"""Hand-written clusters with results that Kubernetes documents: the oracle must give them."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.conformance.asking import Json, Oracle, OracleError
from tests.conformance.building import oracle as built

pytestmark = pytest.mark.conformance


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle(built()) as running:
        yield running


def node(name: str, *, labels: dict[str, str] | None = None, allocatable: dict[str, str] | None = None, **spec: Any) -> Json:
    offered = {"cpu": "4", "memory": "8Gi", "pods": "10", **(allocatable or {})}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": spec,
        "status": {"allocatable": offered},
    }


def pod(name: str, *, labels: dict[str, str] | None = None, requests: dict[str, str] | None = None, **spec: Any) -> Json:
    containers = spec.pop("containers", [{"name": "main", "resources": {"requests": requests or {}}}])
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels or {}},
        "spec": {"containers": containers, **spec},
    }


def rejected(oracle: Oracle, pending: Json, *nodes: Json, **objects: list[Json]) -> dict[str, list[str]]:
    answer = oracle.ask({"nodes": list(nodes), "pending": [pending], **objects})
    refused: dict[str, list[str]] = answer["pods"][0]["rejected"]
    return refused


def test_a_plain_pod_is_accepted_everywhere(oracle: Oracle) -> None:
    assert rejected(oracle, pod("p"), node("a"), node("b")) == {}


def test_all_plug_ins_that_reject_a_node_are_named(oracle: Oracle) -> None:
    closed = node("b", unschedulable=True, taints=[{"key": "k", "effect": "NoExecute"}], allocatable={"cpu": "1"})
    wanting = pod("p", requests={"cpu": "2"}, nodeSelector={"disk": "ssd"})
    assert rejected(oracle, wanting, closed) == {"b": ["NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodeResourcesFit"]}


def test_requests_of_running_pods_count_and_requests_of_finished_pods_do_not(oracle: Oracle) -> None:
    running = pod("r", requests={"cpu": "3"}, nodeName="a")
    finished = {**pod("f", requests={"cpu": "3"}, nodeName="b"), "status": {"phase": "Succeeded"}}
    assert rejected(oracle, pod("p", requests={"cpu": "2"}), node("a"), node("b"), pods=[running, finished]) == {"a": ["NodeResourcesFit"]}


def test_a_host_port_on_two_addresses_conflicts_only_if_one_is_the_wildcard(oracle: Oracle) -> None:
    def listening(name: str, address: str, **more: Any) -> Json:
        port = {"containerPort": 80, "hostPort": 80, "hostIP": address, "protocol": "TCP"}
        return pod(name, containers=[{"name": "main", "ports": [port]}], **more)

    there = [listening("x", "10.0.0.1", nodeName="a"), listening("y", "0.0.0.0", nodeName="b")]
    assert rejected(oracle, listening("p", "10.0.0.2"), node("a"), node("b"), pods=there) == {"b": ["NodePorts"]}


def test_anti_affinity_of_a_running_pod_excludes_its_whole_zone(oracle: Oracle) -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
    alone = pod("x", nodeName="a", affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
    nodes = [node("a", labels={"zone": "1"}), node("b", labels={"zone": "1"}), node("c", labels={"zone": "2"}), node("d")]
    assert rejected(oracle, pod("p", labels={"app": "web"}), *nodes, pods=[alone]) == {"a": ["InterPodAffinity"], "b": ["InterPodAffinity"]}
    assert rejected(oracle, pod("p", labels={"app": "db"}), *nodes, pods=[alone]) == {}


def test_spread_rejects_the_fuller_zone_and_nodes_without_a_zone(oracle: Oracle) -> None:
    selector = {"matchLabels": {"app": "web"}}
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    nodes = [node("a", labels={"zone": "1"}), node("b", labels={"zone": "2"}), node("c")]
    spread = pod("p", labels={"app": "web"}, topologySpreadConstraints=[constraint])
    there = [pod("x", labels={"app": "web"}, nodeName="a")]
    assert rejected(oracle, spread, *nodes, pods=there) == {"a": ["PodTopologySpread"], "c": ["PodTopologySpread"]}


def claim(name: str, **spec: Any) -> Json:
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"accessModes": ["ReadWriteOnce"], **spec}}


def using(name: str, *claims: str, **more: Any) -> Json:
    return pod(name, volumes=[{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims], **more)


def test_a_bound_volume_is_reachable_only_where_its_node_affinity_matches(oracle: Oracle) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["1"]}]}]
    volume = {
        "metadata": {"name": "pv"},
        "spec": {"csi": {"driver": "d", "volumeHandle": "h"}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}},
    }
    bound = claim("c", volumeName="pv")
    bound["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
    nodes = [node("a", labels={"zone": "1"}), node("b", labels={"zone": "2"})]
    refused = rejected(oracle, using("p", "c"), *nodes, persistentVolumes=[volume], persistentVolumeClaims=[bound])
    assert refused == {"b": ["VolumeBinding"]}


def test_a_missing_claim_excludes_every_node(oracle: Oracle) -> None:
    refused = rejected(oracle, using("p", "nowhere"), node("a"))
    assert refused == {"a": ["VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"]}


def test_attach_limits_count_the_volumes_of_running_pods(oracle: Oracle) -> None:
    classes = [{"metadata": {"name": "fast"}, "provisioner": "d", "volumeBindingMode": "WaitForFirstConsumer"}]
    limits = [{"metadata": {"name": "a"}, "spec": {"drivers": [{"name": "d", "nodeID": "a", "allocatable": {"count": 1}}]}}]
    claims = [claim("c", storageClassName="fast"), claim("d", storageClassName="fast")]
    storage: dict[str, list[Json]] = {"storageClasses": classes, "csiNodes": limits, "persistentVolumeClaims": claims}
    there = [using("x", "c", nodeName="a")]
    assert rejected(oracle, using("p", "d"), node("a"), node("b"), pods=there, **storage) == {"a": ["NodeVolumeLimits"]}


def test_cases_do_not_affect_each_other(oracle: Oracle) -> None:
    test_attach_limits_count_the_volumes_of_running_pods(oracle)
    assert rejected(oracle, using("p", "d"), node("a")) == {"a": ["VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"]}


def replay(oracle: Oracle, case: Json, *steps: tuple[int, list[str]]) -> list[dict[str, list[str]]]:
    answer = oracle.ask({**case, "replay": [{"pod": number, "nodes": nodes} for number, nodes in steps]})
    return [step["rejected"] for step in answer["steps"]]


def test_a_replayed_pod_is_placed_on_the_first_node_that_accepts_it_and_stays_there(oracle: Oracle) -> None:
    large = {"cpu": "3"}
    case = {"nodes": [node("a"), node("b")], "pending": [pod("p", requests=large), pod("q", requests=large), pod("r", requests=large)]}
    taken = replay(oracle, case, (0, ["a", "b"]), (1, ["a", "b"]), (2, ["a", "b"]))
    assert taken == [{}, {"a": ["NodeResourcesFit"]}, {"a": ["NodeResourcesFit"], "b": ["NodeResourcesFit"]}]


def test_a_volume_bound_by_a_replayed_pod_is_not_available_to_the_next(oracle: Oracle) -> None:
    local = {"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    asked = {"storageClassName": "local", "resources": {"requests": {"storage": "1Gi"}}}
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}]}]
    volume = {
        "metadata": {"name": "pv"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "local": {"path": "/x"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
        "status": {"phase": "Available"},
    }
    case = {
        "nodes": [node("a")],
        "storageClasses": [local],
        "persistentVolumes": [volume],
        "persistentVolumeClaims": [claim("c", **asked), claim("d", **asked)],
        "pending": [using("p", "c"), using("q", "d")],
    }
    assert replay(oracle, case, (0, ["a"]), (1, ["a"])) == [{}, {"a": ["VolumeBinding"]}]


def test_a_case_that_cannot_be_read_is_refused_and_the_next_one_answered(oracle: Oracle) -> None:
    with pytest.raises(OracleError, match="cannot unmarshal"):
        oracle.ask({"nodes": 7})
    with pytest.raises(OracleError, match="pending pod 3 of 1"):
        oracle.ask({"nodes": [node("a")], "pending": [pod("p")], "replay": [{"pod": 3, "nodes": ["a"]}]})
    assert rejected(oracle, pod("p"), node("a")) == {}


def test_an_explained_answer_contains_the_messages_of_the_plug_ins(oracle: Oracle) -> None:
    answer = oracle.ask({"nodes": [node("a")], "pending": [pod("p", requests={"cpu": "9"})], "explain": True})
    assert answer["pods"][0]["messages"] == {"a": ["NodeResourcesFit: Insufficient cpu"]}
