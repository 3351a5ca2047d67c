"""What is broken in accounts of AWS: each function breaks one thing."""

from collections.abc import Callable

from tests.clouds.aws.accounts import DISCOVERED
from tests.doctor.aws_accounts import KMS_KEY, KMS_ROLE, REGION, SPOT, TEMPLATE, Ward, keyed, mixed, simple


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


def spot_quota(value: float, *types: str, code: str = "L-3819A6DF", name: str = "") -> Callable[[Ward], None]:
    def make(ward: Ward) -> None:
        mixed(*types, zones="subnet-useast1a,subnet-useast1b,subnet-useast1c", **SPOT)(ward)
        ward.beside.quotas[code] = value
        if name:
            ward.beside.named_quotas[code] = name

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
