"""Keeps happenings and decisions in the history, behind the controller's back: neither the disk nor large inputs hold the controller up."""

import asyncio
import sqlite3
from collections import deque
from contextlib import suppress

import msgspec
import structlog

from gpuscaler.control.records.events.happening import Happening
from gpuscaler.control.records.events.records import Decision, Sink
from gpuscaler.control.records.history.history import History, Made
from gpuscaler.control.records.history.packing import Packer

_LOG = structlog.get_logger(__name__)
#: How long happenings are gathered, in seconds.
GATHER_SECONDS = 1.0
#: Decisions whose inputs wait to be written, at most: each holds a picture of the whole cluster.
WAITING = 4
#: Happenings that wait, at most.
MOST = 10_000
#: Up to so many objects are encoded at once, which takes a few milliseconds; more in a thread.
INLINE = 500


class Keeper(Sink):
    """A sink over ``history``; :meth:`run` is to be kept running. ``lost`` counts what could not be kept."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.lost = 0
        self.trouble = ""
        self._packer = Packer()
        self._happenings: deque[Happening] = deque()
        self._decisions: deque[Decision] = deque()
        self._woken, self._decided = asyncio.Event(), asyncio.Event()

    def happened(self, what: Happening, /) -> None:
        if len(self._happenings) >= MOST:
            self._happenings.popleft()
            self.lost += 1
        self._happenings.append(what)
        self._woken.set()

    def decided(self, decision: Decision, /) -> None:
        if len(self._decisions) >= WAITING:
            self._decisions.popleft()
            self.lost += 1
        self._decisions.append(decision)
        self._woken.set()
        self._decided.set()

    async def run(self) -> None:
        """Write what was gathered, until cancelled; then the rest."""
        try:
            while True:
                await self._woken.wait()
                # A decision is kept at once: a process that is killed after it has acted can be asked about it all the same.
                with suppress(TimeoutError):
                    async with asyncio.timeout(GATHER_SECONDS):
                        await self._decided.wait()
                await self.flush()
        finally:
            self._write(*self._taken())

    async def flush(self) -> None:
        """Write what was gathered so far."""
        happenings, decisions = self._taken()
        size = sum(len(one.cluster.pods) + len(one.cluster.nodes) for one in decisions)
        if size <= INLINE and not self.history.on_disk:
            self._write(happenings, decisions)
        else:
            await asyncio.to_thread(self._write, happenings, decisions)

    def _taken(self) -> tuple[list[Happening], list[Decision]]:
        self._woken.clear()
        self._decided.clear()
        happenings, decisions = list(self._happenings), list(self._decisions)
        self._happenings.clear()
        self._decisions.clear()
        return happenings, decisions

    def _write(self, happenings: list[Happening], decisions: list[Decision]) -> None:
        if not happenings and not decisions:
            return
        try:
            self.history.add(happenings, [Made(one.id, one.at, one.text, one.plan, self._packer.packed(one)) for one in decisions])
            self.trouble = ""
        except (sqlite3.Error, OSError, msgspec.MsgspecError, TypeError) as error:
            self.lost += len(happenings) + len(decisions)
            if not self.trouble:
                _LOG.warning("decisions could not be kept", problem=str(error))
            self.trouble = f"the history of decisions cannot be written: {error}"
