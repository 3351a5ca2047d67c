"""Lifecycle hooks of groups, which hold machines while they start and while they end."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpuscaler.clouds.aws.api.asking import AsyncCalls
from gpuscaler.clouds.aws.api.groups import Group, Machine
from gpuscaler.clouds.aws.api.spelling import is_same_word
from gpuscaler.clouds.protocol import CloudError

#: Interval after which a group's hooks are read again, in seconds: people rarely change them.
HOOKS_SECONDS: Final = 300.0
LAUNCHING: Final = "autoscaling:EC2_INSTANCE_LAUNCHING"
TERMINATING: Final = "autoscaling:EC2_INSTANCE_TERMINATING"
#: States of machines that a starting hook holds, and the prefix of the states of machines that end.
HELD_AT_START: Final = "Pending:Wait"
ENDING_PREFIX: Final = "Terminating"
_HELD_AT_END: Final = "Terminating:Wait"
#: A machine that an ending hook holds for longer than this is reported, in seconds: EKS drains a node within this time.
LONG_SECONDS: Final = 900.0

HookEntry = Mapping[str, Any]


class Hooks:
    """Reads the hooks of groups and caches them for a while. ``unread`` holds the reasons why they could not be read, by region."""

    def __init__(self, calls: AsyncCalls) -> None:
        self._calls = calls
        self._cached: dict[tuple[str, str], tuple[float, tuple[HookEntry, ...]]] = {}
        self.unread: dict[str, str] = {}

    async def entries_of(self, region: str, group: str) -> tuple[HookEntry, ...]:
        """The hooks of a group as DescribeLifecycleHooks returns them; if they cannot be read, the last known ones, or none."""
        at, hooks = self._cached.get((region, group), (-HOOKS_SECONDS, ()))
        now = self._calls.now()
        if now < at + HOOKS_SECONDS:
            return hooks
        try:
            reply = await self._calls.read("autoscaling", region, "DescribeLifecycleHooks", AutoScalingGroupName=group)
        except CloudError as error:
            self.unread[region] = str(error)
            return hooks
        self.unread.pop(region, None)
        hooks = tuple(hook for hook in reply.get("LifecycleHooks") or () if isinstance(hook.get("LifecycleHookName"), str))
        self._cached[region, group] = (now, hooks)
        return hooks


class HeldStarts:
    """Starting machines that a hook holds and that their group ends unless the hook is completed.

    Such a machine is not in service until then. If the hook is not completed in time, the machine is ended with everything on it, and the
    group launches another as long as its desired capacity requires one.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._doubts: dict[str, str] = {}

    def doubt(self, instance: str) -> str:
        """Why a starting machine may be, or was, abandoned, as text; empty if a hook does not threaten it."""
        return self._doubts.get(instance, "")

    async def follow(self, machines: Mapping[str, tuple[Group, Machine]]) -> None:
        """Find which of ``machines``, by EC2 id, a hook holds at their start; those that were held and are ending now are remembered."""
        doubts = {
            name: words for name, words in self._doubts.items() if name in machines and machines[name][1].state.startswith(ENDING_PREFIX)
        }
        for name, (group, machine) in machines.items():
            if machine.state == HELD_AT_START and (
                held := tuple(_abandoning_hooks(await self._hooks.entries_of(group.region, group.name)))
            ):
                doubts[name] = (
                    f"lifecycle hook {', '.join(held)} of group {group.name} holds the machine, which ends unless the hook is completed"
                )
        self._doubts = doubts


class HeldEnds:
    """Machines that should have ended and that a hook holds for long: nothing runs on them any more, and they are still billed."""

    def __init__(self, calls: AsyncCalls) -> None:
        self._calls = calls
        self._since: dict[str, float] = {}
        self._group: dict[str, str] = {}

    def follow(self, machines: Mapping[str, tuple[Group, Machine]]) -> None:
        """Record which of ``machines``, by EC2 id, are held while they end, and since when."""
        held = {name: group.name for name, (group, machine) in machines.items() if machine.state == _HELD_AT_END}
        self._since = {name: self._since.get(name, self._calls.now()) for name in held}
        self._group = held

    def warnings(self) -> tuple[str, ...]:
        """A sentence for each group with machines that are held for long."""
        held = [name for name, since in self._since.items() if self._calls.now() >= since + LONG_SECONDS]
        groups = {group: [name for name in held if self._group[name] == group] for group in sorted({self._group[name] for name in held})}
        return tuple(
            f"group {group}: saw {', '.join(names[:3])}{' and others' if len(names) > 3 else ''} ({len(names)} in all) in {_HELD_AT_END} "
            f"for over {LONG_SECONDS / 60:.0f} min, expected the lifecycle hook to be completed; the machines are billed until then: "
            "shorten the heartbeat time-out, or set aws.queue_url, with which gpuscaler completes hooks that have no target of their own"
            for group, names in groups.items()
        )


def _abandoning_hooks(entries: tuple[HookEntry, ...]) -> Iterator[str]:
    """Names of hooks that end a starting machine unless they are completed, which is EC2 Auto Scaling's default."""
    for entry in entries:
        if entry.get("LifecycleTransition") == LAUNCHING and not is_same_word(entry.get("DefaultResult"), "CONTINUE"):
            yield str(entry["LifecycleHookName"])
