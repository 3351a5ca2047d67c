"""Ends machines by id, and releases machines that a lifecycle hook holds."""

from collections.abc import Sequence
from typing import Final

from gpuscaler.clouds.aws.api.asking import AsyncCalls, RefusedError
from gpuscaler.clouds.aws.api.groups import Group
from gpuscaler.clouds.protocol import CloudError, Refusal
from gpuscaler.model.instances import Instance

_ABSENT: Final = "instance id not found"
_AT_MINIMUM: Final = "min size constraint"


async def end_machine(calls: AsyncCalls, region: str, instance: str, listed: Instance, *, replaced: bool = False) -> Refusal | None:
    """End the machine with the EC2 id ``instance`` and lower its group's desired capacity by one; None if it is ending or gone.

    A group at its minimum keeps its desired capacity and launches another machine; the named machine ends all the same. A group that has
    ``replaced`` the machine already also keeps its desired capacity: lowering it would end the replacement.
    """
    try:
        await _terminate(calls, region, instance, decrement=not replaced)
    except RefusedError as error:
        if replaced or _AT_MINIMUM not in error.text:
            return _refusal_unless_absent(error, listed)
    except CloudError as error:
        return _refusal_unless_absent(error, listed)
    else:
        return None
    try:
        await _terminate(calls, region, instance, decrement=False)
    except CloudError as error:
        return _refusal_unless_absent(error, listed)
    return None


async def _terminate(calls: AsyncCalls, region: str, instance: str, *, decrement: bool) -> None:
    await calls.write(
        "autoscaling", region, "TerminateInstanceInAutoScalingGroup", InstanceId=instance, ShouldDecrementDesiredCapacity=decrement
    )


def _refusal_unless_absent(error: CloudError, listed: Instance) -> Refusal | None:
    if _ABSENT in str(getattr(error, "text", "")).lower():
        return None
    return Refusal(error.cause, listed.key, error.detail, retry_after=error.retry_after)


async def complete_hook(calls: AsyncCalls, group: Group, hook: str, instance: str) -> None:
    """Complete the named hook that holds an ending machine. Raises CloudError; a hook that is already complete is no error."""
    await _act_on_hook(calls, group, "CompleteLifecycleAction", hook=hook, instance=instance, LifecycleActionResult="CONTINUE")


async def send_heartbeat(calls: AsyncCalls, group: Group, hook: str, instance: str) -> None:
    """Restart the named hook's time-out for a machine. Raises CloudError; a hook that is already complete is no error."""
    await _act_on_hook(calls, group, "RecordLifecycleActionHeartbeat", hook=hook, instance=instance)


async def set_protection(calls: AsyncCalls, region: str, group: str, instances: Sequence[str], *, on: bool) -> None:
    """Turn scale-in protection on or off for machines of a group. Raises CloudError."""
    parameters = {"AutoScalingGroupName": group, "InstanceIds": list(instances), "ProtectedFromScaleIn": on}
    await calls.write("autoscaling", region, "SetInstanceProtection", **parameters)


async def _act_on_hook(calls: AsyncCalls, group: Group, operation: str, *, hook: str, instance: str, **more: str) -> None:
    parameters = {"AutoScalingGroupName": group.name, "LifecycleHookName": hook, "InstanceId": instance, **more}
    try:
        await calls.write("autoscaling", group.region, operation, **parameters)
    except RefusedError as error:
        if "no active lifecycle action" not in error.text.lower():
            raise
