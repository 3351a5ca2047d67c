"""Decodes in small turns, so that many simultaneous lists do not stall the event loop."""

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

T = TypeVar("T", bytes, msgspec.Raw)

#: JSON decoded in one turn, in bytes: about 2 ms of pods.
PART_BYTES = 1 << 18
#: A single event or object below this size, in bytes, is decoded at once: its reader awaits each one, and other tasks run in between.
SMALL_BYTES = 1 << 12


async def yield_to_loop() -> None:
    """Let everything run that is due by now.

    After a single ``sleep(0)`` this task would continue ahead of timers that have become due in the meantime: the next iteration of the
    loop puts them behind it.
    """
    await asyncio.sleep(0)
    await asyncio.sleep(0)


class DecodeLock:
    """Lets one of its users work at a time, and the event loop run between two turns."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[[list[T]], None], items: list[T]) -> None:
        """Call ``work`` with ``items``, a part of them at a time."""
        if len(items) == 1 and len(items[0]) < SMALL_BYTES:
            work(items)
            return
        for part in parts_by_size(items, PART_BYTES):
            async with self._lock:
                work(part)
                await asyncio.sleep(0)


def parts_by_size(items: list[T], limit: int) -> Iterator[list[T]]:
    """``items`` in parts that end as soon as they reach ``limit`` bytes."""
    part: list[T] = []
    size = 0
    for item in items:
        part.append(item)
        size += memoryview(item).nbytes
        if size >= limit:
            yield part
            part, size = [], 0
    if part:
        yield part
