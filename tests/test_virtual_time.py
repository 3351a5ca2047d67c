"""The event loop of asynchronous tests: hours pass at once, and in order."""

import asyncio
import math
import socket
import time
from random import Random

import pytest
from tests.virtual_time import FEW_CANCELLED, VirtualTimeLoop


async def test_an_hour_takes_no_time() -> None:
    began = time.monotonic()

    await asyncio.sleep(3600.0)

    assert asyncio.get_running_loop().time() == 3600.0
    assert time.monotonic() - began < 60.0


async def test_tenths_of_a_second_add_up() -> None:
    for _ in range(30):
        await asyncio.sleep(0.1)

    assert asyncio.get_running_loop().time() == 3.0


async def test_a_sleep_shorter_than_a_tick_of_the_clock_ends() -> None:
    await asyncio.sleep(1e-9)
    await asyncio.sleep(2.4e-6)

    assert asyncio.get_running_loop().time() < 1e-5


async def test_the_rest_of_a_wait_is_over_however_short_it_is() -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(160.0)
    due = math.nextafter(loop.time(), math.inf)
    for _ in range(10):
        if (wait := due - loop.time()) > 0:
            await asyncio.sleep(wait)

    assert due <= loop.time() < due + 1e-5


async def test_timers_fire_in_the_order_of_their_times_and_then_of_their_creation() -> None:
    loop, rung, dice = asyncio.get_running_loop(), list[tuple[int, int]](), Random(0)
    timers = [(dice.randrange(5), number) for number in range(100)]
    for moment, number in timers:
        loop.call_at(float(moment), rung.append, (moment, number))

    await asyncio.sleep(10.0)

    assert rung == sorted(timers)


async def test_ready_callbacks_run_before_time_moves() -> None:
    loop, seen = asyncio.get_running_loop(), list[float]()

    async def busy() -> None:
        for _ in range(200):
            await asyncio.sleep(0)
            seen.append(loop.time())

    await asyncio.gather(busy(), asyncio.sleep(1.0))

    assert set(seen) == {0.0}


async def test_a_time_out_ends_an_endless_wait() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5.0):
            await asyncio.Event().wait()

    assert asyncio.get_running_loop().time() == 5.0


async def test_cancelled_timers_do_not_fire_move_no_time_and_are_discarded() -> None:
    loop, rung = asyncio.get_running_loop(), list[int]()
    assert isinstance(loop, VirtualTimeLoop)
    timers = [loop.call_later(1.0 + number, rung.append, number) for number in range(10 * FEW_CANCELLED)]
    for timer in timers[1:]:
        timer.cancel()
        timer.cancel()

    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(loop._timers) <= FEW_CANCELLED

    await asyncio.sleep(2.0)
    assert rung == [0]
    assert loop.time() == 2.0


async def test_time_does_not_move_while_a_thread_of_the_executor_works() -> None:
    loop = asyncio.get_running_loop()
    soon = loop.call_later(3600.0, lambda: None)

    await asyncio.to_thread(time.sleep, 0.01)

    assert loop.time() < 3600.0
    soon.cancel()


async def test_data_of_a_socket_is_read_before_time_moves() -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.send(b"here")
        async with asyncio.timeout(1.0):
            assert await loop.sock_recv(ours, 4) == b"here"
    assert loop.time() == 0.0


@pytest.mark.looptime(False)
async def test_tests_in_real_time_use_asyncio_s_own_loop() -> None:
    assert type(asyncio.get_running_loop()) is asyncio.SelectorEventLoop


async def test_a_failing_callback_is_reported_and_the_next_one_runs() -> None:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, what: failures.append(what["exception"]))
    ran: list[int] = []
    wrong = ValueError("no")

    def fail() -> None:
        raise wrong

    loop.call_soon(fail)
    loop.call_soon(ran.append, 1)
    loop.call_later(5.0, fail)
    loop.call_later(5.0, ran.append, 2)
    cancelled = loop.call_soon(ran.append, 3)
    cancelled.cancel()
    await asyncio.sleep(6.0)

    assert (failures, ran, cancelled.cancelled()) == ([wrong, wrong], [1, 2], True)
