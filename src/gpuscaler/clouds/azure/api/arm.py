"""Calls of Azure Resource Manager: reads, which are repeated after short failures, and writes, which are sent once.

https://github.com/cloud-and-ai-microsoft/resource-provider-contract has the rules for errors, pages and operations that all services keep.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Struct

from gpuscaler.clouds.azure.api.causes import ArmFailure, failure_of, meaning_of
from gpuscaler.clouds.azure.api.credentials import ENDPOINT_URL, Credentials
from gpuscaler.clouds.azure.api.errors import clean
from gpuscaler.clouds.azure.api.http import ANSWER_SECONDS, BrokenError, Http, HttpReply, UnsentError
from gpuscaler.clouds.azure.api.rights import describe_denial
from gpuscaler.clouds.azure.api.throttling import Throttle, retry_after_of
from gpuscaler.clouds.protocol import THROTTLED, UNAUTHORISED, UNKNOWN, CloudError, LostAnswerError

#: Versions of the APIs: stable ones that azure-mgmt-compute 39 and azure-mgmt-containerservice 41.8 know.
COMPUTE, CONTAINERSERVICE, SKUS, USAGES, RESERVATIONS = "2026-04-01", "2026-04-01", "2021-07-01", "2026-04-01", "2026-04-01"
#: Number of tries of a throttled or failed read, and the waits between them, in seconds: they double from the first, and are as long as the
#: longest in all. A caller gets Azure's answer then, before it takes the waiting for Azure's silence.
TRIES, FIRST_WAIT, LONGEST_WAIT = 5, 0.25, 4.0
#: The most reads at the same time: Azure Resource Manager allows 25 a second.
MOST_READS: Final = 16
#: The most pages of a list; the largest have a few hundred items each.
MOST_PAGES: Final = 1000
#: HTTP statuses after which it is unknown whether a write was carried out.
_UNCERTAIN: Final = frozenset({408, 499})


class ArmReply(Struct, frozen=True):
    """An answer: names of ``headers`` are in lower case; ``body`` is decoded JSON, None if there is none or it cannot be read."""

    status: int
    headers: Mapping[str, str]
    body: Any = None


class ArmError(CloudError):
    """Azure refused a call with ``failure``; nothing was changed."""

    def __init__(self, cause: str, detail: str, *, failure: ArmFailure, retry_after: float = 0.0) -> None:
        super().__init__(cause, detail, retry_after=retry_after)
        self.failure = failure


class GoneError(ArmError):
    """There is no such object."""


class PreconditionFailedError(ArmError):
    """The object was changed since its ETag was read."""


class Arm:
    """Azure Resource Manager at ``endpoint_url``, for one event loop.

    ``fence`` is called right before each write with the seconds that the write may take, and raises to stop it. ``sleep`` and ``random``
    make the waits between tries. ``budget`` knows what Azure's limits still allow.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        fence: Callable[[float], None],
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        endpoint_url: str = ENDPOINT_URL,
        http: Http | None = None,
        random: Random | None = None,
    ) -> None:
        self.endpoint_url = endpoint_url.rstrip("/")
        self.now, self.sleep = now, sleep
        self.budget = Throttle(now)
        self._credentials, self._fence = credentials, fence
        self._http, self._random = http or Http(), random or Random()
        self._reads = asyncio.Semaphore(MOST_READS)

    async def read(self, path: str, *, version: str, parameters: Mapping[str, str] | None = None) -> ArmReply:
        """The answer to a GET of ``path``.

        Raises :class:`GoneError`, :class:`ArmError`, and CloudError without an answer. A read that Azure wants to wait for longer than
        ``LONGEST_WAIT`` is not repeated: the error has the wait.
        """
        return await self._read(path, self._url(path, version, parameters or {}))

    async def read_url(self, url: str) -> ArmReply:
        """The answer to a GET of a ``url`` that Azure named, such as an operation's; at other hosts than the endpoint nothing is read."""
        if not self.is_own(url):
            raise CloudError(
                UNKNOWN, f"saw an address at {clean(urlsplit(url).netloc, 80) or 'no host'}, expected one at {self.endpoint_url}"
            )
        return await self._read(urlsplit(url).path, url)

    async def pages(self, path: str, *, version: str, parameters: Mapping[str, str] | None = None) -> list[Any]:
        """The items of all pages of a list. Raises as :meth:`read` does; a list is never returned in part."""
        items: list[Any] = []
        reply, seen = await self.read(path, version=version, parameters=parameters), set[str]()
        while True:
            body = reply.body if isinstance(reply.body, dict) else {}
            values = body.get("value")
            if not isinstance(values, list):
                raise CloudError(UNKNOWN, f"GET {_short(path)}: saw no list under value, expected one")
            items += values
            link = body.get("nextLink")
            if not link:
                return items
            if not isinstance(link, str) or link in seen or len(seen) >= MOST_PAGES:
                raise CloudError(UNKNOWN, f"GET {_short(path)}: saw a nextLink that leads nowhere new after {len(seen) + 1} pages")
            seen.add(link)
            reply = await self.read_url(link)

    async def write(
        self,
        method: str,
        path: str,
        *,
        version: str,
        body: Any = None,
        parameters: Mapping[str, str] | None = None,
        etag: str = "",
        seconds: float = ANSWER_SECONDS,
    ) -> ArmReply:
        """The answer to a call that changes something. It is made once; with ``etag``, only if the object still has that one.

        After a 401 it is repeated once with a new token, since a 401 means that it was not carried out. Raises :class:`GoneError`,
        :class:`PreconditionFailedError`, :class:`ArmError` or CloudError if nothing was changed,
        :class:`~gpuscaler.clouds.protocol.LostAnswerError` if the effect is unknown.
        """
        self._check_wait(method, path)
        url = self._url(path, version, parameters or {})
        headers = {"content-type": "application/json", **({"if-match": _header(etag)} if etag else {})}
        content = b"" if body is None else msgspec.json.encode(body)
        token = await self._credentials.token()
        for last in (False, True):
            self._fence(seconds)
            reply = await self._send(
                method, url, path, headers=headers | {"authorization": f"Bearer {token}"}, body=content, seconds=seconds
            )
            if reply.status != 401 or last:
                break
            token = await self._renewed(token)
        return self._outcome(method, path, reply)

    def is_own(self, url: str) -> bool:
        """Whether ``url`` is at the endpoint, so that it may have our token."""
        own, other = urlsplit(self.endpoint_url), urlsplit(url)
        try:
            return (own.scheme, own.hostname, own.port or _port(own.scheme)) == (
                other.scheme,
                other.hostname,
                other.port or _port(other.scheme),
            ) and not (other.username or other.password)
        except ValueError:
            return False

    async def close(self) -> None:
        await self._http.close()

    async def _read(self, path: str, url: str) -> ArmReply:
        left = LONGEST_WAIT
        for attempt in range(TRIES):
            try:
                return await self._read_once(path, url)
            except CloudError as error:
                wait = max(self._wait(attempt), error.retry_after)
                if attempt == TRIES - 1 or not _is_transient(error) or wait > left:
                    raise
            left -= wait
            await self.sleep(wait)
        raise AssertionError("the last try returns or raises")

    async def _read_once(self, path: str, url: str) -> ArmReply:
        self._check_wait("GET", path)
        token = await self._credentials.token()
        for last in (False, True):
            try:
                async with self._reads:
                    reply = await self._http.request("GET", url, headers={"authorization": f"Bearer {token}"})
            except (UnsentError, BrokenError) as error:
                raise _UnreachableError(UNKNOWN, f"GET {_short(path)}: {error}") from None
            if reply.status != 401 or last:
                break
            token = await self._renewed(token)
        if not 200 <= reply.status < 300:
            raise self._error("GET", path, reply)
        self.budget.record("GET", path, reply.headers)
        if not reply.complete:
            raise _UnreachableError(UNKNOWN, f"GET {_short(path)}: the answer broke off or is too long")
        try:
            return ArmReply(reply.status, reply.headers, _decoded(reply.body))
        except (msgspec.DecodeError, RecursionError):
            raise CloudError(UNKNOWN, f"GET {_short(path)}: saw an answer that is no JSON; is a proxy in between?") from None

    async def _send(self, method: str, url: str, path: str, *, headers: Mapping[str, str], body: bytes, seconds: float) -> HttpReply:
        try:
            return await self._http.request(method, url, headers=headers, body=body, seconds=seconds)
        except UnsentError as error:
            raise CloudError(UNKNOWN, f"{method} {_short(path)}: {error}") from None
        except BrokenError as error:
            raise LostAnswerError(f"{method} {_short(path)}: {error}") from None

    def _outcome(self, method: str, path: str, reply: HttpReply) -> ArmReply:
        """The answer to a write that Azure accepted. Its body may be lost: the headers have what is needed to follow it."""
        if not 200 <= reply.status < 300:
            error = self._error(method, path, reply)
            if reply.status in _UNCERTAIN or (reply.status >= 500 and error.cause == UNKNOWN):
                raise LostAnswerError(error.detail)
            raise error
        self.budget.record(method, path, reply.headers)
        try:
            body = _decoded(reply.body)
        except (msgspec.DecodeError, RecursionError):
            body = None
        return ArmReply(reply.status, reply.headers, body)

    async def _renewed(self, refused: str) -> str:
        self._credentials.reject(refused)
        return await self._credentials.token()

    def _check_wait(self, method: str, path: str) -> None:
        """Raise while Azure's last answer to such calls asks to wait."""
        wait = self.budget.wait_for(method, path)
        if wait > 0:
            raise _HeldBackError(THROTTLED, f"{method} {_short(path)}: held back for {wait:.0f} s, as Azure asked", retry_after=wait)

    def _error(self, method: str, path: str, reply: HttpReply) -> ArmError:
        try:
            body: Any = _decoded(reply.body)
        except (msgspec.DecodeError, RecursionError):
            body = reply.body[:2000].decode("utf-8", "replace")
        failure = failure_of(reply.status, body)
        meaning = meaning_of(failure)
        wait = self.budget.record(method, path, reply.headers, failure) or retry_after_of(reply.headers, self.now())
        wait = max(wait, meaning.seconds if meaning.cause == THROTTLED else 0.0)
        cause = UNAUTHORISED if reply.status in (401, 403) and meaning.cause == UNKNOWN else meaning.cause
        detail = f"{method} {_short(path)}: answered {reply.status}: {meaning.detail}"
        denial = describe_denial(failure) if cause == UNAUTHORISED else ""
        if denial:
            detail = f"{denial}: {detail}"
        kind = {404: GoneError, 412: PreconditionFailedError}.get(reply.status, ArmError)
        return kind(cause, detail, failure=failure, retry_after=wait)

    def _url(self, path: str, version: str, parameters: Mapping[str, str]) -> str:
        segments = path.split("/")
        if not path.startswith("/") or any(segment in (".", "..") for segment in segments) or "" in segments[1:]:
            raise CloudError(UNKNOWN, f"saw the path {_short(path)!r}, expected the id of a resource")
        query = urlencode({"api-version": version, **parameters}, quote_via=quote, safe="$")
        return f"{self.endpoint_url}{quote(path, safe='/-._~()@:')}?{query}"

    def _wait(self, attempt: int) -> float:
        wait = min(FIRST_WAIT * 2**attempt, LONGEST_WAIT)
        return self._random.uniform(wait / 2, wait)


