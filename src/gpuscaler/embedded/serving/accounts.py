"""A simulated account beside a cluster, whatever its cloud."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from gpuscaler.embedded.nodes.kubelets import Kubelets
from gpuscaler.kube.client import Client


class AccountServer(Protocol):
    """Settings of an account that can be served beside a cluster."""

    def run(self, client: Client, *, now: Callable[[], float], kubelets: Kubelets, speed: float = 1.0) -> AbstractAsyncContextManager[None]:
        """Serve while the context lasts; the machines' kubelets are among ``kubelets``. Raises OSError if a port is not available."""
        ...
