"""Reporting of a protocol about its connection: received bytes, start of a request, and end of the connection."""

import asyncio

from gpuscaler.serving.connection_groups import Connection
from gpuscaler.serving.connections import Connections


class Counted(asyncio.Protocol):
    """Mixin that must precede the protocol class among the bases of a class, which calls :meth:`count` first."""

    connection: Connection
    connections: Connections
    _turn: "asyncio.Future[None] | None" = None

    def count(self, connection: Connection, connections: Connections) -> None:
        self.connection, self.connections = connection, connections

    def data_received(self, data: bytes) -> None:
        if self.connections.read(self.connection, len(data)):
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.connections.remove(self.connection)
        if self._turn is not None:
            self._turn.cancel()
        super().connection_lost(exc)  # type: ignore[arg-type]  # aiohttp's accepts more than asyncio's

    async def wait_for_turn(self) -> None:
        """Wait for the turn of a request with a complete head. Raises CancelledError if the connection ends before."""
        self._turn = turn = asyncio.get_running_loop().create_future()

        def go() -> bool:
            if turn.done():
                return False
            turn.set_result(None)
            return True

        self.connections.request(self.connection, go)
        await turn
        self._turn = None
        self.connections.asked(self.connection)
