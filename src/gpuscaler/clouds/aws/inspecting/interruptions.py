"""The way of interruption notices: rules of EventBridge that send them to the queue, and the queue itself."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuscaler.clouds.aws.inspecting.inspection import Inspection

QUEUE, RULE = "aws/Queue", "aws/EventRule"
_ATTRIBUTES: Final = ["QueueArn", "Policy", "KmsMasterKeyId", "SqsManagedSseEnabled", "ApproximateNumberOfMessages"]


def read_queue(url: str, regions: Iterable[str], inspection: Inspection) -> None:
    """Read the queue at ``url``, and the rules of each of ``regions`` that send something to it, directly or through its region's bus."""
    home = _region_of(url, regions)
    reply = inspection.read(QUEUE, "sqs", home, "GetQueueAttributes", QueueUrl=url, AttributeNames=_ATTRIBUTES)
    if reply is None:
        return
    attributes = reply.get("Attributes") or {}
    arn = str(attributes.get("QueueArn") or "")
    inspection.add(QUEUE, [{**attributes, "Policy": _json(attributes.get("Policy"))}], Region=home, Url=url)
    _, partition, _, _, account, *_ = (*arn.split(":"), "", "", "", "", "")
    bus = f"arn:{partition}:events:{home}:{account}:event-bus/default"
    for region in regions:
        _read_rules(region, arn if region == home else bus, inspection)


def _region_of(url: str, regions: Iterable[str]) -> str:
    """The region in a queue's URL, https://sqs.REGION.amazonaws.com/ACCOUNT/NAME; the first of ``regions`` if it has none."""
    host = url.partition("://")[2].partition("/")[0]
    parts = host.split(".")
    return parts[1] if len(parts) > 2 and parts[0] == "sqs" else next(iter(regions), "")


def _read_rules(region: str, target: str, inspection: Inspection) -> None:
    names = inspection.pages(RULE, "events", region, "ListRuleNamesByTarget", "RuleNames", TargetArn=target)
    for name in names or ():
        rule = inspection.read(RULE, "events", region, "DescribeRule", Name=name)
        if rule is not None:
            inspection.add(RULE, [{**rule, "EventPattern": _json(rule.get("EventPattern"))}], Region=region)


def _json(text: object) -> Mapping[str, Any]:
    """A document in a text; empty if it is none."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}
