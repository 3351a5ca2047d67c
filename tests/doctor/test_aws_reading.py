"""AWS accounts as tools make them, without some rights, in several regions, with many groups."""

import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

from tests.clouds.aws.accounts import CA, CLUSTER, DISCOVERED
from tests.doctor.aws_accounts import (
    GROUP,
    KMS_KEY,
    KMS_ROLE,
    REGION,
    SPOT,
    TEMPLATE,
    Ward,
    keyed,
    mixed,
    simple,
    suspended,
    two_autoscalers,
)

from gpuscaler.doctor.findings import CRITICAL, WARNING, grouped
from gpuscaler.embedded.aws.serving.faults import denied

TAINT = f"{CA}/node-template/taint"
EKS_TAGS = {
    "eks:cluster-name": CLUSTER,
    "eks:nodegroup-name": "gpu",
    f"kubernetes.io/cluster/{CLUSTER}": "owned",
    **DISCOVERED,
}


def eks_groups(ward: Ward) -> None:
    """As EKS makes managed node groups: over three zones, unprotected; one for system pods, one of spot machines with GPUs."""
    zones = ["us-east-1a", "us-east-1b", "us-east-1c"]
    ward.aws.group("eks-system", EKS_TAGS, instance_type="m5.large", AvailabilityZones=zones, NewInstancesProtectedFromScaleIn=False)
    ward.aws.template("eks-gpu", InstanceType="g5.xlarge")
    launch = {"LaunchTemplateSpecification": {"LaunchTemplateName": "eks-gpu"}, "Overrides": [{"InstanceType": "g5.xlarge"}]}
    distribution = {"OnDemandPercentageAboveBaseCapacity": 0, "SpotAllocationStrategy": "price-capacity-optimized"}
    policy = {"LaunchTemplate": launch, "InstancesDistribution": distribution}
    ward.aws.group(
        "eks-gpu",
        EKS_TAGS,
        MixedInstancesPolicy=policy,
        AvailabilityZones=zones,
        CapacityRebalance=True,
        NewInstancesProtectedFromScaleIn=False,
    )


def eksctl_groups(ward: Ward) -> None:
    """As eksctl makes self-managed node groups: for system pods, and with GPUs, propagateASGTags and instanceProtection."""
    tags = {"alpha.eksctl.io/cluster-name": CLUSTER, f"kubernetes.io/cluster/{CLUSTER}": "owned"}
    ward.aws.group("system", tags, instance_type="m5.large", NewInstancesProtectedFromScaleIn=False)
    node = {f"{CA}/node-template/label/nvidia.com/gpu": "true", f"{TAINT}/nvidia.com/gpu": "true:NoSchedule"}
    ward.aws.group("gpu", {**tags, **DISCOVERED, **node}, instance_type="g5.xlarge")
    ward.add_node(ward.launch("system")[0])


def kops_groups(ward: Ward) -> None:
    """As kOps makes the groups of a control plane and of nodes with the cluster's tags in cloudLabels."""
    tags = {"KubernetesCluster": CLUSTER, f"kubernetes.io/cluster/{CLUSTER}": "owned"}
    ward.aws.group("control-plane", {**tags, "k8s.io/role/control-plane": "1", "k8s.io/role/master": "1"}, instance_type="m5.large")
    ward.aws.group("nodes", {**tags, **DISCOVERED, "k8s.io/role/node": "1"}, instance_type="g5.xlarge")


def others_groups(ward: Ward) -> None:
    """An account with groups of other clusters and of none, whatever their settings are."""
    simple()(ward)
    ward.aws.group("web", {}, instance_type="m5.large", NewInstancesProtectedFromScaleIn=False, MaxSize=0)
    ward.aws.group("prod", {f"{CA}/enabled": "true", f"{CA}/prod": "owned"}, instance_type="g5.xlarge", CapacityRebalance=True)


@pytest.mark.parametrize("make", [eks_groups, eksctl_groups, kops_groups, others_groups], ids=lambda make: make.__name__)
def test_what_tools_make_has_no_critical_finding(make: Callable[[Ward], None]) -> None:
    ward = Ward()
    make(ward)
    report = ward.look()

    assert not [finding for finding in report.findings if finding.severity == CRITICAL]
    assert {finding.check for finding in report.findings} <= ({"D4", "D5", "D6"} if make is eks_groups else set())
    assert not report.unchecked


