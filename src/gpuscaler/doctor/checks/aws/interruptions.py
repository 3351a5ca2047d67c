"""The way of interruption notices to gpuscaler: the queue, its policy and key, and rules of EventBridge in each region."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from gpuscaler.doctor.checks.aws.account import AwsGroup, aws, aws_check, scaled_groups, settings_of
from gpuscaler.doctor.documents import Document, template_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import WARNING, Finding, Fix

QUEUE, RULE = "aws/Queue", "aws/EventRule"
_WARNING = "EC2 Spot Instance Interruption Warning"
_PATTERN = {"source": ["aws.ec2"], "detail-type": [_WARNING, "EC2 Instance Rebalance Recommendation"]}
LATE = "spot machines end without notice: their pods are killed, and replacements come minutes later"
EVENTS = "events.amazonaws.com"
#: The key of AWS for SQS, whose policy cannot be changed.
UNUSABLE_KEY = "alias/aws/sqs"
#: A queue that is read every two seconds never has as many messages.
_BACKLOG = 1_000


def find_broken_path(evidence: Evidence) -> Iterator[Finding]:
    """D33: notices of spot interruptions that do not arrive."""
    regions = sorted({group.region for group in scaled_groups(evidence) if "spot" in group.markets})
    if not regions:
        return
    settings = settings_of(evidence)
    if not settings.text("QueueUrl"):
        yield Finding(
            "D33",
            WARNING,
            "run file",
            "aws.queue_url",
            "no queue",
            "a queue that gets the notices of EC2, since there are groups of spot machines",
            LATE,
            Fix(advice="create an SQS queue with a rule of EventBridge for it, and name it in aws.queue_url"),
        )
        return
    for queue in evidence.of(QUEUE):
        yield from _queue(queue)
        if RULE not in evidence.unread:
            yield from _rules(evidence, queue, regions)


def _queue(queue: Document) -> Iterator[Finding]:
    arn, url, region = queue.text("QueueArn"), queue.text("Url"), queue.text("Region")
    title = f"Queue {region}/{url.rpartition('/')[2]}"

    def attributes(values: dict[str, str]) -> Fix:
        text = json.dumps(values, separators=(",", ":"))
        return Fix((aws("sqs", "set-queue-attributes", "--queue-url", url, "--attributes", text, region=region),))

    if not lets_send(queue.part("Policy")):
        policy = {"Version": "2012-10-17", **queue.part("Policy").data}
        statement = {"Effect": "Allow", "Principal": {"Service": EVENTS}, "Action": "sqs:SendMessage", "Resource": arn}
        policy["Statement"] = [*_statements(queue.part("Policy")), statement]
        yield Finding(
            "D33",
            WARNING,
            title,
            "Policy",
            f"no statement that lets {EVENTS} send messages",
            "sqs:SendMessage allowed",
            LATE,
            attributes({"Policy": json.dumps(policy, separators=(",", ":"))}),
        )
    if queue.text("KmsMasterKeyId") == UNUSABLE_KEY:
        yield Finding(
            "D33",
            WARNING,
            title,
            "KmsMasterKeyId",
            f"{UNUSABLE_KEY}, a key that EventBridge may not use",
            "encryption by SQS itself, or a key of your own whose policy lets EventBridge use it",
            LATE,
            attributes({"KmsMasterKeyId": "", "SqsManagedSseEnabled": "true"}),
        )
    waiting = queue.text("ApproximateNumberOfMessages")
    if waiting.isdecimal() and int(waiting) >= _BACKLOG:
        yield Finding(
            "D33",
            WARNING,
            title,
            "ApproximateNumberOfMessages",
            waiting,
            f"less than {_BACKLOG}",
            "the queue is not read: notices wait there until they are out of date",
            Fix(advice="see whether gpuscaler runs, reads this queue (aws.queue_url) and may receive and delete messages"),
        )


def _statements(policy: Document) -> list[Any]:
    statements = policy.value("Statement")
    return [statements] if isinstance(statements, dict) else list(statements) if isinstance(statements, list) else []


def lets_send(policy: Document) -> bool:
    """Whether EventBridge may send messages, as far as the statements show."""
    for statement in _statements(policy):
        part = Document(statement if isinstance(statement, dict) else {})
        actions = {action.lower() for action in _words(part.value("Action"))}
        principals = {
            *_words(part.value("Principal")),
            *_words(part.value("Principal", "Service")),
            *_words(part.value("Principal", "AWS")),
        }
        if part.text("Effect") == "Allow" and actions & {"sqs:sendmessage", "sqs:*", "*"} and principals & {EVENTS, "*"}:
            return True
    return False


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _rules(evidence: Evidence, queue: Document, regions: Iterable[str]) -> Iterator[Finding]:
    rules = [rule for rule in evidence.of(RULE) if _covers(rule)]
    home = queue.text("Region")
    for region in dict.fromkeys((*regions, home) if any(region != home for region in regions) else regions):
        there = [rule for rule in rules if rule.text("Region") == region]
        if any(rule.text("State", default="ENABLED").startswith("ENABLED") for rule in there):
            continue
        yield Finding(
            "D33",
            WARNING,
            f"EventBridge {region}",
            "rules",
            f"rule {there[0].text('Name')} is disabled" if there else f"no rule that sends {_WARNING} to {queue.text('QueueArn')}",
            "an enabled rule in each region with spot machines",
            LATE,
            _rule(region, there, queue) if region == home or there else _elsewhere(region, queue),
        )


def _covers(rule: Document) -> bool:
    """Whether the rule matches warnings of spot interruptions; a pattern without a detail-type matches all."""
    pattern = rule.part("EventPattern")
    sources, kinds = _words(pattern.value("source")), _words(pattern.value("detail-type"))
    exact = (not sources or "aws.ec2" in sources) and (not kinds or _WARNING in kinds)
    # Patterns may have operators such as {"prefix": "EC2 "}, which are not judged here.
    operators = any(isinstance(item, dict) for key in ("source", "detail-type") for item in pattern.value(key) or ())
    return bool(pattern.data) and (exact or operators)


def _rule(region: str, there: list[Document], queue: Document) -> Fix:
    if there:
        return Fix((aws("events", "enable-rule", "--name", there[0].text("Name"), region=region),))
    pattern = json.dumps(_PATTERN, separators=(",", ":"))
    target = json.dumps([{"Id": "gpuscaler", "Arn": queue.text("QueueArn")}], separators=(",", ":"))
    return Fix(
        (
            aws("events", "put-rule", "--name", "gpuscaler-spot", "--event-pattern", pattern, region=region),
            aws("events", "put-targets", "--rule", "gpuscaler-spot", "--targets", target, region=region),
        )
    )


def _elsewhere(region: str, queue: Document) -> Fix:
    home = queue.text("Region")
    return Fix(
        advice=f"send the events of {region} to the default event bus of {home} with a rule that has a role for it; a queue of another "
        "region cannot be the target of a rule"
    )


def find_metadata(evidence: Evidence) -> Iterator[Finding]:
    """D32: a metadata service that AWS's node termination handler cannot reach."""
    handlers = [item for item in evidence.of("DaemonSet") if "node-termination-handler" in item.name]
    for handler in handlers:
        template = template_of(handler)
        if template is None:
            continue
        host = template.flag("spec", "hostNetwork")
        for group in scaled_groups(evidence):
            hops = [option.document.number("MetadataHops") for option in group.options]
            if any(hop is not None and hop < (1 if host else 2) for hop in hops):
                yield _metadata(group, handler, off=0 in hops)


def _metadata(group: AwsGroup, handler: Document, *, off: bool) -> Finding:
    return Finding(
        "D32",
        WARNING,
        group.title,
        "MetadataOptions",
        "the metadata service is off" if off else "HttpPutResponseHopLimit 1",
        "on" if off else "HttpPutResponseHopLimit 2, or a handler with hostNetwork",
        f"{handler.title} reads interruption notices there and never sees one",
        Fix(advice="set MetadataOptions in a new version of the launch template, or have the handler read a queue"),
    )


CHECKS = (
    aws_check("D32", "metadata services of machines", ("DaemonSet",), find_metadata, types=True),
    aws_check("D33", "notices of spot interruptions", (QUEUE, RULE), find_broken_path, types=True),
)
