"""Broken AWS accounts: what is found, and whether the printed commands mend it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

from tests.clouds.aws.accounts import CA, CLUSTER, DISCOVERED
from tests.doctor.applying import apply_command
from tests.doctor.aws_accounts import REGION, Ward

from gpuscaler.cli.doctor_account import with_documents
from gpuscaler.cli.doctor_reading import evidence_of_objects
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.findings import CRITICAL, WARNING, grouped
from gpuscaler.doctor.running import run_checks
from gpuscaler.embedded.aws.hardware.hardware import Trouble
from gpuscaler.embedded.aws.serving.faults import denied

GROUP = f"AutoScalingGroup {REGION}/gpus"
SUBNETS = "subnet-useast1a,subnet-useast1b"
TAINT = f"{CA}/node-template/taint"
TEMPLATE = {"LaunchTemplateName": "gpus", "Version": "$Latest"}


@dataclass(frozen=True)
class Case:
    """An account in which ``make`` breaks something: the findings, those that no command mends, and the severity of the first."""

    name: str
    make: Callable[[Ward], None]
    finds: tuple[tuple[str, str], ...]
    by_hand: bool = False
    severity: str = WARNING


def simple(**settings: Any) -> Callable[[Ward], None]:
    """One group of g5.xlarge with ``settings``."""
    return lambda ward: ward.aws.group("gpus", settings.pop("tags", DISCOVERED), instance_type="g5.xlarge", **settings)


def mixed(*types: str, launch: dict[str, Any] | None = None, zones: str = SUBNETS, **distribution: Any) -> Callable[[Ward], None]:
    """One group of ``types`` with a mixed-instances policy, whose AZRebalance is suspended."""

    def make(ward: Ward) -> None:
        ward.aws.template("gpus", InstanceType=types[0], **(launch or {}))
        overrides = [{"InstanceType": name} for name in types]
        policy = {
            "LaunchTemplate": {"LaunchTemplateSpecification": TEMPLATE, "Overrides": overrides},
            "InstancesDistribution": {"SpotAllocationStrategy": "price-capacity-optimized", **distribution},
        }
        ward.aws.group("gpus", AvailabilityZones=[], VPCZoneIdentifier=zones, MixedInstancesPolicy=policy)
        ward.aws.client("autoscaling").suspend_processes(AutoScalingGroupName="gpus", ScalingProcesses=["AZRebalance"])

    return make


SPOT = {"OnDemandPercentageAboveBaseCapacity": 0}


def with_tags(*, member: bool = False, **tags: str) -> Callable[[Ward], None]:
    def make(ward: Ward) -> None:
        ward.aws.group("gpus", tags, instance_type="g5.xlarge")
        ward.aws.group("others", instance_type="g5.xlarge")
        if member:
            ward.add_node(ward.launch("gpus")[0])

    return make


def two_autoscalers(ward: Ward) -> None:
    simple()(ward)
    flags = ["./cluster-autoscaler", f"--node-group-auto-discovery=asg:tag={CA}/enabled,{CA}/{CLUSTER}"]
    container = {"name": "cluster-autoscaler", "image": "registry.k8s.io/autoscaling/cluster-autoscaler:v1.35.0", "command": flags}
    spec = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    metadata = {"name": "cluster-autoscaler", "namespace": "kube-system"}
    ward.objects.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})


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


def suspended(process: str) -> Callable[[Ward], None]:
    def make(ward: Ward) -> None:
        simple()(ward)
        ward.aws.client("autoscaling").suspend_processes(AutoScalingGroupName="gpus", ScalingProcesses=[process])

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
    Case("untagged group with nodes", with_tags(member=True), (("D1", GROUP),), severity=CRITICAL),
    Case("only one of two tags, with nodes", with_tags(member=True, **CA_ENABLED), (("D1", GROUP),), severity=CRITICAL),
    Case("only one of two tags", with_tags(**CA_ENABLED), (("D1", GROUP),), by_hand=True),
    Case("owned, not tagged for scaling", with_tags(**OWN), (("D1", GROUP),), severity=CRITICAL),
    Case("another cluster's tag, our nodes", with_tags(member=True, KubernetesCluster="prod"), (("D1", GROUP),), True, CRITICAL),
    Case("name of another cluster", other_cluster, (("D1", "run file"),), by_hand=True, severity=CRITICAL),
    Case("kops group without ownership tag", with_tags(**{"KubernetesCluster": CLUSTER, "k8s.io/role/node": "1"}), (("D1", GROUP),)),
    Case("unknown role", with_tags(KubernetesCluster=CLUSTER, Role="Minion"), (("D2", GROUP),)),
    Case("two autoscalers", two_autoscalers, (("D3", "Deployment kube-system/cluster-autoscaler"),), severity=CRITICAL),
    Case("scaling policy", scaling_policy, (("D3", GROUP),), severity=CRITICAL),
    Case("predictive policy", predictive_policy, (("D3", GROUP),), severity=CRITICAL),
    Case("no protection", unprotected_machines, (("D4", GROUP),), severity=CRITICAL),
    Case("protected too late", protected_too_late, (("D4", GROUP),), severity=CRITICAL),
    Case("rebalancing", simple(AvailabilityZones=["us-east-1a", "us-east-1b"]), (("D5", GROUP),), severity=CRITICAL),
    Case("capacity rebalance", simple(CapacityRebalance=True), (("D6", GROUP),)),
    Case("lifetime", simple(MaxInstanceLifetime=86_400), (("D6", GROUP),)),
    Case("scheduled action", scheduled, (("D6", GROUP),)),
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
    Case("full subnet", full_subnet, (("D24", GROUP),), by_hand=True),
    Case("maximum of zero", simple(MaxSize=0), (("D25", GROUP),), by_hand=True, severity=CRITICAL),
    Case(
        "missing right to buy",
        missing("autoscaling:SetDesiredCapacity"),
        (("D29", IAM := "IAM arn:aws:iam::{}:user/gpuscaler"),),
        severity=CRITICAL,
    ),
    Case("missing right to read", missing("autoscaling:DescribeScalingActivities"), (("D29", IAM),), severity=CRITICAL),
    Case("missing right for prices", missing("pricing:GetProducts"), (("D29", IAM),)),
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


def test_a_key_that_the_groups_role_may_not_use_is_found_until_a_launch_succeeds() -> None:
    ward = Ward()
    key = "arn:aws:kms:us-east-1:123456789012:key/0000"
    disks = [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 100, "Encrypted": True, "KmsKeyId": key, "DeleteOnTermination": True}}]
    ward.aws.template("gpus", InstanceType="g5.xlarge", BlockDeviceMappings=disks)
    ward.aws.group("gpus", LaunchTemplate=TEMPLATE)
    region = ward.aws.account.region(REGION)
    region.hardware.troubles.append(Trouble("Client.InternalError"))
    assert not ward.launch("gpus")

    (finding,) = ward.look().findings
    assert (finding.check, finding.object, finding.severity) == ("D23", GROUP, CRITICAL)
    (command,) = finding.fix.commands
    ward.apply(command)
    (grant,) = ward.beside.grants
    assert grant["KeyId"] == key
    assert grant["GranteePrincipal"].endswith("AWSServiceRoleForAutoScaling")

    region.hardware.troubles.clear()
    ward.launch("gpus")
    assert not ward.found()


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
    """As eksctl makes self-managed node groups with propagateASGTags, instanceProtection and asgSuspendProcesses, and one for system pods."""
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
    "DescribeScalingActivities": {"D23"},
    "DescribeLaunchTemplateVersions": {"D4", "D5", "D15", "D16", "D17", "D18", "D19", "D20", "D22", "D25", "D33"},
    "DescribeInstanceTypes": {"D15", "D16", "D17"},
    "DescribeInstanceTypeOfferings": {"D16"},
    "DescribeSpotPriceHistory": {"D18"},
    "DescribeSubnets": {"D16", "D24"},
    "DescribeImages": {"D22"},
    "GetCallerIdentity": {"D29", "D30"},
    "GetQueueAttributes": {"D33"},
}
BESIDE_RIGHTS = {
    "GetServiceQuota": {"D17"},
    "SimulatePrincipalPolicy": {"D29", "D30"},
    "ListRuleNamesByTarget": {"D33"},
    "DescribeRule": {"D33"},
}


@pytest.mark.parametrize("operation", [*RIGHTS, *BESIDE_RIGHTS])
def test_without_a_permission_its_checks_say_that_they_could_not_check(operation: str) -> None:
    ward = Ward()
    mixed("g5.xlarge", "g5.2xlarge", **SPOT)(ward)
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
    assert (finding.check, finding.severity) == ("D29", CRITICAL)
    assert "autoscaling:DescribeScalingActivities" in finding.seen
    (command,) = finding.fix.commands
    assert command.startswith("aws iam put-user-policy --user-name gpuscaler ")


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


def test_odd_answers_do_not_break_a_check() -> None:
    odd: list[Any] = [None, "", "x", -1, 2**70, True, [], [None], {"a": []}]
    kinds = ("AutoScalingGroup", "ScalingPolicy", "ScheduledAction", "ScalingActivity", "Subnet", "Image", "ServiceQuota", "Queue")
    kinds = (*kinds, "EventRule", "Right", "Settings", "DeniedAction", "Caller")
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
    "MaxInstanceLifetime Operator Image Incomplete Action ServiceLinkedRoleARN AutoScalingGroupARN LaunchConfigurationName Enabled"
).split()


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
