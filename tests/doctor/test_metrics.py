"""Edge cases of the checks of metrics APIs and autoscalers; the rest is in the corpus."""

from base64 import b64encode
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from tests.doctor.corpus import FOLDER, NOW, CorpusFile, broken_files, look_at, objects_of

from gpuscaler.cli.doctor.reading import evidence_of_files, evidence_of_objects
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.checks.metrics.addresses import parse_address
from gpuscaler.doctor.findings import Finding
from gpuscaler.doctor.running import run_checks
from gpuscaler.serving.certificates import CertificateAuthority

Json = dict[str, Any]
HOST = "custom-metrics-apiserver.kube-system.svc"


FILES = [file for file in broken_files() if file.path.stem.startswith(("d31-rights", "d42", "d43", "d44", "d45", "d46"))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path.stem)
def test_a_broken_file_is_found_out_without_the_rest_of_its_cluster(file: CorpusFile) -> None:
    report = run_checks(evidence_of_files([str(file.path)], now=NOW), CHECKS)

    assert {(finding.check, finding.object) for finding in report.findings} == file.expected


def broken(name: str) -> list[Json]:
    return objects_of(FOLDER / "broken" / f"{name}.yaml")


def found(objects: list[Json], check: str) -> list[Finding]:
    return [finding for finding in look_at(objects).findings if finding.check == check]


def node(version: str) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}, "status": {"nodeInfo": {"kubeletVersion": version}}}


def api_server(*flags: str) -> Json:
    container = {"name": "kube-apiserver", "image": "kube-apiserver", "command": ["kube-apiserver", *flags]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "kube-apiserver-a", "namespace": "kube-system"},
        "spec": {"containers": [container]},
    }


@pytest.mark.parametrize(
    ("evidence", "refused"),
    [
        ([], ["by-pods", "by-queue"]),
        ([node("v1.36.2-eks-1")], ["by-pods", "by-queue"]),
        ([node("v1.37.0")], ["by-pods"]),
        ([api_server("--feature-gates=A=true,HPAScaleToZero=true")], ["by-pods"]),
        ([api_server("--feature-gates=HPAScaleToZero=false")], ["by-pods", "by-queue"]),
    ],
)
def test_a_minimum_of_zero_needs_the_gate_and_a_metric_that_exists_without_pods(evidence: list[Json], refused: list[str]) -> None:
    objects = [*broken("d46-minimum-of-zero"), *evidence]

    assert [finding.object.rpartition("/")[2] for finding in found(objects, "D46")] == refused


def test_a_minimum_of_zero_that_a_server_accepted_is_no_mistake() -> None:
    objects = broken("d46-minimum-of-zero")
    objects[0]["metadata"]["uid"] = "1"

    assert [finding.object for finding in found(objects, "D46")] == ["HorizontalPodAutoscaler default/by-pods"]


def test_a_certificate_is_reported_once_for_a_workload_and_its_pods() -> None:
    objects = broken("d44-expired")
    template = next(item for item in objects if item["kind"] == "Deployment")["spec"]["template"]
    metadata = {"name": "custom-metrics-apiserver-1", "namespace": "kube-system", "labels": template["metadata"]["labels"]}

    findings = found([*objects, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}], "D44")

    assert findings == found(objects, "D44")


def test_requests_may_come_from_a_limit_range_from_admission_or_from_the_whole_pod() -> None:
    objects = broken("d46-no-requests")
    defaults = [
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "all", "namespace": "default"}, "spec": {"limits": [limit]}}
        for limit in ({"type": "Container", "defaultRequest": {"cpu": "1", "memory": "1Gi"}},)
    ]
    pod_of_web = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"app": "web"}},
        "spec": {"resources": {"requests": {"cpu": "2"}}, "containers": [{"name": "web", "image": "a"}, {"name": "proxy", "image": "b"}]},
    }

    assert [finding.object for finding in found(objects, "D46")] == ["HorizontalPodAutoscaler default/web", "ScaledObject default/worker"]
    assert found([*objects, *defaults], "D46") == []
    assert [finding.object for finding in found([*objects, pod_of_web], "D46")] == ["ScaledObject default/worker"]


