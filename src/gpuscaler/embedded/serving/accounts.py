"""A simulated account beside a cluster, whatever its cloud."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from gpuscaler.embedded.nodes.kubelets import Kubelets
from gpuscaler.kube.client import Client
from gpuscaler.simulation.cloud.delays import Delay, Delays

#: Seconds between two steps of an account's clock: calls may change the next scheduled event at any time.
LOOKED_AT: Final = 0.1


class AccountServer(Protocol):
    """Settings of an account that can be served beside a cluster."""

    def run(self, client: Client, *, now: Callable[[], float], kubelets: Kubelets, speed: float = 1.0) -> AbstractAsyncContextManager[None]:
        """Serve while the context lasts; the machines' kubelets are among ``kubelets``. Raises OSError if a port is not available."""
        ...


class Account(Protocol):
    """An account in which things happen as time passes. Times are in seconds of its clock."""

    def now(self) -> float: ...

    def advance(self) -> None:
        """Let everything happen that is due by now."""
        ...

    def next_event(self) -> float | None:
        """When something happens next, as far as is known now."""
        ...


def boot_delays(boot: float | None) -> Delays:
    """Machines that register after ``boot`` seconds and show their GPUs a quarter of that later, or that take as long as real ones."""
    return Delays() if boot is None else Delays(boot=Delay(boot, boot, boot), device_plugin=Delay(boot / 4, boot / 4, boot / 4))


async def let_time_pass(account: Account, speed: float) -> None:
    """Let the account's time pass, until cancelled; ``speed`` seconds of its clock pass in one second."""
    while True:
        account.advance()
        following = account.next_event()
        pause = LOOKED_AT if following is None else min(LOOKED_AT, max(0.001, (following - account.now()) / speed))
        await asyncio.sleep(pause)
