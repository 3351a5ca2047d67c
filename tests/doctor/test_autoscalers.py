"""Checks of autoscalers beside each other and of priorities, where they need the pools of a run file or the time."""

from typing import Any

from tests.doctor.corpus import NOW
from tests.planning.building import offering, pool

from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING, Finding
from gpuscaler.doctor.running import run_checks
from gpuscaler.model.pools import Policy

Json = dict[str, Any]
SPOT, ON_DEMAND = offering("g.1", 0.2, market="spot"), offering("g.1", 0.65)
POLICY = Policy((pool(SPOT, name="gpu-spot"), pool(ON_DEMAND, name="gpu-od")))


def found(
    *objects: Json, policy: Policy | None = None, unread: tuple[str, ...] = (), own_namespace: str = "kube-system", check: str
) -> list[Finding]:
    documents = evidence_of_objects(objects, now=NOW).documents
    evidence = Evidence(NOW, documents, policy=policy, unread=dict.fromkeys(unread, "not allowed"), own_namespace=own_namespace)
    report = run_checks(evidence, CHECKS)
    return [finding for finding in report.findings if finding.check == check]


def deployment(name: str, image: str, *words: str) -> Json:
    containers = [{"name": "main", "image": image, "args": list(words)}]
    return {"kind": "Deployment", "metadata": {"name": name, "namespace": "a"}, "spec": {"template": {"spec": {"containers": containers}}}}


def cluster_autoscaler(*words: str) -> Json:
    return deployment("cluster-autoscaler", "registry.k8s.io/autoscaling/cluster-autoscaler:v1.34.0", "--cloud-provider=aws", *words)


GPUSCALER = deployment("gpuscaler", "ghcr.io/gpuscaler:1", "run")


def priorities(text: str) -> Json:
    metadata = {"name": "cluster-autoscaler-priority-expander", "namespace": "kube-system"}
    return {"kind": "ConfigMap", "metadata": metadata, "data": {"priorities": text}}


def test_patterns_without_a_pool_and_pools_without_a_pattern_are_named() -> None:
    seen = {finding.seen: finding.severity for finding in found(priorities("{50: [spot, a100]}"), policy=POLICY, check="D36")}

    assert seen == {"50: a100, which matches no pool": WARNING, "no pattern for gpu-od": INFO}


def test_patterns_that_match_are_no_finding() -> None:
    assert not found(priorities("{50: [spot], 10: [.*]}"), policy=POLICY, check="D36")


def test_pools_that_come_before_cheaper_ones_are_found_by_price() -> None:
    (by_file,) = found(priorities("{50: [gpu-od], 10: ['.*']}"), policy=POLICY, check="D37")
    own = Policy((pool(SPOT, name="a", priority=1), pool(ON_DEMAND, name="b", priority=2)))
    (by_pools,) = found(policy=own, check="D37")

    assert by_file.object == "ConfigMap kube-system/cluster-autoscaler-priority-expander"
    assert by_pools.object == "pools of the run file"
    assert by_pools.seen.startswith("pool b (priority 2) comes before pool a (priority 1), which is cheaper")


def test_spot_first_is_no_finding() -> None:
    for text in (
        "{50: [.*spot.*], 20: [.*on-demand.*]}",
        "{50: ['.*'], 20: [.*spot.*]}",
        "{50: [non-spot], 20: [a]}",
        "{5: ['.*od-pool.*']}",
    ):
        assert not found(priorities(text), check="D37")


def test_a_cluster_autoscaler_with_a_pool_of_the_run_file_is_critical() -> None:
    (shared,) = found(cluster_autoscaler("--nodes=0:3:gpu-od"), policy=POLICY, check="D3")

    assert shared.severity == CRITICAL
    assert not found(cluster_autoscaler("--nodes=0:3:cpu"), policy=POLICY, check="D3")


def test_a_cluster_autoscaler_with_other_groups_beside_gpuscaler_is_an_info() -> None:
    (finding,) = found(cluster_autoscaler("--nodes=0:3:cpu"), GPUSCALER, check="D3")

    assert finding.severity == INFO


def test_the_autoscaler_of_aks_shows_by_its_status_only_while_it_runs() -> None:
    def status(time: str) -> Json:
        annotations = {"cluster-autoscaler.kubernetes.io/last-updated": time}
        return {
            "kind": "ConfigMap",
            "metadata": {"name": "cluster-autoscaler-status", "namespace": "kube-system", "annotations": annotations},
        }

    running, gone, odd = (status(time) for time in ("2026-11-30 23:59:45.123456789 +0000 UTC", "2026-11-29 10:00:00 +0000 UTC", "soon"))

    assert [finding.severity for finding in found(GPUSCALER, running, check="D3")] == [WARNING]
    for other in (gone, odd):
        assert not found(GPUSCALER, other, check="D3")
    assert not found(running, check="D3")


def lease(name: str, namespace: str = "kube-system", *, renewed: str = "2026-11-30T23:59:52.000000Z", holder: str | None = "vm-1") -> Json:
    return {"kind": "Lease", "metadata": {"name": name, "namespace": namespace}, "spec": {"holderIdentity": holder, "renewTime": renewed}}


