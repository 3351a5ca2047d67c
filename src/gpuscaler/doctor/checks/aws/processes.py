"""Settings of groups by which AWS ends, replaces or does not launch machines, whatever gpuscaler plans."""

from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.aws.account import AwsGroup, aws_check, scaled_groups
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING, Finding, Fix

_ENDED = "the group may end a machine whose pods still work"
#: Ids that SetInstanceProtection accepts at once.
_AT_ONCE = 50
_WEEK = 7 * 86_400.0
#: States of an instance refresh in which it replaces machines, or may yet roll back; and how one is over that was rolled back.
_REPLACING = frozenset({"Pending", "InProgress", "Baking", "RollbackInProgress"})
_ROLLED_BACK = {
    "RollbackSuccessful": (INFO, "machines are launched with the earlier configuration, not with the one that was wanted"),
    "RollbackFailed": (WARNING, "the group has machines of two configurations"),
}


def find_unprotected(evidence: Evidence) -> Iterable[Finding]:
    """D4: machines that a smaller desired capacity may end."""
    for group in scaled_groups(evidence):
        # EKS makes its groups so, and may set it back: it has no setting for it.
        severity = CRITICAL if group.has_gpus and not group.managed else WARNING
        if not group.document.flag("NewInstancesProtectedFromScaleIn"):
            yield Finding(
                "D4",
                severity,
                group.title,
                "NewInstancesProtectedFromScaleIn",
                "false",
                "true",
                _ENDED,
                Fix((group.command("update-auto-scaling-group", "--new-instances-protected-from-scale-in"), *_protect(group))),
            )
        elif commands := _protect(group):
            yield Finding("D4", severity, group.title, "Instances[].ProtectedFromScaleIn", "false", "true", _ENDED, Fix(commands))


def _protect(group: AwsGroup) -> tuple[str, ...]:
    idents = [machine.text("InstanceId") for machine in group.machines if not machine.flag("ProtectedFromScaleIn")]
    return tuple(
        group.command("set-instance-protection", "--instance-ids", *idents[start : start + _AT_ONCE], "--protected-from-scale-in")
        for start in range(0, len(idents), _AT_ONCE)
    )


def find_rebalancing(evidence: Evidence) -> Iterable[Finding]:
    """D5: zones that the group balances by ending machines."""
    for group in scaled_groups(evidence):
        if len(group.zones) < 2 or not group.has_gpus or ("AZRebalance" in group.suspended and not group.managed):
            continue
        suspend = group.command("suspend-processes", "--scaling-processes", "AZRebalance")
        yield Finding(
            "D5",
            WARNING if group.managed else CRITICAL,
            group.title,
            "AvailabilityZones" if group.managed else "SuspendedProcesses",
            f"{len(group.zones)} zones, which EKS balances" if group.managed else f"AZRebalance active over {len(group.zones)} zones",
            "one zone for each managed node group" if group.managed else "AZRebalance suspended, or one zone for each group",
            "machines with running pods are ended to even out zones",
            Fix(advice="make a managed node group for each zone: EKS balances zones even if AZRebalance is suspended")
            if group.managed
            else Fix((suspend,)),
        )


def find_meddling(evidence: Evidence) -> Iterator[Finding]:
    """D6: replacements and changes of sizes that AWS makes by itself."""
    by_group = {group.key: group for group in scaled_groups(evidence)}
    for group in by_group.values():
        if group.document.flag("CapacityRebalance"):
            yield Finding(
                "D6",
                INFO if group.managed else WARNING,
                group.title,
                "CapacityRebalance",
                "true",
                "false",
                "the group and gpuscaler both replace a spot machine that is at risk, so one of the two is paid for nothing",
                Fix(advice="EKS sets it for spot; nothing to do, unless it costs too much")
                if group.managed
                else Fix((group.command("update-auto-scaling-group", "--no-capacity-rebalance"),)),
            )
        if lifetime := group.size("MaxInstanceLifetime"):
            yield Finding(
                "D6",
                WARNING,
                group.title,
                "MaxInstanceLifetime",
                f"{lifetime} seconds",
                "0: no limit",
                "machines are replaced when they are that old, whatever runs on them",
                Fix((group.command("update-auto-scaling-group", "--max-instance-lifetime", "0"),)),
            )
    for action in evidence.of("aws/ScheduledAction"):
        scheduled = by_group.get((action.text("Region"), action.text("AutoScalingGroupName")))
        if scheduled is None or "ScheduledActions" in scheduled.suspended:
            continue
        yield Finding(
            "D6",
            WARNING,
            scheduled.title,
            f"ScheduledAction {action.text('ScheduledActionName')}",
            action.text("Recurrence") or "a change of sizes at a time",
            "no scheduled actions, or ScheduledActions suspended",
            "the sizes of the group change behind gpuscaler: machines are bought that are not needed, or ended with running pods",
            Fix((scheduled.command("suspend-processes", "--scaling-processes", "ScheduledActions"),)),
        )


