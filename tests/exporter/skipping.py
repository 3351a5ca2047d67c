"""Real time of which a test skips parts, so that it does not wait for a time-out, which may then be much longer than anything takes."""

import asyncio
import time


class SkippableTime:
    """The time of the running event loop: real time, and all that was skipped."""

    def __init__(self) -> None:
        self._skipped = 0.0
        vars(asyncio.get_running_loop())["time"] = self.now

    def now(self) -> float:
        return time.monotonic() + self._skipped

    async def skip(self, seconds: float) -> None:
        """Skip ``seconds``; on return, all timers that are due by then have ended."""
        self._skipped += seconds
        # The first turn ends the timers. Tasks react to that in the next ones.
        for _ in range(10):
            await asyncio.sleep(0)
