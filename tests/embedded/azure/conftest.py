"""An endpoint behind a port, with a clock that only a test moves, Azure's own clients, and plain HTTP beside them."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from gpuscaler.embedded.azure import SUBSCRIPTION, Account, Conditions, Endpoint, Serving, making, serve

BEGAN = 1_790_000_000.0
SIZE = "Standard_NC24ads_A100_v4"
VERSION = "2024-11-01"


class Azure:
    """An account of ours, served; ``time`` is its clock."""

    def __init__(self, **options: Any) -> None:
        self.time = BEGAN
        self.account = Account(now=lambda: self.time, **options)
        self.endpoint = Endpoint(self.account)
        self.serving: Serving | None = None
        self.http: aiohttp.ClientSession | None = None
        self._clients: list[Any] = []

    def later(self, seconds: float) -> None:
        self.time += seconds
        self.account.advance()

    def conditions(self, **changes: Any) -> None:
        self.account.conditions = replace(self.account.conditions, **changes)

    @property
    def url(self) -> str:
        assert self.serving is not None
        return self.serving.url

    def compute(self, subscription: str = SUBSCRIPTION) -> Any:
        from azure.mgmt.compute.aio import ComputeManagementClient

        return self._client(ComputeManagementClient, subscription)

    def aks(self, subscription: str = SUBSCRIPTION) -> Any:
        from azure.mgmt.containerservice.aio import ContainerServiceClient

        return self._client(ContainerServiceClient, subscription)

    def _client(self, kind: Any, subscription: str) -> Any:
        from azure.core.pipeline.policies import SansIOHTTPPolicy

        client = kind(
            _Credential(),
            subscription,
            base_url=self.url,
            authentication_policy=SansIOHTTPPolicy(),
            retry_total=0,
            polling_interval=0,
        )
        self._clients.append(client)
        return client

    async def call(
        self, method: str, path: str, body: Any = None, *, version: str = VERSION, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, decoded body and headers of a plain request; ``path`` may be a whole URL."""
        assert self.http is not None
        url = path if path.startswith("http") else self.url + path
        params = {"api-version": version} if version and "api-version" not in url else {}
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.request(method, url, params=params, json=body, headers=sent) as response:
            content = await response.json(content_type=None) if await response.read() else None
            return response.status, content, {name.lower(): value for name, value in response.headers.items()}

    async def open(self) -> None:
        self.serving = await serve(self.endpoint)
        self.http = aiohttp.ClientSession()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        if self.http is not None:
            await self.http.close()
        if self.serving is not None:
            await self.serving.close()


class _Credential:
    async def get_token(self, *_scopes: str, **_: Any) -> Any:
        raise AssertionError("no token is needed")

    async def close(self) -> None:
        return None


@pytest.fixture
async def azure() -> AsyncIterator[Azure]:
    served = Azure(conditions=Conditions(retry_after=0, spelling="kept"))
    await served.open()
    yield served
    await served.close()


@pytest.fixture
def workers(azure: Azure) -> str:
    """The path of a self-managed spot scale set without machines."""
    return making.create_scale_set(azure.account, "rg", "workers", SIZE, spot=True).id


__all__ = ["BEGAN", "SIZE", "Azure"]
