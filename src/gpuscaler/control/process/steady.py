"""A wall clock that does not jump: idle times and time-outs are measured with it, and the system clock may be set."""

from collections.abc import Callable

#: How far the wall clock may jump before this clock stops following it, in seconds: NTP never moves a clock so far.
JUMP_SECONDS = 30.0


class SteadyClock:
    """Returns ``wall`` (seconds since the epoch); after a jump of that clock it continues by ``monotonic`` until the process ends.

    A jump of an hour would end every idle machine, and every machine that is starting. ``trouble`` reports a jump.
    """

    def __init__(self, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._ahead = wall() - monotonic()

    def __call__(self) -> float:
        wall_time, steady = self._wall(), self._monotonic() + self._ahead
        if abs(wall_time - steady) > JUMP_SECONDS:
            return steady
        self._ahead += wall_time - steady
        return wall_time

    @property
    def trouble(self) -> str:
        off = self._wall() - self._monotonic() - self._ahead
        if abs(off) <= JUMP_SECONDS:
            return ""
        where = "ahead of" if off > 0 else "behind"
        return (
            f"the system clock: saw a time {abs(off):.0f} s {where} the time that has passed since gpuscaler started, expected at most "
            f"{JUMP_SECONDS:g} s; the system clock is ignored; correct the clock and restart gpuscaler"
        )
