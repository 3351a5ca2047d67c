"""Checks of AWS accounts on answers that the simulated account does not give, and on odd ones."""

from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

from tests.clouds.aws.accounts import CA, CLUSTER, DISCOVERED
from tests.doctor.aws_accounts import REGION

from gpuscaler.cli.doctor.reading import evidence_of_objects, with_documents
from gpuscaler.clouds.aws.inspecting.quotas import quota_of
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING, Report
from gpuscaler.doctor.running import run_checks


def test_odd_answers_do_not_break_a_check() -> None:
    odd: list[Any] = [None, "", "x", -1, 2**70, float("inf"), float("nan"), True, [], [None], {"a": []}]
    kinds = (
        "AutoScalingGroup",
        "ScalingPolicy",
        "ScheduledAction",
        "ScalingActivity",
        "Subnet",
        "Image",
        "ServiceQuota",
        "Queue",
        "EventRule",
        "Right",
        "Settings",
        "DeniedAction",
        "Caller",
        "SizeChange",
        "InstanceRefresh",
        "Key",
        "PodIdentityAssociation",
        "DiskEncryption",
    )
    fields = FIELDS
    for value in odd:
        entry = {**dict.fromkeys(fields, value), "Scaled": True, "Region": REGION}
        documents = {f"aws/{kind}": [entry, {**entry, "Options": [dict.fromkeys(fields, value)], "Member": True}] for kind in kinds}
        report = run_checks(with_documents(evidence_of_objects([], now=0.0), documents, {}), CHECKS)
        assert not [entry.reason for entry in report.unchecked if "please report it" in entry.reason]


FIELDS = (
    "AutoScalingGroupName Tags Ownership Options Suspended Instances AvailabilityZones MinSize MaxSize DesiredCapacity TagMistakes Value "
    "MixedInstancesPolicy VPCZoneIdentifier Zones SpotPrices SpotMaxPrice Markets InstanceType Known VCpus Gpus Counts QuotaCode SubnetId "
    "AvailableIpAddressCount ImageId State Name StartTime EndTime Description StatusMessage Policy EventPattern QueueArn Url NodeTaints "
    "ApproximateNumberOfMessages Principal Purpose EvalDecision EvalActionName Cluster QueueUrl Regions DiskKeys MetadataHops PolicyType "
    "MaxInstanceLifetime Operator Image Incomplete Action ServiceLinkedRoleARN AutoScalingGroupARN LaunchConfigurationName Enabled "
    "Cause Time Agent Service Console Role ScheduledActionName Status StatusReason Preferences "
    "Arn Role KeyManager KeyState KeySpec Policy Grants Unread ByDefault KmsKeyId DefaultKey RootHasKey BlockDeviceMappings "
    "roleArn serviceAccount namespace clusterName Trust"
).split()


def option(name: str = "g5.xlarge", **more: Any) -> dict[str, Any]:
    known = {"Known": True, "VCpus": 4, "Gpus": 1, "GpuModel": "a10g", "Markets": ["on-demand"], "Zones": ["us-east-1a", "us-east-1b"]}
    return {"InstanceType": name, **known, **more}


def account(
    *options: dict[str, Any],
    others: dict[str, list[dict[str, Any]]] | None = None,
    objects: tuple[dict[str, Any], ...] = (),
    **group: Any,
) -> Report:
    """What is found in an account with one scaled group of ``options``, and the documents ``others``."""
    described = {
        "AutoScalingGroupName": "gpus",
        "Region": REGION,
        "Tags": DISCOVERED,
        "Ownership": {"Source": "cluster-autoscaler", "Lacks": []},
        "Scaled": True,
        "Member": False,
        "MinSize": 0,
        "MaxSize": 5,
        "DesiredCapacity": 0,
        "AvailabilityZones": ["us-east-1a"],
        "NewInstancesProtectedFromScaleIn": True,
        "Suspended": [],
        "Options": list(options or (option(),)),
        **group,
    }
    documents = {"aws/AutoScalingGroup": [described], "aws/Settings": [{"Cluster": CLUSTER, "Regions": [REGION]}], **(others or {})}
    return run_checks(with_documents(evidence_of_objects(objects, now=0.0), documents, {}), CHECKS)


def checks_of(report: Report) -> list[tuple[str, str]]:
    return [(finding.check, finding.severity) for finding in report.findings]