class _UnreachableError(CloudError):
    """A read had no answer; it may be repeated."""


class _HeldBackError(CloudError):
    """A call was not made, since Azure asked to wait."""


def etag_of(reply: ArmReply) -> str:
    """The ETag of an object in an answer: of the header, else of the body, where scale sets and agent pools have it in different places."""
    body = reply.body if isinstance(reply.body, dict) else {}
    properties = body.get("properties")
    places = (reply.headers, body, properties if isinstance(properties, dict) else {})
    found = (place.get(name) for place in places for name in ("etag", "eTag"))
    return next((value for value in found if isinstance(value, str) and value), "")


def _is_transient(error: CloudError) -> bool:
    """Whether a repeated read may succeed: after throttling, without an answer, and after an error of the service itself."""
    if isinstance(error, ArmError):
        return error.cause == THROTTLED or error.failure.status >= 500 or error.failure.status == 408
    return isinstance(error, _UnreachableError | _HeldBackError)


def _decoded(body: bytes) -> Any:
    return msgspec.json.decode(body) if body.strip() else None


def _header(value: str) -> str:
    """A header's value; characters that would end it are left out."""
    return "".join(character for character in value if " " <= character <= "~")


def _port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def _short(path: str) -> str:
    """A path for messages: without the query, which may hold a signature."""
    return clean(path.partition("?")[0], 200)
