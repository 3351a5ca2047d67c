"""Ends machines by id. Azure lowers the capacity by itself when a deletion starts."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from gpuscaler.clouds.azure.api.arm import Arm, ArmError, GoneError
from gpuscaler.clouds.azure.api.operations import OperationState, read_operation
from gpuscaler.clouds.azure.buying.deletions import Deletions
from gpuscaler.clouds.azure.buying.groups import Group
from gpuscaler.clouds.azure.documents.resources import VirtualMachine
from gpuscaler.clouds.azure.machines.listing import is_leaving
from gpuscaler.clouds.protocol import THROTTLED, CloudError, LostAnswerError
from gpuscaler.model.azure_names import fold_id

_LOG = structlog.get_logger(__name__)
#: How long wishes to end machines of one group are collected for one call, in seconds: for longer where the next call has to wait until the
#: operation of this one has ended, which takes most of a minute.
GATHER_SECONDS, ONE_AT_A_TIME_SECONDS = 0.05, 3.0
#: The time between two looks at an operation, in seconds.
OBSERVE_SECONDS: Final = 2.0
#: How long an operation of a deletion is watched, in seconds; later the list of machines shows what became of it.
WATCHED_SECONDS: Final = 300.0
#: The longest wait for other calls of this process to the same group, and after what time a deletion that could not be sent is tried again,
#: in seconds.
TURN_SECONDS, AGAIN_SECONDS = 4.0, 10.0
_REPLACED: Final = "operationpreempted"


@dataclass(slots=True, eq=False)
class _Call:
    """One deletion of all machines of a group that are ``wanted`` at one moment, by folded id, until it is sent."""

    group: Group
    force: bool
    wanted: dict[str, VirtualMachine] = field(default_factory=dict)


class Endings:
    """Deletes machines of groups, all that are wanted at one moment in one call.

    An operation that another one replaced (``OperationPreempted``) is repeated once, with the machines that still exist. ``lock`` is that
    of a group; ``runs`` says whether an order's operation runs in it.
    """

    def __init__(
        self,
        arm: Arm,
        deletions: Deletions,
        *,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        lock: Callable[[Group], asyncio.Lock],
        runs: Callable[[Group], bool],
    ) -> None:
        self._arm, self._deletions, self._now, self._sleep, self._lock, self._runs = arm, deletions, now, sleep, lock, runs
        self._calls: dict[tuple[str, bool], tuple[_Call, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[str] = set()
        #: Keys of resources in which a deletion of this process runs, and the times before which others take none.
        self._running: set[str] = set()
        self._not_before: dict[str, tuple[float, str]] = {}

    @property
    def ending(self) -> frozenset[str]:
        """Folded ids of machines whose deletion was accepted and may not show yet."""
        return frozenset(self._ending)

    @property
    def asked(self) -> frozenset[str]:
        """Folded ids of these machines, and of those whose deletion is about to be sent."""
        return frozenset(self._ending.union(*(call.wanted for call, _ in self._calls.values())))

    def drop_gone(self, listed: Iterable[str]) -> None:
        """Drop machines that are no longer among the ``listed`` folded ids."""
        self._ending &= set(listed)

    async def end(self, group: Group, machine: VirtualMachine, *, force: bool) -> None:
        """Delete ``machine``.

        Raises CloudError if Azure refuses or the group takes no deletion now, LostAnswerError if it is unknown whether the deletion began.
        """
        ident = fold_id(machine.id)
        if ident in self._ending:
            return
        self._check_free(group)
        key = (group.key[0], force)
        if key not in self._calls:
            call = _Call(group, force)
            task = asyncio.create_task(self._send(key, call))
            self._calls[key] = call, task
            self._keep(task)
        call, task = self._calls[key]
        call.wanted[ident] = machine
        try:
            # Others wait for the same call: a caller that gives up does not stop it.
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # Its caller has found the node empty a while ago: pods may be there by the time of a call that is sent later.
            call.wanted.pop(ident, None)
            raise

    def _check_free(self, group: Group) -> None:
        """Raise CloudError while ``group`` takes no deletion: AKS would refuse the call, and count it."""
        until, why = self._not_before.get(group.key[0], (0.0, ""))
        if self._now() < until:
            raise CloudError(THROTTLED, why, retry_after=until - self._now())
        if group.one_at_a_time and (group.key[0] in self._running or self._runs(group)):
            detail = f"{group.name} takes one operation at a time, and one of ours runs: the deletion is sent after it"
            raise CloudError(THROTTLED, detail, retry_after=AGAIN_SECONDS)

    async def _send(self, key: tuple[str, bool], call: _Call) -> None:
        group, lock = call.group, self._lock(call.group)
        try:
            await self._sleep(ONE_AT_A_TIME_SECONDS if group.one_at_a_time else GATHER_SECONDS)
            await self._take_turn(group, lock)
        except BaseException:
            self._calls.pop(key, None)
            raise
        try:
            self._calls.pop(key, None)
            machines, call.wanted = call.wanted, {}
            if not machines:
                return
            self._check_free(group)
            self._deletions.begin(group, machines.values())
            try:
                url = await self._delete_present(group, tuple(machines.values()), force=call.force)
            except CloudError as error:
                self._deletions.end(group, machines.values())
                if error.cause == THROTTLED and error.retry_after:
                    self._not_before[group.key[0]] = self._now() + error.retry_after, error.detail
                raise
            self._ending |= machines.keys()
            if url:
                self._running.add(group.key[0])
                self._keep(asyncio.create_task(self._watch(group, tuple(machines.values()), url, force=call.force)))
        finally:
            lock.release()

    async def _take_turn(self, group: Group, lock: asyncio.Lock) -> None:
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await lock.acquire()
        except TimeoutError:
            detail = f"{group.name}: a call of this process to it has had no answer for {TURN_SECONDS:g} s: the deletion is sent after it"
            raise CloudError(THROTTLED, detail, retry_after=AGAIN_SECONDS) from None

    async def _delete_present(self, group: Group, machines: Sequence[VirtualMachine], *, force: bool) -> str:
        """Delete ``machines``; if Azure refuses the call because one of them is gone, those that are left. An empty URL if none is."""
        try:
            return await group.delete(machines, force=force)
        except GoneError:
            pass
        except ArmError as error:
            if error.failure.status not in (400, 404):
                raise
        present = await self._present(group, machines)
        if not present:
            return ""
        return await group.delete(present, force=force)

    async def _present(self, group: Group, machines: Iterable[VirtualMachine]) -> Sequence[VirtualMachine]:
        """Those of ``machines`` that exist and are not being deleted; none if their group was deleted."""
        wanted = {fold_id(machine.id) for machine in machines}
        try:
            listed = await group.machines()
        except GoneError:
            return ()
        return [machine for machine in listed if fold_id(machine.id) in wanted and not is_leaving(machine)]

    async def _watch(self, group: Group, machines: Sequence[VirtualMachine], url: str, *, force: bool) -> None:
        """Watch a deletion to its end, and repeat it once if another operation replaced it."""
        try:
            state = await self._ended(group, url)
            self._running.discard(group.key[0])
            if state is not None and (state.succeeded or state.gone or state.failure is None):
                return
            if state is not None and state.failure is not None:
                if state.failure.code.lower() == _REPLACED:
                    async with self._lock(group):
                        if present := await self._present(group, machines):
                            await group.delete(present, force=force)
                            return
                self._deletions.end(group, machines)
                _LOG.warning("a deletion failed", group=group.name, code=state.failure.code, problem=state.failure.text)
        except (CloudError, LostAnswerError) as error:
            _LOG.warning("a deletion could not be repeated", group=group.name, problem=str(error))
        finally:
            self._running.discard(group.key[0])
        # Machines that are there still are on the list: the controller asks again.
        self._ending -= {fold_id(machine.id) for machine in machines}

    async def _ended(self, group: Group, url: str) -> OperationState | None:
        """The state of a deletion that has ended; None if that is not known after a while."""
        until, problem = self._now() + WATCHED_SECONDS, ""
        while self._now() < until:
            await self._sleep(OBSERVE_SECONDS)
            try:
                state = await read_operation(self._arm, url)
            except CloudError as error:
                # A read that fails says nothing about the deletion.
                if not problem:
                    problem = str(error)
                    _LOG.warning("a deletion cannot be watched for now", group=group.name, problem=problem)
                continue
            if state.done:
                return state
        return None

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # A caller that waits for it gets the error from the task itself.
            task.exception()

    async def close(self) -> None:
        """Cancel what is in progress; a call that was already sent ends by itself."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
