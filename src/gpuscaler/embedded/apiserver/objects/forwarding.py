"""The portforward subresource of pods, over WebSockets: ``…/pods/NAME/portforward?ports=PORT`` leads to a port of this machine.

Pods here are records without processes, so a program that simulates one registers where it listens. Source of the frames:
``k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go``.
"""

import asyncio
import re
from contextlib import suppress
from typing import Final

from aiohttp import ClientConnectionResetError, WSMsgType, web

from gpuscaler.embedded.apiserver.kinds import PODS
from gpuscaler.embedded.apiserver.store import Store, key_of
from gpuscaler.embedded.apiserver.wire.failures import bad_request, no_such_path, not_found
from gpuscaler.kube.portforward import DATA, ERROR, PORT_BYTES, PROTOCOL, PodPort
from gpuscaler.kube.transport import Request

_PATH = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods/(?P<name>[^/]+)/portforward")
_PIECE: Final = 65_536


class Forwards:
    """Ports of this machine by namespace, pod and port."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._local: dict[PodPort, int] = {}

    def register(self, where: PodPort, local: int) -> None:
        """Forward that port of that pod to ``local``, a port of 127.0.0.1, from now on."""
        self._local[where] = local

    def local(self, where: PodPort) -> int | None:
        return self._local.get(where)

    def concerns(self, request: Request) -> bool:
        """Whether ``request`` asks for port forwarding."""
        return _PATH.fullmatch(request.path) is not None

    def find(self, request: Request) -> PodPort:
        """The port to forward. Raises :class:`~gpuscaler.embedded.apiserver.wire.failures.Failure`."""
        match = _PATH.fullmatch(request.path)
        if match is None:
            raise no_such_path()
        stored = self._store.get(PODS, key_of(match["namespace"], match["name"]))
        if stored is None:
            raise not_found(PODS, match["name"])
        if not stored.read().get("spec", {}).get("nodeName"):
            raise bad_request(f"pod {match['name']} does not have a host assigned")
        port = request.query.get("ports", "")
        if request.headers.get("upgrade", "").lower() != "websocket":
            raise bad_request("Upgrade request required")
        if not port.isdecimal() or not 0 < int(port) < 2**16:
            raise bad_request(f"unable to parse {port!r} as a port")
        return PodPort(namespace=match["namespace"], pod=match["name"], port=int(port))


async def forward(request: web.Request, where: PodPort, local: int | None) -> web.StreamResponse:
    """Carry bytes between the client and ``local`` until either side ends; without ``local`` the port refuses connections."""
    websocket = web.WebSocketResponse(protocols=(PROTOCOL,))
    await websocket.prepare(request)
    for channel in (DATA, ERROR):
        await websocket.send_bytes(bytes([channel]) + where.port.to_bytes(PORT_BYTES, "little"))
    try:
        if local is None:
            raise ConnectionRefusedError
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
    except OSError:
        message = (
            f"error forwarding port {where.port} to pod {where.pod}, uid : dial tcp4 127.0.0.1:{where.port}: connect: connection refused"
        )
        await websocket.send_bytes(bytes([ERROR]) + message.encode())
    else:
        up = asyncio.create_task(_upwards(websocket, writer))
        try:
            # A client that has its answer may close without a message.
            with suppress(ClientConnectionResetError):
                while piece := await reader.read(_PIECE):
                    await websocket.send_bytes(bytes([DATA]) + piece)
        finally:
            up.cancel()
            writer.close()
    await websocket.close()
    return websocket


async def _upwards(websocket: web.WebSocketResponse, writer: asyncio.StreamWriter) -> None:
    async for message in websocket:
        if message.type is WSMsgType.BINARY and message.data[:1] == bytes([DATA]):
            writer.write(message.data[1:])
            await writer.drain()
    # The client is gone: nothing more is read for it.
    writer.close()
