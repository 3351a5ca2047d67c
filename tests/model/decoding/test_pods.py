"""Pods from Kubernetes JSON."""

from typing import Any

import pytest
from tests.model import realistic

from gpuscaler.model.aside import Skipped
from gpuscaler.model.decoding import Interner, decode_object
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.pods import HostPort, Owner, Pod, PodAffinityTerm, SpreadConstraint, VolumeUse
from gpuscaler.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from gpuscaler.model.taints import Toleration

Json = dict[str, Any]
CREATED = 1772352000.0


def pod(
    spec: Json | None = None, *, status: Json | None = None, labels: Json | None = None, interner: Interner | None = None, **metadata: Any
) -> Pod:
    raw = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "labels": labels, **metadata},
        "spec": spec or {},
        "status": status,
    }
    decoded = decode_object(raw, interner or Interner())
    assert isinstance(decoded, Pod), decoded
    return decoded


def requirement(key: str, operator: str, *values: str) -> Requirement:
    return Requirement(key, operator, values)


def test_a_decoded_pod_keeps_all_fields_that_plans_need() -> None:
    decoded = decode_object(realistic.pod(3, node="node-1"), Interner())
    assert isinstance(decoded, Pod)
    assert decoded.key == "team-0/model-server-0-000000000-00003"
    assert (decoded.node_name, decoded.phase, decoded.created, decoded.started, decoded.deleted) == (
        "node-1",
        "Running",
        CREATED,
        CREATED,
        0.0,
    )
    assert decoded.labels == {"app": "model-server-0", "pod-template-hash": "000000000", "team": "team-0", "tier": "serving"}
    assert decoded.owner == Owner("ReplicaSet", "model-server-0-000000000", "00000000-aaaa-4bbb-8ccc-000000000000")
    assert decoded.unschedulable is False
    spec = decoded.spec
    assert spec.requests == {"cpu": 1100, "memory": 2 * 2**30 + 2**27, "nvidia.com/gpu": 1}
    assert spec.node_selector == (("gpuscaler.io/pool", "pool-0"),)
    assert spec.local_storage == ("cache",)
    assert spec.volumes == ()
    assert spec.grace_seconds == 60
    assert spec.tolerations[0] == Toleration("nvidia.com/gpu", "Exists", "", "NoSchedule")


def test_a_pending_pod_has_the_time_when_it_became_unschedulable() -> None:
    decoded = decode_object(realistic.pod(1), Interner())
    assert isinstance(decoded, Pod)
    assert (decoded.node_name, decoded.unschedulable, decoded.unschedulable_since) == ("", True, CREATED)


