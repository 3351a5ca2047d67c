"""The CloudFormation stack: notices arrive in the queue, nothing else does, and the controller has the rights that it needs."""

import json
from typing import Any

import pytest
from tests.doctor.aws_accounts import REGION, SPOT, Ward, mixed
from tests.generating.corpus import NAMES, description, generated
from tests.generating.looking import complaints, look_at
from tests.generating.stacks import ACCOUNT, NEEDED, SETTABLE, Stack, admits, matches

from gpuscaler.clouds.aws.discovery.iam import policy
from gpuscaler.clouds.aws.machines.notices import decode_message
from gpuscaler.generating.aws.cloudformation import PATH
from gpuscaler.generating.aws.names import base_name, controller_role_arn, queue_url
from gpuscaler.generating.aws.notices import RULES
from gpuscaler.generating.bundle import files_of
from gpuscaler.generating.description.reading import read_description

EKS, OWN, KOPS = "s1-eksctl", "s1-self-managed", "s0-kops"
ISSUER = "oidc.eks.us-east-1.amazonaws.com/id/0A1B"
INSTANCE = "i-0123456789abcdef0"


def stack(name: str) -> Stack:
    region = description(name).cluster.region
    return Stack(name, region=region, OidcProvider=ISSUER) if name == OWN else Stack(name, region=region)


def test_only_tools_without_queues_of_their_own_get_the_stack() -> None:
    assert {name for name in NAMES if PATH in generated(name)} == {KOPS, EKS, OWN, "s3-metrics"}


@pytest.mark.parametrize("name", [EKS, OWN, KOPS])
def test_resources_have_properties_that_cloudformation_knows(name: str) -> None:
    def check(kind: str, properties: dict[str, Any]) -> None:
        assert NEEDED.get(kind, set()) <= set(properties) <= set(SETTABLE[kind].split())

    for resource in stack(name).template["Resources"].values():
        assert set(resource) == {"Type", "Properties"}
        check(resource["Type"], resource["Properties"])
        for kind in ("Target", "Policy"):
            for item in resource["Properties"].get({"Target": "Targets", "Policy": "Policies"}[kind], ()):
                check(kind, item)


def event(source: str, kind: str, detail: dict[str, Any]) -> dict[str, Any]:
    """An event as EventBridge sends it. Source of the fields: the user guides of EC2, Auto Scaling and Health, 2026-11-26."""
    head = {"version": "0", "id": "1", "account": ACCOUNT, "region": "us-west-2", "time": "2026-11-21T12:00:00Z", "resources": []}
    return {**head, "source": source, "detail-type": kind, "detail": detail}


def state(named: str) -> dict[str, Any]:
    return event("aws.ec2", "EC2 Instance State-change Notification", {"instance-id": INSTANCE, "state": named})


def hook(kind: str, transition: str) -> dict[str, Any]:
    names = {"LifecycleActionToken": "t", "AutoScalingGroupName": "gpus", "LifecycleHookName": "h", "EC2InstanceId": INSTANCE}
    return event("aws.autoscaling", f"EC2 Instance-{kind} Lifecycle Action", {**names, "LifecycleTransition": transition})


def health(service: str, category: str) -> dict[str, Any]:
    names = {"service": service, "eventTypeCategory": category, "startTime": "Sat, 28 Nov 2026 12:00:00 GMT"}
    return event("aws.health", "AWS Health Event", {**names, "affectedEntities": [{"entityValue": INSTANCE}]})


SPOT_DETAIL = {"instance-id": INSTANCE, "instance-action": "terminate"}


@pytest.mark.parametrize(
    ("sent", "by"),
    [
        (event("aws.ec2", "EC2 Spot Instance Interruption Warning", SPOT_DETAIL), {"RuleSpot"}),
        (event("aws.ec2", "EC2 Instance Rebalance Recommendation", {"instance-id": INSTANCE}), {"RuleRebalance"}),
        *[(state(named), {"RuleState"}) for named in ("stopping", "stopped", "shutting-down", "terminated")],
        *[(state(named), set()) for named in ("pending", "running")],
        (hook("terminate", "autoscaling:EC2_INSTANCE_TERMINATING"), {"RuleLifecycle"}),
        (hook("launch", "autoscaling:EC2_INSTANCE_LAUNCHING"), set()),
        (health("EC2", "scheduledChange"), {"RuleHealth"}),
        (health("RDS", "scheduledChange"), set()),
        (health("EC2", "issue"), set()),
        (event("example.com", "EC2 Spot Instance Interruption Warning", SPOT_DETAIL), set()),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, set) else f"{value['source']} {value['detail-type']}",
)
def test_rules_send_what_gpuscaler_reads_and_nothing_else(sent: dict[str, Any], by: set[str]) -> None:
    rules = stack(EKS).of("AWS::Events::Rule")
    assert {name for name, rule in rules.items() if matches(rule["EventPattern"], sent)} == by
    if sent["source"] != "example.com":
        assert bool(decode_message(json.dumps(sent))) == bool(by)


