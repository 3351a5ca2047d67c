"""Broken AWS accounts: what is found, and whether the printed commands mend it."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

from tests.clouds.aws.accounts import CA, CLUSTER, DISCOVERED
from tests.doctor.applying import apply_command
from tests.doctor.aws_accounts import (
    GROUP,
    KMS_KEY,
    KMS_ROLE,
    PODS,
    REGION,
    SPOT,
    TEMPLATE,
    Ward,
    keyed,
    mixed,
    pod_identity,
    simple,
    suspended,
    two_autoscalers,
)

from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING
from gpuscaler.embedded.aws.hardware.hardware import Trouble

TAINT = f"{CA}/node-template/taint"


@dataclass(frozen=True)
class Case:
    """An account in which ``make`` breaks something: the findings, those that no command mends, and the severity of the first."""

    name: str
    make: Callable[[Ward], None]
    finds: tuple[tuple[str, str], ...]
    by_hand: bool = False
    severity: str = WARNING


def with_tags(tags: dict[str, str], *, member: bool = False) -> Callable[[Ward], None]:
    def make(ward: Ward) -> None:
        ward.aws.group("gpus", tags, instance_type="g5.xlarge")
        ward.aws.group("others", instance_type="g5.xlarge")
        if member:
            ward.add_node(ward.launch("gpus")[0])

    return make


def scaling_policy(ward: Ward) -> None:
    simple()(ward)
    ward.aws.client("autoscaling").put_scaling_policy(
        AutoScalingGroupName="gpus",
        PolicyName="cpu",
        PolicyType="TargetTrackingScaling",
        TargetTrackingConfiguration={"TargetValue": 50.0},
    )


def predictive_policy(ward: Ward) -> None:
    simple()(ward)
    metric = {"TargetValue": 40.0, "PredefinedMetricPairSpecification": {"PredefinedMetricType": "ASGCPUUtilization"}}
    ward.aws.client("autoscaling").put_scaling_policy(
        AutoScalingGroupName="gpus",
        PolicyName="guess",
        PolicyType="PredictiveScaling",
        PredictiveScalingConfiguration={"MetricSpecifications": [metric], "Mode": "ForecastAndScale"},
    )


ARN = "arn:aws:iam::123456789012"
#: The statements that AWS documents.
USE = {
    "Effect": "Allow",
    "Principal": {"AWS": [KMS_ROLE]},
    "Action": ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"],
    "Resource": "*",
}
ATTACH = {
    "Effect": "Allow",
    "Principal": {"AWS": [KMS_ROLE]},
    "Action": ["kms:CreateGrant"],
    "Resource": "*",
    "Condition": {"Bool": {"kms:GrantIsForAWSResource": True}},
}


def default_key(ward: Ward) -> None:
    simple()(ward)
    ward.beside.add_key(KMS_KEY)
    ec2 = ward.aws.client("ec2")
    ec2.enable_ebs_encryption_by_default()
    ec2.modify_ebs_default_kms_key_id(KmsKeyId=KMS_KEY)


def missing_key(ward: Ward) -> None:
    keyed()(ward)
    ward.beside.keys.clear()


def resized(principal: str, *hours_ago: float, agent: str = "aws-sdk-go-v2/1.39", **details: object) -> Callable[[Ward], None]:
    def make(ward: Ward) -> None:
        simple()(ward)
        for number, hours in enumerate(hours_ago):
            ward.resize(number % 2 + 1, hours_ago=hours, principal=principal, agent=agent, **details)

    return make


def single_scheduled_actions(ward: Ward) -> None:
    simple()(ward)
    for hours in range(6):
        ward.record(
            "At 2026-11-26T10:00:00Z a scheduled action update of AutoScalingGroup constraints to min: 0, max: 5, desired: 4.", hours
        )


def unprotected_machines(ward: Ward) -> None:
    simple(NewInstancesProtectedFromScaleIn=False)(ward)
    ward.launch("gpus", 2)


def protected_too_late(ward: Ward) -> None:
    unprotected_machines(ward)
    ward.aws.client("autoscaling").update_auto_scaling_group(AutoScalingGroupName="gpus", NewInstancesProtectedFromScaleIn=True)


def scheduled(ward: Ward) -> None:
    simple()(ward)
    ward.aws.client("autoscaling").put_scheduled_update_group_action(
        AutoScalingGroupName="gpus", ScheduledActionName="night", Recurrence="0 22 * * *", MinSize=0
    )


def refreshing(**preferences: object) -> Callable[[Ward], None]:
    def make(ward: Ward) -> None:
        simple()(ward)
        ward.launch("gpus")
        ward.aws.client("autoscaling").start_instance_refresh(AutoScalingGroupName="gpus", Preferences=preferences)

    return make


def rolled_back(status: str) -> Callable[[Ward], None]:
    def make(ward: Ward) -> None:
        refreshing()(ward)
        (refresh,) = ward.aws.account.region(REGION).groups["gpus"].refreshes
        refresh.status, refresh.reason, refresh.ended_at = status, "An alarm went off.", ward.aws.time

    return make


def tag(key: str, value: str, *, taints: list[dict[str, str]] | None = None) -> Callable[[Ward], None]:
    def make(ward: Ward) -> None:
        simple(tags={**DISCOVERED, key: value})(ward)
        if taints is not None:
            ward.add_node(ward.launch("gpus")[0], taints=taints)

    return make


def image(*, name: str = "") -> Callable[[Ward], None]:
    def make(ward: Ward) -> None:
        simple()(ward)
        if name:
            ward.aws.account.region(REGION).image_names["ami-0123"] = name
        else:
            ward.aws.client("ec2").deregister_image(ImageId="ami-0123")

    return make


def full_subnet(ward: Ward) -> None:
    simple(MaxSize=100_000, AvailabilityZones=[], VPCZoneIdentifier="subnet-useast1a")(ward)
    ward.beside.quotas["L-DB2E81BA"] = 1e9


def quota(value: float) -> Callable[[Ward], None]:
    def make(ward: Ward) -> None:
        simple()(ward)
        ward.beside.quotas["L-DB2E81BA"] = value

    return make


def queue_settings(**attributes: str) -> Callable[[Ward], None]:
    def make(ward: Ward) -> None:
        mixed("g5.xlarge", "g5.2xlarge", **SPOT)(ward)
        ward.aws.client("sqs").set_queue_attributes(QueueUrl=ward.queue_url, Attributes=attributes)

    return make


def without_rules(ward: Ward) -> None:
    mixed("g5.xlarge", "g5.2xlarge", **SPOT)(ward)
    ward.beside.targets.clear()


def disabled_rule(ward: Ward) -> None:
    mixed("g5.xlarge", "g5.2xlarge", **SPOT)(ward)
    ward.beside.rules[REGION, "spot"]["State"] = "DISABLED"


def without_queue(ward: Ward) -> None:
    mixed("g5.xlarge", "g5.2xlarge", **SPOT)(ward)
    ward.queue_url = ""


def missing(*actions: str) -> Callable[[Ward], None]:
    def make(ward: Ward) -> None:
        simple()(ward)
        ward.beside.missing |= set(actions)

    return make


def wide_rights(ward: Ward) -> None:
    simple()(ward)
    ward.beside.unconditional = True


def other_cluster(ward: Ward) -> None:
    ward.aws.group("gpus", {"KubernetesCluster": "prod", "k8s.io/role/node": "1"}, instance_type="g5.xlarge")


def launch_configuration(ward: Ward) -> None:
    ward.aws.client("autoscaling").create_launch_configuration(LaunchConfigurationName="old", InstanceType="g5.xlarge", ImageId="ami-0123")
    ward.aws.group("gpus", LaunchConfigurationName="old")


def short_hops(ward: Ward) -> None:
    ward.aws.template("gpus", InstanceType="g5.xlarge", MetadataOptions={"HttpPutResponseHopLimit": 1})
    ward.aws.group("gpus", LaunchTemplate=TEMPLATE)
    spec = {"template": {"spec": {"containers": [{"name": "nth", "image": "nth"}]}}}
    metadata = {"name": "aws-node-termination-handler", "namespace": "kube-system"}
    ward.objects.append({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec})


CA_ENABLED = {f"{CA}/enabled": "true"}
OWN = {f"kubernetes.io/cluster/{CLUSTER}": "owned"}
CASES = (
    Case("untagged group with nodes", with_tags({}, member=True), (("D1", GROUP),), severity=CRITICAL),
    Case("only one of two tags, with nodes", with_tags(CA_ENABLED, member=True), (("D1", GROUP),), severity=CRITICAL),
    Case("only one of two tags", with_tags(CA_ENABLED), (("D1", GROUP),), by_hand=True),
    Case("owned, not tagged for scaling", with_tags(OWN), (("D1", GROUP),), severity=CRITICAL),
    Case("another cluster's tag, our nodes", with_tags({"KubernetesCluster": "prod"}, member=True), (("D1", GROUP),), True, CRITICAL),
    Case("name of another cluster", other_cluster, (("D1", "run file"),), by_hand=True, severity=CRITICAL),
    Case("kops group without ownership tag", with_tags({"KubernetesCluster": CLUSTER, "k8s.io/role/node": "1"}), (("D1", GROUP),)),
    Case("unknown role", with_tags({"KubernetesCluster": CLUSTER, "Role": "Minion"}), (("D2", GROUP),)),
    Case("two autoscalers", two_autoscalers, (("D3", "Deployment kube-system/cluster-autoscaler"),), severity=CRITICAL),
    Case("scaling policy", scaling_policy, (("D3", GROUP),), severity=CRITICAL),
    Case("predictive policy", predictive_policy, (("D3", GROUP),), severity=CRITICAL),
    Case("sizes set by a role again and again", resized(f"{ARN}:role/sizes", 1, 4, 9, 9.1), (("D3", GROUP),), by_hand=True),
    Case(
        "sizes set by an autoscaler elsewhere",
        resized(f"{ARN}:role/prod-cluster-autoscaler", 0.2, 1.2, 2.2),
        (("D3", GROUP),),
        by_hand=True,
        severity=CRITICAL,
    ),
    Case("scheduled actions that come and go", single_scheduled_actions, (("D3", GROUP),)),
    Case("no protection", unprotected_machines, (("D4", GROUP),), severity=CRITICAL),
    Case("protected too late", protected_too_late, (("D4", GROUP),), severity=CRITICAL),
    Case("rebalancing", simple(AvailabilityZones=["us-east-1a", "us-east-1b"]), (("D5", GROUP),), severity=CRITICAL),
    Case("capacity rebalance", simple(CapacityRebalance=True), (("D6", GROUP),)),
    Case("lifetime", simple(MaxInstanceLifetime=86_400), (("D6", GROUP),)),
    Case("scheduled action", scheduled, (("D6", GROUP),)),
    Case("refresh", refreshing(), (("D6", GROUP),)),
    Case("refresh with rollback", refreshing(AutoRollback=True, ScaleInProtectedInstances="Ignore"), (("D6", GROUP),)),
    Case("refresh of protected machines", refreshing(ScaleInProtectedInstances="Refresh"), (("D6", GROUP),), severity=CRITICAL),
    Case("refresh that is rolled back", rolled_back("RollbackSuccessful"), (("D6", GROUP),), by_hand=True, severity=INFO),
    Case("refresh that could not be rolled back", rolled_back("RollbackFailed"), (("D6", GROUP),), by_hand=True),
    Case("no launches", suspended("Launch"), (("D7", GROUP),), severity=CRITICAL),
    Case("no terminations", suspended("Terminate"), (("D7", GROUP),), severity=CRITICAL),
    Case("taint without effect", tag(f"{TAINT}/nvidia.com/gpu", "true"), (("D8", GROUP),), severity=CRITICAL),
    Case("taint under another key", tag(f"{TAINT}/dedicated", "nvidia.com/gpu=true"), (("D8", GROUP),), severity=CRITICAL),
    Case(
        "taint that nodes do not have",
        tag(f"{TAINT}/dedicated", "true:NoSchedule", taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}]),
        (("D8", GROUP),),
        severity=CRITICAL,
    ),
    Case("unequal shapes", mixed("g5.xlarge", "g5.48xlarge"), (("D15", GROUP),), by_hand=True),
    Case("retired type", lambda ward: ward.aws.group("gpus", instance_type="p2.xlarge"), (("D16", GROUP),), True, CRITICAL),
    Case("quota of zero", quota(0), (("D17", f"ServiceQuota {REGION}/L-DB2E81BA"),), severity=CRITICAL),
    Case("quota below the maximum", quota(12), (("D17", f"ServiceQuota {REGION}/L-DB2E81BA"),)),
    Case("low maximum price", mixed("g5.xlarge", "g5.2xlarge", SpotMaxPrice="0.01", **SPOT), (("D18", GROUP),)),
    Case("lowest price", mixed("g5.xlarge", "g5.2xlarge", **{**SPOT, "SpotAllocationStrategy": "lowest-price"}), (("D19", GROUP),)),
    Case("few pools", mixed("g5.xlarge", zones="subnet-useast1a", **SPOT), (("D19", GROUP),), by_hand=True),
    Case("two markets", mixed("g5.xlarge", "g5.2xlarge", OnDemandPercentageAboveBaseCapacity=50), (("D20", GROUP),), by_hand=True),
    Case("launch configuration", launch_configuration, (("D21", GROUP),), by_hand=True),
    Case("old image", image(name="amazon-eks-gpu-node-1.32-v20250920"), (("D22", GROUP),), by_hand=True),
    Case("image that is gone", image(), (("D22", GROUP),), by_hand=True, severity=CRITICAL),
    Case("key for the account only", keyed(), (("D23", GROUP),), severity=CRITICAL),
    Case("key without grants of disks", keyed(USE), (("D23", GROUP),), severity=CRITICAL),
    Case(
        "key for another role",
        keyed({**USE, "Action": "kms:*", "Principal": "*", "Condition": {"StringLike": {"aws:PrincipalArn": f"{ARN}:role/ops-*"}}}),
        (("D23", GROUP),),
        severity=CRITICAL,
    ),
    Case(
        "key for another service",
        keyed({**USE, "Action": "kms:*", "Principal": {"AWS": "*"}, "Condition": {"StringEquals": {"kms:ViaService": "s3.us-east-1"}}}),
        (("D23", GROUP),),
        severity=CRITICAL,
    ),
    Case("default key", default_key, (("D23", GROUP),), severity=CRITICAL),
    Case("disabled key", keyed(USE, ATTACH, KeyState="Disabled"), (("D23", GROUP),), severity=CRITICAL),
    Case("key that is deleted", keyed(USE, ATTACH, KeyState="PendingDeletion"), (("D23", GROUP),), severity=CRITICAL),
    Case("key that is gone", missing_key, (("D23", GROUP),), by_hand=True, severity=CRITICAL),
    Case("full subnet", full_subnet, (("D24", GROUP),), by_hand=True),
    Case("maximum of zero", simple(MaxSize=0), (("D25", GROUP),), by_hand=True, severity=CRITICAL),
    Case(
        "missing right to buy",
        missing("autoscaling:SetDesiredCapacity"),
        (("D29", IAM := "IAM arn:aws:iam::{}:role/gpuscaler"),),
        severity=CRITICAL,
    ),
    Case("missing right to read", missing("autoscaling:DescribeScalingActivities"), (("D29", IAM),), severity=CRITICAL),
    Case("missing right for prices", missing("pricing:GetProducts"), (("D29", IAM),)),
    Case("role that does not trust EKS", pod_identity(), (("D28", f"IAM {ARN}:role/scaler"),), severity=CRITICAL),
    Case(
        "role without tags of sessions",
        pod_identity({**PODS, "Action": "sts:AssumeRole"}),
        (("D28", f"IAM {ARN}:role/scaler"),),
        severity=CRITICAL,
    ),
    Case("rights in groups of others", wide_rights, (("D30", IAM),), by_hand=True),
    Case("metadata out of reach", short_hops, (("D32", GROUP),), by_hand=True),
    Case("no queue", without_queue, (("D33", "run file"),), by_hand=True),
    Case("queue without policy", queue_settings(Policy="{}"), (("D33", f"Queue {REGION}/notices"),)),
    Case("queue with AWS's key", queue_settings(KmsMasterKeyId="alias/aws/sqs"), (("D33", f"Queue {REGION}/notices"),)),
    Case("no rule", without_rules, (("D33", f"EventBridge {REGION}"),)),
    Case("disabled rule", disabled_rule, (("D33", f"EventBridge {REGION}"),)),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_broken_account_has_exactly_its_findings_and_the_commands_mend_them(case: Case) -> None:
    ward = Ward()
    case.make(ward)
    report = ward.look()

    expected = {(check, name.format(ward.aws.account.id)) for check, name in case.finds}
    assert {(finding.check, finding.object) for finding in report.findings} == expected
    assert report.findings[0].severity == case.severity
    assert not report.unchecked
    for finding in report.findings:
        assert bool(finding.fix.commands) != case.by_hand, finding
        assert finding.fix.commands or finding.fix.advice
        for command in finding.fix.commands:
            if command.startswith("kubectl"):
                ward.objects = apply_command(ward.objects, command)
            else:
                ward.apply(command)
    assert ward.found() == (expected if case.by_hand else set())


def test_a_launch_that_failed_for_a_key_is_found_until_one_succeeds() -> None:
    ward = Ward()
    keyed(USE, ATTACH)(ward)
    region = ward.aws.account.region(REGION)
    region.hardware.troubles.append(Trouble("Client.InternalError"))
    assert not ward.launch("gpus")

    (finding,) = ward.look().findings
    assert (finding.check, finding.object, finding.severity) == ("D23", GROUP, CRITICAL)
    assert "Client.InternalError" in finding.seen
    (command,) = finding.fix.commands
    ward.apply(command)
    (grant,) = ward.beside.grants
    assert (grant["KeyId"], grant["GranteePrincipal"]) == (KMS_KEY, KMS_ROLE)

    region.hardware.troubles.clear()
    ward.launch("gpus")
    assert not ward.found()


def test_a_type_that_neither_the_catalogue_nor_the_account_knows_is_a_finding_and_the_other_groups_are_checked() -> None:
    ward = Ward()
    ward.aws.group("gpus", instance_type="g99.giant")
    ward.aws.group("open", instance_type="g5.xlarge", NewInstancesProtectedFromScaleIn=False)
    ward.aws.group("cpus", instance_type="m5.large")
    report = ward.look()

    assert [(finding.check, finding.object) for finding in report.findings] == [
        ("D4", f"AutoScalingGroup {REGION}/open"),
        ("D16", GROUP),
    ]
    assert "g99.giant, which region us-east-1 does not offer" in report.findings[1].seen
    assert not report.unchecked
