"""Controllers, budgets, classes, gangs and devices from Kubernetes JSON."""

from typing import Any

import pytest

from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster, Delta
from gpuscaler.model.decoding import Interner, decode_object
from gpuscaler.model.pods import Owner, Pod
from gpuscaler.model.selectors import LabelSelector, Requirement
from gpuscaler.model.workloads import (
    DeviceObject,
    Namespace,
    PodDisruptionBudget,
    PodGroup,
    PriorityClass,
    RuntimeClass,
    Workload,
)

Json = dict[str, Any]
TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}
APP = LabelSelector((Requirement("app", "In", ("a",)),))


def decode(kind: str, api_version: str, interner: Interner | None = None, **raw: Any) -> object:
    metadata = {"name": "x", "namespace": "n", **raw.pop("metadata", {})}
    return decode_object({"apiVersion": api_version, "kind": kind, "metadata": metadata, **raw}, interner or Interner())


def workload(kind: str, api_version: str, **raw: Any) -> Workload:
    decoded = decode(kind, api_version, **raw)
    assert isinstance(decoded, Workload), decoded
    return decoded


@pytest.mark.parametrize(
    ("kind", "api_version"),
    [
        ("Deployment", "apps/v1"),
        ("Deployment", "apps/v1beta2"),
        ("Deployment", "apps/v1beta1"),
        ("Deployment", "extensions/v1beta1"),
        ("ReplicaSet", "apps/v1"),
        ("ReplicaSet", "extensions/v1beta1"),
        ("StatefulSet", "apps/v1"),
        ("StatefulSet", "apps/v1beta1"),
    ],
)
def test_replicated_controllers_of_every_version_have_desired_and_observed_replicas(kind: str, api_version: str) -> None:
    owner = {"kind": "Deployment", "name": "d", "uid": "1", "controller": True}
    spec = {"replicas": 5, "selector": {"matchLabels": {"app": "a"}}, "template": TEMPLATE}
    decoded = workload(kind, api_version, metadata={"ownerReferences": [owner], "uid": "u"}, spec=spec, status={"replicas": 3})
    assert (decoded.key, decoded.uid, decoded.owner) == (f"{kind}/n/x", "u", Owner("Deployment", "d", "1"))
    assert (decoded.replicas, decoded.observed, decoded.selector, decoded.template_labels) == (5, 3, APP, {"app": "a"})
    assert decoded.template is not None
    assert decoded.template.requests == {"nvidia.com/gpu": 1}