@pytest.mark.parametrize(
    ("condition", "unschedulable"),
    [
        (None, None),
        ({"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}, False),
        ({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}, True),
        ({"type": "PodScheduled", "status": "True", "reason": "Unschedulable"}, False),
        ({"type": "Ready", "status": "False", "reason": "Unschedulable"}, None),
    ],
)
def test_only_the_reason_unschedulable_makes_a_pod_unschedulable(condition: Json | None, unschedulable: bool | None) -> None:
    decoded = pod(status={"conditions": condition and [condition]})
    assert decoded.unschedulable is unschedulable


def test_a_pod_with_only_null_fields_has_kubernetes_defaults() -> None:
    nulls = dict.fromkeys(("containers", "initContainers", "volumes", "tolerations", "affinity", "nodeSelector", "priority", "nodeName"))
    decoded = decode_object({"kind": "Pod", "metadata": {"name": "p", "labels": None}, "spec": nulls, "status": None}, Interner())
    assert isinstance(decoded, Pod)
    assert (decoded.namespace, decoded.phase, decoded.spec.requests) == ("default", "Pending", {})
    assert (decoded.spec.scheduler_name, decoded.spec.priority, decoded.spec.grace_seconds) == ("default-scheduler", 0, 30)
    assert (decoded.spec.node_affinity, decoded.unschedulable, decoded.finished) == (None, None, False)


def test_pods_of_one_controller_share_their_specification_labels_and_owner() -> None:
    interner = Interner()
    first, second, other = (decode_object(realistic.pod(number, node=f"node-{number}"), interner) for number in (0, 1, 50))
    assert isinstance(first, Pod)
    assert isinstance(second, Pod)
    assert isinstance(other, Pod)
    assert first.spec is second.spec
    assert first.labels is second.labels
    assert first.owner is second.owner
    assert other.spec is not first.spec
    assert other.spec.digest != first.spec.digest


def test_the_digest_of_a_spec_depends_on_its_meaning_and_not_on_its_spelling() -> None:
    spelled = {"containers": [{"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}, "image": "x"}]}
    implied = {"containers": [{"name": "b", "resources": {"limits": {"memory": "1024Mi", "cpu": 1}}}], "schedulerName": "default-scheduler"}
    interner = Interner()
    assert pod(spelled, interner=interner).spec is pod(implied, interner=interner).spec
    assert pod(spelled).spec.digest == pod(implied).spec.digest
    assert pod(spelled).spec.digest != pod(spelled, namespace="other").spec.digest
    assert len(pod(spelled).spec.digest) == 32


def test_node_affinity_keeps_every_term_including_unknown_operators() -> None:
    terms = [
        {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a", "b"]}, {"key": "n", "operator": "Gt", "values": ["3"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]},
        {"matchExpressions": [{"key": "x", "operator": "Resembles", "values": ["y"]}]},
        {},
    ]
    preferred = [{"weight": 7, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}]
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
    spec = pod({"affinity": {"nodeAffinity": affinity}}).spec
    assert spec.node_affinity == NodeSelector(
        (
            NodeSelectorTerm((requirement("gpu", "In", "a", "b"), requirement("n", "Gt", "3"))),
            NodeSelectorTerm((), (requirement("metadata.name", "In", "node-1"),)),
            NodeSelectorTerm((requirement("x", "Resembles", "y"),)),
            NodeSelectorTerm(),
        )
    )
    assert not spec.node_affinity.terms[2].matches({"x": "y"}, "node-1")
    assert spec.preferred_nodes == ((7, NodeSelectorTerm((requirement("zone", "Exists"),))),)


def affinity_term(**term: Any) -> PodAffinityTerm:
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", **term}]}}
    (pod_affinity_term,) = pod({"affinity": affinity}, labels={"app": "web", "hash": "1"}).spec.affinity
    return pod_affinity_term


def test_pod_affinity_terms_apply_to_the_pods_namespace_by_default() -> None:
    app = LabelSelector((requirement("app", "In", "web"),))
    selector = {"labelSelector": {"matchLabels": {"app": "web"}}}
    assert affinity_term(**selector) == PodAffinityTerm("zone", app, ("n",))
    assert affinity_term(**selector, namespaces=["b", "a"]) == PodAffinityTerm("zone", app, ("a", "b"))
    assert affinity_term(**selector, namespaceSelector={}) == PodAffinityTerm("zone", app, (), LabelSelector())
    assert affinity_term(labelSelector={}).selector == LabelSelector()
    assert affinity_term().selector is None


def test_match_and_mismatch_label_keys_are_merged_as_the_api_server_merges_them() -> None:
    merged = affinity_term(labelSelector={"matchLabels": {"a": "b"}}, matchLabelKeys=["hash", "absent"], mismatchLabelKeys=["app"])
    expected = (requirement("a", "In", "b"), requirement("app", "NotIn", "web"), requirement("hash", "In", "1"))
    assert merged.selector == LabelSelector(expected)


def test_match_label_keys_that_are_already_merged_stay_as_stored() -> None:
    expression = {"key": "hash", "operator": "In", "values": ["1"]}
    again = affinity_term(labelSelector={"matchExpressions": [expression]}, matchLabelKeys=["hash"])
    assert again.selector == LabelSelector((requirement("hash", "In", "1"),))
    # The label had another value when the pod was stored.
    before = affinity_term(labelSelector={"matchExpressions": [expression | {"values": ["0"]}]}, matchLabelKeys=["hash"])
    assert before.selector == LabelSelector((requirement("hash", "In", "0"),))


def test_match_label_keys_are_not_merged_into_a_selector_that_matches_nothing() -> None:
    assert affinity_term(matchLabelKeys=["hash"]).selector is None


@pytest.mark.parametrize("operator", ["Gt", "Lt", "Like", None])
def test_unknown_operators_of_label_selectors_match_nothing(operator: str | None) -> None:
    pod_affinity_term = affinity_term(labelSelector={"matchExpressions": [{"key": "size", "operator": operator, "values": ["1"]}]})
    assert pod_affinity_term.selector is not None
    assert not any(pod_affinity_term.selector.matches({"size": size}) for size in ("0", "1", "2"))


def test_anti_affinity_and_preferences_keep_their_weights() -> None:
    term = {"topologyKey": "host", "labelSelector": {}}
    affinity = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [term],
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": term}, {"weight": 1}],
        },
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 9, "podAffinityTerm": term}]},
    }
    spec = pod({"affinity": affinity}).spec
    plain = PodAffinityTerm("host", LabelSelector(), ("n",))
    assert spec.anti_affinity == (plain,)
    assert [term.weight for term in spec.preferred_anti_affinity] == [5]
    assert [term.weight for term in spec.preferred_affinity] == [9]


def test_spread_constraints_get_scheduler_defaults_and_merged_match_label_keys() -> None:
    constraints = [
        {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}, "matchLabelKeys": ["hash"]},
        {
            "topologyKey": "host",
            "whenUnsatisfiable": "ScheduleAnyway",
            "minDomains": 3,
            "nodeAffinityPolicy": "Ignore",
            "nodeTaintsPolicy": "Honor",
        },
        {"topologyKey": "rack", "whenUnsatisfiable": "Sometimes"},
    ]
    spec = pod({"topologySpreadConstraints": constraints}, labels={"hash": "1"}).spec
    assert spec.spread == (
        SpreadConstraint("zone", 2, True, LabelSelector((requirement("hash", "In", "1"),))),
        SpreadConstraint("host", 1, False, None, 3, honor_affinity=False, honor_taints=True),
    )


