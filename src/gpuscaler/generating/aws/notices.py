"""The way of notices from AWS to gpuscaler: the queue, its policy, and the rules of EventBridge that fill it, for all tools alike.

Sources, 2026-11-26: the user guide of EventBridge (resource-based policies of SQS targets, patterns of events, at most 64 characters of a
rule's name), the developer guide of SQS (retention, encryption by SQS), and the events as :mod:`gpuscaler.clouds.aws.machines.notices`
reads them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuscaler.generating.aws.names import base_name
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.writing.explained import Explained, Tree, because

#: How long a message is kept, in seconds.
RETENTION: Final = because(
    "A machine ends two minutes after the warning, so a notice of five minutes ago is of no use. While nothing reads the queue, notices "
    "are dropped instead of piling up.",
    300,
)
#: Whether SQS encrypts the messages with a key of its own.
ENCRYPTED: Final = because(
    "SQS encrypts the messages with its own key, which costs nothing. With the key alias/aws/sqs, EventBridge could not send: that key's "
    "policy cannot be changed to let it.",
    True,
)
#: The principal of EventBridge, in every partition of AWS.
EVENTS: Final = "events.amazonaws.com"
#: The id of a rule's only target.
TARGET_ID: Final = "gpuscaler"
_RULE_NAME: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of EventBridge: an ``id`` that is unique among them (lower-case letters), its pattern, and the reason for it."""

    id: str
    pattern: Mapping[str, Tree]
    why: str

    def name(self, description: Description) -> str:
        return f"{base_name(description)[: _RULE_NAME - len(self.id) - 1]}-{self.id}"


def _rule(ident: str, source: str, kind: str, why: str, detail: Mapping[str, Tree] | None = None) -> Rule:
    return Rule(id=ident, pattern={"source": [source], "detail-type": [kind]} | ({"detail": detail} if detail else {}), why=why)


#: The events that gpuscaler reads, one rule for each, so that each can be disabled alone.
RULES: Final = (
    _rule(
        "spot",
        "aws.ec2",
        "EC2 Spot Instance Interruption Warning",
        "EC2 takes a spot machine back two minutes after this warning. gpuscaler drains the node and buys the next machine meanwhile.",
    ),
    _rule(
        "rebalance",
        "aws.ec2",
        "EC2 Instance Rebalance Recommendation",
        "EC2 says that a spot machine is more likely to be interrupted than others, often before the warning of two minutes.",
    ),
    _rule(
        "state",
        "aws.ec2",
        "EC2 Instance State-change Notification",
        "A machine that something else stops or ends is noticed within seconds, and not only when its node stops reporting. States in "
        "which a machine starts or runs are left out: gpuscaler learns these from its groups.",
        {"state": ["stopping", "stopped", "shutting-down", "terminated"]},
    ),
    _rule(
        "lifecycle",
        "aws.autoscaling",
        "EC2 Instance-terminate Lifecycle Action",
        "Where a group has a hook for ending machines, Auto Scaling waits after this event, and gpuscaler drains the node before it lets "
        "the machine end. Groups without a hook send no such event.",
    ),
    _rule(
        "health",
        "aws.health",
        "AWS Health Event",
        "AWS announces maintenance of a machine's hardware days ahead, so that work can move in time. Events of other services and about "
        "the account are left out.",
        {"service": ["EC2"], "eventTypeCategory": ["scheduledChange"]},
    ),
)


def queue_policy(queue_arn: Tree, rule_arns: Iterable[Tree]) -> Explained:
    """Return the policy of the queue as a tree. The ARNs may be text or what a tool writes for a reference."""
    allow = {
        "Sid": "EventBridge",
        "Effect": "Allow",
        "Principal": {"Service": EVENTS},
        "Action": "sqs:SendMessage",
        "Resource": queue_arn,
        "Condition": because(
            "Only these rules may send. Without the condition, a rule in anybody's account could fill the queue by way of EventBridge.",
            {"ArnEquals": {"aws:SourceArn": list(rule_arns)}},
        ),
    }
    deny = {
        "Sid": "OnlyTls",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "sqs:*",
        "Resource": queue_arn,
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    statements = [
        because("EventBridge sends with its own principal, which a queue admits only by its policy; without it, no notice arrives.", allow),
        because("All calls without TLS are refused. EventBridge and gpuscaler use TLS.", deny),
    ]
    return because(
        "The policy lets EventBridge put notices into the queue. That gpuscaler may read it, its role says.",
        {"Version": "2012-10-17", "Statement": statements},
    )
