"""Others that change the sizes of groups that gpuscaler scales."""

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


CHECKS = (aws_check("D3", "other programs that scale the same groups", ("aws/ScalingPolicy", "Deployment"), find_rivals),)
