"""The time of day for a process that must not be fooled by it: idle times and time-outs are told in it, and a clock may be set."""

from collections.abc import Callable

#: What the time of day may be off by before it is followed no more, in seconds: who keeps time by NTP is never set by as much.
JUMP_SECONDS = 30.0


class SteadyClock:
    """Tells ``wall`` (seconds since the epoch), and goes on by ``monotonic`` (seconds) where that jumps, until the process ends.

    An hour that never was would end every idle machine, and every one that is on its way. ``trouble`` says that there was a jump.
    """

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._ahead = wall() - monotonic()

    def __call__(self) -> float:
        told, steady = self._wall(), self._monotonic() + self._ahead
        if abs(told - steady) > JUMP_SECONDS:
            return steady
        self._ahead += told - steady
        return told

    @property
    def trouble(self) -> str:
        off = self._wall() - self._monotonic() - self._ahead
        if abs(off) <= JUMP_SECONDS:
            return ""
        where = "ahead of" if off > 0 else "behind"
        return (
            f"the time of day: saw it {abs(off):.0f} s {where} what had passed since gpuscaler began, expected "
            f"at most {JUMP_SECONDS:g} s; what had passed is relied on; start gpuscaler again once the time of day is right"
        )