def test_pods_that_differ_in_a_match_label_keys_label_have_different_specs() -> None:
    spread = [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}, "matchLabelKeys": ["hash"]}]
    first, second = (pod({"topologySpreadConstraints": spread}, labels={"hash": value, "other": "x"}) for value in ("1", "2"))
    three = pod({"topologySpreadConstraints": spread}, labels={"hash": "1", "other": "y"})
    assert first.spec.digest != second.spec.digest
    assert first.spec.digest == three.spec.digest


def test_tolerations_with_unknown_operators_or_effects_are_kept() -> None:
    wire = [
        {"operator": "Exists"},
        {"key": "a", "value": "b", "effect": "NoSchedule", "tolerationSeconds": 5},
        {"key": "c", "operator": "Lt"},
    ]
    expected = (Toleration("", "Exists"), Toleration("a", "Equal", "b", "NoSchedule"), Toleration("c", "Lt"))
    assert pod({"tolerations": wire}).spec.tolerations == expected


def test_host_ports_of_containers_and_sidecars_are_read() -> None:
    ports = {"ports": [{"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1", "protocol": "UDP"}, {"containerPort": 81}]}
    init = [{"name": "i", "ports": [{"containerPort": 1, "hostPort": 1}]}]
    sidecar = [{"name": "s", "restartPolicy": "Always", "ports": [{"containerPort": 2, "hostPort": 2}]}]
    host_ports = pod({"containers": [ports], "initContainers": init + sidecar}).spec.host_ports
    assert host_ports == (HostPort(2), HostPort(8080, "UDP", "10.0.0.1"))


def test_every_container_port_is_a_host_port_on_the_hosts_network() -> None:
    host_ports = pod({"hostNetwork": True, "containers": [{"ports": [{"containerPort": 80}, {"containerPort": 80}]}]}).spec.host_ports
    assert host_ports == (HostPort(80),)


