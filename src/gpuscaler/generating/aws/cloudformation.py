"""The stack for tools that have no queues of their own: the queue of notices, its rules, and the controller's role or policy.

With eksctl, the stack makes the role. With kOps, it makes only the policy: kOps makes the role from it, and keeps the role's trust in step
with the cluster's issuer of tokens.

Source of resources and properties: the CloudFormation template reference, 2026-11-26.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final

from gpuscaler.generating.aws.names import base_name, kops_role_name
from gpuscaler.generating.aws.notices import ENCRYPTED, RETENTION, RULES, TARGET_ID, Rule, queue_policy
from gpuscaler.generating.aws.rights import controller_policy, irsa_trust, pod_identity_trust
from gpuscaler.generating.description.resolved import SERVICE_ACCOUNT, Description
from gpuscaler.generating.description.settings import EKSCTL, IRSA, KOPS
from gpuscaler.generating.writing.explained import Explained, Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, yaml_file

PATH: Final = "cloudformation/gpuscaler.yaml"
_QUEUE, _ROLE, _POLICY, _PROVIDER = "Queue", "ControllerRole", "ControllerPolicy", "OidcProvider"


def cloudformation_files(description: Description) -> Iterable[GeneratedFile]:
    """Yield the template, if the description's tool makes no queue itself."""
    if description.cloud != "aws" or description.tool not in (EKSCTL, KOPS):
        return
    granted = "the policy of gpuscaler's controller" if description.tool == KOPS else "the role of gpuscaler's controller"
    about = f"a CloudFormation stack with the queue of interruption notices, the rules that fill it, and {granted}"
    yield yaml_file(PATH, about, [_template(description)], apply=_command(description))


def _command(description: Description) -> str:
    name, region = description.cluster.name, description.cluster.region
    command = (
        f"aws cloudformation deploy --region {region} --stack-name {base_name(description)} --template-file {PATH} "
        "--capabilities CAPABILITY_NAMED_IAM"
    )
    if not _by_token(description):
        return command
    issuer = f"aws eks describe-cluster --region {region} --name {name} --query cluster.identity.oidc.issuer --output text"
    return f"{command} --parameter-overrides \"{_PROVIDER}=$({issuer} | sed 's|^https://||')\""


def _by_token(description: Description) -> bool:
    """Whether the role is taken with a token of the cluster's issuer (IRSA)."""
    return description.tool == EKSCTL and description.controller.identity == IRSA


def _attribute(resource: str, name: str) -> Mapping[str, Tree]:
    return {"Fn::GetAtt": [resource, name]}


def _template(description: Description) -> Mapping[str, Tree]:
    template: dict[str, Tree] = {
        "AWSTemplateFormatVersion": because("This is the only version of the format.", "2010-09-09"),
        "Description": because("The console of CloudFormation shows this text.", f"gpuscaler in the cluster {description.cluster.name}"),
    }
    if _by_token(description):
        parameter = {
            "Type": "String",
            "AllowedPattern": r"[A-Za-z0-9.-]+(/[A-Za-z0-9._/-]*)?",
            "Description": "URL of the cluster's OIDC issuer, without https://",
        }
        why = "EKS chooses the issuer when it creates the cluster; the command in README.md asks EKS for it. Templates have no way to ask."
        template["Parameters"] = {_PROVIDER: because(why, parameter)}
    rules = {f"Rule{rule.id.capitalize()}": rule for rule in RULES}
    template["Resources"] = {
        _QUEUE: _queue(description),
        "QueuePolicy": {
            "Type": because(
                "A queue's policy is a resource of its own, because it names the rules, which name the queue.", _type("SQS::QueuePolicy")
            ),
            "Properties": {
                "Queues": because(
                    "The policy belongs to this queue. Ref of a queue is its URL, which is what CloudFormation expects here.",
                    [{"Ref": _QUEUE}],
                ),
                "PolicyDocument": queue_policy(_attribute(_QUEUE, "Arn"), [_attribute(name, "Arn") for name in rules]),
            },
        },
        **{name: _rule(rule, description) for name, rule in rules.items()},
        **_rights(description),
    }
    template["Outputs"] = _outputs(description)
    return template


def _type(name: str) -> str:
    return f"AWS::{name}"


