"""Checks of nodes with GPUs and of pods, where they need the pools of a run file, or meet odd objects."""

from collections.abc import Iterable
from typing import Any

import pytest
from tests.doctor.corpus import FOLDER, objects_of
from tests.doctor.corpus import NOW as CORPUS_NOW
from tests.planning.building import NOW, bare_node, node, offering, pod, pool, spec

from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING, Finding
from gpuscaler.doctor.running import run_checks
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.pods import NO_OWNER, Owner, PodSpec
from gpuscaler.model.pools import Policy
from gpuscaler.model.taints import Taint, Toleration
from gpuscaler.model.workloads import Workload

GPU_TAINT = Taint("nvidia.com/gpu", "true")
TOLERATES = Toleration(key="nvidia.com/gpu", operator="Exists")

OWNER, JOB_OWNER = Owner("Deployment", "web", "d1"), Owner("Job", "train", "j1")


def found(items: Iterable[Item], policy: Policy | None = None, *, check: str) -> list[Finding]:
    """What the continuous checks find in a cluster of ``items``, as in the controller: without documents."""
    evidence = Evidence(NOW, cluster=Cluster.of(items), policy=policy)
    report = run_checks(evidence, [check for check in CHECKS if check.continuous])
    assert not report.unchecked
    return [finding for finding in report.findings if finding.check == check]


def refused(of: PodSpec, **more: Any) -> Any:
    """A pod that the scheduler has just refused."""
    return pod("p", of, unschedulable=True, unschedulable_since=NOW - 5, owner=NO_OWNER, **more)


def test_a_pod_that_fits_no_pool_is_critical_at_once() -> None:
    policy = Policy((pool(offering("g.8", gpus=8, cpu=96, memory=1000)),))

    (finding,) = found([refused(spec(gpus=16))], policy, check="D39")

    assert (finding.severity, finding.object) == (CRITICAL, "Pod default/p")
    assert (finding.seen, finding.expected) == ("16", "at most 8, what one pool or node has at most")


def test_a_pod_that_fits_a_pool_without_nodes_is_no_finding() -> None:
    policy = Policy((pool(offering("g.8", gpus=8, cpu=96, memory=1000)),))

    assert not found([bare_node("cpu"), refused(spec(gpus=8))], policy, check="D39")


def test_a_selector_that_no_pool_has_is_mended_in_the_workload() -> None:
    policy = Policy((pool(offering(labels={"team": "vision"})),))
    wanted = spec(gpus=1, node_selector=(("team", "vison"),))
    items: list[Item] = [pod("p", wanted, unschedulable=True), Workload("ReplicaSet", "default", "web-1", owner=OWNER)]

    (finding,) = found(items, policy, check="D39")

    assert finding.object == "Deployment default/web"
    patch = '{"spec":{"template":{"spec":{"nodeSelector":{"team":"vision"}}}}}'
    assert finding.fix.commands == (f"kubectl patch deployment web --namespace default --type merge --patch '{patch}'",)


@pytest.mark.parametrize("owner", [Owner("Node", "n1", "x"), Owner("Job\nCRITICAL forged", "web", "x"), Owner("Job", "a\nb", "x")])
def test_owners_that_are_no_objects_of_the_namespace_do_not_name_a_finding(owner: Owner) -> None:
    policy = Policy((pool(offering("g.8", gpus=8, cpu=96, memory=1000)),))
    refusing = pod("p", spec(gpus=16), unschedulable=True, unschedulable_since=NOW - 5, owner=owner)
    owned = pod("q", spec(gpus=16), unschedulable=True, unschedulable_since=NOW - 5, owner=Owner("ReplicaSet", "web-1", "w"))
    items: list[Item] = [refusing, owned, Workload("ReplicaSet", "default", "web-1", owner=owner)]

    assert {finding.object for finding in found(items, policy, check="D39")} == {"Pod default/p", "ReplicaSet default/web-1"}


