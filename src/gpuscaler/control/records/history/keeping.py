"""Writes events and decisions to the history in the background: neither the disk nor large inputs delay the controller."""

import asyncio
import sqlite3
from collections import deque
from contextlib import suppress

import msgspec
import structlog

from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.records import Decision, Sink
from gpuscaler.control.records.history.history import History, StoredDecision
from gpuscaler.control.records.history.packing import Packer

_LOG = structlog.get_logger(__name__)
#: How long events are collected before they are written, in seconds.
GATHER_SECONDS = 1.0
#: The maximum number of decisions that wait to be written: each holds a picture of the whole cluster.
WAITING = 4
#: The maximum number of events that wait to be written.
MOST = 10_000
#: Up to this number of objects is encoded on the event loop, which takes a few milliseconds; more are encoded in a thread.
INLINE = 500


class HistoryWriter(Sink):
    """A sink over ``history``; :meth:`run` must be running. ``lost`` counts records that could not be kept."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.lost = 0
        self.trouble = ""
        self._packer = Packer()
        self._happenings: deque[HistoryEvent] = deque()
        self._decisions: deque[Decision] = deque()
        self._woken, self._decided = asyncio.Event(), asyncio.Event()

    def happened(self, event: HistoryEvent, /) -> None:
        if len(self._happenings) >= MOST:
            self._happenings.popleft()
            self.lost += 1
        self._happenings.append(event)
        self._woken.set()

    def decided(self, decision: Decision, /) -> None:
        if len(self._decisions) >= WAITING:
            self._decisions.popleft()
            self.lost += 1
        self._decisions.append(decision)
        self._woken.set()
        self._decided.set()

    async def run(self) -> None:
        """Write collected records until cancelled; then write the rest."""
        try:
            while True:
                await self._woken.wait()
                # A decision is written at once, so that it is on disk if the process is killed after acting on it.
                with suppress(TimeoutError):
                    async with asyncio.timeout(GATHER_SECONDS):
                        await self._decided.wait()
                await self.flush()
        finally:
            self._write(*self._take_batch())

    async def flush(self) -> None:
        """Write the records collected so far."""
        happenings, decisions = self._take_batch()
        size = sum(len(decision.cluster.pods) + len(decision.cluster.nodes) for decision in decisions)
        if size <= INLINE and not self.history.on_disk:
            self._write(happenings, decisions)
        else:
            await asyncio.to_thread(self._write, happenings, decisions)

    def _take_batch(self) -> tuple[list[HistoryEvent], list[Decision]]:
        self._woken.clear()
        self._decided.clear()
        happenings, decisions = list(self._happenings), list(self._decisions)
        self._happenings.clear()
        self._decisions.clear()
        return happenings, decisions

    def _write(self, happenings: list[HistoryEvent], decisions: list[Decision]) -> None:
        if not happenings and not decisions:
            return
        try:
            self.history.add(
                happenings,
                [
                    StoredDecision(decision.id, decision.at, decision.text, decision.plan, self._packer.pack(decision))
                    for decision in decisions
                ],
            )
            self.trouble = ""
        except (sqlite3.Error, OSError, msgspec.MsgspecError, TypeError) as error:
            self.lost += len(happenings) + len(decisions)
            if not self.trouble:
                _LOG.warning("decisions could not be kept", problem=str(error))
            self.trouble = f"the history of decisions cannot be written: {error}"