def test_an_autoscaler_that_keda_took_over_shares_its_target_rightly() -> None:
    objects = broken("d46-targets")
    scaled = next(item for item in objects if item["kind"] == "ScaledObject")
    scaled["metadata"]["annotations"] = {"scaledobject.keda.sh/transfer-hpa-ownership": "true"}
    scaled["spec"]["advanced"] = {"horizontalPodAutoscalerConfig": {"name": "three"}}

    assert "ScaledObject default/three" not in [finding.object for finding in found(objects, "D46")]


def test_a_target_that_may_not_be_read_is_unchecked_and_not_missing() -> None:
    evidence = evidence_of_objects([item for item in broken("d46-targets") if item["kind"] != "Deployment"], now=NOW)
    report = run_checks(replace(evidence, unread={"Deployment": "forbidden"}), CHECKS)

    assert not [finding for finding in report.findings if finding.object.endswith("/nothing")]
    assert "the target of HorizontalPodAutoscaler default/nothing" in [entry.subject for entry in report.unchecked]


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        ({"currentReplicas": 0}, False),
        ({"lastTransitionTime": "2026-11-30T23:58:00Z"}, False),
        ({"reason": "ScalingDisabled"}, False),
        ({"message": "failed to get cpu utilization: missing request for cpu in container a of Pod b"}, False),
        ({}, True),
    ],
)
def test_what_an_autoscaler_reports_counts_unless_it_is_new_idle_or_explained_elsewhere(change: Json, is_found: bool) -> None:
    objects = broken("d45-values")
    status = next(item for item in objects if item["metadata"]["name"] == "reported")["status"]
    status.update({key: value for key, value in change.items() if key in status})
    status["conditions"][0].update({key: value for key, value in change.items() if key not in status})

    assert ("HorizontalPodAutoscaler default/reported" in [finding.object for finding in found(objects, "D45")]) is is_found


def test_advice_names_the_series_and_labels_of_the_rule_that_makes_the_metric() -> None:
    advice = {finding.object: finding.fix.advice for finding in found(broken("d45-values"), "D45")}

    series = 'DCGM_FI_DEV_GPU_TEMP{exported_pod!=""}, with the labels exported_pod (pod), exported_namespace (namespace)'
    assert series in advice["HorizontalPodAutoscaler default/empty"]
    assert "add a rule that makes it to ConfigMap kube-system/adapter-config" in advice["HorizontalPodAutoscaler default/unknown"]


def test_an_api_that_is_not_available_is_reported_once_and_not_for_each_autoscaler() -> None:
    objects = broken("d45-values")
    objects[0]["status"]["conditions"][0] |= {"status": "False", "reason": "FailedDiscoveryCheck", "message": "404"}
    report = look_at(objects)

    assert [finding.object for finding in report.findings if finding.check == "D42"] == ["APIService v1beta1.custom.metrics.k8s.io"]
    assert [finding.object for finding in report.findings if finding.check == "D45"] == ["HorizontalPodAutoscaler default/unserved"]


def test_a_prometheus_that_is_in_no_file_may_still_exist() -> None:
    objects = [item for item in broken("d45-address-of-prometheus") if item["metadata"]["name"] != "prometheus-svc"]
    kubernetes = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes", "namespace": "default"}, "spec": {}}

    def addresses(objects: list[Json]) -> list[Finding]:
        return [finding for finding in found(objects, "D45") if "does not exist" in finding.seen]

    assert not addresses(objects)
    assert len(addresses([*objects, kubernetes])) == 2


def test_an_api_service_with_unread_services_is_unchecked_unless_its_condition_says_more() -> None:
    objects = broken("d42-namespace-moved")[:1]
    evidence = replace(evidence_of_objects(objects, now=NOW), unread={"Service": "forbidden"})
    report = run_checks(evidence, CHECKS)

    assert not report.findings
    assert "what APIService v1beta1.custom.metrics.k8s.io leads to" in [entry.subject for entry in report.unchecked]
    objects[0]["status"] = {"conditions": [{"type": "Available", "status": "False", "reason": "ServiceNotFound", "message": "not present"}]}
    evidence = replace(evidence_of_objects(objects, now=NOW), unread={"Service": "forbidden"})
    assert [finding.check for finding in run_checks(evidence, CHECKS).findings] == ["D42"]


