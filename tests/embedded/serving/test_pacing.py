"""Accelerated time, on a real clock and on one that stands still."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest

from gpuscaler.embedded.serving.pacing import PacedLoop

T = TypeVar("T")


def work(seconds: float) -> None:
    """Block the loop."""
    time.sleep(seconds)


def paced(what: Callable[[], Awaitable[T]], *, speed: float) -> tuple[T, float]:
    """The result of a coroutine in a paced loop, and how many real seconds it took."""
    began = time.monotonic()

    async def whole() -> T:
        return await what()

    with asyncio.Runner(loop_factory=partial(PacedLoop, speed)) as runner:
        return runner.run(whole()), time.monotonic() - began


def test_an_hour_of_accelerated_time_passes_in_a_moment() -> None:
    async def hour() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(3600)
        return loop.time() - began

    passed, took = paced(hour, speed=100_000.0)

    assert passed == pytest.approx(3600.0, abs=0.01)
    assert took < 5.0


def test_accelerated_time_passes_at_the_requested_speed() -> None:
    passed, took = paced(lambda: asyncio.sleep(6.0), speed=20.0)

    assert passed is None
    assert 0.29 <= took < 3.0


def test_timers_of_accelerated_time_fire_in_order() -> None:
    async def three() -> list[int]:
        order: list[int] = []
        loop = asyncio.get_running_loop()
        for delay in (3, 1, 2):
            loop.call_later(delay, order.append, delay)
        await asyncio.sleep(4)
        return order

    assert paced(three, speed=10_000.0)[0] == [1, 2, 3]


def test_on_a_slow_machine_a_response_over_a_socket_still_arrives_before_its_timeout() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        # Busy for far longer than the other side's time-out, on its clock.
        work(0.02)
        writer.write(b"here\n")
        writer.close()

    async def ask() -> bytes:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            async with asyncio.timeout(5.0):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"hello\n")
                line = await reader.readline()
                writer.close()
                return line

    assert paced(ask, speed=10_000.0)[0] == b"here\n"


def test_an_overloaded_clock_reports_how_far_it_is_behind_and_catches_up() -> None:
    async def busy() -> tuple[float, float, float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PacedLoop)
        before = loop.time()
        work(0.05)
        stood, behind = loop.time() - before, loop.behind
        await asyncio.sleep(behind)
        return stood, behind, loop.behind

    (stood, behind, after), _ = paced(busy, speed=1_000.0)

    assert stood == 0.0
    assert behind >= 50.0
    assert after < behind
