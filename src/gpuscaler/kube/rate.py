"""Rate limit for requests: a token bucket, so that a bug of ours never floods an API server."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

#: How many extra bursts urgent requests may take in advance, such as for machines of a zone that are reclaimed within seconds.
OVERDRAFT: Final = 20


@dataclass(slots=True)
class RateLimit:
    """``qps`` requests per second in the long run and up to ``burst`` at once; requests are let through in the order they came.

    Urgent ones are let through first, up to ``OVERDRAFT`` bursts in advance; all others wait correspondingly longer.

    The bucket is stored as the time at which it will be full, by the clock of the running loop: waiting needs no task of its own.
    """

    qps: float = 50.0
    burst: int = 100
    _full_at: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        if self.qps <= 0 or self.burst < 1:
            raise ValueError(f"rate limit: saw qps {self.qps} and burst {self.burst}, expected qps above 0 and burst of at least 1")

    def reserve(self, now: float, *, urgent: bool = False) -> float:
        """Take one token and return in how many seconds it is available."""
        self._full_at = max(self._full_at, now) + 1 / self.qps
        burst = self.burst * (1 + OVERDRAFT * urgent)
        delay = self._full_at - now - burst / self.qps
        # A delay below a microsecond is a rounding error of the sums above.
        return delay if delay > 1e-6 else 0.0

    def give_back(self) -> None:
        """Undo one ``reserve`` for a request that will not be sent."""
        self._full_at -= 1 / self.qps

    async def wait(self, *, urgent: bool = False) -> float:
        """Wait for a token; returns how many seconds that took."""
        delay = self.reserve(asyncio.get_running_loop().time(), urgent=urgent)
        if delay > 0:
            try:
                await asyncio.sleep(delay)
            except asyncio.CancelledError:
                self.give_back()
                raise
        return delay
