"""The queue of notices and the rules of EventBridge, as Terraform. What they contain is in :mod:`gpuscaler.generating.aws.notices`."""

from collections.abc import Iterator

from gpuscaler.generating.aws.names import base_name
from gpuscaler.generating.aws.notices import ENCRYPTED, RETENTION, RULES, TARGET_ID, queue_policy
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.hcl import Block, Expression, call

_QUEUE_ARN = Expression("aws_sqs_queue.notices.arn")


def notice_blocks(description: Description) -> Iterator[Tree]:
    yield Block(
        "resource",
        ("aws_sqs_queue", "notices"),
        {
            "name": because(
                "gpuscaler's settings name this queue. It serves this cluster only: who reads a message deletes it.", base_name(description)
            ),
            "message_retention_seconds": RETENTION,
            "sqs_managed_sse_enabled": ENCRYPTED,
        },
    )
    rules = {rule.id: because(rule.why, {"name": rule.name(description), "pattern": dict(rule.pattern)}) for rule in RULES}
    yield Block("locals", (), {"notices": rules})
    yield because(
        "A rule for each kind of notice, so that each can be disabled alone.",
        Block(
            "resource",
            ("aws_cloudwatch_event_rule", "notices"),
            {
                "for_each": Expression("local.notices"),
                "name": Expression("each.value.name"),
                "event_pattern": call("jsonencode", Expression("each.value.pattern")),
            },
        ),
    )
    yield because(
        "Each rule sends what it matches to the queue. A rule without a target does nothing.",
        Block(
            "resource",
            ("aws_cloudwatch_event_target", "notices"),
            {
                "for_each": Expression("local.notices"),
                "rule": Expression("aws_cloudwatch_event_rule.notices[each.key].name"),
                "target_id": TARGET_ID,
                "arn": _QUEUE_ARN,
            },
        ),
    )
    policy = queue_policy(_QUEUE_ARN, (Expression(f'aws_cloudwatch_event_rule.notices["{rule.id}"].arn') for rule in RULES))
    yield because(
        policy.why,
        Block(
            "resource",
            ("aws_sqs_queue_policy", "notices"),
            {"queue_url": Expression("aws_sqs_queue.notices.url"), "policy": call("jsonencode", policy.value)},
        ),
    )
