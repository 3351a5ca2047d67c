"""The lines of a watch, and how long it may be silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import PODS
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.kube.watching import SilentError, watch_lines, watch_request

REQUEST = watch_request(PODS, version="1", seconds=600, silence=10.0)


class Pausing:
    """Answers with a line after each of these pauses, in seconds, and then ends the watch."""

    def __init__(self, *pauses: float) -> None:
        self._pauses = pauses

    @asynccontextmanager
    async def exchange(self, _request: Request) -> AsyncIterator[Answer]:
        yield Answer(200, {}, self._pieces())

    async def _pieces(self) -> AsyncIterator[bytes]:
        for pause in self._pauses:
            await asyncio.sleep(pause)
            yield b"{}\n"

    async def close(self) -> None:
        """Nothing is open."""


async def lines(*pauses: float, reading: float = 0.0) -> int:
    """How many lines come of a watch that may be silent for ten seconds, each of which takes ``reading`` seconds to read."""
    came = 0
    async with aclosing(watch_lines(Client(Pausing(*pauses)), REQUEST, silence=lambda: 10.0)) as pieces:
        async for found in pieces:
            await asyncio.sleep(reading)
            came += len(found)
    return came


async def test_only_silence_ends_a_watch_however_long_it_lasts() -> None:
    assert await lines(*[9.0] * 20) == 20
    with pytest.raises(SilentError, match=r"nothing came for 10 s"):
        await lines(9.0, 9.0, 11.0)


@pytest.mark.parametrize("before", [(), (0.1,), (9.9,)])
async def test_silence_is_counted_from_what_came_last(before: tuple[float, ...]) -> None:
    began = asyncio.get_running_loop().time()
    with pytest.raises(SilentError):
        await lines(*before, 60.0)
    assert asyncio.get_running_loop().time() - began == pytest.approx(sum(before) + 10.0)


async def test_the_time_that_reading_takes_is_no_silence() -> None:
    assert await lines(1.0, 9.0, 9.0, reading=15.0) == 3


async def test_who_cancels_a_watch_is_not_answered_that_it_was_silent() -> None:
    watch = asyncio.ensure_future(lines(60.0))
    await asyncio.sleep(9.9)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
