"""Accelerated time: an event loop whose clock runs faster, so that whoever waits in it, and for sockets, needs to know nothing of it.

The clock stands still while callbacks run and moves while the loop waits. What is under way over sockets within the process is therefore
always done before time passes, and no time-out runs off because the machine is slow: the clock falls behind instead, and says so. It makes
up for that where nothing is under way, by going straight to the next timer.
"""

import asyncio
import selectors
import time
from collections.abc import Callable


class PacedLoop(asyncio.SelectorEventLoop):
    """A loop in which ``speed`` seconds, above 0, pass in a second of ``real``, a monotonic clock, as long as the machine keeps up."""

    def __init__(self, speed: float, *, real: Callable[[], float] = time.monotonic) -> None:
        self._pacer = _Pacer(speed, real)
        super().__init__(self._pacer)

    def time(self) -> float:
        return self._pacer.now

    @property
    def behind(self) -> float:
        """Seconds of this clock by which it is behind."""
        return max(0.0, self._pacer.lag)


class _Pacer(selectors.DefaultSelector):
    """Waits for sockets as any selector does, and moves the clock meanwhile."""

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
        # Selectors round up to milliseconds; a timer is met all the same when it is due.
        self.now += passed if timeout is None else min(passed, timeout)
        return ready
