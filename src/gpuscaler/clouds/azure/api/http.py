"""Sends single HTTP requests with aiohttp and says of a failure whether the request may have been carried out.

Redirects are not followed and nothing is sent twice, so that a token goes only to the address that was meant, and a write happens at most
once. Answers are read up to a limit. Errors are described in our own words: aiohttp's contain the headers that were sent.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse
from msgspec import Struct
from yarl import URL

from gpuscaler import __version__

#: Time limits for connecting and for the whole answer, in seconds.
CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 10.0
#: The longest answer that is read, in bytes: the sizes of a region are two megabytes, those of all regions fifty.
LONGEST_ANSWER: Final = 64 * 2**20
#: What aiohttp raises before it has sent anything of a request.
_UNSENT: Final = (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError, aiohttp.ConnectionTimeoutError)
_FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError, ValueError)
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


class HttpReply(Struct, frozen=True):
    """An answer. Names of ``headers`` are in lower case, values of a repeated header are joined with commas.

    ``complete`` is False if the connection broke after the head, or the body is longer than the limit; ``body`` is then empty.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    complete: bool = True


class UnsentError(Exception):
    """A request was not sent, so it has no effect."""


class BrokenError(Exception):
    """A request was sent, and no answer came: whether it was carried out is unknown."""


class Http:
    """Connections of one event loop, opened when they are needed; ``environ`` may name proxies (HTTPS_PROXY, HTTP_PROXY, NO_PROXY)."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = dict(environ or {})
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        seconds: float = ANSWER_SECONDS,
        longest: int = LONGEST_ANSWER,
        direct: bool = False,
    ) -> HttpReply:
        """The answer within ``seconds``; ``direct`` connects without a proxy. Raises :class:`UnsentError`, :class:`BrokenError`."""
        reply, failure = await self._exchange(method, url, headers=headers, body=body, seconds=seconds, longest=longest, direct=direct)
        # Raised here instead of where it was caught: aiohttp's errors contain the headers that were sent and the proxy's password.
        if reply is None:
            raise failure
        return reply

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _exchange(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes, seconds: float, longest: int, direct: bool
    ) -> tuple[HttpReply | None, UnsentError | BrokenError]:
        head: ClientResponse | None = None
        if not _is_address(url):
            return None, UnsentError("saw an odd address, expected https://HOST/…")
        try:
            async with asyncio.timeout(seconds):
                head = await self._open_session().request(
                    method,
                    URL(url, encoded=True),
                    data=body or None,
                    headers={"user-agent": f"gpuscaler/{__version__}", "accept": "application/json", **headers},
                    allow_redirects=False,
                    proxy=None if direct else proxy_for(self._environ, url) or None,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=min(CONNECT_SECONDS, seconds), sock_read=seconds),
                )
                content = await _read(head, longest)
            return HttpReply(head.status, _joined(head), content or b"", content is not None), BrokenError()
        except _FAILURES as error:
            if head is not None:
                return HttpReply(head.status, _joined(head), b"", complete=False), BrokenError()
            text = _describe(error, url, seconds)
            return None, UnsentError(text) if isinstance(error, _UNSENT) else BrokenError(text)
        finally:
            if head is not None:
                # A connection can be reused only if its answer was read to the end.
                if head.content.at_eof():
                    head.release()
                else:
                    head.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=30),
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(_forbid_retries,),
            )
        return self._session


def proxy_for(environ: Mapping[str, str], url: str) -> str:
    """The proxy that ``environ`` names for ``url``, empty for none: HTTPS_PROXY or HTTP_PROXY, unless NO_PROXY has the host."""
    parts = urlsplit(url)
    variable = f"{parts.scheme}_proxy"
    proxy = environ.get(variable) or environ.get(variable.upper()) or ""
    excepted = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    if (
        not proxy
        or parts.hostname in _LOOPBACK
        or any(_covers(entry.strip().lower(), parts.hostname or "") for entry in excepted.split(","))
    ):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _covers(entry: str, host: str) -> bool:
    """Whether an entry of NO_PROXY is ``host``, a domain of it or everything."""
    name = entry.partition(":")[0].removeprefix("*").removeprefix(".")
    return entry == "*" or (bool(name) and (host == name or host.endswith(f".{name}")))


def is_loopback(url: str) -> bool:
    """Whether ``url`` is on this machine, so that what is sent there cannot be read elsewhere, even without TLS."""
    return urlsplit(url).hostname in _LOOPBACK


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0 and URL(url, encoded=True).host is not None
        )
    except ValueError:
        return False


async def _read(response: ClientResponse, longest: int) -> bytes | None:
    """The body, None if it is longer than ``longest`` bytes."""
    pieces, length = [], 0
    async for piece in response.content.iter_any():
        length += len(piece)
        if length > longest:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _joined(response: ClientResponse) -> dict[str, str]:
    names = dict.fromkeys(name.lower() for name in response.headers)
    return {name: ",".join(response.headers.getall(name)) for name in names}


class _DisconnectedError(aiohttp.ClientConnectionError):
    """A kept connection broke."""


async def _forbid_retries(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Keep aiohttp from repeating a request when a kept connection breaks: a PUT or DELETE may have been carried out."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _DisconnectedError from error


def _describe(error: Exception, url: str, seconds: float) -> str:
    parts = urlsplit(url)
    host = parts.hostname or "no host"
    match error:
        case aiohttp.ClientConnectorCertificateError():
            why = getattr(error.certificate_error, "verify_message", "") or "it cannot be verified"
            return f"saw a certificate of {host} that is not trusted ({why}), expected one of a known authority; set SSL_CERT_FILE"
        case aiohttp.ClientProxyConnectionError():
            return f"cannot reach the proxy {error.host}:{error.port} ({_os_reason(error.os_error)})"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy answered {error.status} instead of opening a tunnel to {host}"
        case aiohttp.ClientConnectorDNSError():
            return f"cannot resolve the address of {error.host}"
        case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
            return f"TLS with {host} failed ({getattr(error, 'reason', None) or 'no reason given'})"
        case aiohttp.ClientConnectorError():
            return f"cannot connect to {error.host}:{error.port} ({_os_reason(error.os_error)})"
        case aiohttp.ConnectionTimeoutError():
            return f"no connection to {host} within {min(CONNECT_SECONDS, seconds):g} s"
        case TimeoutError():
            return f"no answer of {host} within {seconds:g} s"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | _DisconnectedError():
            return f"{host} closed the connection before it answered"
        case OSError():
            return f"the connection to {host} broke ({_os_reason(error)})"
    return f"no answer of {host} ({type(error).__name__})"


def _os_reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