def test_autoscalers_outside_of_the_cluster_show_by_leases_that_are_renewed() -> None:
    for name in ("cluster-autoscaler", "escalator-leader-elect"):
        (finding,) = found(GPUSCALER, lease(name), check="D3")
        assert (finding.object, finding.severity) == (f"Lease kube-system/{name}", WARNING)
        assert not found(GPUSCALER, lease(name, renewed="2026-11-30T20:00:00.000000Z"), check="D3")
        assert not found(lease(name), check="D3")
    assert not found(GPUSCALER, lease("kube-scheduler"), check="D3")


def test_a_gpuscaler_outside_of_the_cluster_is_one_of_two_only_beside_another() -> None:
    outside = lease("gpuscaler", "gpuscaler")
    assert not found(outside, check="D3")
    assert not found(GPUSCALER, lease("gpuscaler", "a"), check="D3")
    assert [finding.object for finding in found(GPUSCALER, outside, check="D3")] == ["Lease gpuscaler/gpuscaler"]
    assert [finding.object for finding in found(outside, lease("gpuscaler", "other"), check="D3")] == ["Lease other/gpuscaler"]
    assert [finding.object for finding in found(outside, lease("cluster-autoscaler"), check="D3")] == [
        "Lease kube-system/cluster-autoscaler"
    ]


def test_of_two_controllers_that_of_the_other_namespace_is_named() -> None:
    own, other = lease("gpuscaler"), lease("gpuscaler", "gpuscaler")

    def objects(*leases: Json, namespace: str) -> list[str]:
        return [finding.object for finding in found(*leases, own_namespace=namespace, check="D3")]

    assert objects(own, other, namespace="kube-system") == ["Lease gpuscaler/gpuscaler"]
    assert objects(own, other, namespace="gpuscaler") == ["Lease kube-system/gpuscaler"]
    # A Lease that only one process renews is no second controller, wherever it is.
    assert objects(own, namespace="gpuscaler") == objects(other, namespace="kube-system") == []


def test_the_controller_of_a_deployment_is_named_beside_the_own_one_outside_of_the_cluster() -> None:
    own, theirs = lease("gpuscaler"), lease("gpuscaler", "a")

    assert [finding.object for finding in found(own, theirs, GPUSCALER, check="D3")] == ["Deployment a/gpuscaler"]
    assert [finding.object for finding in found(own, theirs, GPUSCALER, own_namespace="a", check="D3")] == ["Lease kube-system/gpuscaler"]


def test_of_two_deployments_that_of_the_other_namespace_is_named() -> None:
    second = {**GPUSCALER, "metadata": {"name": "gpuscaler", "namespace": "b"}}

    for own, other in (("a", "b"), ("b", "a")):
        (finding,) = found(GPUSCALER, second, own_namespace=own, check="D3")
        assert finding.object == f"Deployment {other}/gpuscaler"
        assert f"Deployment {own}/gpuscaler" in finding.seen


def test_a_controller_that_has_ended_is_no_rival() -> None:
    own = lease("gpuscaler")

    # Who ends releases the Lease, and renews it a last time with that.
    for holder in ("", None):
        assert not found(own, lease("gpuscaler", "gpuscaler", holder=holder), check="D3")
        assert not found(GPUSCALER, lease("cluster-autoscaler", holder=holder), check="D3")
    assert not found(own, lease("gpuscaler", "gpuscaler", renewed="2026-11-30T23:57:00.000000Z"), check="D3")


def test_karpenter_outside_of_the_cluster_is_judged_by_its_node_pools() -> None:
    karpenter, outside = lease("karpenter-leader-election"), lease("gpuscaler", "gpuscaler")

    def node_pool(**spec: object) -> Json:
        return {"kind": "NodePool", "metadata": {"name": "default"}, "spec": {"template": {"spec": spec}}}

    assert not found(outside, karpenter, check="D3")
    assert len(found(GPUSCALER, karpenter, unread=("NodePool",), check="D3")) == 1
    assert not found(outside, karpenter, node_pool(taints=[{"key": "karpenter", "effect": "NoSchedule"}]), check="D3")
    assert [finding.object for finding in found(outside, karpenter, node_pool(), check="D3")] == [
        "Lease kube-system/karpenter-leader-election"
    ]
    (shown,) = found(GPUSCALER, karpenter, node_pool(), check="D3")
    assert shown.object == "Deployment a/gpuscaler"


def test_one_spot_group_or_fast_failures_need_no_explanation() -> None:
    file, expander = priorities("{50: [spot], 10: ['.*']}"), ("--expander=priority", "--namespace=kube-system")
    two = ("--nodes=0:3:spot-a", "--nodes=0:3:spot-b")

    assert not found(file, cluster_autoscaler(*expander, two[0]), check="D38")
    assert not found(file, cluster_autoscaler(*expander, *two, "--max-node-provision-time=2m"), check="D38")
    assert found(file, cluster_autoscaler(*expander, *two), check="D38")
    assert not found(priorities("{50: [spot-a], 40: [spot-b]}"), cluster_autoscaler(*expander, *two), check="D38")
