"""TLS as kubeconfigs describe it: whom to trust, which name to expect, and our own certificate; files may change while we run."""

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

#: Files are looked at again after so many seconds, as client-go looks at tokens.
RECHECK = 60.0
_Stamps: TypeAlias = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True, repr=False)
class ClientCertificate:
    """A certificate chain and its private key, both PEM."""

    chain: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Tls:
    """How to talk TLS to one server. Data wins over a file, as in a kubeconfig; without any authority the system's are trusted.

    ``owner`` and ``user`` say in messages whose settings these are, ``remedy`` what to do about those that cannot be used.
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
    remedy: str = "take the kubeconfig from the cluster anew"

    def context(self, issued: ClientCertificate | None = None) -> ssl.SSLContext:
        """A fresh context, with ``issued`` (an exec plugin's) in place of the configured certificate. Reads the files.

        Raises :class:`AccessError` for what cannot be read or used.
        """
        made = self._trusting()
        chosen = issued or self.own_certificate()
        if chosen:
            self._present(made, chosen)
        return made

    def own_certificate(self) -> ClientCertificate | None:
        """The configured certificate and key, read from their files where they are files."""
        chain = self.certificate or _read(self.certificate_file, f"{self.user}: client-certificate")
        key = self.key or _read(self.key_file, f"{self.user}: client-key")
        if bool(chain) != bool(key):
            seen, missing = ("client-certificate", "client-key") if chain else ("client-key", "client-certificate")
            raise AccessError(f"{self.user}: saw {seen} without {missing}, expected both or neither; add {missing} or {missing}-data")
        return ClientCertificate(chain, key) if chain else None

    def authorities(self) -> bytes:
        """The PEM of the trusted authorities, empty for the system's."""
        return self.authority or _read(self.authority_file, f"{self.owner}: certificate-authority")

    def stamps(self) -> _Stamps:
        """What the files looked like when this was asked; None for one that is gone."""
        return tuple(_stamp(path) for path in (self.authority_file, self.certificate_file, self.key_file) if path)

    def _trusting(self) -> ssl.SSLContext:
        pem = self.authorities()
        try:
            made = ssl.create_default_context(cadata=pem.decode("ascii") if pem else None)
        except (ssl.SSLError, UnicodeDecodeError) as error:
            said = getattr(error, "reason", "") or "no certificate in it"
            raise AccessError(
                f"{self.owner}: certificate-authority: saw {len(pem)} bytes that are no certificates in PEM ({said}), "
                f"expected -----BEGIN CERTIFICATE-----; {self.remedy}"
            ) from error
        # Python 3.13 asks more of certificates than Go does, and clusters have certificates that only satisfy Go.
        made.verify_flags &= ~ssl.VERIFY_X509_STRICT
        # Go trusts an intermediate authority that is listed, without its root.
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self.insecure:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        return made

    def _present(self, context: ssl.SSLContext, chosen: ClientCertificate) -> None:
        try:
            with _in_a_file(chosen.key.rstrip() + b"\n" + chosen.chain) as name:
                context.load_cert_chain(name, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            said = getattr(error, "reason", "") or "it cannot be read"
            raise AccessError(
                f"{self.user}: saw a client certificate and key that cannot be used ({said}), "
                f"expected a certificate and its own unencrypted key, both in PEM; {self.remedy}"
            ) from error


@contextmanager
def _in_a_file(content: bytes) -> Iterator[str]:
    """A file name for ``content``, since OpenSSL loads a chain from files only.

    It is in memory where the system can, so that no key touches a disk and a read-only file system will do; else it is ours alone (0600).
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


def _read(path: Path | None, what: str) -> bytes:
    if path is None:
        return b""
    try:
        found = path.read_bytes()
    except OSError as error:
        raise AccessError(
            f"{what}: saw {path}: {error.strerror}, expected a file that can be read; correct the path or restore it"
        ) from error
    if not found.strip():
        raise AccessError(f"{what}: saw {path}, which is empty, expected PEM; restore the file")
    return found


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass(slots=True)
class Contexts:
    """The context in use, made anew when files changed or another certificate was issued.

    A new context means new connections, so a renewed certificate is used from the next request on. Files that cannot be used at the moment
    (a rotation is half done) leave the old context in use, and ``warn`` is told.
    """

    tls: Tls
    warn: Callable[[str], None]
    _context: ssl.SSLContext | None = field(default=None, init=False)
    _issued: ClientCertificate | None = field(default=None, init=False)
    _stamps: _Stamps = field(default=(), init=False)
    _checked: float = field(default=0.0, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def current(self, issued: ClientCertificate | None) -> ssl.SSLContext:
        """The context to use now; raises :class:`AccessError` where none could ever be made."""
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
        """Look at the files at the next request: a handshake failed, which a rotated authority may explain."""
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