def _queue(description: Description) -> Mapping[str, Tree]:
    return {
        "Type": because(
            "EventBridge puts notices of AWS into the queue, and gpuscaler takes them out every few seconds.", _type("SQS::Queue")
        ),
        "Properties": {
            "QueueName": because(
                "The values of gpuscaler's chart name this queue by its URL, so the name must be known beforehand.", base_name(description)
            ),
            "MessageRetentionPeriod": RETENTION,
            "SqsManagedSseEnabled": ENCRYPTED,
        },
    }


def _rule(rule: Rule, description: Description) -> Explained:
    properties = {
        "Name": rule.name(description),
        "EventPattern": rule.pattern,
        "State": "ENABLED",
        "Targets": because(
            "The events go to the queue. A role for the target would be wrong: the queue's policy admits the rule.",
            [{"Id": TARGET_ID, "Arn": _attribute(_QUEUE, "Arn")}],
        ),
    }
    return because(rule.why, {"Type": _type("Events::Rule"), "Properties": properties})


def _rights(description: Description) -> Mapping[str, Tree]:
    properties: dict[str, Tree]
    rights = controller_policy(description, queue=_attribute(_QUEUE, "Arn"), node_role=_node_role(description))
    name = base_name(description)
    if description.tool == KOPS:
        properties = {
            "ManagedPolicyName": because(
                "iam.serviceAccountExternalPermissions of the cluster (kops/cluster.yaml) names the policy by its ARN.", name
            ),
            "PolicyDocument": rights,
        }
        why = "kOps makes the role of gpuscaler's ServiceAccount itself, with this policy. A second role here would stay unused."
        return {_POLICY: {"Type": because(why, _type("IAM::ManagedPolicy")), "Properties": properties}}
    properties = {
        "RoleName": because("Other files name the role by its ARN, so the name must be known beforehand.", name),
        "AssumeRolePolicyDocument": _trust(description),
        "Policies": [
            {"PolicyName": because("The name is free; the policy belongs to this role alone.", "gpuscaler"), "PolicyDocument": rights}
        ],
    }
    why = "gpuscaler's controller has this role, and nothing else has: neither other pods nor the machines it runs on."
    return {_ROLE: {"Type": because(why, _type("IAM::Role")), "Properties": properties}}


def _node_role(description: Description) -> Tree:
    """Return the role that launch templates give to machines: EKS adds it to those of its managed groups, too."""
    cluster = description.cluster.name
    role = kops_role_name(f"nodes.{cluster}") if description.tool == KOPS else f"eksctl-{cluster}-nodegroup-*"
    return {"Fn::Sub": _iam(f"role/{role}")}


def _iam(resource: str) -> str:
    return f"arn:${{AWS::Partition}}:iam::${{AWS::AccountId}}:{resource}"


def _trust(description: Description) -> Explained:
    if not _by_token(description):
        return pod_identity_trust(description.cluster.name, description.controller.namespace, SERVICE_ACCOUNT)
    provider = f"${{{_PROVIDER}}}"
    arn = _iam(f"oidc-provider/{provider}")
    text = json.dumps(irsa_trust(description, provider=provider, provider_arn=arn), indent=2)
    return because(
        "Only tokens of gpuscaler's ServiceAccount may take the role: `sub` is the account, `aud` is who the token is for. The policy is "
        "text, because the issuer is part of the keys of its conditions, and CloudFormation puts parameters into text, but not into keys.",
        {"Fn::Sub": text + "\n"},
    )


def _outputs(description: Description) -> Mapping[str, Tree]:
    url = {"Description": "aws.queue_url of gpuscaler's run file", "Value": {"Ref": _QUEUE}}
    outputs = {"QueueUrl": because("The values of gpuscaler's chart must have this URL; compare them.", url)}
    if description.tool == KOPS:
        arn: Mapping[str, Tree] = {
            "Description": "policyARNs of gpuscaler's ServiceAccount in the cluster's spec",
            "Value": {"Ref": _POLICY},
        }
        return {
            **outputs,
            "PolicyArn": because("The cluster's spec must have this ARN; compare them. Ref of a managed policy is its ARN.", arn),
        }
    arn = {"Description": "the role of gpuscaler's ServiceAccount", "Value": _attribute(_ROLE, "Arn")}
    return {
        **outputs,
        "RoleArn": because("The association or annotation of gpuscaler's ServiceAccount must have this ARN; compare them.", arn),
    }