#: Each permission with the checks that cannot be made without it.
RIGHTS = {
    "DescribeAutoScalingGroups": {"D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "D15", "D16", "D17", "D25"},
    "DescribePolicies": {"D3"},
    "DescribeScheduledActions": {"D6"},
    "DescribeScalingActivities": {"D3", "D23"},
    "DescribeLaunchTemplateVersions": {"D4", "D5", "D15", "D16", "D17", "D18", "D19", "D20", "D22", "D23", "D25", "D33"},
    "DescribeInstanceTypes": {"D15", "D16", "D17"},
    "DescribeInstanceTypeOfferings": {"D16"},
    "DescribeSpotPriceHistory": {"D18"},
    "DescribeInstanceRefreshes": {"D6"},
    "DescribeSubnets": {"D16", "D24"},
    "DescribeImages": {"D22", "D23"},
    "GetEbsEncryptionByDefault": {"D23"},
    "GetEbsDefaultKmsKeyId": {"D23"},
    "GetCallerIdentity": {"D29", "D30"},
    "ListPodIdentityAssociations": {"D28", "D29", "D30"},
    "GetQueueAttributes": {"D33"},
}
BESIDE_RIGHTS = {
    "GetServiceQuota": {"D17"},
    "SimulatePrincipalPolicy": {"D29", "D30"},
    "ListRuleNamesByTarget": {"D33"},
    "DescribeRule": {"D33"},
    "LookupEvents": {"D3"},
}


@pytest.mark.parametrize("operation", [*RIGHTS, *BESIDE_RIGHTS])
def test_without_a_permission_its_checks_say_that_they_could_not_check(operation: str) -> None:
    ward = Ward()
    mixed("g5.xlarge", "g5.2xlarge", **SPOT)(ward)
    ward.resize(1, hours_ago=1, principal="arn:aws:iam::123456789012:user/alice")
    ward.launch("gpus")
    if operation in RIGHTS:
        ward.aws.endpoint.faults.all.append(denied(operation))
    else:
        ward.beside.denied.add(operation)
    report = ward.look()

    unchecked = {entry.check for entry in report.unchecked}
    assert (RIGHTS | BESIDE_RIGHTS)[operation] <= unchecked
    for entry in report.unchecked:
        assert operation in entry.reason or "could not be read" in entry.reason, entry
    # The lack of a right that gpuscaler needs is a finding, even if IAM's simulator does not say so.
    assert {finding.check for finding in report.findings} <= {"D29"}


def test_a_denied_read_is_a_finding_if_the_simulator_may_not_be_asked() -> None:
    ward = Ward()
    simple()(ward)
    ward.beside.denied.add("SimulatePrincipalPolicy")
    ward.aws.endpoint.faults.all.append(denied("DescribeScalingActivities"))
    report = ward.look()

    (finding,) = report.findings
    assert (finding.check, finding.severity) == ("D29", WARNING)
    assert "autoscaling:DescribeScalingActivities" in finding.seen
    (command,) = finding.fix.commands
    assert command.startswith("aws iam put-user-policy --user-name gpuscaler ")


def test_the_callers_rights_to_change_are_not_taken_for_those_of_the_controller() -> None:
    ward = Ward()
    simple()(ward)
    ward.objects.clear()
    ward.beside.missing |= {"autoscaling:SetDesiredCapacity"}
    ward.beside.unconditional = True
    report = ward.look()

    assert not report.findings
    assert {entry.check for entry in report.unchecked} == {"D29", "D30"}
    ward.beside.missing |= {"autoscaling:DescribeScalingActivities"}
    assert ward.found() == {("D29", f"IAM arn:aws:iam::{ward.aws.account.id}:user/gpuscaler")}


def test_a_region_that_cannot_be_read_leaves_the_findings_of_the_others() -> None:
    ward = Ward(REGION, "us-west-2")
    suspended("Launch")(ward)
    ward.aws.endpoint.faults.all.append(denied("DescribeAutoScalingGroups", region="us-west-2"))
    report = ward.look()

    assert [(finding.check, finding.object) for finding in report.findings] == [("D7", GROUP)]
    reasons = {entry.reason for entry in report.unchecked if entry.check == "D7"}
    assert len(reasons) == 1
    assert "autoscaling:DescribeAutoScalingGroups in us-west-2" in reasons.pop()


def test_spot_groups_of_two_regions_need_a_rule_in_each() -> None:
    ward = Ward(REGION, "us-west-2")
    mixed("g5.xlarge", "g5.2xlarge", **SPOT)(ward)
    ward.aws.template("west", region="us-west-2", InstanceType="g5.xlarge", InstanceMarketOptions={"MarketType": "spot"})
    ward.aws.group("west", region="us-west-2", LaunchTemplate={"LaunchTemplateName": "west"})

    assert ward.found() == {("D33", "EventBridge us-west-2")}
    bus = ward.arn.replace(":sqs:", ":events:").replace(":notices", ":event-bus/default")
    ward.rule("us-west-2", "forward", {"source": ["aws.ec2"]}, bus)
    assert not ward.found()


def test_five_hundred_groups_are_read_and_checked_in_seconds() -> None:
    ward = Ward()
    ward.aws.template("gpus", InstanceType="g5.xlarge")
    for number in range(500):
        ward.aws.group(f"gpus-{number}", LaunchTemplate=TEMPLATE, AvailabilityZones=["us-east-1a", "us-east-1b"])
    began = time.process_time()
    report = ward.look()

    assert time.process_time() - began < 20
    assert sum(finding.check == "D5" for finding in report.findings) == 500
    assert len(grouped(report.findings)) == 1
    assert sum(ward.aws.session.call_counts.values()) < 1_600


def test_an_autoscaler_with_groups_of_its_own_has_to_take_another_tag() -> None:
    ward = Ward()
    two_autoscalers(ward)
    ward.aws.group("eks-system", EKS_TAGS, instance_type="m5.large")
    (finding,) = ward.look().findings
    assert (finding.check, bool(finding.fix.commands)) == ("D3", False)

    ward.objects[-1]["spec"]["replicas"] = 0
    assert not ward.found()


PERSON = "arn:aws:iam::123456789012:user/alice"
SSO = "arn:aws:iam::123456789012:role/aws-reserved/sso.amazonaws.com/AWSReservedSSO_Admin_0123456789abcdef"
NODEGROUPS = "arn:aws:iam::123456789012:role/aws-service-role/eks-nodegroup.amazonaws.com/AWSServiceRoleForAmazonEKSNodegroup"
AGAIN = (1, 3, 5, 7, 9)


@pytest.mark.parametrize(
    ("principal", "hours_ago", "details"),
    [
        (PERSON, (5,), {}),
        (PERSON, (5.2, 5.1, 5.0, 4.9), {}),
        (PERSON, AGAIN, {"sessionCredentialFromConsole": "true"}),
        (PERSON, (26, 28, 30, 32), {}),
        (PERSON, AGAIN, {"errorCode": "AccessDenied"}),
        (PERSON, AGAIN, {"requestParameters": None}),
        (SSO, AGAIN, {}),
        (NODEGROUPS, AGAIN, {}),
        ("arn:aws:iam::000000000000:role/gpuscaler", AGAIN, {}),
    ],
    ids=["once", "in a row", "console", "long ago", "refused", "no size", "a person's role", "EKS", "ours"],
)
def test_changes_of_sizes_that_no_other_program_makes_are_no_finding(
    principal: str, hours_ago: tuple[float, ...], details: dict[str, Any]
) -> None:
    ward = Ward()
    simple()(ward)
    for hours in hours_ago:
        ward.resize(1, hours_ago=hours, principal=principal.replace("000000000000", ward.aws.account.id), **details)

    report = ward.look()
    assert not report.findings
    assert not report.unchecked


def test_without_a_known_role_gpuscaler_is_known_by_its_client() -> None:
    ward = Ward()
    simple()(ward)
    ward.objects.clear()
    for hours in AGAIN:
        ward.resize(1, hours_ago=hours, principal=PERSON, agent="Boto3/1.40 md/Botocore#1.40 gpuscaler/0.1.0")

    assert not ward.found()


def test_updates_of_a_group_count_if_they_set_its_desired_capacity() -> None:
    ward = Ward()
    simple()(ward)
    for hours in AGAIN:
        ward.resize(1, hours_ago=hours, principal=PERSON, eventName="UpdateAutoScalingGroup")
    assert not ward.found()
    ward.record("At 2026-11-26T10:00:00Z a user request update of AutoScalingGroup constraints to min: 0, max: 5, desired: 1.", 1)
    assert ward.found() == {("D3", GROUP)}

    for call in ward.beside.calls:
        call["requestParameters"] = {"autoScalingGroupName": "gpus", "maxSize": 9}
    assert not ward.found()


def test_a_policy_that_may_not_be_listed_shows_in_the_activities() -> None:
    ward = Ward()
    simple()(ward)
    ward.record(
        "At 2026-11-26T10:00:00Z a monitor alarm busy in state ALARM triggered policy more changing the desired capacity from 1 to 2.", 2
    )
    assert not ward.found()

    ward.aws.endpoint.faults.all.append(denied("DescribePolicies"))
    report = ward.look()
    (finding,) = report.findings
    assert (finding.check, finding.field, finding.severity) == ("D3", "ScalingPolicy more", CRITICAL)
    assert {entry.check for entry in report.unchecked} == {"D3"}
    ward.apply(*finding.fix.commands)
    assert not ward.found()


def test_callers_are_only_looked_up_if_a_user_has_changed_a_size() -> None:
    ward = Ward()
    simple()(ward)
    ward.beside.denied.add("LookupEvents")

    assert not ward.look().unchecked
    ward.resize(1, hours_ago=2, principal=PERSON)
    (entry,) = ward.look().unchecked
    assert (entry.check, "cloudtrail:LookupEvents" in entry.reason) == ("D3", True)


def test_refreshes_that_are_over_or_stopped_are_no_finding() -> None:
    ward = Ward()
    simple()(ward)
    ward.launch("gpus")
    scaling = ward.aws.client("autoscaling")
    scaling.start_instance_refresh(AutoScalingGroupName="gpus", Preferences={})
    scaling.suspend_processes(AutoScalingGroupName="gpus", ScalingProcesses=["InstanceRefresh"])
    assert not ward.found()

    scaling.resume_processes(AutoScalingGroupName="gpus", ScalingProcesses=["InstanceRefresh"])
    (refresh,) = ward.aws.account.region(REGION).groups["gpus"].refreshes
    for status in ("Successful", "Failed", "Cancelled", "Cancelling"):
        refresh.status = status
        assert not ward.found()
    refresh.status, refresh.ended_at = "RollbackFailed", ward.aws.time - 8 * 86_400
    assert not ward.found()


WITH_ANYONE = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "kms:*", "Resource": "*"}


