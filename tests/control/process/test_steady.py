"""Changing the system clock does not end idle times or time-outs early."""

from gpuscaler.control.process.steady import SteadyClock


class Clocks:
    def __init__(self) -> None:
        self.time, self.off = 0.0, 1_000.0

    def wall(self) -> float:
        return self.time + self.off

    def monotonic(self) -> float:
        return self.time


def test_the_steady_clock_follows_small_corrections_of_the_system_clock() -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks.wall, clocks.monotonic)
    for _ in range(100):
        clocks.time += 10.0
        clocks.off += 1.0
        assert steady() == clocks.wall()
    assert steady.trouble == ""


def test_the_steady_clock_reports_jumps_of_the_system_clock_and_does_not_follow_them() -> None:
    for jump, words in ((3600.0, "3600 s ahead of"), (-3600.0, "3600 s behind")):
        clocks = Clocks()
        steady = SteadyClock(clocks.wall, clocks.monotonic)
        clocks.time += 10.0
        clocks.off += jump
        assert steady() == 1_010.0
        assert words in steady.trouble


def test_the_steady_clock_follows_the_system_clock_again_once_a_jump_is_undone() -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks.wall, clocks.monotonic)
    clocks.off += 3600.0
    clocks.time += 60.0
    assert steady() == 1_060.0
    clocks.off -= 3599.0
    assert steady() == 1_061.0
    assert steady.trouble == ""
