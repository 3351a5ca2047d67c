"""Sends requests over HTTP/1.1 with aiohttp, with TLS, proxies and credentials from an :class:`Access`."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
import structlog
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from yarl import URL

from gpuscaler import __version__
from gpuscaler.kube.access import Access
from gpuscaler.kube.credentials import RequestCredentials
from gpuscaler.kube.errors import AccessError, ApiError, CredentialsError, Unreachable, error_of
from gpuscaler.kube.tls import Contexts
from gpuscaler.kube.transport import Answer, Request

T = TypeVar("T")
_LOG = structlog.get_logger(__name__)
#: A watch of a large cluster delivers megabytes at once; with a smaller buffer, reading is paused and resumed for every piece.
_BUFFER: Final = 2**21
_MAX_REFUSAL_BYTES: Final = 65_536
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError)


class _RefusedError(Exception):
    """A WebSocket was refused."""

    def __init__(self, error: ApiError) -> None:
        super().__init__()
        self.error = error


class _BrokenError(aiohttp.ClientConnectionError):
    """A connection broke during a write."""


class HttpTransport:
    """A :class:`gpuscaler.kube.transport.Transport` over sockets, to be used within one event loop and closed there.

    After a 401 the request is repeated once with renewed credentials, even a write, since a 401 means that it was not carried out. Nothing
    else is ever sent twice. Redirects are not followed.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self._contexts = Contexts(access.tls, lambda text: _LOG.warning("tls files cannot be used", problem=text))
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        response, failure = await self._with_timeout(request, self._head(request))
        # Raised here instead of where it was caught: aiohttp's errors contain the headers that were sent and the proxy's password.
        if response is None:
            raise failure
        try:
            headers = {name.lower(): value for name, value in response.headers.items()}
            yield Answer(response.status, headers, self._pieces(request, response))
        finally:
            # A connection can be reused only if its answer was read to the end.
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    @asynccontextmanager
    async def websocket(self, request: Request, protocol: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket with ``protocol``. Raises :class:`ApiError` if it is refused and :class:`Unreachable` without an answer."""
        websocket, failure = await self._with_timeout(request, self._connect_websocket(request, protocol))
        if websocket is None:
            raise failure
        try:
            yield websocket
        finally:
            await websocket.close()

    async def _connect_websocket(self, request: Request, protocol: str) -> aiohttp.ClientWebSocketResponse:
        """The open WebSocket."""
        credentials = await self.access.credentials.current()
        try:
            return await self._open(request, credentials, protocol)
        except _RefusedError as refused:
            renewed = await self.access.credentials.renewed(credentials) if refused.error.status == 401 else None
            if renewed is None:
                raise
        return await self._open(request, renewed, protocol)

    async def _open(self, request: Request, credentials: RequestCredentials, protocol: str) -> aiohttp.ClientWebSocketResponse:
        return await self._open_session().ws_connect(
            self._url(request),
            protocols=(protocol,),
            headers=self._headers(request, credentials),
            proxy=self.access.proxy or None,
            ssl=await self._ssl(credentials),
            server_hostname=self.access.tls.server_name or None,
            max_msg_size=0,
            timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
        )

    async def _head(self, request: Request) -> ClientResponse:
        """The response as soon as its head has arrived."""
        credentials = await self.access.credentials.current()
        response = await self._send(request, credentials)
        return response if response.status != 401 else await self._retry_with_renewed(request, response, credentials)

    async def _with_timeout(self, request: Request, operation: Coroutine[Any, Any, T]) -> tuple[T | None, ApiError | Unreachable]:
        """The result of ``operation`` within the time-out of ``request``, or the reason why there is none."""
        try:
            async with asyncio.timeout(request.timeout):
                return await operation, Unreachable()
        except _RefusedError as refused:
            return None, refused.error
        except CredentialsError as error:
            return None, error
        except AccessError as error:
            return None, CredentialsError(str(error))
        except _FAILURES as error:
            return None, self._unreachable(request, error)

    async def _retry_with_renewed(self, request: Request, response: ClientResponse, refused: RequestCredentials) -> ClientResponse:
        try:
            renewed = await self.access.credentials.renewed(refused)
        except BaseException:
            response.close()
            raise
        if renewed is None:
            return response
        response.close()
        return await self._send(request, renewed)

    async def _send(self, request: Request, credentials: RequestCredentials) -> ClientResponse:
        return await self._open_session().request(
            request.method,
            self._url(request),
            data=request.body or None,
            headers=self._headers(request, credentials),
            allow_redirects=False,
            proxy=self.access.proxy or None,
            ssl=await self._ssl(credentials),
            server_hostname=self.access.tls.server_name or None,
            timeout=aiohttp.ClientTimeout(total=None, sock_read=request.timeout),
        )

    def _url(self, request: Request) -> URL:
        query = f"?{urlencode(request.query)}" if request.query else ""
        return URL(f"{self.access.server}{request.path}{query}", encoded=True)

    def _headers(self, request: Request, credentials: RequestCredentials) -> list[tuple[str, str]]:
        defaults = {"user-agent": f"gpuscaler/{__version__}", "accept-encoding": "gzip" if self.access.compress else "identity"}
        return [*{**defaults, **request.headers}.items(), *self.access.headers, *credentials.headers.items()]

    async def _ssl(self, credentials: RequestCredentials) -> ssl.SSLContext | bool:
        return await self._contexts.current(credentials.certificate) if self.access.server.startswith("https:") else True

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No limit on connections: each watch holds one, and the client limits the requests.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_BUFFER,
                middlewares=(_forbid_write_retries, _raise_refused_upgrade),
            )
        return self._session

    async def _pieces(self, request: Request, response: ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for piece in response.content.iter_any():
                yield piece
        except _FAILURES as error:
            failure = self._unreachable(request, error)
        else:
            return
        raise failure

    def _unreachable(self, request: Request, error: Exception) -> Unreachable:
        """The error in our own words: aiohttp's might quote a header or a URL with a password."""
        access = self.access
        if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
            self._contexts.distrust()
        return Unreachable(
            f"{access.server} ({access.source}): {request.method} {request.path}: {_describe_failure(error, request, access)}"
        )


async def _forbid_write_retries(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Keep aiohttp from repeating a PUT or DELETE when a kept connection breaks: the first one may have been carried out."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method == "GET":
            raise
        raise _BrokenError from error


async def _raise_refused_upgrade(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Keep the API server's error when it refuses a WebSocket: aiohttp discards it, and would follow a redirect."""
    response = await handler(request)
    if "sec-websocket-key" not in request.headers or response.status == 101:
        return response
    try:
        body = await response.content.read(_MAX_REFUSAL_BYTES)
    finally:
        response.close()
    raise _RefusedError(error_of(response.status, {name.lower(): value for name, value in response.headers.items()}, body))


def _describe_failure(error: Exception, request: Request, access: Access) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            certificate_error = error.certificate_error
            why = getattr(certificate_error, "verify_message", "") or "it cannot be verified"
            name = access.tls.server_name
            return (
                f"saw a server certificate that is not trusted ({why}), expected one that the certificate-authority of {access.tls.owner} "
                f"vouches for{f', for the tls-server-name {name}' if name else ''}; {access.tls.remedy}"
            )
        case aiohttp.ClientProxyConnectionError():
            return f"cannot reach the proxy {error.host}:{error.port} ({_os_reason(error.os_error)})"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy {URL(access.proxy).host} answered {error.status} instead of opening a tunnel"
        case aiohttp.ClientConnectorDNSError():
            return f"cannot resolve the address of {error.host}"
        case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
            return f"TLS failed ({getattr(error, 'reason', None) or getattr(error, 'strerror', None) or 'no reason given'})"
        case aiohttp.ClientConnectorError():
            return f"cannot connect to {error.host}:{error.port} ({_os_reason(error.os_error)})"
        case TimeoutError():
            return f"no answer within {request.timeout:g} s" if request.timeout else "no answer in time"
        case _BrokenError() | aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
            return "the connection was closed before the answer was complete"
        case OSError():
            return f"the connection broke ({_os_reason(error)})"
    return f"no answer ({type(error).__name__})"


def _os_reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
