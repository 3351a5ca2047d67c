"""Decodes in small turns, so that many simultaneous lists do not stall the event loop."""

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

T = TypeVar("T", bytes, msgspec.Raw)

#: JSON decoded in one turn, in bytes: about 2 ms of pods.
TURN = 1 << 18
#: A single event or object below this size, in bytes, is decoded at once: its reader awaits each one, and other tasks run in between.
SMALL = 1 << 12


async def breathe() -> None:
    """Let everything run that is due by now.

    After a single ``sleep(0)`` this task would continue ahead of timers that have become due in the meantime: the next iteration of the
    loop puts them behind it.
    """
    await asyncio.sleep(0)
    await asyncio.sleep(0)


class Turn:
    """Lets one of its users work at a time, and the event loop run between two turns."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def take(self, work: Callable[[list[T]], None], things: list[T]) -> None:
        """Call ``work`` with ``things``, a part of them at a time."""
        if len(things) == 1 and len(things[0]) < SMALL:
            work(things)
            return
        for part in parts(things, TURN):
            async with self._lock:
                work(part)
                await asyncio.sleep(0)


def parts(things: list[T], most: int) -> Iterator[list[T]]:
    """``things`` in parts that end as soon as they reach ``most`` bytes."""
    part: list[T] = []
    size = 0
    for thing in things:
        part.append(thing)
        size += memoryview(thing).nbytes
        if size >= most:
            yield part
            part, size = [], 0
    if part:
        yield part