def certified(**data: bytes) -> list[Json]:
    objects = deepcopy(objects_of(FOLDER / "clean" / "certificate-of-metrics.yaml"))
    secret = next(item for item in objects if item["kind"] == "Secret")
    secret["data"] = {key.replace("_", "."): b64encode(value).decode() for key, value in data.items()}
    return objects


def test_a_key_of_another_certificate_is_found_and_never_printed() -> None:
    authority = CertificateAuthority("authority", now=NOW)
    one, other = authority.issue(HOST, hosts=(HOST,)), authority.issue(HOST, hosts=(HOST,))
    objects = certified(tls_crt=one.certificate, tls_key=other.key, ca_crt=authority.certificate)
    objects[0]["spec"]["caBundle"] = b64encode(authority.certificate).decode()
    report = look_at(objects)

    assert [finding.seen for finding in report.findings] == ["a certificate of another key than the Secret has"]
    assert "PRIVATE" not in repr(report)
    assert b64encode(other.key).decode()[:40] not in repr(report)
    objects = certified(tls_crt=one.certificate, tls_key=one.key, ca_crt=authority.certificate)
    objects[0]["spec"]["caBundle"] = b64encode(authority.certificate).decode()
    assert not look_at(objects).findings


def test_a_certificate_that_cannot_be_read_is_found() -> None:
    (finding,) = look_at(certified(tls_crt=b"none")).findings

    assert (finding.check, finding.object, finding.seen) == (
        "D44",
        "Secret kube-system/cm-adapter-serving-certs",
        "no certificate that can be read",
    )


def test_secrets_that_may_not_be_read_leave_certificates_unchecked() -> None:
    objects = [item for item in objects_of(FOLDER / "clean" / "certificate-of-metrics.yaml") if item["kind"] != "Secret"]
    report = run_checks(replace(evidence_of_objects(objects, now=NOW), unread={"Secret": "forbidden"}), CHECKS)

    (entry,) = (entry for entry in report.unchecked if entry.check == "D44")
    assert entry.message == (
        "could not check the certificate behind APIService v1beta1.custom.metrics.k8s.io because Secret could not be read: forbidden"
    )


def test_a_thousand_autoscalers_with_one_mistake_have_equal_texts() -> None:
    pair = broken("d46-no-stabilization")[:2]
    objects = []
    for number in range(1000):
        autoscaler, workload = deepcopy(pair)
        autoscaler["metadata"]["name"] = workload["metadata"]["name"] = f"server-{number}"
        autoscaler["spec"]["scaleTargetRef"]["name"] = f"server-{number}"
        objects += [autoscaler, workload]
    findings = found(objects, "D46")

    assert len(findings) == 1000
    assert len({(finding.field, finding.seen, finding.expected, finding.effect) for finding in findings}) == 1


def test_metrics_of_the_first_version_are_read_from_its_annotation() -> None:
    autoscaler, workload = broken("d46-no-requests")[:2]
    autoscaler |= {"apiVersion": "autoscaling/v1", "spec": {"scaleTargetRef": autoscaler["spec"]["scaleTargetRef"], "maxReplicas": 4}}
    pods = '[{"type":"Pods","pods":{"metricName":"duty_cycle","targetAverageValue":"40"}}]'
    memory = '[{"type":"Resource","resource":{"name":"memory","targetAverageUtilization":50}}]'

    assert [finding.field for finding in found([autoscaler, workload], "D46")] == ["spec.metrics"]
    autoscaler["metadata"]["annotations"] = {"autoscaling.alpha.kubernetes.io/metrics": pods}
    assert found([autoscaler, workload], "D46") == []
    autoscaler["metadata"]["annotations"] = {"autoscaling.alpha.kubernetes.io/metrics": memory}
    assert [finding.seen for finding in found([autoscaler, workload], "D46")] == [
        "a percentage of requested memory, and no request in container web, proxy of the target"
    ]


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://prometheus.monitoring.svc:9090/prefix/", "/prefix/"),
        ("http://prometheus.monitoring.svc.cluster.local", ""),
        ("http://prometheus.monitoring.svc/../../secrets", None),
        ("http://prometheus.monitoring.svc/?a=b", None),
        ("http://prometheus.example.org", None),
        ("file:///etc/passwd", None),
    ],
)
def test_only_plain_addresses_of_services_count_as_inside_the_cluster(url: str, path: str | None) -> None:
    address = parse_address(url, "")

    assert (address.rest if address is not None else None) == path
