"""What every protocol of our servers says of its connection: how many bytes came, when a request begins, and that it is over."""

import asyncio

from gpuscaler.serving.connections import Connections
from gpuscaler.serving.rooms import Connection


class Counted(asyncio.Protocol):
    """Before the class of a protocol among the bases of another, which calls :meth:`count` first of all."""

    connection: Connection
    connections: Connections
    _turn: "asyncio.Future[None] | None" = None

    def count(self, connection: Connection, connections: Connections) -> None:
        self.connection, self.connections = connection, connections

    def data_received(self, data: bytes) -> None:
        if self.connections.read(self.connection, len(data)):
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.connections.gone(self.connection)
        if self._turn is not None:
            self._turn.cancel()
        super().connection_lost(exc)  # type: ignore[arg-type]  # aiohttp's takes more than asyncio's

    async def asked(self) -> None:
        """The head of a request is complete; returns when it is its turn. Raises CancelledError where the connection ends before."""
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
