"""An event loop whose clock moves only when there is nothing left to do, and then directly to the next timer.

An hour of virtual time takes as long as the work in it. Time does not move while a thread of the loop's executor works. Sockets, other
threads and processes are polled before time moves, but the loop does not wait for them.

Tests run thousands of hours in this loop, so an iteration does less than one of asyncio. Timers are compared in C. The selector is polled
only before time moves, and regularly while the loop is busy. Callbacks record nothing for asyncio's debug mode, which costs a check for
each of them.
"""

import asyncio
import heapq
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context, copy_context
from itertools import count
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Given = TypeVarTuple("Given")

#: The clock counts in microseconds, so that 0.1 s and 0.2 s make 0.3 s. A timer that is due within a nanosecond is due now.
PER_SECOND = 1_000_000
NEARLY = 1e-9
#: Iterations of a busy loop between two polls of the selector.
BUSY_TURNS = 64
#: Cancelled timers are discarded when there are more than this, and more than half of all timers.
FEW_CANCELLED = 100


class _Callback(asyncio.Handle):
    """A handle for a call in the next iteration, like asyncio's but without debug mode."""

    __slots__ = ()

    # The attributes of asyncio's handle.
    _context: Context
    _loop: Any
    _callback: Any
    _args: Any
    _cancelled: bool
    _repr: str | None
    _source_traceback: Any

    def __init__(self, callback: Any, args: Any, loop: Any, context: Context | None) -> None:
        self._callback, self._args, self._loop = callback, args, loop
        self._context = copy_context() if context is None else context
        self._cancelled, self._repr, self._source_traceback = False, None, None

    def cancel(self) -> None:
        self._cancelled, self._callback, self._args = True, None, None


class _Timer(asyncio.TimerHandle):
    """A handle for a call at a given time, likewise. The loop counts those that are cancelled before they are due."""

    __slots__ = ()

    _context: Context
    _loop: Any
    _callback: Any
    _args: Any
    _cancelled: bool
    _repr: str | None
    _source_traceback: Any
    _when: float
    _scheduled: bool

    def __init__(self, when: float, callback: Any, args: Any, loop: Any, context: Context | None) -> None:
        self._when, self._callback, self._args, self._loop = when, callback, args, loop
        self._context = copy_context() if context is None else context
        self._cancelled, self._repr, self._source_traceback, self._scheduled = False, None, None, True

    def cancel(self) -> None:
        if not self._cancelled:
            self._loop._cancelled += self._scheduled
            self._cancelled, self._callback, self._args = True, None, None


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, which starts at 0."""

    # Attributes and methods of asyncio's own loop.
    _closed: bool
    _ready: Any
    _selector: Any
    _stopping: bool
    _process_events: Callable[[list[Any]], None]

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = count()
        self._cancelled = 0
        self._turns = 0
        #: Number of running calls in threads.
        self._outside = 0
        #: Whether another thread has scheduled a call since the last poll.
        self._poked = False
        super().__init__()

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[[*Given], object], *args: *Given, context: Context | None = None) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = _Callback(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Given], object], *args: *Given, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Given], object], *args: *Given, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if self._now < when < self._now + NEARLY:
            # Due now, it would leave the clock where it is, and who computes what is left of a wait would wait for ever.
            when = self._now + 1 / PER_SECOND
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Given], T], *args: *Given) -> asyncio.Future[T]:
        call = super().run_in_executor(executor, func, *args)
        if not call.done():
            self._outside += 1
            call.add_done_callback(self._came_back)
        return call

    def _came_back(self, _call: Any) -> None:
        self._outside -= 1

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        self._outside += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._outside -= 1

    def _write_to_self(self) -> None:
        self._poked = True
        super()._write_to_self()  # type: ignore[misc]  # of asyncio's own loop

    def close(self) -> None:
        super().close()
        self._timers.clear()

    def _run_once(self) -> None:
        """Run one iteration: the ready callbacks, and the timers that are due."""
        ready, timers = self._ready, self._timers
        self._turns += 1
        if not ready and not self._stopping:
            self._go_on()
        elif not self._turns % BUSY_TURNS:
            self._process_events(self._selector.select(0))
        if self._cancelled > FEW_CANCELLED and 2 * self._cancelled > len(timers):
            self._throw_away()
        due = self._now + NEARLY
        while timers and timers[0][0] < due:
            timer: Any = heapq.heappop(timers)[2]
            timer._scheduled = False
            if timer._cancelled:
                self._cancelled -= 1
            else:
                ready.append(timer)
        # Callbacks that these schedule run in the next iteration, as in asyncio's own loop.
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001  # as asyncio's own handles do
                    self.call_exception_handler({"message": f"Exception in {handle!r}", "exception": error, "handle": handle})

    def _go_on(self) -> None:
        """Nothing is ready: handle I/O events, or else move time to the next timer."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            timer: Any = heapq.heappop(timers)[2]
            timer._scheduled = False
            self._cancelled -= 1
        if timers and not (self._outside or self._poked) and self._turns % BUSY_TURNS and len(self._selector.get_map()) == 1:
            # The usual case: only the loop's own socket is registered, to which other threads write, and none has.
            self._move(timers[0][0])
            return
        self._poked = False
        ready = self._selector.select(0)
        if not ready and (self._outside or not timers):
            ready = self._selector.select(timers[0][0] - self._now if timers else None)
        if not ready and timers and not self._ready:
            self._move(timers[0][0])
        self._process_events(ready)

    def _move(self, to: float) -> None:
        ticks = round(to * PER_SECOND)
        if ticks / PER_SECOND + NEARLY <= to:
            ticks += 1
        self._now = max(self._now, ticks / PER_SECOND)

    def _throw_away(self) -> None:
        remaining = []
        for entry in self._timers:
            timer: Any = entry[2]
            if timer._cancelled:
                timer._scheduled = False
            else:
                remaining.append(entry)
        # The list is changed in place, because an iteration may be using it.
        self._timers[:] = remaining
        heapq.heapify(self._timers)
        self._cancelled = 0
