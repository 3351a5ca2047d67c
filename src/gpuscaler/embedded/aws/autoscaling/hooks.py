"""Lifecycle hooks, and the actions that wait for them."""

from collections.abc import Mapping
from typing import Any, Final

from gpuscaler.embedded.aws.autoscaling import lifecycle
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import LAUNCHING, TERMINATING, Group, Hook, Instance
from gpuscaler.embedded.aws.wire.errors import AwsError, invalid, no_group

#: A hook waits at most 48 hours; this is the maximum number of hooks of a group, unless its account has a higher limit.
LONGEST: Final = 172_800
MOST: Final = 50


def put_hook(group: Group, params: Mapping[str, Any]) -> None:
    """Give a group a hook, or change one."""
    name = params["LifecycleHookName"]
    before = group.hooks.get(name)
    transition = params.get("LifecycleTransition", before.transition if before else "")
    if transition not in {LAUNCHING, TERMINATING}:
        raise invalid(f"Lifecycle transition must be {LAUNCHING} or {TERMINATING}")
    timeout = params.get("HeartbeatTimeout", before.timeout if before else 3600)
    if not 30 <= timeout <= 7200:
        raise invalid("HeartbeatTimeout must be between 30 and 7200 seconds")
    default = params.get("DefaultResult", before.default if before else "ABANDON")
    if default not in {"CONTINUE", "ABANDON"}:
        raise invalid("DefaultResult must be CONTINUE or ABANDON")
    if before is None and len(group.hooks) >= MOST:
        raise AwsError("LimitExceeded", f"You have reached the limit of {MOST} lifecycle hooks of an Auto Scaling group.")
    kept = ("NotificationMetadata", "NotificationTargetARN", "RoleARN")
    group.hooks[name] = Hook(name, transition, timeout, default, {key: params[key] for key in kept if key in params})


def _group(region: Region, params: Mapping[str, Any]) -> Group:
    if params["AutoScalingGroupName"] not in region.groups:
        raise no_group(params["AutoScalingGroupName"])
    return region.groups[params["AutoScalingGroupName"]]


def _put(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    put_hook(_group(region, params), params)
    return {}


def _delete(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    """Delete a hook. Instances that wait for it proceed first: launching ones are ended, terminating ones go."""
    group = _group(region, params)
    hook = group.hooks.get(params["LifecycleHookName"])
    if hook is None:
        raise invalid(f"No Lifecycle Hook found: {params['LifecycleHookName']}")
    for instance in [instance for instance in group.members.values() if instance.token and instance.hook == hook.name]:
        lifecycle.complete(region, group, instance, "ABANDON" if hook.transition == LAUNCHING else "CONTINUE")
    del group.hooks[hook.name]
    return {}


def _describe(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group, names = _group(region, params), params.get("LifecycleHookNames")
    rows = [
        {
            "LifecycleHookName": hook.name,
            "AutoScalingGroupName": group.name,
            "LifecycleTransition": hook.transition,
            "HeartbeatTimeout": int(hook.timeout),
            "GlobalTimeout": min(LONGEST, int(hook.timeout) * 100),
            "DefaultResult": hook.default,
            **hook.settings,
        }
        for hook in group.hooks.values()
        if not names or hook.name in names
    ]
    return {"LifecycleHooks": rows}


def _find_waiting(region: Region, params: Mapping[str, Any]) -> tuple[Group, Instance]:
    """The instance that waits for the given lifecycle action."""
    group, token, ident = _group(region, params), params.get("LifecycleActionToken"), params.get("InstanceId")
    for instance in group.members.values():
        if (
            instance.token
            and instance.hook == params["LifecycleHookName"]
            and (instance.token == token or (token is None and instance.id == ident))
        ):
            return group, instance
    what = f"token {token}" if token else f"instance ID {ident}"
    raise invalid(f"No active Lifecycle Action found with {what}")


def _complete(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    if params["LifecycleActionResult"] not in {"CONTINUE", "ABANDON"}:
        raise invalid("LifecycleActionResult must be CONTINUE or ABANDON")
    group, instance = _find_waiting(region, params)
    lifecycle.complete(region, group, instance, params["LifecycleActionResult"])
    return {}


def _heartbeat(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group, instance = _find_waiting(region, params)
    lifecycle.heartbeat(region, group, instance, group.hooks[instance.hook])
    return {}


OPERATIONS: Final = {
    "PutLifecycleHook": _put,
    "DeleteLifecycleHook": _delete,
    "DescribeLifecycleHooks": _describe,
    "CompleteLifecycleAction": _complete,
    "RecordLifecycleActionHeartbeat": _heartbeat,
}
