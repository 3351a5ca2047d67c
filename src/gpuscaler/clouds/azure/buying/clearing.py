"""Clears what failed purchases left behind: entries of machines that were never allocated, and numbers without machines."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from gpuscaler.clouds.azure.api.arm import GoneError
from gpuscaler.clouds.azure.buying.capacity import lowered_capacity
from gpuscaler.clouds.azure.buying.deletions import Deletions
from gpuscaler.clouds.azure.buying.groups import Group
from gpuscaler.clouds.azure.documents.resources import VirtualMachine
from gpuscaler.clouds.azure.machines.listing import READ_LAG, SKEW_SECONDS, is_unallocated
from gpuscaler.clouds.protocol import THROTTLED, CloudError, LostAnswerError
from gpuscaler.model.azure_names import fold_id

_LOG = structlog.get_logger(__name__)
#: After an error, when it is tried again, and after what time not any more, in seconds.
AGAIN_SECONDS, LONGEST_SECONDS = 30.0, 3600.0


@dataclass(slots=True, eq=False)
class Remains:
    """What failed attempts in a group left behind: ``number`` machines that did not come, the last at ``at``.

    They are entries without machines that Azure made after ``since`` and that are not among ``before`` (folded ids), or only a part of the
    capacity. ``deleted`` are entries whose deletion was asked for, ``problem`` is why nothing could be cleared the last time,
    which is not tried again before ``not_before``.
    """

    group: Group
    number: int
    at: float
    since: float
    before: frozenset[str]
    deleted: set[str] = field(default_factory=set)
    problem: str = ""
    not_before: float = 0.0


class Clearing:
    """Clears remains. ``lock`` is that of a group, ``expected`` how many machines orders still expect in it.

    ``runs`` says whether an order's operation runs in it. Orders that only wait do not count: they may wait for what is cleared here.
    """

    def __init__(
        self,
        deletions: Deletions,
        *,
        now: Callable[[], float],
        lock: Callable[[Group], asyncio.Lock],
        expected: Callable[[Group], int],
        runs: Callable[[Group], bool],
    ) -> None:
        self._deletions, self._now, self._lock, self._expected, self._runs = deletions, now, lock, expected, runs
        self._remains: list[Remains] = []
        #: By the key of a group, the folded ids of what was there before the orders that it has now.
        self._first: dict[tuple[str, str], frozenset[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._remains)

    @property
    def watched(self) -> frozenset[str]:
        """Keys of the resources in which something is left."""
        return frozenset(remains.group.key[0] for remains in self._remains)

    def begin(self, group: Group, before: frozenset[str], *, alone: bool) -> None:
        """Note that an order begins in ``group``, where ``before`` is listed; ``alone`` if no other order has begun there."""
        if alone and not self.clears(group):
            self._first[group.key] = before
        else:
            self._first[group.key] = self._first.get(group.key, before) & before

    def clears(self, group: Group) -> bool:
        """Whether something is left in ``group``."""
        return any(remains.group.key == group.key for remains in self._remains)

    def add(self, group: Group, number: int, *, since: float, before: frozenset[str]) -> None:
        """Clear what is left of ``number`` machines that did not come, and that were not there ``before``.

        Lists do not say which entry belongs to which order, so it may be what any of the orders that the group has now left.
        """
        before &= self._first.get(group.key, before)
        for remains in self._remains:
            if remains.group.key == group.key:
                remains.number += number
                remains.at, remains.since, remains.before = self._now(), min(remains.since, since), remains.before & before
                return
        self._remains.append(Remains(group, number, self._now(), since, before))

    async def clear(self) -> None:
        """Clear what can be cleared now. A call that fails is made again the next time."""
        for remains in tuple(self._remains):
            if self._now() < remains.not_before:
                continue
            try:
                done = await self._clear(remains)
            except (CloudError, LostAnswerError) as error:
                done = self._now() >= remains.at + LONGEST_SECONDS
                if isinstance(error, CloudError) and error.cause == THROTTLED and not done:
                    continue
                remains.not_before = self._now() + AGAIN_SECONDS
                if done or str(error) != remains.problem:
                    remains.problem = str(error)
                    _LOG.warning(
                        "what a failed purchase left behind could not be cleared",
                        group=remains.group.name,
                        problem=str(error),
                        given_up=done,
                    )
            if done:
                self._remains.remove(remains)

    async def _clear(self, remains: Remains) -> bool:
        group = remains.group
        async with self._lock(group):
            if group.one_at_a_time and self._runs(group):
                return False
            try:
                count, machines = await group.count()
            except GoneError:
                # The group was deleted, and nothing is left in it.
                return True
            failed = [machine for machine in machines if is_unallocated(machine) and fold_id(machine.id) in remains.deleted]
            others = [machine for machine in machines if _may_be_of(machine, remains)]
            failed += others[: remains.number]
            if failed:
                self._deletions.begin(group, failed)
                await group.delete(failed, force=False)
                remains.number -= min(len(others), remains.number)
                remains.deleted |= {fold_id(machine.id) for machine in failed}
            if remains.deleted & {fold_id(machine.id) for machine in machines}:
                # Another operation may end the deletion: it is over when the entries are no longer listed.
                return False
            if self._now() < remains.at + READ_LAG:
                # A list that is behind would make machines that exist look like a number without machines.
                return False
            if remains.number and count.busy:
                # Azure tries for all of the number again: machines may come for it, and what is listed now may vanish.
                return False
            target = lowered_capacity(count, remains.number, self._expected(group))
            if target < count.capacity:
                self._deletions.check(group, machines)
                await group.write(count, target)
            return True


def _may_be_of(machine: VirtualMachine, remains: Remains) -> bool:
    """Whether an entry was left behind by the attempts of ``remains``."""
    ident = fold_id(machine.id)
    is_later = machine.created >= remains.since - SKEW_SECONDS and ident not in remains.before
    return bool(ident) and is_unallocated(machine) and is_later and ident not in remains.deleted
