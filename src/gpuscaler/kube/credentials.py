"""Credentials for an API server: what a request presents, and what to present after it was refused."""

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpuscaler.kube.errors import AccessError, CredentialsError
from gpuscaler.kube.tls import RECHECK, ClientCertificate


@dataclass(frozen=True, slots=True, repr=False)
class RequestCredentials:
    """What goes with a request: headers, and a client certificate if one was issued to us. Its repr shows nothing."""

    headers: Mapping[str, str] = field(default_factory=dict)
    certificate: ClientCertificate | None = None


class Credentials(Protocol):
    """``current`` returns what to present now; ``renewed`` what to present after a 401 to ``refused``, or None if a retry is pointless.

    Both raise :class:`CredentialsError`.
    """

    async def current(self) -> RequestCredentials: ...

    async def renewed(self, refused: RequestCredentials) -> RequestCredentials | None: ...


@dataclass(frozen=True, slots=True)
class FixedCredentials:
    """Credentials that never change: a token, a name and password, or none (a client certificate of :class:`Tls` needs nothing else)."""

    presented: RequestCredentials = field(default_factory=RequestCredentials, repr=False)

    async def current(self) -> RequestCredentials:
        return self.presented

    async def renewed(self, refused: RequestCredentials) -> RequestCredentials | None:  # noqa: ARG002 - there is nothing else to try
        return None


@dataclass(slots=True)
class TokenFile:
    """A bearer token in a file that other programs renew; it is read again after a minute, and after a 401.

    While the file cannot be read, the last token stays in use, as in client-go.
    """

    path: Path
    owner: str
    _presented: RequestCredentials | None = field(default=None, init=False, repr=False)
    _read_at: float = field(default=0.0, init=False)

    async def current(self) -> RequestCredentials:
        now = asyncio.get_running_loop().time()
        if self._presented is None or now - self._read_at >= RECHECK:
            self._read(now)
        assert self._presented is not None
        return self._presented

    async def renewed(self, refused: RequestCredentials) -> RequestCredentials | None:
        self._read(asyncio.get_running_loop().time())
        return self._presented if self._presented and self._presented.headers != refused.headers else None

    def _read(self, now: float) -> None:
        self._read_at = now
        try:
            # A decoding error would contain the token; text that is not ASCII is rejected below.
            text = self.path.read_bytes().decode("ascii", errors="replace").strip()
            if not text:
                raise CredentialsError(f"{self.owner}: token file: saw {self.path}, which is empty, expected a token; restore the file")
            presented = RequestCredentials({"authorization": bearer_header(text, f"{self.owner}: token file {self.path}")})
        except (OSError, ValueError, AccessError, CredentialsError) as error:
            if self._presented is not None:
                return
            if isinstance(error, CredentialsError):
                raise
            problem = error.strerror if isinstance(error, OSError) else "its content cannot be sent in a header"
            raise CredentialsError(
                f"{self.owner}: token file: saw {self.path}: {problem}, expected a file with a token; correct the path or restore it"
            ) from None
        if self._presented is None or self._presented.headers != presented.headers:
            self._presented = presented


@dataclass(slots=True)
class HeaderFiles:
    """Headers with values from ``files`` that other programs maintain, added to what ``inner`` presents; read again like a token.

    While a file cannot be read, the last value stays in use.
    """

    inner: Credentials
    files: tuple[tuple[str, Path], ...]
    owner: str
    _values: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _read_at: float = field(default=float("-inf"), init=False)

    async def current(self) -> RequestCredentials:
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= RECHECK:
            self._read(now)
        inner = await self.inner.current()
        return RequestCredentials({**inner.headers, **self._values}, inner.certificate)

    async def renewed(self, refused: RequestCredentials) -> RequestCredentials | None:
        self._read(asyncio.get_running_loop().time())
        inner = await self.inner.renewed(refused) or await self.inner.current()
        presented = RequestCredentials({**inner.headers, **self._values}, inner.certificate)
        return presented if presented != refused else None

    def _read(self, now: float) -> None:
        for name, path in self.files:
            try:
                text = path.read_bytes().decode("ascii", errors="replace").strip()
                problem = "" if text.isascii() and text.isprintable() and text else "nothing that can be sent in a header"
            except OSError as error:
                text, problem = "", error.strerror or str(error)
            if not problem:
                self._values[name] = text
            elif name not in self._values:
                raise CredentialsError(
                    f"{self.owner}: header {name}: saw {path}: {problem}, expected a file with its value; correct the path or restore it"
                )
        self._read_at = now


def bearer_header(token: str, source: str) -> str:
    """The value of an Authorization header; a token that cannot be sent in a header raises an :class:`AccessError` without quoting it."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise AccessError(
            f"{source}: saw a token with spaces, line breaks or other characters, expected one word of ASCII; get a new token"
        )
    return f"Bearer {token}"


def basic_header(username: str, password: str) -> str:
    """The value of an Authorization header for a name and a password (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
