"""Roles that EKS Pod Identity gives to gpuscaler: which one is judged, and what is no finding because of it."""

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

from tests.clouds.aws.accounts import CLUSTER
from tests.doctor.aws_accounts import PODS, REGION, Ward, pod_identity, simple

from gpuscaler.doctor.findings import CRITICAL
from gpuscaler.embedded.aws.serving.faults import denied

AUTOSCALER = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "controller", "namespace": "gpuscaler"},
    "spec": {
        "template": {
            "spec": {
                "serviceAccountName": "gpuscaler",
                "containers": [{"name": "controller", "image": "ghcr.io/gpuscaler/gpuscaler:1.0.0", "args": ["run"]}],
            }
        }
    },
}
#: Where gpuscaler was before: an account of the same name, with a role, that no pod uses.
MOVED = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": {
        "name": "gpuscaler",
        "namespace": "kube-system",
        "annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/old"},
    },
}


def identities(ward: Ward) -> list[str]:
    """What is found about identities, beside the rights in Kubernetes, which these few objects do not have."""
    return [finding.check for finding in ward.look().findings if finding.check in ("D27", "D28", "D29", "D30")]


def test_the_rights_of_a_role_by_pod_identity_are_judged_and_no_annotation_is_missed() -> None:
    ward = Ward()
    pod_identity(PODS)(ward)
    ward.objects += [AUTOSCALER, MOVED]

    assert not identities(ward)
    assert not [entry for entry in ward.look().unchecked if entry.check in ("D28", "D29", "D30")]
    assert ward.beside.asked == {"arn:aws:iam::123456789012:role/scaler"}
    ward.beside.missing.add("autoscaling:SetDesiredCapacity")
    assert identities(ward) == ["D29"]

    # Without the association, the annotation is missing.
    ward.aws.account.region(REGION).associations.clear()
    assert "D28" in identities(ward)


def test_an_association_comes_before_an_annotation() -> None:
    ward = Ward()
    pod_identity(PODS)(ward)
    ward.objects[0]["metadata"]["annotations"] = {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/old"}
    ward.look()

    assert ward.beside.asked == {"arn:aws:iam::123456789012:role/scaler"}


def test_a_role_by_pod_identity_needs_the_agent_on_the_nodes() -> None:
    ward = Ward()
    pod_identity(PODS, agent=False)(ward)
    (finding,) = ward.look().findings
    assert (finding.check, finding.object, finding.severity) == ("D28", "ServiceAccount gpuscaler/gpuscaler", CRITICAL)
    assert finding.fix.commands == (f"aws eks create-addon --cluster-name {CLUSTER} --addon-name eks-pod-identity-agent --region {REGION}",)

    ward.objects[-1]["metadata"]["labels"]["eks.amazonaws.com/compute-type"] = "auto"
    assert not ward.found()


@pytest.mark.parametrize(("operation", "checks"), [("DescribePodIdentityAssociation", {"D28", "D29", "D30"}), ("GetRole", {"D28"})])
def test_a_role_by_pod_identity_that_cannot_be_read_is_unchecked(operation: str, checks: set[str]) -> None:
    ward = Ward()
    pod_identity()(ward)
    ward.beside.denied.add(operation)
    ward.aws.endpoint.faults.all.append(denied(operation))
    report = ward.look()

    assert not report.findings
    assert {entry.check for entry in report.unchecked if operation in entry.reason} == checks


def test_associations_that_may_not_be_listed_make_no_finding_of_a_missing_annotation() -> None:
    ward = Ward()
    pod_identity(PODS)(ward)
    ward.objects += [AUTOSCALER, MOVED]
    ward.aws.endpoint.faults.all.append(denied("ListPodIdentityAssociations"))

    assert not identities(ward)
    assert {entry.check for entry in ward.look().unchecked if "ListPodIdentityAssociations" in entry.reason} == {"D28", "D29", "D30"}


def test_a_cluster_without_signs_of_eks_is_not_looked_for_there() -> None:
    ward = Ward()
    simple()(ward)
    ward.add_node(ward.launch("gpus")[0])
    ward.aws.endpoint.faults.all.append(denied("ListPodIdentityAssociations"))

    assert not ward.look().unchecked


def test_a_key_beside_a_role_by_pod_identity_hides_the_role() -> None:
    ward = Ward()
    pod_identity(PODS)(ward)
    names = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    env = [{"name": name, "valueFrom": {"secretKeyRef": {"name": "keys", "key": key}}} for name, key in names.items()]
    container = {"name": "tool", "image": "example.com/tool:1", "env": env}
    spec = {"template": {"spec": {"serviceAccountName": "gpuscaler", "containers": [container]}}}
    ward.objects.append(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "tool", "namespace": "gpuscaler"}, "spec": spec}
    )

    assert identities(ward) == ["D27"]
    ward.aws.account.region(REGION).associations.clear()
    assert "D27" not in identities(ward)