def test_claims_local_storage_and_in_tree_disks_of_a_pod_are_read() -> None:
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "claim-1"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "logs", "hostPath": {"path": "/var/log"}},
        {"name": "kube-api-access-x7k2p", "projected": {}},
        {"name": "ebs", "awsElasticBlockStore": {"volumeID": "vol-1"}},
        {"name": "pd", "gcePersistentDisk": {"pdName": "disk", "readOnly": True}},
        {"name": "azure", "azureDisk": {"diskName": "d", "diskURI": "/subscriptions/d"}},
        {"name": "lun", "iscsi": {"iqn": "iqn.2001-04.com.example:x"}},
        {"name": "image", "rbd": {"monitors": ["m2", "m1"], "image": "i"}},
    ]
    spec = pod({"volumes": volumes}).spec
    assert spec.local_storage == ("tmp", "logs")
    assert spec.volumes == (
        VolumeUse(claim="claim-1"),
        VolumeUse(claim="p-scratch", ephemeral=True),
        VolumeUse(driver="awsElasticBlockStore", handle="vol-1"),
        VolumeUse(driver="gcePersistentDisk", handle="disk", read_only=True),
        VolumeUse(driver="azureDisk", handle="/subscriptions/d"),
        VolumeUse(driver="iscsi", handle="iqn.2001-04.com.example:x"),
        VolumeUse(driver="rbd", handle="rbd/i@m1,m2"),
    )