@pytest.mark.parametrize(
    "statement",
    [
        {**WITH_ANYONE, "Principal": {"AWS": KMS_ROLE}},
        {
            **WITH_ANYONE,
            "Condition": {"StringEquals": {"kms:CallerAccount": "123456789012", "kms:ViaService": "ec2.us-east-1.amazonaws.com"}},
        },
        {**WITH_ANYONE, "Condition": {"StringEquals": {"aws:PrincipalOrgID": "o-1"}}},
        {**WITH_ANYONE, "Condition": {"ArnLike": {"aws:PrincipalArn": ["arn:aws:iam::*:role/aws-service-role/*"]}}},
        {**WITH_ANYONE, "Action": ["kms:*Grant*", "KMS:Describe*", "kms:Decrypt", "kms:GenerateDataKey*"]},
    ],
    ids=["the role", "its account through EC2", "its organisation", "its path", "patterns"],
)
def test_keys_that_their_policy_opens_to_auto_scaling_are_no_finding(statement: dict[str, object]) -> None:
    ward = Ward()
    keyed(statement)(ward)
    report = ward.look()

    assert not report.findings
    assert not report.unchecked
    ward.beside.policies[KMS_KEY]["Statement"].append({**WITH_ANYONE, "Effect": "Deny", "Principal": "*", "Action": "kms:CreateGrant"})
    assert ward.found() == {("D23", GROUP)}


