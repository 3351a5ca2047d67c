"""Machines that their groups end: how long a lifecycle hook holds each, and why the group ends it.

A group ends machines for many reasons: to balance zones, for an instance refresh, a maximum lifetime, a health check, a user request.
The list of machines shows them as ``Terminating`` in every market, with or without a queue. The group's activities give the reason,
its hooks the time for which a machine is held.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.clouds.aws.api.asking import AsyncCalls
from gpuscaler.clouds.aws.api.groups import Group, Machine
from gpuscaler.clouds.aws.buying.hooks import ENDING_PREFIX, TERMINATING, Hooks
from gpuscaler.clouds.protocol import CloudError

#: Activities appear late; this is how many times a group's reason for ending a machine is looked up.
MAX_LOOKUPS: Final = 12
#: The hook of EKS on managed node groups: EKS drains the node itself and completes the hook.
EKS_HOOK: Final = "Terminate-LC-Hook"
#: The default of EC2 Auto Scaling for a hook without a heartbeat time-out, in seconds.
HEARTBEAT_SECONDS: Final = 3600.0
_LOST: Final = "has been terminated or stopped"
#: Reasons in a group's activities for ending a machine, the most specific first, and their texts for users.
_CAUSES: Final = (
    (re.compile("balanc", re.IGNORECASE), "to balance zones"),
    (re.compile("instance refresh", re.IGNORECASE), "for an instance refresh"),
    (re.compile("lifetime", re.IGNORECASE), "because it reached the maximum lifetime of its group"),
    (re.compile("health.?check", re.IGNORECASE), "because a health check found it unhealthy"),
    (re.compile("in response to a user request", re.IGNORECASE), "because a user requested it"),
    (re.compile("desired and actual capacity", re.IGNORECASE), "because its group's desired capacity was lowered"),
)


class HookHold(Struct, frozen=True, gc=False):
    """A hook that holds ending machines for ``seconds`` from its last heartbeat. ``ours``: gpuscaler may complete it."""

    name: str
    seconds: float
    ours: bool


class Termination(Struct, frozen=True, gc=False):
    """A machine that its group ends, first seen at ``since``; it is held until ``until``, 0 if nothing holds it.

    ``why`` is the reason as text, ``lookups`` how often it was looked up, and ``explained`` whether it was found. ``lost`` means that
    the machine was gone before its group noticed: EC2 ended it, not the group.
    """

    since: float
    until: float = 0.0
    seconds: float = 0.0
    why: str = "Auto Scaling ended it"
    lookups: int = 0
    explained: bool = False
    lost: bool = False


class Terminations:
    """Follows machines from the moment their groups list them as terminating."""

    def __init__(self, calls: AsyncCalls, hooks: Hooks) -> None:
        self._calls, self._hooks = calls, hooks
        self._followed: dict[str, Termination] = {}

    def warnings(self) -> tuple[str, ...]:
        """Warnings about hooks that could not be read."""
        text = "lifecycle hooks could not be read, so machines that their groups end are drained at once"
        return tuple(f"{text}: {problem}" for problem in self._hooks.unread.values())

    def termination_of(self, instance: str) -> Termination | None:
        """What is known about a machine that its group ends on its own."""
        termination = self._followed.get(instance)
        return None if termination is None or termination.lost else termination

    async def follow(self, machines: Mapping[str, tuple[Group, Machine]], own: Collection[str]) -> None:
        """Update what is known of ``machines``, by EC2 id, that are terminating without being ended by us (``own``)."""
        terminating = {name: pair for name, pair in machines.items() if pair[1].state.startswith(ENDING_PREFIX) and name not in own}
        self._followed = {name: termination for name, termination in self._followed.items() if name in machines}
        for name, (group, _) in terminating.items():
            if name not in self._followed:
                self._followed[name] = await self._first_observation(group)
        unexplained: dict[tuple[str, str], list[str]] = {}
        for name, (group, _) in terminating.items():
            if not self._followed[name].explained and self._followed[name].lookups < MAX_LOOKUPS:
                unexplained.setdefault((group.region, group.name), []).append(name)
        for (region, group_name), names in unexplained.items():
            await self._explain(region, group_name, names)

    async def _first_observation(self, group: Group) -> Termination:
        now = self._calls.now()
        holds = await self.holds_on(group.region, group.name)
        # Several hooks can hold a machine at once, and the first one that times out may end it.
        seconds = min((hold.seconds for hold in holds), default=0.0)
        return Termination(now, now + seconds if holds else 0.0, seconds)

    async def holds_on(self, region: str, group: str) -> tuple[HookHold, ...]:
        """The hooks that hold ending machines; none if they cannot be read."""
        return tuple(holds_of(await self._hooks.entries_of(region, group)))

    async def _explain(self, region: str, group: str, names: Iterable[str]) -> None:
        """Look up why the group ends these machines, and since when."""
        try:
            reply = await self._calls.read("autoscaling", region, "DescribeScalingActivities", AutoScalingGroupName=group, MaxRecords=100)
        except CloudError:
            activities: Iterable[Mapping[str, Any]] = ()
        else:
            activities = reply.get("Activities") or ()
        for name in names:
            previous = self._followed[name]
            text = f"Terminating EC2 instance: {name}"
            activity = next((activity for activity in activities if str(activity.get("Description") or "").startswith(text)), None)
            updated = replace(previous, lookups=previous.lookups + 1)
            if activity is not None:
                lost = _LOST in str(activity.get("Cause") or "")
                updated = replace(
                    _with_group_start(updated, activity.get("StartTime")), why=termination_reason(activity), explained=True, lost=lost
                )
            self._followed[name] = updated


def _with_group_start(termination: Termination, at: object) -> Termination:
    """Use the group's own start time if it is earlier than our first observation and plausible."""
    began = at.timestamp() if isinstance(at, datetime) else termination.since
    if not termination.until or not termination.since - termination.seconds < began < termination.since:
        return termination
    return replace(termination, since=began, until=began + termination.seconds)


def termination_reason(activity: Mapping[str, Any]) -> str:
    """Why a group ended a machine, as text."""
    cause = str(activity.get("Cause") or "")
    reason = next((words for pattern, words in _CAUSES if pattern.search(cause)), "")
    return f"Auto Scaling ended it {reason}".rstrip()


def holds_of(hooks: Iterable[Mapping[str, Any]]) -> Iterable[HookHold]:
    """The hooks that hold ending machines. A hook with a notification target is meant for the listener there, not for us."""
    for hook in hooks:
        if hook.get("LifecycleTransition") == TERMINATING:
            name = hook["LifecycleHookName"]
            seconds = hook.get("HeartbeatTimeout")
            ours = name != EKS_HOOK and not hook.get("NotificationTargetARN")
            yield HookHold(name, float(seconds) if isinstance(seconds, int | float) and seconds > 0 else HEARTBEAT_SECONDS, ours)
