"""TLS for servers with certificates that may change on disk: new connections use the new one, existing ones continue."""

import asyncio
import ssl
from dataclasses import dataclass, field
from pathlib import Path

#: How often the files are checked, in seconds. Kubernetes takes a minute to project a new Secret into a pod.
LOOK_SECONDS = 5.0


class CertificateError(Exception):
    """A certificate or key cannot be used; the text names the files, what was seen, and what was expected."""


@dataclass(slots=True)
class LiveTls:
    """A server context over PEM files, kept up to date by :meth:`run`. ``trouble`` is the problem with the newest files.

    With ``ask_clients``, clients may present a certificate of an authority given to :meth:`believe` last; any other certificate ends the
    handshake. Raises :class:`CertificateError` if the first files cannot be used; later, the old ones stay in use.
    """

    certificate: Path
    key: Path
    ask_clients: bool = False
    trouble: str = field(default="", init=False)
    context: ssl.SSLContext = field(init=False)
    _current: ssl.SSLContext = field(init=False)
    _seen: tuple[bytes, bytes] = field(init=False)
    _authorities: bytes = field(default=b"", init=False)

    def __post_init__(self) -> None:
        self._seen = self._read()
        self.context = self._current = self._loaded()
        self.context.sni_callback = self._swap

    async def run(self) -> None:
        """Check the files every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.reload()

    def reload(self) -> None:
        """Load the files if they changed and are usable."""
        try:
            content = self._read()
            if content == self._seen:
                self.trouble = ""
                return
            self._current = self._loaded()
        except CertificateError as error:
            self.trouble = f"{error}; the previous certificate stays in use"
        else:
            self._seen, self.trouble = content, ""

    def accept_authorities(self, authorities: bytes) -> None:
        """Accept client certificates of ``authorities`` (PEM) from the next connection on. Raises :class:`CertificateError`."""
        before, self._authorities = self._authorities, authorities
        try:
            self._current = self._loaded()
        except CertificateError:
            self._authorities = before
            raise

    def _swap(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        """Switch to the current context at the start of each handshake, whether or not the client names a server."""
        connection.context = self._current

    def _read(self) -> tuple[bytes, bytes]:
        try:
            return self.certificate.read_bytes(), self.key.read_bytes()
        except OSError as error:
            raise CertificateError(f"{error.filename}: saw {error.strerror}, expected a PEM file") from error

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # Without a callback, an encrypted key would prompt for its password on the terminal.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(
                f"{self.certificate} and {self.key}: saw {error}, expected a certificate chain and its key, not encrypted, as PEM"
            ) from error
        if self.ask_clients:
            self._trust(context)
        return context

    def _trust(self, context: ssl.SSLContext) -> None:
        context.verify_mode = ssl.CERT_OPTIONAL
        # As in Go: a listed intermediate authority is trusted without its root.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self._authorities.strip():
            try:
                context.load_verify_locations(cadata=self._authorities.decode("ascii", "ignore"))
            except ssl.SSLError as error:
                raise CertificateError(f"authorities of clients: saw {error}, expected certificates as PEM") from error
