"""Supervision of the measuring process, with processes that hang, crash, write invalid lines or cannot be killed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.exporter.skipping import SkippableTime
from tests.patience import PATIENCE

from gpuscaler.exporter.lines import CallStart, LibraryLoading, Line, Reading, RoundEnd, Unavailable
from gpuscaler.exporter.supervising import HEALTHY_ROUNDS, MOST_STUCK, Pace, Sampler

pytestmark = pytest.mark.looptime(False)

#: Restarts are quick. The other times pass only if a test skips them, even on a busy machine.
QUICK = Pace(opening=600.0, patience=300.0, pause=200.0, first_wait=0.01, longest_wait=0.05, skip_seconds=100.0)
#: Longer than the patience with a call, and shorter than that while the driver is loaded, or while there is nothing to measure.
LONG = 400.0
ROUND = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

def wait():
    signal.sigwait([signal.SIGUSR1])

def say(*line):
    print(json.dumps(line), flush=True)

def rounds(count, *gpus):
    for _ in range(count):
        for gpu in gpus:
            say("asking", gpu)
            say("reading", gpu, time.monotonic(), {}, [], {})
        say("rested")
        time.sleep(0.02)
"""


class Lines(list[Line]):
    """The lines that were passed on, and the messages for people."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def troubles(self) -> list[str]:
        return [line.text for line in self if isinstance(line, Unavailable)]

    def readings(self) -> list[str]:
        return [line.device for line in self if isinstance(line, Reading)]


@asynccontextmanager
async def sampling(script: str, *, pace: Pace = QUICK) -> AsyncIterator[tuple[Sampler, Lines]]:
    """A sampler that runs a program, with common code prepended."""
    lines = Lines()
    command = [sys.executable, "-S", "-c", f"import json, os, signal, sys, time\n{ROUND}\n{script}"]
    clock = asyncio.get_running_loop().time
    sampler = Sampler(command, interval=0.05, take=lines.append, warn=lines.told.append, clock=clock, pace=pace)
    life = asyncio.create_task(sampler.run())
    try:
        yield sampler, lines
    finally:
        life.cancel()
        with suppress(asyncio.CancelledError):
            await life


async def until(wanted: Callable[[], bool]) -> None:
    """Wait for an effect of a process."""
    async with asyncio.timeout(PATIENCE):
        while not wanted():  # noqa: ASYNC110  # it is another process that sets it
            await asyncio.sleep(0.01)


async def until_call(lines: Lines, device: str, *, number: int) -> None:
    """Wait for the ``number``-th call to the driver about a device."""
    await until(lambda: lines.count(CallStart(device)) == number)


async def until_start(sampler: Sampler, *, number: int) -> None:
    await until(lambda: sampler.starts == number)


async def until_end(lines: Lines, *, number: int) -> None:
    """Wait for the end of the ``number``-th process."""
    await until(lambda: len(lines.troubles()) == number)


def alive(pid: int) -> bool:
    """Whether a process runs and is not a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_lines_of_the_measuring_process_are_passed_on_as_they_arrive() -> None:
    async with sampling("rounds(3, 'GPU-a', 'GPU-b'); time.sleep(9)") as (_, lines):
        await until(lambda: sum(isinstance(line, RoundEnd) for line in lines) == 3)

    assert lines.readings() == ["GPU-a", "GPU-b"] * 3


async def test_a_process_that_crashes_is_restarted_and_its_last_error_line_reported() -> None:
    async with sampling("rounds(2, 'GPU-a'); sys.exit('the board is on fire')") as (sampler, lines):
        await until(lambda: sampler.starts == 3)

    assert lines.troubles()[0] == "the measuring process ended with 1: the board is on fire"
    assert lines.readings()[:4] == ["GPU-a"] * 4


async def test_the_reason_that_a_process_gives_for_its_exit_is_reported() -> None:
    async with sampling("rounds(1, 'GPU-a'); say('unavailable', 'stale', 'another library is needed'); sys.exit(1)") as (sampler, lines):
        await until(lambda: sampler.starts == 2)

    assert set(lines.troubles()) == {"another library is needed"}


async def test_a_killed_measuring_process_is_started_again() -> None:
    async with sampling("rounds(1000, 'GPU-a')") as (sampler, lines):
        await until(lambda: sampler.pid > 0 and bool(lines))
        os.kill(sampler.pid, 9)
        await until(lambda: sampler.starts == 2 and not isinstance(lines[-1], Unavailable))

    assert lines.troubles() == ["the measuring process ended with -9"]


async def test_a_hanging_driver_call_is_named_and_its_process_replaced() -> None:
    clock = SkippableTime()
    async with sampling("rounds(2, 'GPU-a'); say('asking', 'GPU-b'); time.sleep(600)") as (sampler, lines):
        await until_call(lines, "GPU-b", number=1)
        first = sampler.pid
        await clock.skip(QUICK.patience)
        await until(lambda: sampler.starts == 2)
        ended = not alive(first)

    assert lines.troubles()[0] == "saw no answer from the driver for 300 s when asked about GPU-b"
    assert ended