def find_refreshes(evidence: Evidence) -> Iterator[Finding]:
    """D6: instance refreshes that replace machines now, or that were rolled back within a week."""
    newest = {(item.text("Region"), item.text("AutoScalingGroupName")): item for item in evidence.of("aws/InstanceRefresh")}
    for group in scaled_groups(evidence):
        refresh = newest.get(group.key, Document({}))
        status = refresh.text("Status")
        if status in _REPLACING and "InstanceRefresh" not in group.suspended:
            yield _refreshing(group, refresh)
        elif status in _ROLLED_BACK and (refresh.number("EndTime") or 0.0) > evidence.now - _WEEK:
            severity, effect = _ROLLED_BACK[status]
            yield Finding(
                "D6",
                severity,
                group.title,
                "InstanceRefresh",
                f"{status} ({refresh.text('StatusReason') or 'without a reason'})",
                "a refresh that succeeds, or none",
                effect,
                Fix(advice="mend what the reason names, and set the launch template that the group is to use"),
            )


def _refreshing(group: AwsGroup, refresh: Document) -> Finding:
    preferences = refresh.part("Preferences")
    everything = preferences.text("ScaleInProtectedInstances") == "Refresh"
    back = refresh.text("Status") == "RollbackInProgress"
    return Finding(
        "D6",
        CRITICAL if everything and group.has_gpus else WARNING,
        group.title,
        "InstanceRefresh",
        f"{refresh.text('Status')}{', replaces protected machines, too' if everything else ''}"
        f"{', with automatic rollback' if preferences.flag('AutoRollback') and not back else ''}",
        "no instance refresh under way",
        "machines are replaced, whatever runs on them"
        if everything
        else "machines without protection are replaced, whatever runs on them, and the refresh waits for the others or leaves them out",
        Fix(
            (group.command("cancel-instance-refresh"),),
            "or let it finish, if these replacements are wanted",
        ),
    )


def find_suspended(evidence: Evidence) -> Iterable[Finding]:
    """D7: processes without which nothing is bought or ended."""
    effects = {"Launch": "no machine is ever launched", "Terminate": "no machine is ever ended, so all are paid for"}
    for group in scaled_groups(evidence):
        for process, effect in effects.items():
            if process in group.suspended:
                yield Finding(
                    "D7",
                    CRITICAL,
                    group.title,
                    "SuspendedProcesses",
                    process,
                    f"{process} not suspended",
                    effect,
                    Fix((group.command("resume-processes", "--scaling-processes", process),)),
                )


def find_sizes(evidence: Evidence) -> Iterator[Finding]:
    """D25: sizes with which a group cannot grow, or never is empty."""
    for group in scaled_groups(evidence):
        least, most, wanted = (group.size(field) for field in ("MinSize", "MaxSize", "DesiredCapacity"))
        if most == 0:
            yield Finding(
                "D25",
                CRITICAL,
                group.title,
                "MaxSize",
                "0",
                "as many machines as may be needed",
                "no machine can be bought in the group",
                Fix(advice=f"raise it: {group.command('update-auto-scaling-group', '--max-size', 'NUMBER')}"),
            )
        elif wanted >= most and group.has_gpus and _waiting(evidence):
            yield Finding(
                "D25",
                CRITICAL if least < most else WARNING,
                group.title,
                "MaxSize",
                f"{most}, reached, while pods with GPUs are pending",
                f"more than {most}",
                "no further machine can be bought in the group",
                Fix(advice=f"raise it if that is wanted: {group.command('update-auto-scaling-group', '--max-size', 'NUMBER')}"),
            )
        elif least and group.has_gpus:
            yield Finding(
                "D25",
                INFO,
                group.title,
                "MinSize",
                str(least),
                "0, if the group may be empty when no pod needs it",
                "its machines are paid for even if nothing runs on them",
                Fix((group.command("update-auto-scaling-group", "--min-size", "0"),)),
            )


def _waiting(evidence: Evidence) -> bool:
    """Whether a pod with GPUs waits for a node."""
    for pod in evidence.of("Pod"):
        conditions = pod.parts("status", "conditions")
        if any(item.text("type") == "PodScheduled" and item.text("reason") == "Unschedulable" for item in conditions):
            limits = [limit for container in pod.parts("spec", "containers") for limit in container.part("resources", "limits").data]
            if "nvidia.com/gpu" in limits:
                return True
    return False


CHECKS = (
    aws_check("D4", "protection from scale-in", (), find_unprotected, types=True),
    aws_check("D5", "zones that AWS balances", (), find_rebalancing, types=True),
    aws_check("D6", "replacements and scheduled changes by AWS", ("aws/ScheduledAction",), find_meddling),
    aws_check("D6", "instance refreshes", ("aws/InstanceRefresh",), find_refreshes, types=True),
    aws_check("D7", "suspended processes", (), find_suspended),
    aws_check("D25", "sizes of groups", (), find_sizes, types=True),
)