@pytest.mark.parametrize("name", [EKS, OWN, KOPS])
def test_only_the_rules_of_the_stack_may_send_and_only_with_tls(name: str) -> None:
    made = stack(name)
    queue, arns = (
        made.resolved({"Fn::GetAtt": ["Queue", "Arn"]}),
        [made.resolved({"Fn::GetAtt": [rule, "Arn"]}) for rule in made.of("AWS::Events::Rule")],
    )
    (attached,) = made.of("AWS::SQS::QueuePolicy").values()
    assert attached["Queues"] == [made.outputs()["QueueUrl"]]

    def sends(arn: str, *, who: str = "events.amazonaws.com", action: str = "sqs:SendMessage", tls: str = "true") -> bool:
        return admits(attached["PolicyDocument"], who, action, queue, SourceArn=arn, SecureTransport=tls)

    assert len(arns) == len(RULES)
    assert all(sends(arn) for arn in arns)
    assert not sends(arns[0].replace(ACCOUNT, "999999999999"))
    assert not sends(f"{arns[0]}2")
    assert not sends(arns[0], tls="false")
    assert not sends(arns[0], who="sns.amazonaws.com")
    assert not sends(arns[0], action="sqs:ReceiveMessage")
    for rule in made.of("AWS::Events::Rule").values():
        assert [target["Arn"] for target in rule["Targets"]] == [queue]


@pytest.mark.parametrize("name", [EKS, OWN, KOPS])
def test_the_controller_has_the_rights_of_generate_iam(name: str) -> None:
    made, cluster = stack(name), description(name).cluster.name
    nodes = {
        EKS: "role/eksctl-eks-gpu-nodegroup-*",
        OWN: "role/eksctl-eks-own-nodegroup-*",
        KOPS: "role/nodes.train.example.com",
    }[name]
    expected = policy(cluster, queue=made.resolved({"Fn::GetAtt": ["Queue", "Arn"]}), node_role=f"arn:aws:iam::{ACCOUNT}:{nodes}")
    if name == KOPS:
        (granted,) = (found["PolicyDocument"] for found in made.of("AWS::IAM::ManagedPolicy").values())
        expected["Statement"] = [load for load in expected["Statement"] if load["Sid"] != "ReadNodeGroups"]
        # IAM counts no spaces in a managed policy.
        assert len(json.dumps(granted, separators=(",", ":"))) < 6144
    else:
        ((role,),) = (found["Policies"] for found in made.of("AWS::IAM::Role").values())
        granted = role["PolicyDocument"]
    assert granted == expected


def test_eks_pod_identity_takes_the_role() -> None:
    (role,) = stack(EKS).of("AWS::IAM::Role").values()
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    condition = {
        "aws:RequestTag/eks-cluster-name": description(EKS).cluster.name,
        "aws:RequestTag/kubernetes-namespace": description(EKS).controller.namespace,
        "aws:RequestTag/kubernetes-service-account": "gpuscaler-controller",
    }
    assert trust == {
        "Effect": "Allow",
        "Principal": {"Service": "pods.eks.amazonaws.com"},
        "Action": ["sts:AssumeRole", "sts:TagSession"],
        "Condition": {"StringEquals": condition},
    }


def test_a_token_of_the_controllers_serviceaccount_takes_the_role() -> None:
    (role,) = stack(OWN).of("AWS::IAM::Role").values()
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Federated": f"arn:aws:iam::{ACCOUNT}:oidc-provider/{ISSUER}"}
    assert trust["Action"] == "sts:AssumeRoleWithWebIdentity"
    subject = "system:serviceaccount:gpuscaler:gpuscaler-controller"
    assert trust["Condition"] == {"StringEquals": {f"{ISSUER}:sub": subject, f"{ISSUER}:aud": "sts.amazonaws.com"}}
    assert "OidcProvider=$(aws eks describe-cluster --region us-east-1 --name eks-own" in generated(OWN)[PATH].apply


def test_what_other_files_name_is_what_the_stack_makes() -> None:
    described = description(OWN)
    made = stack(OWN)
    assert made.outputs() == {"QueueUrl": queue_url(described), "RoleArn": controller_role_arn(described)}


def test_names_of_long_clusters_fit() -> None:
    name = f"{'c' * 40}.{'d' * 40}.example.com"
    text = f"cloud: aws\ntool: kops\ncluster: {{name: {name}, region: us-east-1}}\ngpu_pools: [{{name: a, types: [g5.xlarge]}}]\n"
    long = read_description(text)
    names = [rule.name(long) for rule in RULES]
    assert len(set(names)) == len(names)
    assert max(map(len, [*names, base_name(long)])) <= 64


def test_the_doctor_sees_the_way_of_the_notices() -> None:
    made, ward = stack(OWN), Ward()
    mixed("g5.xlarge", "g5.2xlarge", **SPOT)(ward)
    ward.beside.rules.clear()
    ward.beside.targets.clear()
    sqs = ward.aws.client("sqs")
    sqs.set_queue_attributes(QueueUrl=ward.queue_url, Attributes={"Policy": "{}"})
    assert {check for check, _ in ward.found()} >= {"D33"}
    (queue,) = made.of("AWS::SQS::Queue").values()
    (attached,) = made.of("AWS::SQS::QueuePolicy").values()
    attributes = {key: str(value) for key, value in queue.items() if key != "QueueName"} | {
        "Policy": json.dumps(attached["PolicyDocument"])
    }
    sqs.set_queue_attributes(QueueUrl=ward.queue_url, Attributes=attributes)
    for rule in made.of("AWS::Events::Rule").values():
        ward.rule(REGION, rule["Name"], rule["EventPattern"], ward.arn)
    assert "D33" not in {check for check, _ in ward.found()}


@pytest.mark.parametrize("name", [EKS, OWN, KOPS])
def test_the_doctor_reads_the_template_and_finds_nothing(name: str) -> None:
    assert complaints(look_at(name, [PATH])) == []


def test_the_file_is_the_first_for_kops_and_needs_no_edit() -> None:
    first = files_of(description(KOPS))[1]
    assert (first.path, first.edit) == (PATH, "")
    assert first.apply.startswith("aws cloudformation deploy --region ap-northeast-1 --stack-name gpuscaler-train-example-com ")
