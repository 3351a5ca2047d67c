"""A connection to the API server that can be cut, as networks and load balancers do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Wire:
    """Forwards connections to ``url`` until they are cut. New connections are forwarded again."""

    def __init__(self) -> None:
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> int:
        """Cut all connections; returns how many there were."""
        cut = len(self._writers) // 2
        for writer in self._writers:
            writer.transport.abort()
        return cut

    async def carry(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, far_writer}
        self._writers |= pair
        try:
            await asyncio.gather(_pass(reader, far_writer), _pass(far_reader, writer))
        finally:
            self._writers -= pair
            for stream_writer in pair:
                stream_writer.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def wire(url: str) -> AsyncIterator[Wire]:
    """Open a wire to the server at ``url``."""
    made = Wire()
    port = urlsplit(url).port
    assert port is not None
    server = await asyncio.start_server(lambda reader, writer: made.carry(port, reader, writer), "127.0.0.1", 0)
    made.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        made.cut()