def test_a_taint_of_a_pool_needs_a_toleration() -> None:
    policy = Policy((pool(offering(taints=(GPU_TAINT,))),))

    assert not found([refused(spec(gpus=1))], policy, check="D39")
    (finding,) = found([refused(spec(gpus=1))], policy, check="D40")
    assert (finding.severity, finding.seen) == (WARNING, "none of nvidia.com/gpu=true:NoSchedule")


def test_pods_that_gpuscaler_never_buys_for() -> None:
    policy = Policy((pool(offering()),))

    (claims,) = found([refused(spec(resource_claims=("gpu",)))], policy, check="D39")
    (low,) = found([refused(spec(gpus=1, priority=-11))], policy, check="D39")

    assert (claims.severity, low.severity) == (CRITICAL, INFO)


def test_pods_with_gates_and_young_pods_without_known_pools_are_left_alone() -> None:
    gated = refused(spec(gpus=16, gates=("kueue.x-k8s.io/admission",)))

    assert not found([bare_node("cpu"), gated], check="D39")
    assert not found([bare_node("cpu"), refused(spec(gpus=16))], check="D39")


def test_a_label_of_the_nodes_that_the_pool_lacks_is_named() -> None:
    of = offering()
    policy = Policy((pool(of),))
    items = [node("n", of, labels={"team": "vision"}), refused(spec(gpus=1, node_selector=(("team", "vision"),)))]

    (finding,) = found(items, policy, check="D9")

    assert (finding.object, finding.expected) == ("Pool main", "team=vision, as on its nodes")
    assert not found(items, policy, check="D39")


def test_templates_that_differ_from_their_nodes() -> None:
    of = offering(labels={"team": "vision"}, taints=(GPU_TAINT,))
    bare = {key: value for key, value in of.labels.items() if key != "team"}
    live = [node(name, of, taints=(Taint("dedicated", "gpu"),)) for name in ("a", "b")]
    items = [bare_node(item.name, bare, allocatable=of.allocatable, taints=item.taints) for item in live]

    (finding,) = found(items, Policy((pool(of, configured_labels=("team",)),)), check="D10")

    assert finding.object == "Pool main"
    assert finding.seen == "no label team, no taint nvidia.com/gpu=true:NoSchedule, taint dedicated=gpu:NoSchedule"


def test_nodes_of_others_with_the_type_of_a_pool_are_not_compared_with_its_template() -> None:
    of = offering(labels={"team": "vision", **{f"example.org/{number}": "a" for number in range(9)}})
    theirs = {key: value for key, value in of.labels.items() if key in ("node.kubernetes.io/instance-type", "topology.kubernetes.io/zone")}
    policy = Policy((pool(of, configured_labels=("team", *(f"example.org/{number}" for number in range(9)))),))

    def differing(labels: dict[str, str]) -> list[Finding]:
        return found([bare_node("a", {**theirs, **labels}, allocatable=of.allocatable)], policy, check="D10")

    assert not differing({"karpenter.sh/nodepool": "gpu"})
    assert not differing({"kops.k8s.io/instancegroup": "gpus"})
    (finding,) = differing({"kops.k8s.io/instancegroup": "main"})
    assert finding.seen.endswith("and 6 more")


def test_labels_that_no_person_has_set_are_not_expected_of_nodes() -> None:
    # Those of GPU feature discovery and Karpenter are derived from the type.
    derived = {"nvidia.com/gpu.memory": "23028", "karpenter.k8s.aws/instance-family": "g5", "beta.kubernetes.io/arch": "amd64"}
    of = offering(labels={**derived, "team": "vision"})
    live = bare_node("a", {key: value for key, value in of.labels.items() if key not in (*derived, "team")}, allocatable=of.allocatable)

    def differing(*configured: str) -> list[str]:
        return [finding.seen for finding in found([live], Policy((pool(of, configured_labels=configured),)), check="D10")]

    assert differing() == []
    assert differing("team") == ["no label team"]
    # A person may also set one of the labels that are derived otherwise.
    assert differing("nvidia.com/gpu.memory") == ["no label nvidia.com/gpu.memory"]


