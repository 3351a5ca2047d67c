"""The life cycle of an instance in its group (Pending, InService, Terminating, with hooks in between) and in EC2."""

from functools import partial
from typing import Any, Final

from gpuscaler.embedded.aws.autoscaling import activities
from gpuscaler.embedded.aws.hardware.refusals import SHUTDOWN, ended_text
from gpuscaler.embedded.aws.launch import volumes
from gpuscaler.embedded.aws.launch.choosing import Choice
from gpuscaler.embedded.aws.messages import notices
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import LAUNCHING, TERMINATING, Group, Hook, Instance
from gpuscaler.embedded.aws.wire.errors import invalid
from gpuscaler.embedded.aws.wire.writing import iso, to_datetime
from gpuscaler.simulation.cloud.machines import CloudMachine

#: How long an instance runs that shuts itself down before its kubelet starts, in seconds.
SHUTDOWN_AFTER: Final = 4.0
#: Terminated instances are shown for about an hour.
REMEMBERED: Final = 3600.0


def add_machine(region: Region, group: Group, machine: CloudMachine, choice: Choice) -> Instance:
    """Add a launched machine to its group, as Pending."""
    instance = register(region, machine, choice, group=group.name)
    instance.weight = choice.weight
    add_member(region, group, instance)
    return instance


def add_member(region: Region, group: Group, instance: Instance) -> None:
    """Make an instance a member of its group."""
    tags = {tag["Key"]: tag["Value"] for tag in group.tags.values() if tag["PropagateAtLaunch"]}
    instance.tags |= tags | {"aws:autoscaling:groupName": group.name}
    before = group.has
    group.members[instance.id] = instance
    cause = activities.launch_cause(region, group, before)
    instance.activity = activities.add(
        region, group, f"Launching a new EC2 instance: {instance.id}", cause, status="PreInService", zone=instance.machine.offering.zone
    )
    record_history(region, group)
    if most := group.settings.get("MaxInstanceLifetime"):
        region.put(region.now + most, partial(_replace_if_too_old, region, instance))


def _replace_if_too_old(region: Region, instance: Instance, now: float) -> None:
    """Replace an instance that has reached the maximum lifetime of its group."""
    group = region.groups.get(instance.group)
    most = group.settings.get("MaxInstanceLifetime") if group is not None else None
    if group is not None and instance.counted and most and now - instance.launched_at >= most:
        replace(region, group, instance, "a maximum instance lifetime")


def replace(region: Region, group: Group, instance: Instance, why: str, *, first: bool = False) -> None:
    """End an instance "in response to" ``why`` and launch another: before the end if ``first``, else after it."""
    if first:
        instance.risky, instance.why = True, why
    else:
        end(region, group, instance, f"At {iso(to_datetime(region.now))} an instance was taken out of service in response to {why}.")
    region.wake(group)


def register(region: Region, machine: CloudMachine, choice: Choice, *, group: str = "") -> Instance:
    """Create a pending instance in EC2."""
    data, offering = choice.data, machine.offering
    tags = [
        tag
        for specification in data.get("TagSpecifications", ())
        if specification.get("ResourceType") == "instance"
        for tag in specification.get("Tags", ())
    ]
    instance = Instance(
        machine=machine,
        group=group,
        template=dict(choice.template),
        image=data.get("ImageId", ""),
        tags={tag["Key"]: tag["Value"] for tag in tags},
        launched_at=region.now,
        launch=data,
    )
    instance.doomed = region.hardware.doomed(offering.instance_type, offering.market, offering.zone)
    region.instances[instance.id] = instance
    volumes.attach(region, instance, data)
    notices.state_change(region, instance)
    start(region, instance)
    return instance


def start(region: Region, instance: Instance) -> None:
    """Set a pending instance to running a while later."""
    region.put(region.now + region.conditions.pending, partial(_set_running, region, instance))


def _set_running(region: Region, instance: Instance, _now: float) -> None:
    if instance.state != "pending":
        return
    group = region.groups.get(instance.group)
    if instance.doomed and instance.doomed != SHUTDOWN:
        instance.reason = instance.doomed
        region.hardware.end(instance.machine, region.now)
        if group is not None and instance.activity is not None:
            activities.finish(region, instance.activity, status="Failed", message=ended_text(instance.doomed))
            group.retry_at = region.now + region.conditions.retry
        mark_ended(region, group, instance)
        return
    instance.state = "running"
    if instance.doomed:
        region.put(region.now + SHUTDOWN_AFTER, partial(_shut_itself_down, region, instance))
    notices.state_change(region, instance)
    if group is not None and instance.lifecycle == "Pending":
        _wait(region, group, instance, LAUNCHING)