def test_scheduling_gates_resource_claims_priority_and_scheduler_name_are_read() -> None:
    spec = pod(
        {
            "schedulingGates": [{"name": "example.com/quota"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
            "schedulerName": "volcano",
            "priority": -20,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
        }
    ).spec
    assert (spec.gates, spec.resource_claims, spec.scheduler_name) == (("example.com/quota",), ("gpu",), "volcano")
    assert (spec.priority, spec.restart_policy, spec.grace_seconds) == (-20, "Never", 0)


def test_a_resize_in_progress_changes_the_requests_and_a_finished_one_does_not_split_the_class() -> None:
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}

    def status(cpu: str) -> Json:
        return {"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": cpu}}, "allocatedResources": {"cpu": cpu}}]}

    assert pod(spec, status=status("2")).spec.digest == pod(spec).spec.digest
    assert pod(spec, status=status("5")).spec.requests == {"cpu": 5000}
    infeasible = status("1") | {"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]}
    assert pod(spec, status=infeasible).spec.requests == {"cpu": 1000}
    before_1_33 = status("1") | {"resize": "Infeasible"}
    assert pod(spec, status=before_1_33).spec.requests == {"cpu": 1000}


def test_a_pod_level_resize_counts_if_the_pod_has_pod_level_resources() -> None:
    gpu = {"name": "c", "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "2"}}}
    spec = {"containers": [gpu], "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}

    def status(cpu: str, allocated: str) -> Json:
        return {"resources": {"requests": {"cpu": cpu}}, "allocatedResources": {"cpu": allocated, "nvidia.com/gpu": "2"}}

    assert pod(spec, status=status("2", "2")).spec.digest == pod(spec).spec.digest
    assert pod(spec, status=status("3", "5")).spec.requests == {"cpu": 5000, "memory": 2**30, "nvidia.com/gpu": 2}
    infeasible = status("1", "1500m") | {"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]}
    assert pod(spec, status=infeasible).spec.requests["cpu"] == 1500
    assert pod({"containers": [gpu]}, status=status("3", "5")).spec.requests == {"cpu": 1000, "nvidia.com/gpu": 2}


@pytest.mark.parametrize(
    ("references", "kind"),
    [
        (None, ""),
        ([{"kind": "ReplicaSet", "name": "a", "uid": "1"}], ""),
        ([{"kind": "A", "uid": "1"}, {"kind": "B", "uid": "2", "controller": True}], "B"),
        ([{"kind": "A", "uid": "1", "controller": True}, {"kind": "B", "uid": "2", "controller": True}], "A"),
        ([{"kind": "A", "uid": "1", "controller": True}] * 2, "A"),
        ([{"kind": "Pod", "uid": "own", "controller": True}], ""),
    ],
)
def test_the_first_controlling_owner_is_the_owner_and_no_object_owns_itself(references: list[Json] | None, kind: str) -> None:
    assert pod(ownerReferences=references, uid="own").owner.kind == kind


@pytest.mark.parametrize(
    ("reference", "gang"),
    [
        ({"workloadRef": {"name": "train", "podGroup": "workers", "podGroupReplicaKey": "0"}}, "train/workers/0"),
        ({"workloadRef": {"name": "train", "podGroup": "workers"}}, "train/workers"),
        ({"schedulingGroup": {"podGroupName": "train-workers-0"}}, "train-workers-0"),
    ],
)
def test_the_native_workload_reference_names_the_gang_in_every_version(reference: Json, gang: str) -> None:
    decoded = pod(reference)
    assert (decoded.options.gang, decoded.options.gang_source) == (gang, "workload")
    assert decoded.spec.digest == pod().spec.digest


def test_unreadable_options_become_warnings_of_each_pod() -> None:
    interner = Interner()
    annotations = {"gpuscaler.io/spot-wait": "soon", "gpuscaler.io/market": "spot"}
    first, second = pod(annotations=annotations, interner=interner), pod(annotations=annotations, interner=interner, labels={"a": "b"})
    assert first.options is second.options
    assert first.options.market == ("spot",)
    assert (
        first.warnings
        == second.warnings
        == ("gpuscaler.io/spot-wait: saw a value of 4 characters, expected a duration such as 90s, 10m or 1h30m; ignored",)
    )


def test_null_label_values_are_empty_as_go_reads_them() -> None:
    assert pod(labels={"a": None, "b": "c"}).labels == LabelSet({"a": "", "b": "c"})


def test_a_huge_annotation_is_skipped() -> None:
    decoded = pod(annotations={"example.com/blob": "x" * 5_000_000, "gpuscaler.io/grace": "5s"})
    assert decoded.options.grace == 5.0


@pytest.mark.parametrize(
    ("metadata", "spec", "status", "reason"),
    [
        ({}, {"containers": [{"resources": {"requests": {"cpu": "1xyz"}}}]}, {}, "spec.containers[0].resources.requests.cpu: saw '1xyz'"),
        ({}, {"initContainers": [{"resources": {"limits": {"a/b": -1}}}]}, {}, "spec.initContainers[0].resources.limits.a/b: saw -1"),
        ({}, {"overhead": {"memory": "9Ei"}}, {}, "spec.overhead.memory: saw '9Ei', expected at most 9223372036854775807"),
        ({}, {"containers": {}}, {}, "spec.containers: saw {}, expected array"),
        ({}, {"containers": [5]}, {}, "spec.containers[0]: saw 5, expected object"),
        ({}, {"priority": "high"}, {}, "spec.priority: saw 'high', expected a whole number"),
        ({}, {"priority": 2**40}, {}, "spec.priority: saw 1099511627776, expected a whole number <= 2147483647"),
        ({}, {"hostNetwork": "yes"}, {}, "spec.hostNetwork: saw 'yes', expected true or false"),
        ({}, {}, {"phase": 5}, "status.phase: saw 5, expected text"),
        ({"labels": {"good": "x", "bad": True}}, {}, {}, "metadata.labels.bad: saw true, expected text"),
        ({"labels": ["a"]}, {}, {}, 'metadata.labels: saw ["a"], expected object'),
        ({"creationTimestamp": "yesterday"}, {}, {}, "metadata.creationTimestamp: saw 'yesterday', expected a time such as"),
        ({"annotations": {"gpuscaler.io/gang": 5}}, {}, {}, "metadata.annotations.gpuscaler.io/gang: saw 5, expected text"),
    ],
)
def test_an_unparsable_pod_is_skipped_and_the_reason_names_the_field(metadata: Json, spec: Json, status: Json, reason: str) -> None:
    raw = {"kind": "Pod", "metadata": {"name": "p", "namespace": "n"} | metadata, "spec": spec, "status": status}
    decoded = decode_object(raw, Interner())
    assert isinstance(decoded, Skipped)
    assert decoded.object == "Pod n/p"
    assert reason in decoded.reason
