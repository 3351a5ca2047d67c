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
    """How many lines arrive from a watch that may be silent for ten seconds, if each takes ``reading`` seconds to process."""
    size = 0
    async with aclosing(watch_lines(Client(Pausing(*pauses)), REQUEST, silence=lambda: 10.0)) as pieces:
        async for piece in pieces:
            await asyncio.sleep(reading)
            size += len(piece)
    return size


async def test_only_silence_ends_a_watch_however_long_it_runs() -> None:
    assert await lines(*[9.0] * 20) == 20
    with pytest.raises(SilentError, match=r"nothing came for 10 s"):
        await lines(9.0, 9.0, 11.0)


@pytest.mark.parametrize("before", [(), (0.1,), (9.9,)])
async def test_silence_is_measured_from_the_last_piece(before: tuple[float, ...]) -> None:
    began = asyncio.get_running_loop().time()
    with pytest.raises(SilentError):
        await lines(*before, 60.0)
    assert asyncio.get_running_loop().time() - began == pytest.approx(sum(before) + 10.0)


async def test_processing_time_does_not_count_as_silence() -> None:
    assert await lines(1.0, 9.0, 9.0, reading=15.0) == 3


async def test_a_cancelled_watch_does_not_raise_a_silent_error() -> None:
    watch = asyncio.ensure_future(lines(60.0))
    await asyncio.sleep(9.9)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