def test_a_pod_template_and_its_pods_share_one_specification() -> None:
    interner = Interner()
    decoded = decode("ReplicaSet", "apps/v1", interner, spec={"template": TEMPLATE})
    pod = decode_object({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": TEMPLATE["spec"]}, interner)
    assert isinstance(decoded, Workload)
    assert isinstance(pod, Pod)
    assert decoded.template is pod.spec


def test_missing_replicas_are_one_and_a_missing_selector_is_the_templates_labels() -> None:
    decoded = workload("Deployment", "extensions/v1beta1", spec={"template": TEMPLATE})
    assert (decoded.replicas, decoded.selector) == (1, APP)
    assert workload("Deployment", "apps/v1", spec={"replicas": 0, "template": TEMPLATE}).replicas == 0


def test_pods_of_a_daemonset_have_the_tolerations_that_its_controller_adds() -> None:
    status = {"desiredNumberScheduled": 4, "currentNumberScheduled": 3}
    decoded = workload("DaemonSet", "apps/v1", spec={"template": TEMPLATE}, status=status)
    assert (decoded.replicas, decoded.observed) == (4, 3)
    assert decoded.template is not None
    tolerated = {(toleration.key, toleration.effect) for toleration in decoded.template.tolerations}
    assert ("node.kubernetes.io/unschedulable", "NoSchedule") in tolerated
    assert ("node.kubernetes.io/not-ready", "NoExecute") in tolerated
    assert ("node.kubernetes.io/network-unavailable", "NoSchedule") not in tolerated
    host = {"metadata": {}, "spec": {"hostNetwork": True, "tolerations": [{"operator": "Exists"}]}}
    on_host = workload("DaemonSet", "extensions/v1beta1", spec={"template": host}).template
    assert on_host is not None
    assert [toleration.key for toleration in on_host.tolerations][::7] == ["", "node.kubernetes.io/network-unavailable"]


@pytest.mark.parametrize(
    ("spec", "status", "replicas"),
    [
        ({}, {}, 1),
        ({"parallelism": 4}, {}, 4),
        ({"parallelism": 4, "completions": 10}, {"succeeded": 3}, 4),
        ({"parallelism": 4, "completions": 10}, {"succeeded": 9}, 1),
        ({"parallelism": 4, "completions": 10}, {"conditions": [{"type": "Failed", "status": "True"}]}, 0),
        ({"parallelism": 4}, {"conditions": [{"type": "Suspended", "status": "True"}]}, 4),
        ({"parallelism": -4}, {}, 0),
    ],
)
def test_a_job_needs_as_many_pods_as_its_parallelism_until_few_completions_are_left(spec: Json, status: Json, replicas: int) -> None:
    assert workload("Job", "batch/v1", spec=spec, status=status | {"active": 2}).replicas == replicas


def test_a_suspended_job_is_marked() -> None:
    decoded = workload("Job", "batch/v1", spec={"suspend": True, "completions": 3, "template": TEMPLATE}, status={"active": None})
    assert (decoded.suspended, decoded.completions, decoded.observed) == (True, 3, 0)


def test_jobs_of_other_groups_are_not_batch_jobs() -> None:
    assert decode("Job", "batch.volcano.sh/v1alpha1", spec={"tasks": "anything"}) is None


def test_a_controller_with_a_broken_pod_template_is_skipped_with_the_field() -> None:
    template = {"spec": {"containers": [{"resources": {"requests": {"cpu": "much"}}}]}}
    decoded = decode("Deployment", "apps/v1", spec={"template": template})
    assert isinstance(decoded, Skipped)
    assert decoded.reason.startswith("spec.template.spec.containers[0].resources.requests.cpu: saw 'much'")


def test_built_in_priority_classes_give_pod_templates_their_priority() -> None:
    template = {"spec": {"priorityClassName": "system-node-critical"}}
    pod_spec = workload("DaemonSet", "apps/v1", spec={"template": template}).template
    assert pod_spec is not None
    assert pod_spec.priority == 2_000_001_000


@pytest.mark.parametrize(
    ("api_version", "selector", "expected"),
    [
        ("policy/v1", {"matchLabels": {"app": "a"}}, APP),
        ("policy/v1", {}, LabelSelector()),
        ("policy/v1beta1", {}, None),
        ("policy/v1beta1", {"matchLabels": {"app": "a"}}, APP),
        ("policy/v1", None, None),
    ],
)
def test_an_empty_budget_selector_matches_all_pods_in_v1_and_none_in_v1beta1(
    api_version: str, selector: Json | None, expected: LabelSelector | None
) -> None:
    spec = {"selector": selector, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    decoded = decode("PodDisruptionBudget", api_version, spec=spec, status={"disruptionsAllowed": 2})
    assert decoded == PodDisruptionBudget("n", "x", expected, 2, always_evict_unhealthy=True)


@pytest.mark.parametrize(
    ("least", "most", "expected"), [(1, None, (1, None)), ("50%", "100%", ("50%", "100%")), (None, 0, (None, 0)), ([1], True, (None, None))]
)
def test_the_rule_and_the_counts_of_a_budget_are_read_and_an_odd_rule_does_not_hide_it(
    least: object, most: object, expected: object
) -> None:
    spec = {"selector": {}, "minAvailable": least, "maxUnavailable": most}
    decoded = decode("PodDisruptionBudget", "policy/v1", spec=spec, status={"expectedPods": 3, "currentHealthy": 2, "desiredHealthy": 1})

    assert isinstance(decoded, PodDisruptionBudget)
    assert (decoded.min_available, decoded.max_unavailable) == expected
    assert (decoded.expected, decoded.healthy, decoded.desired) == (3, 2, 1)


def test_priority_classes_and_namespaces_are_read() -> None:
    assert decode("PriorityClass", "scheduling.k8s.io/v1", value=-5, globalDefault=True) == PriorityClass("x", -5, default=True)
    labels = {"team": "a", "kubernetes.io/metadata.name": "x"}
    assert decode("Namespace", "v1", metadata={"labels": {"team": "a"}}) == Namespace("x", labels)
    shape: Json = {"overhead": {"podFixed": {"cpu": "250m"}}, "scheduling": {"nodeSelector": {"kata": "true"}}}
    expected = RuntimeClass("x", "kata", {"cpu": 250}, (("kata", "true"),))
    assert decode("RuntimeClass", "node.k8s.io/v1", handler="kata", **shape) == expected
    assert decode("RuntimeClass", "node.k8s.io/v1alpha1", spec={"runtimeHandler": "kata", **shape}) == expected


@pytest.mark.parametrize(
    ("api_version", "source"),
    [
        ("scheduling.x-k8s.io/v1alpha1", "coscheduling"),
        ("scheduling.sigs.k8s.io/v1alpha1", "coscheduling"),
        ("scheduling.volcano.sh/v1beta1", "volcano"),
    ],
)
def test_pod_groups_of_other_schedulers_have_a_minimum_of_members(api_version: str, source: str) -> None:
    assert decode("PodGroup", api_version, spec={"minMember": 4}) == PodGroup(source, "n", "x", 4)
    assert decode("PodGroup", api_version, spec=None) == PodGroup(source, "n", "x", 0)


def test_the_size_of_a_jobset_gang_is_the_number_of_pods_that_its_jobs_run_at_once() -> None:
    jobs = [{"replicas": 2, "template": {"spec": {"parallelism": 4}}}, {"template": {"spec": {}}}, {"replicas": 0}]
    assert decode("JobSet", "jobset.x-k8s.io/v1alpha2", spec={"replicatedJobs": jobs}) == PodGroup("jobset", "n", "x", 9)


def test_a_native_workload_declares_each_of_its_pod_groups() -> None:
    groups = [{"name": "workers", "policy": {"gang": {"minCount": 8}}}, {"name": "driver", "policy": {"basic": {}}}]
    decoded = decode("Workload", "scheduling.k8s.io/v1alpha1", spec={"podGroups": groups})
    assert decoded == [PodGroup("workload", "n", "x/workers", 8), PodGroup("workload", "n", "x/driver", 0)]


def test_a_native_pod_group_object_is_read_too() -> None:
    spec = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    assert decode("PodGroup", "scheduling.k8s.io/v1alpha2", spec=spec) == PodGroup("workload", "n", "x", 3)


@pytest.mark.parametrize("version", ["v1alpha3", "v1beta1", "v1beta2", "v1"])
def test_device_objects_are_read_with_name_node_and_driver(version: str) -> None:
    group = f"resource.k8s.io/{version}"
    allocation = {"allocation": {"devices": {"results": [{"driver": "gpu.nvidia.com"}]}}}
    assert decode("ResourceClaim", group, status=allocation) == DeviceObject("ResourceClaim", "n", "x", driver="gpu.nvidia.com")
    assert decode("ResourceClaim", group, status=None) == DeviceObject("ResourceClaim", "n", "x")
    spec = {"nodeName": "node-1", "driver": "gpu.nvidia.com"}
    assert decode("ResourceSlice", group, spec=spec) == DeviceObject("ResourceSlice", "", "x", "node-1", "gpu.nvidia.com")
    assert decode("DeviceClass", group) == DeviceObject("DeviceClass", "", "x")


def test_device_objects_of_the_first_api_version_are_read_from_top_level_fields() -> None:
    group = "resource.k8s.io/v1alpha2"
    named = DeviceObject("ResourceClaim", "n", "x", driver="gpu.nvidia.com")
    assert decode("ResourceClaim", group, status={"driverName": "gpu.nvidia.com", "allocation": {}}) == named
    decoded = decode("ResourceSlice", group, nodeName="node-1", driverName="gpu.nvidia.com")
    assert decoded == DeviceObject("ResourceSlice", "", "x", "node-1", "gpu.nvidia.com")


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "Namespace"])
@pytest.mark.parametrize(("value", "disruption"), [("allow", "allow"), ("never", "never"), (None, "")])
def test_owners_and_namespaces_decide_whether_their_pods_may_be_moved(kind: str, value: str | None, disruption: str) -> None:
    version = "batch/v1" if kind == "Job" else "v1" if kind == "Namespace" else "apps/v1"

    decoded = decode(kind, version, metadata={"annotations": {"gpuscaler.io/disruption": value, "example.com/other": "x" * 1000}})

    assert isinstance(decoded, Workload | Namespace)
    assert (decoded.disruption, decoded.warnings) == (disruption, ())


def test_an_owner_with_an_unreadable_annotation_is_reported_until_it_is_readable() -> None:
    owner = workload("StatefulSet", "apps/v1", metadata={"annotations": {"gpuscaler.io/disruption": "maybe"}})
    cluster = Cluster.of([owner])

    assert owner.disruption == ""
    assert cluster.warnings == ("StatefulSet n/x: gpuscaler.io/disruption: saw a value of 5 characters, expected allow or never; ignored",)
    assert cluster.apply(Delta(upserts=(workload("StatefulSet", "apps/v1"),))).warnings == ()
    assert cluster.apply(Delta(deletes=((Workload, owner.key),))).warnings == ()
