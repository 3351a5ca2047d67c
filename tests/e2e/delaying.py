"""A proxy between kube-scheduler and the API server that delays the scheduler's watch of pods."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import yaml
from aiohttp import web
from tests.e2e.stage import Stage

from gpuscaler.embedded.controlplane.building import SCHEDULER

#: Hop-by-hop headers, which are not forwarded.
OWN = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"}
WATCHED = "/api/v1/pods"


@asynccontextmanager
async def late_scheduler(made: Stage, seconds: float) -> AsyncIterator[None]:
    """Restart the scheduler behind a proxy that delays its watch of pods by ``seconds``. Its watch of nodes is not delayed."""
    pair = made.plane.certificate(f"system:{SCHEDULER}")
    pair.write(made.folder, "late-scheduler")
    trust = ssl.create_default_context(cafile=str(made.plane.layout.file("ca.crt")))
    trust.load_cert_chain(made.folder / "late-scheduler.crt", made.folder / "late-scheduler.key")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust, limit=0), auto_decompress=False) as session:

        async def passed(request: web.BaseRequest) -> web.StreamResponse:
            headers = {name: value for name, value in request.headers.items() if name.lower() not in OWN}
            url, body = f"{made.plane.url}{request.raw_path}", await request.read()
            unhurried = aiohttp.ClientTimeout(total=None)
            async with session.request(request.method, url, headers=headers, data=body, timeout=unhurried) as answer:
                kept = {name: value for name, value in answer.headers.items() if name.lower() not in OWN}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                is_watch = request.path == WATCHED and request.query.get("watch") in ("1", "true")
                async for piece in later(answer.content.iter_any(), seconds if is_watch else 0.0):
                    await response.write(piece)
                return response

        server = web.Server(passed)
        runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        kubeconfig = made.plane.layout.kubeconfig(SCHEDULER)
        written = kubeconfig.read_text()
        config = yaml.safe_load(written)
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
        config["users"][0]["user"] = {}
        kubeconfig.write_text(yaml.safe_dump(config))
        try:
            await made.plane.restart(SCHEDULER)
            yield
        finally:
            kubeconfig.write_text(written)
            await made.plane.restart(SCHEDULER)
            await runner.cleanup()


async def later(pieces: AsyncIterator[bytes], seconds: float) -> AsyncIterator[bytes]:
    """Yield each of ``pieces`` ``seconds`` after it arrived, in order."""
    clock, queue = asyncio.get_running_loop().time, asyncio.Queue[tuple[float, bytes | None]]()

    async def read() -> None:
        with suppress(aiohttp.ClientError):
            async for piece in pieces:
                queue.put_nowait((clock() + seconds, piece))
        queue.put_nowait((clock(), None))

    reading = asyncio.create_task(read())
    try:
        while True:
            due, piece = await queue.get()
            if piece is None:
                return
            await asyncio.sleep(max(0.0, due - clock()))
            yield piece
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
