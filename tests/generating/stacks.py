"""CloudFormation as far as the tests need it: what references are in an account, and what policies and patterns admit."""

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml
from tests.generating.corpus import generated

from gpuscaler.generating.aws.cloudformation import PATH

ACCOUNT = "123456789012"
#: Properties of resources that may be set, those that must be, and those of a target. Source: the schemas of the resource types that AWS
#: publishes (CloudFormation registry, us-east-1), as cfn-lint 1.58.0 contains them, 2026-11-26.
SETTABLE: Mapping[str, str] = {
    "AWS::SQS::Queue": "ContentBasedDeduplication DeduplicationScope DelaySeconds FifoQueue FifoThroughputLimit KmsMasterKeyId "
    "KmsDataKeyReusePeriodSeconds MaximumMessageSize MessageRetentionPeriod QueueName ReceiveMessageWaitTimeSeconds RedriveAllowPolicy "
    "RedrivePolicy SqsManagedSseEnabled Tags VisibilityTimeout",
    "AWS::SQS::QueuePolicy": "PolicyDocument Queues",
    "AWS::Events::Rule": "Description EventBusName EventPattern Name RoleArn ScheduleExpression State Tags Targets",
    "AWS::IAM::Role": "AssumeRolePolicyDocument Description ManagedPolicyArns MaxSessionDuration Path PermissionsBoundary Policies "
    "RoleName Tags",
    "AWS::IAM::ManagedPolicy": "Description Groups ManagedPolicyName Path PolicyDocument Roles Users",
    "Target": "AppSyncParameters Arn BatchParameters DeadLetterConfig EcsParameters HttpParameters Id Input InputPath InputTransformer "
    "KinesisParameters RedshiftDataParameters RetryPolicy RoleArn RunCommandParameters SageMakerPipelineParameters SqsParameters",
    "Policy": "PolicyDocument PolicyName",
}
NEEDED: Mapping[str, set[str]] = {
    "AWS::SQS::QueuePolicy": {"PolicyDocument", "Queues"},
    "AWS::IAM::Role": {"AssumeRolePolicyDocument"},
    "AWS::IAM::ManagedPolicy": {"PolicyDocument"},
    "Target": {"Id", "Arn"},
    "Policy": {"PolicyDocument", "PolicyName"},
}
_SUB = re.compile(r"\$\{([^}]+)\}")


class Stack:
    """A stack of the template of a description; its references are resolved for an account in one region."""

    def __init__(self, name: str, *, region: str, **parameters: str) -> None:
        self.template: dict[str, Any] = yaml.safe_load(generated(name)[PATH].text(explain=False))
        self._known = {"AWS::Partition": "aws", "AWS::AccountId": ACCOUNT, "AWS::Region": region, **parameters}
        assert set(self.template.get("Parameters", {})) == set(parameters)
        self.region = region
        self.resources: dict[str, Any] = {
            name: self.resolved(resource["Properties"]) for name, resource in self.template["Resources"].items()
        }

    def of(self, type_: str) -> dict[str, dict[str, Any]]:
        """The resources of a type by their names, with references resolved."""
        return {name: self.resources[name] for name, resource in self.template["Resources"].items() if resource["Type"] == type_}

    def outputs(self) -> dict[str, str]:
        return {name: self.resolved(output["Value"]) for name, output in self.template["Outputs"].items()}

    def resolved(self, value: Any) -> Any:
        match value:
            case {"Ref": name}:
                return self._known.get(name) or self._reference(name)
            case {"Fn::GetAtt": [name, "Arn"]}:
                return self._arn(name)
            case {"Fn::Sub": text}:
                filled = _SUB.sub(lambda match: self._known[match[1]], text)
                return json.loads(filled) if filled.startswith("{") else filled
            case dict():
                assert not any(key.startswith("Fn::") for key in value), value
                return {key: self.resolved(item) for key, item in value.items()}
            case list():
                return [self.resolved(item) for item in value]
        return value

    def _reference(self, name: str) -> str:
        """What Ref of a resource is: the URL of a queue, the ARN of a managed policy."""
        resource = self.template["Resources"][name]
        if resource["Type"] == "AWS::SQS::Queue":
            return f"https://sqs.{self.region}.amazonaws.com/{ACCOUNT}/{resource['Properties']['QueueName']}"
        assert resource["Type"] == "AWS::IAM::ManagedPolicy"
        return self._arn(name)

    def _arn(self, name: str) -> str:
        resource = self.template["Resources"][name]
        place = f"{self.region}:{ACCOUNT}"
        match resource["Type"], resource["Properties"]:
            case "AWS::SQS::Queue", {"QueueName": named}:
                return f"arn:aws:sqs:{place}:{named}"
            case "AWS::Events::Rule", {"Name": named}:
                return f"arn:aws:events:{place}:rule/{named}"
            case "AWS::IAM::Role", {"RoleName": named}:
                return f"arn:aws:iam::{ACCOUNT}:role/{named}"
            case "AWS::IAM::ManagedPolicy", {"ManagedPolicyName": named}:
                return f"arn:aws:iam::{ACCOUNT}:policy/{named}"
        raise AssertionError(name)


def admits(policy: Mapping[str, Any], principal: str, action: str, resource: str, **keys: str) -> bool:
    """Whether a policy of a resource lets the principal act, as IAM decides; only what the templates contain is known.

    ``keys`` are the keys of the request that conditions ask for, without their ``aws:``.
    """
    matching = [statement["Effect"] for statement in policy["Statement"] if _applies(statement, principal, action, resource, keys)]
    return "Allow" in matching and "Deny" not in matching


def _applies(statement: Mapping[str, Any], principal: str, action: str, resource: str, keys: Mapping[str, str]) -> bool:
    assert set(statement) <= {"Sid", "Effect", "Principal", "Action", "Resource", "Condition"}
    assert set(statement.get("Condition", {})) <= {"ArnEquals", "Bool", "StringEquals"}
    wanted = [wanted.items() for wanted in statement.get("Condition", {}).values()]
    conditions = [(keys.get(key.removeprefix("aws:")), values) for items in wanted for key, values in items]
    return (
        (statement["Principal"] == "*" or principal in statement["Principal"].values())
        and statement["Action"] in (action, f"{action.partition(':')[0]}:*")
        and statement["Resource"] == resource
        and all(seen in ([values] if isinstance(values, str) else values) for seen, values in conditions)
    )


def matches(pattern: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    """Whether an event matches a pattern of EventBridge that has exact values only."""
    return all(
        matches(wanted, event.get(key) or {}) if isinstance(wanted, dict) else event.get(key) in wanted for key, wanted in pattern.items()
    )
