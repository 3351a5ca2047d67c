"""TLS settings of kubeconfigs: trusted authorities, the expected name, and our own certificate; files may change at run time."""

import asyncio
import os
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from gpuscaler.kube.errors import AccessError

#: Interval after which files are checked again, in seconds, as in client-go for tokens.
RECHECK = 60.0
_Stamps: TypeAlias = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True, repr=False)
class ClientCertificate:
    """A certificate chain and its private key, both PEM."""

    chain: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings for one server. Data takes precedence over a file, as in a kubeconfig; without an authority the system's are trusted.

    ``owner`` and ``user`` name the origin of these settings in messages, ``remedy`` says what to do if they cannot be used.
    """

    owner: str = "TLS"
    user: str = "TLS"
    authority: bytes = b""
    authority_file: Path | None = None
    certificate: bytes = b""
    certificate_file: Path | None = None
    key: bytes = field(default=b"", repr=False)
    key_file: Path | None = None
    server_name: str = ""
    insecure: bool = False
    remedy: str = "get a new kubeconfig from the cluster"

    def context(self, issued: ClientCertificate | None = None) -> ssl.SSLContext:
        """A new context, with ``issued`` (an exec plugin's) in place of the configured certificate. Reads the files.

        Raises :class:`AccessError` if something cannot be read or used.
        """
        context = self._trusting_context()
        chosen = issued or self.own_certificate()
        if chosen:
            self._load_certificate(context, chosen)
        return context

    def own_certificate(self) -> ClientCertificate | None:
        """The configured certificate and key, read from their files if they are files."""
        chain = self.certificate or _read(self.certificate_file, f"{self.user}: client-certificate")
        key = self.key or _read(self.key_file, f"{self.user}: client-key")
        if bool(chain) != bool(key):
            present, missing = ("client-certificate", "client-key") if chain else ("client-key", "client-certificate")
            raise AccessError(f"{self.user}: saw {present} without {missing}, expected both or neither; add {missing} or {missing}-data")
        return ClientCertificate(chain, key) if chain else None

    def authorities(self) -> bytes:
        """The PEM of the trusted authorities, empty for the system's."""
        return self.authority or _read(self.authority_file, f"{self.owner}: certificate-authority")

    def stamps(self) -> _Stamps:
        """Modification stamps of the files; None for a missing file."""
        return tuple(_stamp(path) for path in (self.authority_file, self.certificate_file, self.key_file) if path)

    def _trusting_context(self) -> ssl.SSLContext:
        pem = self.authorities()
        try:
            context = ssl.create_default_context(cadata=pem.decode("ascii") if pem else None)
        except (ssl.SSLError, UnicodeDecodeError) as error:
            problem = getattr(error, "reason", "") or "no certificate in it"
            raise AccessError(
                f"{self.owner}: certificate-authority: saw {len(pem)} bytes that are not certificates in PEM ({problem}), "
                f"expected -----BEGIN CERTIFICATE-----; {self.remedy}"
            ) from error
        # Python 3.13 is stricter about certificates than Go, and clusters have certificates that only satisfy Go.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        # Go trusts an intermediate authority that is listed, without its root.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _load_certificate(self, context: ssl.SSLContext, chosen: ClientCertificate) -> None:
        try:
            with _as_file(chosen.key.rstrip() + b"\n" + chosen.chain) as name:
                context.load_cert_chain(name, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            problem = getattr(error, "reason", "") or "it cannot be read"
            raise AccessError(
                f"{self.user}: saw a client certificate and key that cannot be used ({problem}), "
                f"expected a certificate and its own unencrypted key, both in PEM; {self.remedy}"
            ) from error


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A file name for ``content``, since OpenSSL loads a chain from files only.

    The file is in memory if the system supports that, so no key touches a disk and a read-only file system works; else only we can read it
    (0600).
    """
    if sys.platform == "linux":
        with open(os.memfd_create("certificate"), "wb") as file:  # noqa: PTH123 - it has no path
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _read(path: Path | None, setting: str) -> bytes:
    if path is None:
        return b""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise AccessError(f"{setting}: saw {path}: {error.strerror}, expected a readable file; correct the path or restore it") from error
    if not content.strip():
        raise AccessError(f"{setting}: saw {path}, which is empty, expected PEM; restore the file")
    return content


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


@dataclass(slots=True)
class Contexts:
    """The context in use, recreated when files changed or another certificate was issued.

    A new context means new connections, so a renewed certificate is used from the next request on. If the files cannot be used at the
    moment (in the middle of a rotation), the old context stays in use, and ``warn`` is called.
    """

    tls: Tls
    warn: Callable[[str], None]
    _context: ssl.SSLContext | None = field(default=None, init=False)
    _issued: ClientCertificate | None = field(default=None, init=False)
    _stamps: _Stamps = field(default=(), init=False)
    _checked: float = field(default=0.0, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def current(self, issued: ClientCertificate | None) -> ssl.SSLContext:
        """The context to use now; raises :class:`AccessError` if none could ever be made."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._context is None or issued is not self._issued:
                stamps = self.tls.stamps()
                # Loading the system's authorities takes 20 ms, too long for the event loop.
                self._context = await asyncio.to_thread(self.tls.context, issued)
                self._issued, self._stamps, self._checked = issued, stamps, now
            elif now - self._checked >= RECHECK:
                self._checked = now
                await self._reload()
            return self._context

    def distrust(self) -> None:
        """Check the files at the next request: a handshake failed, perhaps because an authority was rotated."""
        self._checked = float("-inf")

    async def _reload(self) -> None:
        stamps = self.tls.stamps()
        if stamps == self._stamps:
            return
        try:
            self._context = await asyncio.to_thread(self.tls.context, self._issued)
            self._stamps = stamps
        except AccessError as error:
            self.warn(f"{error}; the certificates read before stay in use")
