"""An API server over HTTP in a separate thread, for commands that are called as by users."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from tests.control.managing import managed
from tests.patience import PATIENCE

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.embedded.serving.server import serve
from gpuscaler.kube import client
from gpuscaler.kube.client import Client
from gpuscaler.kube.transport import Answer, Request

T = TypeVar("T")


class Listening(ApiServer):
    """Records what was written over HTTP. The scheduler does not write over HTTP."""

    writes: Sequence[str] = ()

    @asynccontextmanager
    async def handle(self, request: Request) -> AsyncIterator[Answer]:
        if request.method != "GET" and "user-agent" in request.headers:
            self.writes = (*self.writes, f"{request.method} {request.path}")
        async with super().handle(request) as answer:
            yield answer


@dataclass(frozen=True)
class Served:
    """A server at ``url`` with its ``kubeconfig``."""

    api: Listening
    url: str
    kubeconfig: Path
    loop: asyncio.AbstractEventLoop

    def ask(self, question: Callable[[Client], Coroutine[Any, Any, T]], within: float = PATIENCE) -> T:
        """Call the server in its own thread."""
        return asyncio.run_coroutine_threadsafe(question(Client(MemoryTransport(self.api))), self.loop).result(within)

    def load(self, *objects: Mapping[str, Any]) -> None:
        async def put(_client: Client) -> None:
            self.api.load(objects)

        self.ask(put)

    def until(self, question: Callable[[Client], Coroutine[Any, Any, T]], within: float = PATIENCE) -> T:
        """Wait for and return the first true answer."""
        end = time.monotonic() + within
        while not (answer := self.ask(question)):
            assert time.monotonic() < end, f"still {answer!r} after {within:g} s"
            time.sleep(0.05)
        return answer


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """A server with a scheduler."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    clusters: list[Served] = []
    ends: list[asyncio.Event] = []

    async def live() -> None:
        api = Listening(time.time)
        serving = await serve(api)
        clusters.append(Served(api, serving.url, kubeconfig(folder, serving.url), loop))
        ends.append(asyncio.Event())
        async with managed(api, time.time):
            ready.set()
            await ends[0].wait()
        await serving.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()), name="api server")
    thread.start()
    assert ready.wait(20)
    try:
        yield clusters[0]
    finally:
        loop.call_soon_threadsafe(ends[0].set)
        thread.join(20)
        loop.close()


def repeat_reads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commands in this process repeat failing reads without the pauses of seconds. The number of tries stays the same."""
    monkeypatch.setattr(client, "_PAUSE", 0.001)


def kubeconfig(folder: Path, url: str) -> Path:
    """Write a kubeconfig for ``url`` without credentials."""
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": ""}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path
