"""A client of the metadata service of Azure's machines, which answers only on the machine itself."""

from types import TracebackType
from typing import Final, Self

import aiohttp
import msgspec

ENDPOINT: Final = "http://169.254.169.254"
_EVENTS, _NAME = "/metadata/scheduledevents", "/metadata/instance/compute/name"
_EVENTS_VERSION, _NAME_VERSION = "2020-07-01", "2021-02-01"
#: The largest answers that are read, in bytes. A document for the 1000 machines of a scale set has less than half of this.
MOST_BYTES, _LONGEST_NAME = 1 << 20, 256
#: Seconds that a request may take. The first one for events turns them on for the machine, which takes Azure up to two minutes.
FIRST_SECONDS, SECONDS = 130.0, 3.0
_HEADERS: Final = {"Metadata": "true", "Accept-Encoding": "identity", "User-Agent": "gpuscaler-exporter"}


class MetadataError(Exception):
    """A request failed; the text says where, what was seen and what was expected. ``missing`` means that there is no such page."""

    def __init__(self, text: str, *, missing: bool = False) -> None:
        super().__init__(text)
        self.missing = missing


class MetadataService:
    """The metadata service at ``endpoint``, never reached over a proxy; to be used and closed within one event loop."""

    def __init__(self, endpoint: str = ENDPOINT) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._answered = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def events(self) -> bytes:
        """The document of scheduled events as it is. Raises :class:`MetadataError`."""
        body = await self._request("GET", _EVENTS, {"api-version": _EVENTS_VERSION}, seconds=SECONDS if self._answered else FIRST_SECONDS)
        self._answered = True
        return body

    async def machine_name(self) -> str:
        """The name of this machine in Azure: ``SCALESET_7`` in a Uniform scale set. Raises :class:`MetadataError`."""
        body = await self._request("GET", _NAME, {"api-version": _NAME_VERSION, "format": "text"}, most=_LONGEST_NAME)
        name = body.decode("utf-8", "replace").strip()
        if not name.isprintable() or not name:
            raise MetadataError(f"{self._endpoint}{_NAME}: saw an answer that is no name, expected the machine's name")
        return name

    async def start(self, event_id: str) -> None:
        """Approve an event: Azure need not wait for its time any longer. Raises :class:`MetadataError`."""
        await self._request("POST", _EVENTS, {"api-version": _EVENTS_VERSION}, {"StartRequests": [{"EventId": event_id}]})

    async def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: object = None,
        *,
        seconds: float = SECONDS,
        most: int = MOST_BYTES,
    ) -> bytes:
        where = f"{method} {self._endpoint}{path}"
        if self._session is None:
            # trust_env is off: no proxy of the environment may see these requests, or answer them.
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), headers=_HEADERS, trust_env=False)
        try:
            async with self._session.request(
                method,
                self._endpoint + path,
                params=query,
                data=msgspec.json.encode(body) if body is not None else None,
                headers={"Content-Type": "application/json"} if body is not None else None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as response:
                if response.status != 200:
                    raise MetadataError(_describe_status(where, response.status), missing=response.status in (400, 404, 405))
                pieces = bytearray()
                async for piece in response.content.iter_any():
                    pieces += piece
                    if len(pieces) > most:
                        raise MetadataError(f"{where}: saw more than {most} bytes, expected an answer of Azure's metadata service")
                return bytes(pieces)
        except TimeoutError:
            raise MetadataError(f"{where}: no answer within {seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise MetadataError(f"{where}: cannot be reached ({reason}); is this a machine of Azure?") from None


def _describe_status(where: str, status: int) -> str:
    return f"{where}: saw HTTP status {status}, expected 200 from Azure's metadata service"
