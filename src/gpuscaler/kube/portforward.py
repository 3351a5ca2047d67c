"""Fetches a page from a pod through the ``portforward`` subresource, which also reaches ports on the pod's loopback address only.

It uses a WebSocket with the subprotocol ``v4.channel.k8s.io``, which the API server passes on to the kubelet, and the kubelet to the
container runtime. All supported releases speak it; ``SPDY/3.1+portforward.k8s.io`` (kubectl's, since 1.31) is SPDY inside a WebSocket,
and worth its code only for many connections over one forwarding. Sources: ``k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go``,
``k8s.io/kubernetes/pkg/registry/core/pod/rest/subresources.go`` (from 1.35 on ``create`` is required in addition to ``get``).
"""

import asyncio
import http.client
import io
import re
import socket
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

import aiohttp

from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.resources import PODS
from gpuscaler.kube.transport import Request

PROTOCOL: Final = "v4.channel.k8s.io"
#: Channels of each forwarded port: data in both directions, and errors. Both begin with the port, in two bytes.
DATA, ERROR = 0, 1
PORT_BYTES: Final = 2
#: The largest answer that is accepted, in bytes: well above the recorded size of one decision.
MAX_BYTES: Final = 256 * 1024**2
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+) *\r\n", re.IGNORECASE)


class NotAnsweredError(Exception):
    """The port was forwarded, but no answer came from it; the text says what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPort:
    namespace: str
    pod: str
    port: int

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.pod}, port {self.port}"


@dataclass(slots=True)
class _Received:
    """Received data by channel."""

    channels: dict[int, bytearray] = field(default_factory=lambda: {DATA: bytearray(), ERROR: bytearray()})

    def add(self, message: bytes) -> None:
        if message and message[0] in self.channels:
            self.channels[message[0]] += message[1:]

    @property
    def data(self) -> bytes:
        return bytes(self.channels[DATA][PORT_BYTES:])

    @property
    def error(self) -> str:
        return self.channels[ERROR][PORT_BYTES:].decode(errors="replace").strip()

    @property
    def size(self) -> int:
        return len(self.channels[DATA])

    def is_complete(self) -> bool:
        """Whether the answer is complete according to its head; one without a length ends with the connection."""
        end = self.channels[DATA].find(b"\r\n\r\n")
        if end < 0:
            return False
        length = _LENGTH.search(self.channels[DATA], 0, end + 2)
        return length is not None and self.size >= end + 4 + int(length[1])


async def get_page(transport: HttpTransport, target: PodPort, path: str, *, within: float) -> tuple[int, bytes]:
    """Status and body of the answer to ``GET path`` at a port of a pod, ``within`` seconds.

    Raises :class:`~gpuscaler.kube.errors.ApiError` or :class:`~gpuscaler.kube.errors.Unreachable` if the API server does not forward,
    and :class:`NotAnsweredError` if nothing answers behind it.
    """
    request = Request("GET", PODS.path(target.namespace, target.pod, "portforward"), {"ports": str(target.port)}, timeout=within)
    received = _Received()
    try:
        async with asyncio.timeout(within), transport.websocket(request, PROTOCOL) as socket_:
            head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
            await socket_.send_bytes(bytes([DATA]) + head.encode("ascii"))
            async for message in socket_:
                if message.type is aiohttp.WSMsgType.BINARY:
                    received.add(message.data)
                if received.error or received.is_complete():
                    break
                if received.size > MAX_BYTES:
                    raise NotAnsweredError(f"{target}: saw an answer of more than {MAX_BYTES} bytes, expected a page of gpuscaler")
    except TimeoutError as error:
        raise NotAnsweredError(f"{target}: no answer within {within:g} s") from error
    except aiohttp.ClientError as error:
        raise Unreachable(f"{target}: the connection was closed before the answer was complete") from error
    if received.error:
        raise NotAnsweredError(f"{target}: {received.error[:300]}")
    return _parse_response(target, received.data)


class _Readable(Protocol):
    def makefile(self, mode: str) -> io.BytesIO: ...


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Input for the standard library's response parser."""

    data: bytes

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self.data)


def _parse_response(target: PodPort, data: bytes) -> tuple[int, bytes]:
    source: _Readable = _Bytes(data)
    response = http.client.HTTPResponse(cast("socket.socket", source))
    try:
        response.begin()
        return response.status, response.read()
    except (http.client.HTTPException, ValueError) as error:
        seen = f"{len(data)} bytes that are not a complete HTTP answer" if data else "the connection closed without an answer"
        raise NotAnsweredError(f"{target}: saw {seen}, expected a page of gpuscaler") from error
