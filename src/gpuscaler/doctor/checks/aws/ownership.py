"""Groups that belong to the cluster and are not adopted, because of their tags or of the cluster's name in the run file."""

from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.aws.account import CA, ENABLED, AwsGroup, aws_check, groups_of, settings_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix, Unchecked

_NOT_ADOPTED = "gpuscaler does not adopt the group: no machine is bought there, whatever pods wait for it"
#: Roles of groups whose machines take no pods of users.
_OTHER_ROLES = frozenset({"master", "control-plane", "controlplane", "bastion", "apiserver", "etcd"})
#: Clusters that are named in a finding; the rest is counted.
_NAMED = 5


def find_untagged(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D1: discovery tags that are missing, or that name another cluster."""
    cluster = settings_of(evidence).text("Cluster")
    groups = list(groups_of(evidence))
    found = [finding for group in groups for finding in _untagged(group, cluster)]
    yield from found
    if not found and not any(group.scaled for group in groups):
        yield from _no_groups(evidence, groups, cluster)


def _untagged(group: AwsGroup, cluster: str) -> Iterator[Finding | Unchecked]:
    ownership = group.document.part("Ownership")
    lacks, other = ownership.texts("Lacks"), ownership.text("Cluster")
    if ownership.flag("Foreign") and group.member:
        yield _foreign(group, other, cluster)
    elif lacks or (group.member and not ownership.text("Source") and not ownership.text("Reason")):
        yield from _lacking(group, lacks or (ENABLED, f"{CA}{cluster}"), cluster)
    elif group.scaled and not group.managed and group.tags.get(f"{CA}{cluster}") != "owned":
        yield Finding(
            "D1",
            WARNING,
            group.title,
            "Tags",
            _seen(group.tags, f"{CA}{cluster}"),
            f"{CA}{cluster}=owned",
            "the policy of `gpuscaler generate iam` allows changes only in groups with this tag, so buying may be denied",
            Fix((group.tag_command({f"{CA}{cluster}": "owned"}),)),
        )


def _lacking(group: AwsGroup, lacks: tuple[str, ...], cluster: str) -> Iterator[Finding | Unchecked]:
    if group.incomplete:
        yield Unchecked("D1", f"whether {group.title} has accelerators", group.incomplete)
        return
    if not group.has_gpus:
        # Groups without accelerators, for system pods, are rarely meant to be scaled.
        return
    # Only a node or a tag shows that a group is not that of another cluster in the account.
    ours = group.member or any(cluster in (value, key.removeprefix("kubernetes.io/cluster/")) for key, value in group.tags.items())
    ours = ours or f"{CA}{cluster}" in group.tags
    command = group.tag_command({key: "true" if key == ENABLED else "owned" for key in (ENABLED, f"{CA}{cluster}") if key in lacks})
    yield Finding(
        "D1",
        CRITICAL if ours else WARNING,
        group.title,
        "Tags",
        f"no tag {' and no '.join(lacks)}",
        f"{ENABLED}=true and {CA}{cluster}=owned",
        _NOT_ADOPTED,
        Fix((command,)) if ours else Fix(advice=f"if the group belongs to {cluster}: {command}"),
    )


def _foreign(group: AwsGroup, other: str, cluster: str) -> Finding:
    tag = group.document.text("Ownership", "Tag")
    return Finding(
        "D1",
        CRITICAL,
        group.title,
        f"Tags[{tag}]",
        f"cluster {other}, although nodes of this cluster are its machines",
        f"{cluster or 'a cluster'}, as aws.cluster of the run file says",
        "gpuscaler takes the group for that of another cluster and never touches it",
        Fix(advice=f"set aws.cluster to {other} in the run file if that is the cluster's name; else correct the tag"),
    )


def _no_groups(evidence: Evidence, groups: list[AwsGroup], cluster: str) -> Iterator[Finding]:
    """No group is adopted, and nothing else says why."""
    settings = settings_of(evidence)
    if not settings.data or "aws/AutoScalingGroup" in evidence.unread or any(group.incomplete and group.member for group in groups):
        return
    others = sorted({other for group in groups if (other := group.document.text("Ownership", "Cluster"))})
    some = ", ".join(others[:_NAMED]) + (f" and {len(others) - _NAMED} more" if len(others) > _NAMED else "")
    regions = ", ".join(settings.texts("Regions"))
    yield Finding(
        "D1",
        CRITICAL,
        "run file",
        "aws.cluster",
        cluster or "no name",
        f"the cluster of an Auto Scaling group in {regions}: tags name {some}" if others else f"a cluster with groups in {regions}",
        "no group is adopted, so no machine is ever bought",
        Fix(advice=f"correct aws.cluster or aws.regions in the run file, or tag the groups {ENABLED} and {CA}{cluster or 'NAME'}"),
    )


def _seen(tags: dict[str, str], key: str) -> str:
    return f"{key}={tags[key]}" if key in tags else f"no tag {key}"


def find_wrong_roles(evidence: Evidence) -> Iterable[Finding]:
    """D2: a role that is none of those of workers."""
    ours = f"{CA}{settings_of(evidence).text('Cluster')}"
    for group in groups_of(evidence):
        ownership = group.document.part("Ownership")
        tag = ownership.text("Tag")
        value = group.tags.get(tag, "")
        if not tag or ownership.flag("Foreign") or value.lower() in _OTHER_ROLES:
            continue
        yield Finding(
            "D2",
            WARNING,
            group.title,
            f"Tags[{tag}]",
            value or "an empty value",
            "worker, kubernetes-minion or minion",
            _NOT_ADOPTED,
            Fix((group.tag_command({tag: "worker", ours: "owned"}),)),
        )


CHECKS = (
    aws_check("D1", "tags that make Auto Scaling groups pools of the cluster", (), find_untagged),
    aws_check("D2", "roles in tags of Auto Scaling groups", (), find_wrong_roles),
)
