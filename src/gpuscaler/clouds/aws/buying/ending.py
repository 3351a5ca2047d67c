"""Ending machines by their ids, and letting go of those that a lifecycle hook holds."""

from collections.abc import Sequence
from typing import Final

from gpuscaler.clouds.aws.api.asking import Asking, RefusedError
from gpuscaler.clouds.aws.api.groups import Group
from gpuscaler.clouds.protocol import CloudError, Refusal
from gpuscaler.model.instances import Instance

_ABSENT: Final = "instance id not found"
_AT_MINIMUM: Final = "min size constraint"


async def end(ask: Asking, region: str, instance: str, listed: Instance, *, replaced: bool = False) -> Refusal | None:
    """End the machine that EC2 calls ``instance``, and have its group want one less; None where it is ending or gone.

    A group that is at its minimum wants as many as before, and launches another: the machine that was named goes all the same. A group
    that has ``replaced`` it already wants as many as before, too: to want one less would end the replacement.
    """
    try:
        await _terminate(ask, region, instance, decrement=not replaced)
    except RefusedError as error:
        if replaced or _AT_MINIMUM not in error.text:
            return _refusal(error, listed)
    except CloudError as error:
        return _refusal(error, listed)
    else:
        return None
    try:
        await _terminate(ask, region, instance, decrement=False)
    except CloudError as error:
        return _refusal(error, listed)
    return None


async def _terminate(ask: Asking, region: str, instance: str, *, decrement: bool) -> None:
    await ask.write(
        "autoscaling", region, "TerminateInstanceInAutoScalingGroup", InstanceId=instance, ShouldDecrementDesiredCapacity=decrement
    )


def _refusal(error: CloudError, listed: Instance) -> Refusal | None:
    if _ABSENT in str(getattr(error, "text", "")).lower():
        return None
    return Refusal(error.cause, listed.key, error.detail, retry_after=error.retry_after)


async def let_go(ask: Asking, group: Group, hook: str, instance: str) -> None:
    """Complete the hook of that name that holds a machine whose end has come. Raises CloudError; one that is over is no error."""
    await _act(ask, group, "CompleteLifecycleAction", hook=hook, instance=instance, LifecycleActionResult="CONTINUE")


async def heartbeat(ask: Asking, group: Group, hook: str, instance: str) -> None:
    """Have the hook of that name hold a machine for its time again. Raises CloudError; one that is over is no error."""
    await _act(ask, group, "RecordLifecycleActionHeartbeat", hook=hook, instance=instance)


async def protect(ask: Asking, region: str, group: str, instances: Sequence[str], *, on: bool) -> None:
    """Protect machines of a group from scale-in, or take that off. Raises CloudError."""
    parameters = {"AutoScalingGroupName": group, "InstanceIds": list(instances), "ProtectedFromScaleIn": on}
    await ask.write("autoscaling", region, "SetInstanceProtection", **parameters)


async def _act(ask: Asking, group: Group, operation: str, *, hook: str, instance: str, **more: str) -> None:
    parameters = {"AutoScalingGroupName": group.name, "LifecycleHookName": hook, "InstanceId": instance, **more}
    try:
        await ask.write("autoscaling", group.region, operation, **parameters)
    except RefusedError as error:
        if "no active lifecycle action" not in error.text.lower():
            raise
