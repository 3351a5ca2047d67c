"""Raising and lowering the desired capacity of a group that others change too, without ever ending a machine.

SetDesiredCapacity is absolute, and compares with nothing: whoever writes a number that is old undoes what others wrote meanwhile, and
whoever writes one that is too low has the group end machines of its own choice. Both have happened to Cluster Autoscaler (its issues 9182
and 10147, 2026). Three things keep them from happening here: every machine is protected from scale-in before anything is lowered, a number
is written right after it was read, and what was written is looked at again, with the activities that tell of changes in between. What is
left is a launch that begins in the tenth of a second between the last look and the write: its machine, or another that is not in service
yet, may go again before the number is put right.

The steps are generators that ask for one thing after the other, so that they can be tried against a model in every order of events; whoever
drives them makes the calls. All numbers are in units of the group's capacity.
"""

from collections.abc import Collection, Generator, Iterable
from typing import Any, Final

from msgspec import Struct

from gpuscaler.clouds.aws.api.groups import Group
from gpuscaler.clouds.aws.buying.activities import Change, Log

#: Machines in these states are not the group's any more.
_GONE: Final = ("Terminated", "Detached")
_WARM: Final = "Warmed:"
_IN_SERVICE: Final = "InService"
_LEAVING: Final = ("Terminating", "Detaching")
#: How often what was written is looked at again at most. Each look that finds something wrong means that somebody wrote in the last second.
_LOOKS: Final = 4


class Read(Struct, frozen=True, gc=False):
    """Describe the group anew; the answer is a :class:`~gpuscaler.clouds.aws.api.groups.Group`."""


class Write(Struct, frozen=True, gc=False):
    """Set the desired capacity."""

    desired: int


class Protect(Struct, frozen=True, gc=False):
    """Protect these machines from scale-in."""

    instances: tuple[str, ...]


class Look(Struct, frozen=True, gc=False):
    """Tell what the group is up to; the answer is a :class:`~gpuscaler.clouds.aws.buying.activities.Log` since the first question."""


Step = Read | Write | Protect | Look
Steps = Generator[Step, Any, "Outcome"]


class Outcome(Struct, frozen=True, gc=False):
    """By how much the desired capacity was changed for us, what it was ``left`` at, and how much of what was wanted must wait, and why."""

    units: int
    desired: int
    waiting: int = 0
    why: str = ""


def raising(units: int) -> Steps:
    """Raise the desired capacity by ``units``, or by as much as the group's maximum leaves."""
    known: Log = yield Look()
    group: Group = yield Read()
    # Machines above the desired capacity are there to stay, protected as they are: new ones come on top of them.
    base = max(group.desired, existing(group) - _leaving(group))
    target = min(base + units, group.max)
    if target <= base:
        return Outcome(0, group.desired)
    desired = yield from _written(group, target, known.changes)
    return Outcome(target - base, desired)


def withdrawing(units: int) -> Steps:
    """Lower the desired capacity by ``units`` that we once raised it by and that never came.

    It is never lowered below what exists in any state, nor below what others raised it to.
    """
    group: Group = yield Read()
    if _to_lower(group, units) >= group.desired:
        return _nothing(group, units)
    if bare := _bare(group):
        yield Protect(bare)
    known: Log = yield Look()
    group = yield Read()
    target = _to_lower(group, units)
    if target >= group.desired:
        return _nothing(group, units)
    # A machine that comes between this and the write would be above what is desired, and not yet protected.
    log: Log = yield Look()
    if bare := _bare(group):
        return Outcome(0, group.desired, units, f"machine {bare[0]} is not protected from scale-in yet")
    if _unlisted(log, group):
        return Outcome(0, group.desired, units, "a machine is being launched at this moment")
    desired = yield from _written(group, target, known.changes)
    lowered = group.desired - target
    kept = _kept(group, units) - lowered
    return Outcome(lowered, desired, kept, "machines are still ending" if kept else "")


def _written(read: Group, target: int, known: Collection[Change]) -> Generator[Step, Any, int]:
    """Write ``target``, which followed from ``read``; write again as long as that undid what others wrote, or is below what exists.

    ``known`` are changes from before the read. Returns the desired capacity in the end.
    """
    yield Write(target)
    for _ in range(_LOOKS):
        log: Log = yield Look()
        group: Group = yield Read()
        lost = missed(read.desired, target, [one for one in log.changes if one not in known])
        wanted = max(group.desired + lost, existing(group) - _leaving(group))
        wanted = min(wanted, max(group.max, group.desired))
        if wanted <= group.desired:
            return group.desired
        yield Write(wanted)
        read, target, known = group, wanted, log.changes
    return target


def missed(read: int, written: int, changes: Iterable[Change]) -> int:
    """By how much others raised the desired capacity from what was ``read`` before ours was ``written`` over it, 0 if they did not.

    What ours says that it changed tells most. Where it is not told, changes are followed from number to number, since those of one second
    come in no order. Who writes the same number in the same moment cannot be told from us.
    """
    left = sorted(changes)
    if ours := [one.before for one in left if one.after == written]:
        return max(0, max(ours) - read)
    level = read
    while (found := next((one for one in left if one.before == level), None)) is not None:
        left.remove(found)
        level = found.after
    return max(0, level - read)


def existing(group: Group) -> int:
    """Units of machines in any state, those that are on their way out included."""
    return sum(one.weight for one in group.machines if one.state not in _GONE and not one.state.startswith(_WARM))


def _leaving(group: Group) -> int:
    return sum(one.weight for one in group.machines if one.state.startswith(_LEAVING))


def _to_lower(group: Group, units: int) -> int:
    """What the desired capacity is to be lowered to."""
    return min(group.desired, max(group.desired - units, existing(group), group.min))


def _kept(group: Group, units: int) -> int:
    """How much could be lowered once machines that are ending are gone."""
    unfilled = max(0, group.desired - max(existing(group) - _leaving(group), group.min))
    return min(units, unfilled)


def _nothing(group: Group, units: int) -> Outcome:
    waiting = _kept(group, units)
    return Outcome(0, group.desired, waiting, "machines are still ending" if waiting else "")


def _bare(group: Group) -> tuple[str, ...]:
    """Machines in service that a group may end when it is lowered."""
    return tuple(one.id for one in group.machines if one.state == _IN_SERVICE and not one.protected)


def _unlisted(log: Log, group: Group) -> bool:
    """Whether the group is launching a machine that it does not list yet."""
    listed = {one.id for one in group.machines}
    return any(one not in listed for one in log.launching)
