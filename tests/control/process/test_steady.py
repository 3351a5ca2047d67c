"""Setting the system clock does not make idle times or time-outs pass."""

from gpuscaler.control.process.steady import SteadyClock


class Clocks:
    def __init__(self) -> None:
        self.time, self.off = 0.0, 1_000.0

    def wall(self) -> float:
        return self.time + self.off

    def monotonic(self) -> float:
        return self.time


def test_small_corrections_are_followed() -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks.wall, clocks.monotonic)
    for _ in range(100):
        clocks.time += 10.0
        clocks.off += 1.0
        assert steady() == clocks.wall()
    assert steady.trouble == ""


def test_a_jump_in_either_direction_is_not_followed_and_is_reported() -> None:
    for jump, words in ((3600.0, "3600 s ahead of"), (-3600.0, "3600 s behind")):
        clocks = Clocks()
        steady = SteadyClock(clocks.wall, clocks.monotonic)
        clocks.time += 10.0
        clocks.off += jump
        assert steady() == 1_010.0
        assert words in steady.trouble


def test_a_clock_that_is_corrected_is_followed_again() -> None:
    clocks = Clocks()
    steady = SteadyClock(clocks.wall, clocks.monotonic)
    clocks.off += 3600.0
    clocks.time += 60.0
    assert steady() == 1_060.0
    clocks.off -= 3599.0
    assert steady() == 1_061.0
    assert steady.trouble == ""