def test_zones_without_any_of_the_types_are_left_out_of_the_subnets() -> None:
    zones = ["us-east-1a", "us-east-1e"]
    subnets = [{"SubnetId": f"subnet-{zone[-1]}", "AvailabilityZone": zone, "AvailableIpAddressCount": 99} for zone in zones]
    report = account(
        AvailabilityZones=zones, VPCZoneIdentifier="subnet-a,subnet-e", Suspended=["AZRebalance"], others={"aws/Subnet": subnets}
    )

    (finding,) = report.findings
    assert (finding.check, finding.severity) == ("D16", WARNING)
    assert "us-east-1e" in finding.seen
    assert finding.fix.commands == (
        f"aws autoscaling update-auto-scaling-group --auto-scaling-group-name gpus --vpc-zone-identifier subnet-a --region {REGION}",
    )


def test_some_types_that_no_zone_offers_are_a_warning_and_all_are_critical() -> None:
    nowhere = option("p4d.24xlarge", Gpus=1, GpuModel="a10g", Zones=["us-east-1f"])
    assert checks_of(account(option(), nowhere)) == [("D16", WARNING)]
    assert checks_of(account(nowhere)) == [("D16", CRITICAL)]
    assert not checks_of(account(option(Zones=None)))


def test_a_minimum_above_the_quota_is_critical() -> None:
    quota = {"Region": REGION, "QuotaCode": "L-1", "Value": 8.0, "Counts": ["g5.xlarge/on-demand"]}
    findings = account(MinSize=3, DesiredCapacity=3, others={"aws/ServiceQuota": [quota]}).findings
    assert [(finding.check, finding.severity) for finding in findings] == [("D17", CRITICAL), ("D25", INFO)]
    assert "--desired-value 20" in findings[0].fix.commands[0]


def test_a_reached_maximum_is_a_finding_only_while_pods_with_gpus_wait() -> None:
    waiting = {
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"containers": [{"name": "train", "resources": {"limits": {"nvidia.com/gpu": 1}}}]},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
    }
    assert not checks_of(account(DesiredCapacity=5))
    assert ("D25", CRITICAL) in checks_of(account(DesiredCapacity=5, objects=(waiting,)))


def test_an_operator_and_policies_that_are_off_are_told_apart() -> None:
    assert checks_of(account(Operator={"Principal": "eks.amazonaws.com"})) == [("D3", WARNING)]
    policy = {"Region": REGION, "AutoScalingGroupName": "gpus", "PolicyName": "cpu", "PolicyType": "TargetTrackingScaling"}
    assert checks_of(account(others={"aws/ScalingPolicy": [policy]})) == [("D3", CRITICAL)]
    assert not checks_of(account(others={"aws/ScalingPolicy": [{**policy, "Enabled": False}]}))
    assert not checks_of(account(others={"aws/ScalingPolicy": [{**policy, "AutoScalingGroupName": "web"}]}))


@pytest.mark.parametrize(("namespace", "given"), [("kube-system", True), ("tenant", False)])
def test_the_role_of_an_account_of_the_system_gets_the_missing_rights_as_an_inline_policy(namespace: str, *, given: bool) -> None:
    role = "arn:aws:iam::1:role/path/scaler"
    right = {"Principal": role, "Purpose": "change", "EvalActionName": "autoscaling:SetDesiredCapacity"}
    metadata = {"name": "gpuscaler", "namespace": namespace, "annotations": {"eks.amazonaws.com/role-arn": role}}
    report = account(
        others={"aws/Right": [{**right, "EvalDecision": "explicitDeny"}], "aws/Caller": [{"Role": True}]},
        objects=({"kind": "ServiceAccount", "metadata": metadata},),
    )

    (finding,) = [finding for finding in report.findings if finding.check == "D29"]
    if not given:
        assert not finding.fix.commands
        return
    (command,) = finding.fix.commands
    assert command.startswith("aws iam put-role-policy --role-name scaler --policy-name gpuscaler-change ")
    assert f'"aws:ResourceTag/{CA}/{CLUSTER}":"owned"' in command


@pytest.mark.parametrize(
    ("instance_type", "market", "code"),
    [
        ("g5.xlarge", "on-demand", "L-DB2E81BA"),
        ("gr6.4xlarge", "spot", "L-3819A6DF"),
        ("p4d.24xlarge", "spot", "L-7212CCBC"),
        ("p5en.48xlarge", "spot", "L-C4BD4855"),
        ("p6-b200.48xlarge", "on-demand", "L-417A185B"),
        ("p6-b200.48xlarge", "spot", ""),
        ("trn1.2xlarge", "on-demand", "L-2C3B7624"),
        ("m5.large", "on-demand", "L-1216C47A"),
        ("u-6tb1.112xlarge", "on-demand", ""),
        ("", "spot", ""),
    ],
)
def test_the_quota_of_an_instance_type(instance_type: str, market: str, code: str) -> None:
    assert quota_of(instance_type, market) == code
