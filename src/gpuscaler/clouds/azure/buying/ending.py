"""Ends machines by id. Azure lowers the capacity by itself when a deletion starts."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import structlog

from gpuscaler.clouds.azure.api.arm import Arm, ArmError, GoneError
from gpuscaler.clouds.azure.api.operations import read_operation
from gpuscaler.clouds.azure.buying.deletions import Deletions
from gpuscaler.clouds.azure.buying.groups import Group
from gpuscaler.clouds.azure.documents.resources import VirtualMachine
from gpuscaler.clouds.azure.machines.listing import is_leaving
from gpuscaler.clouds.protocol import CloudError, LostAnswerError
from gpuscaler.model.azure_names import fold_id

_LOG = structlog.get_logger(__name__)
#: How long wishes to end machines of one group are collected for one call, and between two looks at its operation, in seconds.
GATHER_SECONDS, OBSERVE_SECONDS = 0.05, 2.0
#: How long an operation of a deletion is watched, in seconds; later the list of machines shows what became of it.
WATCHED_SECONDS: Final = 300.0
_REPLACED: Final = "operationpreempted"


class Endings:
    """Deletes machines of groups, all that are wanted at one moment in one call.

    An operation that another one replaced (``OperationPreempted``) is repeated once, with the machines that still exist.
    """

    def __init__(self, arm: Arm, deletions: Deletions, *, now: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self._arm, self._deletions, self._now, self._sleep = arm, deletions, now, sleep
        self._wanted: dict[tuple[str, str], dict[str, VirtualMachine]] = {}
        self._calls: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[str] = set()

    @property
    def ending(self) -> frozenset[str]:
        """Folded ids of machines whose deletion was accepted and may not show yet."""
        return frozenset(self._ending)

    def drop_gone(self, listed: Iterable[str]) -> None:
        """Drop machines that are no longer among the ``listed`` folded ids."""
        self._ending &= set(listed)

    async def end(self, group: Group, machine: VirtualMachine, lock: asyncio.Lock, *, force: bool) -> None:
        """Delete ``machine``. Raises CloudError if Azure refuses, LostAnswerError if it is unknown whether the deletion began."""
        ident = fold_id(machine.id)
        if ident in self._ending:
            return
        key = (group.key[0], "force" if force else "")
        self._wanted.setdefault(key, {})[ident] = machine
        call = self._calls.get(key)
        if call is None:
            call = asyncio.create_task(self._call(key, group, lock, force=force))
            self._calls[key] = call
            self._keep(call)
        # Others wait for the same call: a caller that gives up does not stop it.
        await asyncio.shield(call)

    async def _call(self, key: tuple[str, str], group: Group, lock: asyncio.Lock, *, force: bool) -> None:
        try:
            await self._sleep(GATHER_SECONDS)
            async with lock:
                self._calls.pop(key, None)
                machines = self._wanted.pop(key, {})
                self._deletions.begin(group, machines.values())
                try:
                    url = await self._delete_present(group, tuple(machines.values()), force=force)
                except CloudError:
                    self._deletions.end(group, machines.values())
                    raise
                self._ending |= machines.keys()
        finally:
            if self._calls.get(key) is asyncio.current_task():
                self._calls.pop(key, None)
                self._wanted.pop(key, None)
        if url:
            self._keep(asyncio.create_task(self._watch(group, tuple(machines.values()), lock, url, force=force)))

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

    async def _watch(self, group: Group, machines: Sequence[VirtualMachine], lock: asyncio.Lock, url: str, *, force: bool) -> None:
        """Watch a deletion to its end, and repeat it once if another operation replaced it."""
        until = self._now() + WATCHED_SECONDS
        try:
            while self._now() < until:
                await self._sleep(OBSERVE_SECONDS)
                state = await read_operation(self._arm, url)
                if not state.done:
                    continue
                if state.succeeded or state.gone or state.failure is None:
                    return
                if state.failure.code.lower() == _REPLACED:
                    async with lock:
                        if present := await self._present(group, machines):
                            await group.delete(present, force=force)
                            return
                # The machines are there still: the controller sees them on the list, and asks again.
                self._ending -= {fold_id(machine.id) for machine in machines}
                self._deletions.end(group, machines)
                _LOG.warning("a deletion failed", group=group.name, code=state.failure.code, problem=state.failure.text)
                return
        except (CloudError, LostAnswerError) as error:
            self._ending -= {fold_id(machine.id) for machine in machines}
            _LOG.warning("a deletion could not be watched", group=group.name, problem=str(error))

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
