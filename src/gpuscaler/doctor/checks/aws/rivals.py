"""Others that change the sizes of groups that gpuscaler scales."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpuscaler.doctor.checks.aws.account import AwsGroup, aws_check, groups_of, scaled_groups
from gpuscaler.doctor.commands import kubectl_patch
from gpuscaler.doctor.documents import Document, containers_of, template_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix

_TWO = "two programs set the size of the group against each other: machines are bought twice, or ended with running pods"
_AUTOSCALER = "cluster-autoscaler"
_DISCOVERY = "asg:tag="
_NAMED = 3
_DAY = 86_400.0
#: A program changes sizes in at least so many hours of a day; a person does it once, or a few times in a row.
_HOURS = 3
#: How clients of gpuscaler, and roles and clients of autoscalers, call themselves.
_OWN_AGENT = "gpuscaler/"
_AUTOSCALER_NAMES = re.compile(r"cluster-?autoscaler|karpenter|escalator|spotinst|elastigroup", re.IGNORECASE)
#: Roles that AWS uses itself for a service, and those in which people sign in (IAM Identity Center).
_NO_PROGRAMS = ("/aws-service-role/", "/AWSReservedSSO_")
_SCHEDULED = "a scheduled action update"
_BY_POLICY = re.compile(r"triggered policy (\S.*?) changing the desired capacity")


def find_rivals(evidence: Evidence) -> Iterator[Finding]:
    """D3: scaling policies, another owner of the group, and Cluster Autoscaler on the same groups."""
    by_key = {group.key: group for group in scaled_groups(evidence)}
    for policy in evidence.of("aws/ScalingPolicy"):
        group = by_key.get((policy.text("Region"), policy.text("AutoScalingGroupName")))
        if group is not None and _acts(policy, group):
            yield _policy(policy, group)
    for group in by_key.values():
        if operator := group.document.text("Operator", "Principal"):
            yield Finding(
                "D3",
                WARNING,
                group.title,
                "Operator.Principal",
                operator,
                "no operator",
                "only the operator may change the group, so buying may be refused",
                Fix(advice="make a group of your own for gpuscaler, or name this one in aws.exclude of the run file"),
            )
    yield from _autoscalers(evidence, by_key)


def _acts(policy: Document, group: AwsGroup) -> bool:
    """Whether the policy changes the size of its group."""
    if not policy.flag("Enabled", default=True):
        return False
    if policy.text("PolicyType") == "PredictiveScaling":
        return policy.text("PredictiveScalingConfiguration", "Mode") == "ForecastAndScale"
    return "AlarmNotification" not in group.suspended


def _policy(policy: Document, group: AwsGroup) -> Finding:
    kind, name = policy.text("PolicyType") or "scaling policy", policy.text("PolicyName")
    suspend = group.command("suspend-processes", "--scaling-processes", "AlarmNotification")
    delete = group.command("delete-policy", "--policy-name", name)
    return Finding(
        "D3",
        CRITICAL,
        group.title,
        f"ScalingPolicy {name}",
        f"an active policy of type {kind}",
        "no active scaling policy in a group that gpuscaler scales",
        _TWO,
        Fix((delete if kind == "PredictiveScaling" else suspend,)),
    )


class _Selection(NamedTuple):
    """The groups that a Cluster Autoscaler scales: those with all ``tags`` (None: any value) of an entry, or those named."""

    tags: tuple[Mapping[str, str | None], ...]
    names: frozenset[str]

    def has(self, group: AwsGroup) -> bool:
        return group.name in self.names or any(_matches(group.tags, wanted) for wanted in self.tags)


def _matches(tags: Mapping[str, str], wanted: Mapping[str, str | None]) -> bool:
    return bool(wanted) and all(key in tags and value in (None, tags[key]) for key, value in wanted.items())


def _autoscalers(evidence: Evidence, scaled: Mapping[tuple[str, str], AwsGroup]) -> Iterator[Finding]:
    for deployment in evidence.of("Deployment"):
        if deployment.number("spec", "replicas") == 0:
            continue
        selection = _selection(deployment)
        both = [group for group in scaled.values() if selection is not None and selection.has(group)]
        if selection is None or not both:
            continue
        others = any(selection.has(group) and group.key not in scaled for group in groups_of(evidence))
        names = ", ".join(group.name for group in both[:_NAMED]) + (f" and {len(both) - _NAMED} more" if len(both) > _NAMED else "")
        yield Finding(
            "D3",
            CRITICAL,
            deployment.title,
            "--node-group-auto-discovery" if selection.tags else "--nodes",
            f"Cluster Autoscaler scales {names}, and so does gpuscaler",
            "groups that gpuscaler does not scale",
            _TWO,
            Fix(advice="have Cluster Autoscaler discover its other groups by a tag that these do not have")
            if others
            else Fix((kubectl_patch(deployment, {"spec": {"replicas": 0}}),)),
        )


def _selection(deployment: Document) -> _Selection | None:
    """What a Deployment of Cluster Autoscaler scales; None for another program."""
    template = template_of(deployment)
    for _, container in containers_of(template) if template is not None else ():
        words = (*container.texts("command"), *container.texts("args"))
        if _AUTOSCALER not in container.text("image") and not any(word.rpartition("/")[2] == _AUTOSCALER for word in words):
            continue
        flags = [word.lstrip("-").partition("=") for word in words if word.startswith("-")]
        tags = [value.removeprefix(_DISCOVERY) for name, _, value in flags if name == "node-group-auto-discovery"]
        names = [value.rpartition(":")[2] for name, _, value in flags if name == "nodes"]
        return _Selection(tuple(map(_wanted, tags)), frozenset(names))
    return None


def _wanted(text: str) -> Mapping[str, str | None]:
    parts = (part.partition("=") for part in text.strip("'\"").split(",") if part)
    return {key: value if equals else None for key, equals, value in parts}


def find_changes(evidence: Evidence) -> Iterator[Finding]:
    """D3: changes of sizes within the last day by others: by principals, and by what could not be listed or is gone when it has acted."""
    groups = {group.key: group for group in scaled_groups(evidence)}
    own = next((caller.text("Principal") for caller in evidence.of("aws/Caller") if caller.flag("Role")), "")
    hours: dict[tuple[str, str], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    agents: dict[str, str] = {}
    for change in evidence.of("aws/SizeChange"):
        principal, agent = change.text("Principal"), change.text("Agent")
        ours = principal == own if own else _OWN_AGENT in agent
        if ours or not principal or change.text("Service") or change.flag("Console") or any(part in principal for part in _NO_PROGRAMS):
            continue
        key = (change.text("Region"), change.text("AutoScalingGroupName"))
        hours[key][principal].add(change.whole("Time") // 3_600)
        agents[principal] = agent
    for key, group in groups.items():
        for principal, seen in hours[key].items() if key in hours else ():
            if len(seen) >= _HOURS:
                yield _changed(group, principal, agents[principal])
    yield from _causes(evidence, groups)


def _changed(group: AwsGroup, principal: str, agent: str) -> Finding:
    known = _AUTOSCALER_NAMES.search(agent) or _AUTOSCALER_NAMES.search(principal.rpartition("/")[2])
    return Finding(
        "D3",
        CRITICAL if known else WARNING,
        group.title,
        "DesiredCapacity",
        f"set again and again within a day by {principal}",
        "set by gpuscaler only",
        _TWO,
        Fix(
            advice="stop that program, or leave the group to it: name it in aws.exclude of the run file; "
            "once it is stopped, the finding is gone after a day"
        ),
    )


def _causes(evidence: Evidence, groups: Mapping[tuple[str, str], AwsGroup]) -> Iterator[Finding]:
    """Policies that could not be listed, and scheduled actions that each are gone when they have acted."""
    listed = {(item.text("Region"), item.text("AutoScalingGroupName")) for item in evidence.of("aws/ScheduledAction")}
    policies: dict[tuple[str, str], str] = {}
    scheduled: dict[tuple[str, str], set[int]] = defaultdict(set)
    for activity in evidence.of("aws/ScalingActivity"):
        key, cause, time = (
            (activity.text("Region"), activity.text("AutoScalingGroupName")),
            activity.text("Cause"),
            activity.whole("StartTime"),
        )
        if time < evidence.now - _DAY:
            continue
        if match := _BY_POLICY.search(cause):
            policies[key] = match[1]
        if _SCHEDULED in cause:
            scheduled[key].add(time // 3_600)
    for key, group in groups.items():
        if "aws/ScalingPolicy" in evidence.unread and key in policies and "AlarmNotification" not in group.suspended:
            suspend = group.command("suspend-processes", "--scaling-processes", "AlarmNotification")
            yield Finding(
                "D3",
                CRITICAL,
                group.title,
                f"ScalingPolicy {policies[key]}",
                "a change of the desired capacity by the policy within a day",
                "no active scaling policy in a group that gpuscaler scales",
                _TWO,
                Fix((suspend,)),
            )
        if len(scheduled.get(key, ())) >= _HOURS and key not in listed and "ScheduledActions" not in group.suspended:
            yield Finding(
                "D3",
                WARNING,
                group.title,
                "ScheduledActions",
                "changes of the desired capacity in several hours of a day by scheduled actions that are not there now",
                "no program that makes scheduled actions for a group that gpuscaler scales",
                _TWO,
                Fix((group.command("suspend-processes", "--scaling-processes", "ScheduledActions"),)),
            )


CHECKS = (
    aws_check("D3", "other programs that scale the same groups", ("aws/ScalingPolicy", "Deployment"), find_rivals),
    aws_check("D3", "who changed the sizes of groups", ("aws/ScalingActivity", "aws/SizeChange"), find_changes),
)