def _shut_itself_down(region: Region, instance: Instance, _now: float) -> None:
    """Terminate an instance that is shut down by its own image or user data, with the shutdown behaviour "terminate"."""
    if instance.ended_at is None and instance.state == "running":
        region.hardware.end(instance.machine, region.now)
        instance.reason = instance.doomed
        handle_loss(region, instance)


def handle_loss(region: Region, instance: Instance) -> None:
    """Handle an instance that ended without its group, which notices it in a health check and replaces it."""
    group = region.groups.get(instance.group)
    mark_ended(region, group, instance)
    if group is not None:
        what = "an instance was taken out of service in response to an EC2 health check indicating it has been terminated or stopped."
        text = f"Terminating EC2 instance: {instance.id}"
        activities.add(region, group, text, f"At {iso(to_datetime(region.now))} {what}", status="Successful", ended=True)
        group.cause = ""
        region.wake(group)


def _wait(region: Region, group: Group, instance: Instance, transition: str) -> None:
    """Wait for the hook of a transition, or continue at once if there is none."""
    hook = next((hook for hook in group.hooks.values() if hook.transition == transition), None)
    if hook is None:
        proceed(region, group, instance)
        return
    instance.lifecycle = f"{instance.lifecycle}:Wait"
    instance.hook, instance.token = hook.name, region.uuid()
    heartbeat(region, group, instance, hook)
    notices.lifecycle_action(region, group, instance, hook)
    record_history(region, group)


def heartbeat(region: Region, group: Group, instance: Instance, hook: Hook) -> None:
    """Restart the time-out of the hook."""
    instance.waits_until = region.now + hook.timeout
    region.put(instance.waits_until, partial(_time_out_hook, region, group, instance, hook))


def _time_out_hook(region: Region, group: Group, instance: Instance, hook: Hook, now: float) -> None:
    if instance.token and instance.hook == hook.name and now >= instance.waits_until:
        complete(region, group, instance, hook.default, "Heartbeat Timeout")


def complete(
    region: Region, group: Group, instance: Instance, result: str, why: str = "Lifecycle Action Completed with ABANDON Result"
) -> None:
    """Complete a lifecycle action: ABANDON ends an instance that was launching.

    The text of its activity is from AWS's user guide, under Troubleshooting.
    """
    abandoned = result == "ABANDON" and instance.lifecycle == "Pending:Wait"
    token, instance.token = instance.token, ""
    instance.lifecycle = instance.lifecycle.replace(":Wait", ":Proceed")
    if abandoned:
        if instance.activity is not None:
            message = f"Instance failed to complete user's Lifecycle Action: Lifecycle Action with token {token} was abandoned: {why}"
            activities.finish(region, instance.activity, status="Cancelled", message=message)
        end(region, group, instance, "an instance was abandoned by a lifecycle hook", hooks=False)
        region.wake(group)
    else:
        proceed(region, group, instance)


def proceed(region: Region, group: Group, instance: Instance) -> None:
    """Continue after the hook: into service, or to the end."""
    if instance.lifecycle.startswith("Terminating"):
        _shut_down(region, group, instance)
        return
    instance.lifecycle = "InService"
    instance.protected = bool(group.settings.get("NewInstancesProtectedFromScaleIn"))
    if instance.activity is not None:
        activities.finish(region, instance.activity, status="Successful")
    record_history(region, group)
    region.wake(group)


def end(region: Region, group: Group, instance: Instance, cause: str, *, hooks: bool = True) -> None:
    """End an instance of the group."""
    if not instance.lifecycle.startswith("Terminating"):
        instance.lifecycle = "Terminating"
        instance.token = ""
        _close(region, instance, status="Cancelled")
        instance.activity = activities.add(region, group, f"Terminating EC2 instance: {instance.id}", cause, status="InProgress")
        if hooks:
            _wait(region, group, instance, TERMINATING)
        else:
            _shut_down(region, group, instance)
        record_history(region, group)


