"""Saves the simulated cloud in a ConfigMap, so that the next leader finds its machines."""

import asyncio
from typing import Final

from gpuscaler.control.loop.store import Store
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ServerError, TooManyRequests, Unreachable
from gpuscaler.simulation.cloud.provider import ProviderState, SimulatedProvider

NAME: Final = "gpuscaler-simulated-cloud"
MEND: Final = "restore the ConfigMap, or delete it and gpuscaler-state while nothing runs, to start again without any machine"
#: Pauses between retries while the API server does not answer, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0


class CloudStore(Store[ProviderState]):
    """The ConfigMap of a simulated cloud."""

    def __init__(self, client: Client, *, namespace: str, name: str = NAME) -> None:
        super().__init__(client, namespace=namespace, name=name, empty=ProviderState(), repair_advice=MEND)


class StateSaver:
    """Saves ``provider`` in ``store``, at once and whenever it asks for it, while :meth:`run` runs.

    Several requests at once become one write.
    """

    def __init__(self, store: CloudStore, provider: SimulatedProvider, *, began: float) -> None:
        self._store, self._provider, self._began = store, provider, began
        self._waiting: list[asyncio.Future[None]] = []
        self._wanted = asyncio.Event()
        # The time of the start, and events that were caught up with, are already new state.
        self._wanted.set()

    async def keep(self) -> None:
        """Returns when everything that has happened up to now is saved."""
        written = asyncio.get_running_loop().create_future()
        self._waiting.append(written)
        self._wanted.set()
        await written

    async def run(self) -> None:
        """Save until cancelled. Raises what ends leading: another process wrote the ConfigMap, or we lack the permission."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            waiting, self._waiting = self._waiting, []
            await self._write()
            for written in waiting:
                if not written.done():
                    written.set_result(None)

    async def _write(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._store.save(self._provider.state(self._began))
            except (ServerError, TooManyRequests, Unreachable):
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                return
