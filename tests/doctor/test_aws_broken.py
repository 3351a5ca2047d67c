"""Broken AWS accounts: what is found, and whether the printed commands mend it."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

from tests.clouds.aws.accounts import CA, CLUSTER
from tests.doctor.applying import apply_command
from tests.doctor.aws_accounts import (
    GROUP,
    KMS_KEY,
    KMS_ROLE,
    PODS,
    REGION,
    SPOT,
    Ward,
    keyed,
    mixed,
    pod_identity,
    simple,
    suspended,
    two_autoscalers,
)
from tests.doctor.aws_troubles import (
    ARN,
    ATTACH,
    USE,
    default_key,
    disabled_rule,
    full_subnet,
    image,
    launch_configuration,
    missing,
    missing_key,
    other_cluster,
    predictive_policy,
    protected_too_late,
    queue_settings,
    quota,
    refreshing,
    resized,
    rolled_back,
    scaling_policy,
    scheduled,
    short_hops,
    single_scheduled_actions,
    spot_quota,
    tag,
    unprotected_machines,
    wide_rights,
    with_tags,
    without_queue,
    without_rules,
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
    Case(
        "spot quota of zero", spot_quota(0, "g5.xlarge", "g5.2xlarge"), (("D17", f"ServiceQuota {REGION}/L-3819A6DF"),), severity=CRITICAL
    ),
    Case("spot quota below one type", spot_quota(20, "g4dn.xlarge", "g4dn.8xlarge"), (("D17", f"ServiceQuota {REGION}/L-3819A6DF"),)),
    Case(
        "spot quota of P5",
        spot_quota(96, "p5.48xlarge", code="L-C4BD4855"),
        (("D17", f"ServiceQuota {REGION}/L-C4BD4855"),),
        severity=CRITICAL,
    ),
    Case(
        "spot quota of a new family",
        spot_quota(0, "p6-b200.48xlarge", code="L-NEW", name="All P6 Spot Instance Requests"),
        (("D17", f"ServiceQuota {REGION}/L-NEW"),),
        severity=CRITICAL,
    ),
    Case("low maximum price", mixed("g5.xlarge", "g5.2xlarge", SpotMaxPrice="0.01", **SPOT), (("D18", GROUP),)),
    Case("lowest price", mixed("g5.xlarge", "g5.2xlarge", **{**SPOT, "SpotAllocationStrategy": "lowest-price"}), (("D19", GROUP),)),
    Case(
        "low maximum price and lowest price",
        mixed("g5.xlarge", "g5.2xlarge", **{**SPOT, "SpotMaxPrice": "0.01", "SpotAllocationStrategy": "lowest-price"}),
        (("D18", GROUP), ("D19", GROUP)),
    ),
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