def _shut_down(region: Region, group: Group | None, instance: Instance) -> None:
    instance.state = "shutting-down"
    region.hardware.end(instance.machine, region.now)
    notices.state_change(region, instance)
    region.put(region.now + region.conditions.terminating, lambda _: mark_ended(region, group, instance))


def mark_ended(region: Region, group: Group | None, instance: Instance) -> None:
    """Mark an instance as ended; EC2 shows it for a while."""
    if instance.ended_at is not None:
        return
    _close(region, instance, status="Successful" if instance.lifecycle.startswith("Terminating") else "Failed")
    instance.ended_at, instance.state, instance.lifecycle, instance.token = region.now, "terminated", "Terminated", ""
    volumes.release(region, instance)
    notices.state_change(region, instance)
    region.put(region.now + REMEMBERED, partial(_forget, region, instance))
    if group is not None:
        group.members.pop(instance.id, None)
        group.warm.pop(instance.id, None)
        record_history(region, group)
        region.wake(group)


def _close(region: Region, instance: Instance, *, status: str) -> None:
    """End the activity of an instance that was in progress."""
    if instance.activity is not None and instance.activity.ended_at is None:
        activities.finish(region, instance.activity, status=status)


def _forget(region: Region, instance: Instance, _now: float) -> None:
    del region.instances[instance.id]


def terminate(region: Region, instance: Instance) -> None:
    """EC2's own TerminateInstances: without hook or protection; the group sees a lost instance."""
    if instance.state in {"pending", "running", "stopped"}:
        _close(region, instance, status="Cancelled")
        instance.lifecycle = "Terminating"
        _shut_down(region, region.groups.get(instance.group), instance)


def member(region: Region, group: Group, ident: str) -> Instance:
    """The group's instance of that id. Raises :class:`~gpuscaler.embedded.aws.wire.errors.AwsError` if it has none."""
    if ident not in group.members:
        raise invalid(f"The instance {ident} is not part of Auto Scaling group {group.name}.")
    return region.instances[ident]


# Descriptions


def describe_member(instance: Instance, *, weighted: bool) -> dict[str, Any]:
    """An instance of a group as in Auto Scaling's Describe calls."""
    offering = instance.machine.offering
    reply = {
        "InstanceId": instance.id,
        "InstanceType": offering.instance_type,
        "AvailabilityZone": offering.zone,
        "LifecycleState": instance.lifecycle,
        "HealthStatus": instance.health,
        "ProtectedFromScaleIn": instance.protected,
    }
    if instance.template:
        reply["LaunchTemplate"] = instance.template
    if weighted:
        reply["WeightedCapacity"] = str(instance.weight)
    return reply


def describe_group(group: Group) -> dict[str, Any]:
    """A group as DescribeAutoScalingGroups shows it now."""
    overrides = group.settings.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("Overrides", ())
    weighted = any("WeightedCapacity" in override for override in overrides)
    return {
        **group.settings,
        "AutoScalingGroupName": group.name,
        "AutoScalingGroupARN": group.arn,
        "MinSize": group.min,
        "MaxSize": group.max,
        "DesiredCapacity": group.desired,
        "AvailabilityZones": list(group.zones),
        "LoadBalancerNames": [],
        "TargetGroupARNs": [],
        "Instances": [describe_member(instance, weighted=weighted) for instance in group.members.values()],
        "CreatedTime": to_datetime(group.created_at),
        "SuspendedProcesses": [{"ProcessName": name, "SuspensionReason": why} for name, why in group.suspended.items()],
        "EnabledMetrics": [],
        "Tags": [{"ResourceId": group.name, "ResourceType": "auto-scaling-group", **tag} for tag in group.tags.values()],
        "TrafficSources": [],
    }


def record_history(region: Region, group: Group) -> None:
    """Record a change of a group, for reads that lag."""
    lag = region.conditions.read_lag
    if lag:
        group.history.append((region.now, describe_group(group)))
        while len(group.history) > 1 and group.history[1][0] <= region.now - lag:
            group.history.pop(0)


def visible_description(region: Region, group: Group) -> dict[str, Any] | None:
    """A group as reads see it; None if they do not see it yet."""
    lag = region.conditions.read_lag
    if not lag:
        return describe_group(group)
    return next((description for when, description in reversed(group.history) if when <= region.now - lag), None)
