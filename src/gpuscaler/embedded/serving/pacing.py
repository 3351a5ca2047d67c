"""Accelerated time: an event loop with a faster clock. Code that waits in it, also for sockets, needs no changes.

The clock stands still while callbacks run, and moves while the loop waits. So what is in progress over sockets within the process is
always done before time passes, and no time-out expires because the machine is slow: the clock falls behind instead, and reports by how
much. It catches up when nothing is in progress, by jumping to the next timer.
"""

import asyncio
import selectors
import time
from collections.abc import Callable


class PacedLoop(asyncio.SelectorEventLoop):
    """A loop in which ``speed`` seconds (above 0) pass in a second of ``real``, a monotonic clock, as long as the machine keeps up."""

    def __init__(self, speed: float, *, real: Callable[[], float] = time.monotonic) -> None:
        self._pacer = _Pacer(speed, real)
        super().__init__(self._pacer)

    def time(self) -> float:
        return self._pacer.now

    @property
    def behind(self) -> float:
        """By how many of its seconds this clock is behind."""
        return max(0.0, self._pacer.lag)


class _Pacer(selectors.DefaultSelector):
    """Waits for sockets as any selector does, and moves the clock while it waits."""

    def __init__(self, speed: float, real: Callable[[], float]) -> None:
        super().__init__()
        self.now = 0.0
        self._speed, self._real, self._began = speed, real, real()

    @property
    def lag(self) -> float:
        return (self._real() - self._began) * self._speed - self.now

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is not None:
            caught_up = min(max(0.0, self.lag), timeout)
            self.now += caught_up
            timeout -= caught_up
            if timeout <= 0:
                return ready
        before = self._real()
        ready = super().select(None if timeout is None else timeout / self._speed)
        passed = (self._real() - before) * self._speed
        # Selectors round up to milliseconds; even so, a timer fires when it is due.
        self.now += passed if timeout is None else min(passed, timeout)
        return ready