def test_a_plugin_whose_types_lack_that_of_a_pool_is_found_before_its_machines_exist() -> None:
    policy = Policy((pool(offering("g.new", taints=(GPU_TAINT,))),))
    types = (("node.kubernetes.io/instance-type", "g.old"),)
    plugin = Workload("DaemonSet", "kube-system", "nvidia-device-plugin", template=spec(node_selector=types, tolerations=(TOLERATES,)))

    (finding,) = found([plugin], policy, check="D13")

    assert finding.object == "DaemonSet kube-system/nvidia-device-plugin"
    assert "g.new of pool main" in finding.seen


def test_a_pool_whose_nodes_show_their_gpus_needs_no_plugin_that_is_seen() -> None:
    # Bottlerocket and EKS Auto Mode run the plugin outside of Kubernetes.
    of = offering("g.new")
    plugin = Workload("DaemonSet", "kube-system", "nvidia-device-plugin", template=spec(node_selector=(("gpu", "old"),)))

    assert not found([plugin, node("n", of)], Policy((pool(of),)), check="D13")


def test_a_held_node_says_what_it_costs() -> None:
    of = offering("g.1", price=3.06)
    debug = pod("debug", spec(cpu=1), on="n", owner=NO_OWNER, started=NOW - 3 * 86400)

    (finding,) = found([node("n", of), debug], Policy((pool(of),)), check="D35")

    assert (finding.severity, finding.object) == (WARNING, "Node n")
    assert finding.seen == "pod default/debug has no controller that would recreate it (for 3 days)"
    assert "$3.06 an hour" in finding.effect


def test_a_node_whose_gpus_are_used_by_a_job_is_not_held() -> None:
    of = offering()
    job = pod("train", spec(gpus=1), on="n", started=NOW - 3 * 86400, owner=JOB_OWNER)

    assert not found([node("n", of), job], Policy((pool(of),)), check="D35")


def test_nodes_with_gpus_in_a_cluster_without_others_may_be_open() -> None:
    web = pod("web", spec(cpu=1), on="n")

    assert not found([node("n"), web], check="D40")
    assert found([node("n"), bare_node("cpu"), web], check="D40")


def test_two_budgets_are_found_without_documents() -> None:
    objects = objects_of(FOLDER / "broken" / "d34-pods.yaml")
    cluster = evidence_of_objects(objects, now=CORPUS_NOW).cluster
    report = run_checks(Evidence(CORPUS_NOW, cluster=cluster), [check for check in CHECKS if check.continuous])

    assert "PodDisruptionBudget default/web" in {finding.object for finding in report.findings if finding.check == "D34"}


ODD: tuple[Any, ...] = (None, True, 5, -1, 1e300, "text", [], ["text"], [None], {}, {"metadata": None}, {"a": {"b": []}})
FIELDS = ("metadata", "spec", "status")
KINDS = ("Pod", "Deployment", "CronJob", "DaemonSet", "PodDisruptionBudget", "RuntimeClass", "Node")


def test_odd_documents_break_no_check() -> None:
    documents = {
        kind: tuple(Document({"kind": kind, field: odd}) for field in FIELDS for odd in ODD)
        + tuple(Document({"kind": kind, "spec": {"template": {"spec": {part: odd}}, part: odd}}) for part in PARTS for odd in ODD)
        for kind in KINDS
    }
    report = run_checks(Evidence(NOW, documents), CHECKS)

    assert not [entry.message for entry in report.unchecked]


PARTS = ("containers", "volumes", "tolerations", "nodeSelector", "minAvailable", "maxUnavailable", "selector")


def test_shares_of_gpus_and_windows_are_not_taken_for_missing_gpus() -> None:
    shared = bare_node("shared", {"accelerator": "nvidia"}, allocatable={"cpu": 1000, "pods": 10, "aliyun.com/gpu-mem": 24})
    windows = bare_node("windows", {"kubernetes.io/os": "windows", "node.kubernetes.io/instance-type": "g4dn.xlarge"})
    neuron = bare_node("neuron", {"k8s.amazonaws.com/accelerator": "aws-inferentia"})

    assert not found([shared, windows, neuron], check="D12")
