"""How fast we may ask: a token bucket, so that a fault of ours never floods an API server."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

#: So many bursts more may be ahead of their time where they cannot wait: a zone's machines that are taken back within seconds.
OVERDRAFT: Final = 20


@dataclass(slots=True)
class RateLimit:
    """``qps`` requests a second in the long run and up to ``burst`` at once; requests are let through in the order they came.

    Those that cannot wait are let through before them, up to ``OVERDRAFT`` bursts ahead of their time; all others wait the longer for it.

    The bucket is kept as the time at which it will be full, on the clock of the running loop: waiting needs no task of its own.
    """

    qps: float = 50.0
    burst: int = 100
    _full_at: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        if self.qps <= 0 or self.burst < 1:
            raise ValueError(f"rate limit: saw qps {self.qps} and burst {self.burst}, expected qps above 0 and burst of at least 1")

    def reserve(self, now: float, *, urgent: bool = False) -> float:
        """Take one token and say in how many seconds it is there."""
        self._full_at = max(self._full_at, now) + 1 / self.qps
        burst = self.burst * (1 + OVERDRAFT * urgent)
        delay = self._full_at - now - burst / self.qps
        # Less than a microsecond is the rounding of the sums above.
        return delay if delay > 1e-6 else 0.0

    def give_back(self) -> None:
        """Undo one ``reserve`` whose request will not be sent."""
        self._full_at -= 1 / self.qps

    async def wait(self, *, urgent: bool = False) -> float:
        """Wait for a token; the answer is how many seconds that took."""
        delay = self.reserve(asyncio.get_running_loop().time(), urgent=urgent)
        if delay > 0:
            try:
                await asyncio.sleep(delay)
            except asyncio.CancelledError:
                self.give_back()
                raise
        return delay
