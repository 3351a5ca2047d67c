"""Raises and lowers the desired capacity of a group that others change too, without ever ending a machine.

SetDesiredCapacity is absolute and has no compare-and-swap: writing an outdated number undoes what others wrote in between, and writing a
number that is too low makes the group end machines of its choice. Both have happened to Cluster Autoscaler (its issues 9182 and 10147,
2026). Three measures prevent them here: every machine is protected from scale-in before anything is lowered; a number is written right
after it was read; and the result is read again, with the activities that report changes in between. The remaining gap is a launch that
begins in the tenth of a second between the last read and the write: its machine, or another that is not in service yet, may be ended before
the number is corrected.

The steps are generators that request one operation after the other, so that they can be tested against a model in every order of events;
the driver makes the calls. All numbers are in units of the group's capacity.
"""

from collections.abc import Collection, Generator, Iterable
from typing import Any, Final

from msgspec import Struct

from gpuscaler.clouds.aws.api.groups import Group
from gpuscaler.clouds.aws.buying.activities import ActivityLog, CapacityChange

#: Machines in these states no longer belong to the group.
_GONE: Final = ("Terminated", "Detached")
_WARM: Final = "Warmed:"
_IN_SERVICE: Final = "InService"
_LEAVING: Final = ("Terminating", "Detaching")
#: How many times a write is verified at most. A check that finds something wrong means that something else wrote within the last second.
_MAX_CHECKS: Final = 4


class Read(Struct, frozen=True, gc=False):
    """Describe the group again; the answer is a :class:`~gpuscaler.clouds.aws.api.groups.Group`."""


class Write(Struct, frozen=True, gc=False):
    """Set the desired capacity."""

    desired: int


class Protect(Struct, frozen=True, gc=False):
    """Protect these machines from scale-in."""

    instances: tuple[str, ...]


class ReadActivities(Struct, frozen=True, gc=False):
    """Read the group's activities since the first such request.

    The answer is an :class:`~gpuscaler.clouds.aws.buying.activities.ActivityLog`.
    """


Step = Read | Write | Protect | ReadActivities
Steps = Generator[Step, Any, "CapacityOutcome"]


class CapacityOutcome(Struct, frozen=True, gc=False):
    """By how much we changed the desired capacity, the resulting ``desired`` capacity, how much must still wait, and why."""

    units: int
    desired: int
    waiting: int = 0
    why: str = ""


def raising_steps(units: int) -> Steps:
    """Raise the desired capacity by ``units``, or up to the group's maximum."""
    log: ActivityLog = yield ReadActivities()
    group: Group = yield Read()
    # Machines above the desired capacity stay, since they are protected: new ones come on top of them.
    base = max(group.desired, existing_units(group) - _leaving_units(group))
    target = min(base + units, group.max)
    if target <= base:
        return CapacityOutcome(0, group.desired)
    desired = yield from _write_and_verify(group, target, log.changes)
    return CapacityOutcome(target - base, desired)


def withdrawing_steps(units: int) -> Steps:
    """Lower the desired capacity by ``units`` that we raised it by earlier and that never launched.

    It is never lowered below the number of machines that exist in any state, nor below what others raised it to.
    """
    group: Group = yield Read()
    if _lowered_target(group, units) >= group.desired:
        return _unchanged(group, units)
    if unprotected := _unprotected(group):
        yield Protect(unprotected)
    earlier: ActivityLog = yield ReadActivities()
    group = yield Read()
    target = _lowered_target(group, units)
    if target >= group.desired:
        return _unchanged(group, units)
    # A machine that launches between this and the write would be above the desired capacity and not yet protected.
    log: ActivityLog = yield ReadActivities()
    if unprotected := _unprotected(group):
        return CapacityOutcome(0, group.desired, units, f"machine {unprotected[0]} is not protected from scale-in yet")
    if _launches_unlisted(log, group):
        return CapacityOutcome(0, group.desired, units, "a machine is being launched at this moment")
    desired = yield from _write_and_verify(group, target, earlier.changes)
    lowered = group.desired - target
    lowerable = _lowerable_later(group, units) - lowered
    return CapacityOutcome(lowered, desired, lowerable, "machines are still ending" if lowerable else "")


def _write_and_verify(read: Group, target: int, changes: Collection[CapacityChange]) -> Generator[Step, Any, int]:
    """Write ``target``, derived from ``read``; write again while that undid others' changes or is below what exists.

    ``changes`` are changes from before the read. Returns the final desired capacity.
    """
    yield Write(target)
    for _ in range(_MAX_CHECKS):
        log: ActivityLog = yield ReadActivities()
        group: Group = yield Read()
        missed_units = missed_raise(read.desired, target, [change for change in log.changes if change not in changes])
        corrected = max(group.desired + missed_units, existing_units(group) - _leaving_units(group))
        corrected = min(corrected, max(group.max, group.desired))
        if corrected <= group.desired:
            return group.desired
        yield Write(corrected)
        read, target, changes = group, corrected, log.changes
    return target


def missed_raise(read: int, written: int, changes: Iterable[CapacityChange]) -> int:
    """By how much others raised the desired capacity between our ``read`` and our write of ``written``, 0 if they did not.

    The change recorded for our own write is the best evidence. Without it, changes are chained from number to number, since those of one
    second have no order. A write of the same number at the same moment cannot be distinguished from ours.
    """
    remaining = sorted(changes)
    if ours := [change.before for change in remaining if change.after == written]:
        return max(0, max(ours) - read)
    level = read
    while (change := next((change for change in remaining if change.before == level), None)) is not None:
        remaining.remove(change)
        level = change.after
    return max(0, level - read)


def existing_units(group: Group) -> int:
    """Units of machines in any state, including those that are leaving."""
    return sum(machine.weight for machine in group.machines if machine.state not in _GONE and not machine.state.startswith(_WARM))


def _leaving_units(group: Group) -> int:
    return sum(machine.weight for machine in group.machines if machine.state.startswith(_LEAVING))


def _lowered_target(group: Group, units: int) -> int:
    """The target of lowering the desired capacity."""
    return min(group.desired, max(group.desired - units, existing_units(group), group.min))


def _lowerable_later(group: Group, units: int) -> int:
    """How much more could be lowered once ending machines are gone."""
    unfilled = max(0, group.desired - max(existing_units(group) - _leaving_units(group), group.min))
    return min(units, unfilled)


def _unchanged(group: Group, units: int) -> CapacityOutcome:
    waiting = _lowerable_later(group, units)
    return CapacityOutcome(0, group.desired, waiting, "machines are still ending" if waiting else "")


def _unprotected(group: Group) -> tuple[str, ...]:
    """Machines in service that a group may end when its desired capacity is lowered."""
    return tuple(machine.id for machine in group.machines if machine.state == _IN_SERVICE and not machine.protected)


def _launches_unlisted(log: ActivityLog, group: Group) -> bool:
    """Whether the group is launching a machine that it does not list yet."""
    listed = {machine.id for machine in group.machines}
    return any(instance not in listed for instance in log.launching)