def test_keys_of_aws_are_no_finding() -> None:
    ward = Ward()
    keyed(key="arn:aws:kms:us-east-1:123456789012:alias/aws/ebs")(ward)
    ward.beside.keys.clear()
    ward.aws.client("ec2").enable_ebs_encryption_by_default()
    assert not ward.found()


@pytest.mark.parametrize("operation", ["DescribeKey", "GetKeyPolicy", "ListGrants"])
def test_a_key_that_cannot_be_read_is_unchecked_unless_the_rest_allows_enough(operation: str) -> None:
    ward = Ward()
    keyed()(ward)
    ward.beside.denied.add(operation)
    report = ward.look()
    assert not report.findings
    (entry,) = report.unchecked
    assert (entry.check, entry.subject) == ("D23", f"the key {KMS_KEY}")
    assert f"kms:{operation}" in entry.reason

    if operation == "GetKeyPolicy":
        operations = ["CreateGrant", "Decrypt", "DescribeKey", "GenerateDataKeyWithoutPlaintext"]
        ward.beside.grants.append({"KeyId": KMS_KEY, "GranteePrincipal": KMS_ROLE, "Operations": operations})
        assert not ward.look().unchecked


def test_the_key_of_an_encrypted_image_is_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    ward = Ward()
    simple()(ward)
    monkeypatch.setattr("gpuscaler.embedded.aws.launch.volumes.IMAGE", {"VolumeSize": 20, "VolumeType": "gp3", "Encrypted": True})
    report = ward.look()

    assert not report.findings
    assert [(entry.check, entry.subject) for entry in report.unchecked] == [("D23", "the key of the disk of image ami-0123")]


def test_a_family_whose_spot_quota_has_no_name_is_unchecked() -> None:
    ward = Ward()
    mixed("p6-b200.48xlarge", **SPOT)(ward)
    (entry,) = ward.look().unchecked
    assert (entry.check, "p6-b200.48xlarge" in entry.reason) == ("D17", True)

    ward.beside.named_quotas["L-OTHER"] = "Running On-Demand P instances"
    assert [entry.check for entry in ward.look().unchecked] == ["D17"]
    ward.beside.named_quotas["L-ALL"] = "All P Spot Instance Requests"
    assert not ward.look().unchecked
    ward.beside.denied.add("ListServiceQuotas")
    (entry,) = ward.look().unchecked
    assert (entry.check, "servicequotas:ListServiceQuotas" in entry.reason) == ("D17", True)
