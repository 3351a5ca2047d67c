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
from gpuscaler.clouds.aws.buying.activities import Change, Log

#: Machines in these states no longer belong to the group.
_GONE: Final = ("Terminated", "Detached")
_WARM: Final = "Warmed:"
_IN_SERVICE: Final = "InService"
_LEAVING: Final = ("Terminating", "Detaching")
#: How many times a write is verified at most. A check that finds something wrong means that something else wrote within the last second.
_LOOKS: Final = 4


class Read(Struct, frozen=True, gc=False):
    """Describe the group again; the answer is a :class:`~gpuscaler.clouds.aws.api.groups.Group`."""


class Write(Struct, frozen=True, gc=False):
    """Set the desired capacity."""

    desired: int


class Protect(Struct, frozen=True, gc=False):
    """Protect these machines from scale-in."""

    instances: tuple[str, ...]


class ReadActivities(Struct, frozen=True, gc=False):
    """Read the group's activities; the answer is a :class:`~gpuscaler.clouds.aws.buying.activities.Log` since the first such request."""


Step = Read | Write | Protect | ReadActivities
Steps = Generator[Step, Any, "Outcome"]


class Outcome(Struct, frozen=True, gc=False):
    """By how much we changed the desired capacity, the resulting ``desired`` capacity, how much must still wait, and why."""

    units: int
    desired: int
    waiting: int = 0
    why: str = ""


def raising(units: int) -> Steps:
    """Raise the desired capacity by ``units``, or up to the group's maximum."""
    log: Log = yield ReadActivities()
    group: Group = yield Read()
    # Machines above the desired capacity stay, since they are protected: new ones come on top of them.
    base = max(group.desired, existing(group) - _leaving(group))
    target = min(base + units, group.max)
    if target <= base:
        return Outcome(0, group.desired)
    desired = yield from _written(group, target, log.changes)
    return Outcome(target - base, desired)


def withdrawing(units: int) -> Steps:
    """Lower the desired capacity by ``units`` that we raised it by earlier and that never launched.

    It is never lowered below the number of machines that exist in any state, nor below what others raised it to.
    """
    group: Group = yield Read()
    if _to_lower(group, units) >= group.desired:
        return _nothing(group, units)
    if unprotected := _bare(group):
        yield Protect(unprotected)
    earlier: Log = yield ReadActivities()
    group = yield Read()
    target = _to_lower(group, units)
    if target >= group.desired:
        return _nothing(group, units)
    # A machine that launches between this and the write would be above the desired capacity and not yet protected.
    log: Log = yield ReadActivities()
    if unprotected := _bare(group):
        return Outcome(0, group.desired, units, f"machine {unprotected[0]} is not protected from scale-in yet")
    if _unlisted(log, group):
        return Outcome(0, group.desired, units, "a machine is being launched at this moment")
    desired = yield from _written(group, target, earlier.changes)
    lowered = group.desired - target
    kept = _kept(group, units) - lowered
    return Outcome(lowered, desired, kept, "machines are still ending" if kept else "")


def _written(read: Group, target: int, changes: Collection[Change]) -> Generator[Step, Any, int]:
    """Write ``target``, derived from ``read``; write again while that undid others' changes or is below what exists.

    ``changes`` are changes from before the read. Returns the final desired capacity.
    """
    yield Write(target)
    for _ in range(_LOOKS):
        log: Log = yield ReadActivities()
        group: Group = yield Read()
        missed_units = missed(read.desired, target, [change for change in log.changes if change not in changes])
        wanted = max(group.desired + missed_units, existing(group) - _leaving(group))
        wanted = min(wanted, max(group.max, group.desired))
        if wanted <= group.desired:
            return group.desired
        yield Write(wanted)
        read, target, changes = group, wanted, log.changes
    return target


def missed(read: int, written: int, changes: Iterable[Change]) -> int:
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


def existing(group: Group) -> int:
    """Units of machines in any state, including those that are leaving."""
    return sum(machine.weight for machine in group.machines if machine.state not in _GONE and not machine.state.startswith(_WARM))


def _leaving(group: Group) -> int:
    return sum(machine.weight for machine in group.machines if machine.state.startswith(_LEAVING))


def _to_lower(group: Group, units: int) -> int:
    """The target of lowering the desired capacity."""
    return min(group.desired, max(group.desired - units, existing(group), group.min))


def _kept(group: Group, units: int) -> int:
    """How much more could be lowered once ending machines are gone."""
    unfilled = max(0, group.desired - max(existing(group) - _leaving(group), group.min))
    return min(units, unfilled)


def _nothing(group: Group, units: int) -> Outcome:
    waiting = _kept(group, units)
    return Outcome(0, group.desired, waiting, "machines are still ending" if waiting else "")


def _bare(group: Group) -> tuple[str, ...]:
    """Machines in service that a group may end when it is lowered."""
    return tuple(machine.id for machine in group.machines if machine.state == _IN_SERVICE and not machine.protected)


def _unlisted(log: Log, group: Group) -> bool:
    """Whether the group is launching a machine that it does not list yet."""
    listed = {machine.id for machine in group.machines}
    return any(instance not in listed for instance in log.launching)