async def test_a_gpu_whose_measurement_hangs_repeatedly_is_skipped_for_a_while() -> None:
    script = """
while True:
    rounds(1, 'GPU-a')
    if 'GPU-b' not in sys.argv:
        say('asking', 'GPU-b')
        time.sleep(600)
"""
    clock = SkippableTime()
    async with sampling(script) as (sampler, lines):
        for hangs in (1, 2):
            await until_call(lines, "GPU-b", number=hangs)
            await clock.skip(QUICK.patience)
        await until(lambda: "GPU-b" in sampler.skipped_until)
        assert sampler.hung == {"GPU-b"}
        starts, before = sampler.starts, len(lines.readings())
        # The others are measured all the time.
        await until(lambda: len(lines.readings()) > before + 5)
        await clock.skip(QUICK.skip_seconds)
        await until(lambda: sampler.starts > starts + 1)

    assert lines.told[0].startswith("GPU-b: skipped for 100 s")
    assert "measuring GPU-b again" in lines.troubles()


async def test_a_gpu_whose_measurement_hangs_rarely_is_not_skipped() -> None:
    clock = SkippableTime()
    async with sampling("rounds(3, 'GPU-a', 'GPU-b'); say('asking', 'GPU-b'); time.sleep(600)") as (sampler, lines):
        for hangs in (1, 2, 3):
            await until_call(lines, "GPU-b", number=4 * hangs)
            await clock.skip(QUICK.patience)
        await until(lambda: sampler.starts == 4)
        alone = dict(sampler.skipped_until)

    assert len([text for text in lines.troubles() if text.endswith("about GPU-b")]) >= 3
    assert alone == {}
    assert lines.told == []


async def test_a_process_that_takes_long_to_load_the_driver_is_not_replaced() -> None:
    clock = SkippableTime()
    async with sampling("say('opening'); wait(); rounds(1000, 'GPU-a')") as (sampler, lines):
        await until(lambda: lines == [LibraryLoading()])
        await clock.skip(LONG)
        assert sampler.pid > 0
        os.kill(sampler.pid, signal.SIGUSR1)
        await until(lambda: bool(lines.readings()))

    assert sampler.starts == 1


async def test_a_process_that_found_no_gpus_is_not_replaced_while_it_retries() -> None:
    clock = SkippableTime()
    async with sampling("say('unavailable', 'no-driver', 'no driver'); wait(); rounds(1000, 'GPU-a')") as (sampler, lines):
        await until(lambda: bool(lines))
        await clock.skip(LONG)
        assert sampler.pid > 0
        os.kill(sampler.pid, signal.SIGUSR1)
        await until(lambda: bool(lines.readings()))

    assert sampler.starts == 1
    assert lines.troubles() == ["no driver"]


@pytest.mark.parametrize("nonsense", ["'no json at all'", "'[\"dancing\"]'", "'[\"reading\", 1]'", "'x' * 2_000_000"])
async def test_a_process_that_writes_invalid_lines_is_replaced(nonsense: str) -> None:
    async with sampling(f"print({nonsense}, flush=True); time.sleep(60)") as (sampler, lines):
        await until(lambda: sampler.starts == 2)

    assert "cannot be parsed" in lines.troubles()[0]


async def test_the_delay_between_restarts_of_the_process_grows() -> None:
    clock = SkippableTime()
    async with sampling("sys.exit(1)", pace=replace(QUICK, first_wait=1000.0, longest_wait=3000.0)) as (sampler, lines):
        for starts, wait in enumerate((1000.0, 2000.0, 3000.0, 3000.0), 1):
            await until_end(lines, number=starts)
            await clock.skip(0.9 * wait)
            assert sampler.starts == starts
            await clock.skip(0.1 * wait)
            await until_start(sampler, number=starts + 1)


async def test_the_delay_between_restarts_is_reset_after_a_long_measurement() -> None:
    clock = SkippableTime()
    measured_well = f"for _ in range({HEALTHY_ROUNDS}): say('rested')"
    async with sampling(measured_well, pace=replace(QUICK, first_wait=1000.0, longest_wait=10_000.0)) as (sampler, lines):
        for starts in (1, 2, 3):
            await until_end(lines, number=starts)
            await clock.skip(1000.0)
            await until_start(sampler, number=starts + 1)


async def test_no_process_is_started_while_too_many_killed_ones_still_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process inside a driver call that never returns outlives SIGKILL; here the signal is not sent."""
    killed: list[subprocess.Popen[bytes]] = []

    def kill(process: "subprocess.Popen[bytes]") -> None:
        killed.append(process)

    terminate = subprocess.Popen.terminate
    monkeypatch.setattr(subprocess.Popen, "kill", kill)
    monkeypatch.setattr(subprocess.Popen, "terminate", lambda _: None)
    clock = SkippableTime()
    async with sampling("say('asking', 'GPU-a'); time.sleep(600)", pace=replace(QUICK, dying=0.05)) as (sampler, lines):
        for hangs in range(1, MOST_STUCK + 1):
            await until_call(lines, "GPU-a", number=hangs)
            await clock.skip(QUICK.patience)
        await until(lambda: sampler.stuck == MOST_STUCK and "has not released" in lines.troubles()[-1])
        starts = sampler.starts
        for process in killed[:MOST_STUCK]:
            os.kill(process.pid, 9)
        await until(lambda: sampler.starts > starts)
    for process in {process.pid: process for process in killed}.values():
        terminate(process)
        process.wait()

    assert starts == MOST_STUCK


async def test_the_measuring_process_is_ended_with_the_sampler() -> None:
    async with sampling("rounds(1000, 'GPU-a')") as (sampler, lines):
        await until(lambda: bool(lines))
        pid = sampler.pid

    assert not alive(pid)
