"""Certificates of servers as data, and their problems before a client finds them.

kube-aggregator calls ``NAME.NAMESPACE.svc`` and ignores the common name; it accepts only the subject alternative names
(``k8s.io/kube-aggregator/pkg/apiserver/handler_proxy.go``; ``crypto/x509`` of Go).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

#: A certificate that ends within this time should have been replaced.
SOON = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Certificate:
    """One certificate: the names that it is for, and from when to when it is valid, in seconds since the epoch."""

    names: tuple[str, ...]
    begins: float
    ends: float
    _parsed: x509.Certificate

    def is_for(self, host: str) -> bool:
        return any(_is_for(name, host) for name in self.names)

    def is_issued_by(self, authorities: Iterable["Certificate"]) -> bool:
        """Whether one of ``authorities`` signed this certificate, or is this certificate."""
        return any(self._parsed == authority._parsed or self._is_signed_by(authority) for authority in authorities)  # noqa: SLF001 - its own class

    def _is_signed_by(self, authority: "Certificate") -> bool:
        try:
            self._parsed.verify_directly_issued_by(authority._parsed)  # noqa: SLF001 - its own class
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            return False
        return True

    def has_key(self, pem: bytes) -> bool | None:
        """Whether ``pem`` is the private key of this certificate; None if it cannot be read."""
        try:
            key = load_pem_private_key(pem, None)
            return _public_bytes(key.public_key()) == _public_bytes(self._parsed.public_key())
        except (ValueError, TypeError, UnsupportedAlgorithm):
            return None

    @property
    def text_of_names(self) -> str:
        """The names for a message."""
        return ", ".join(self.names[:5]) + (" and others" if len(self.names) > 5 else "") or "no name (a common name does not count)"

    @property
    def text_of_end(self) -> str:
        """The end of its validity for a message."""
        return _day(datetime.fromtimestamp(self.ends, UTC))


def read_certificates(pem: bytes) -> tuple[Certificate, ...]:
    """The certificates of ``pem``, the server's own first; empty if there are none that can be read."""
    try:
        return tuple(
            Certificate(tuple(_names(parsed)), parsed.not_valid_before_utc.timestamp(), parsed.not_valid_after_utc.timestamp(), parsed)
            for parsed in x509.load_pem_x509_certificates(pem)
        )
    except (ValueError, x509.DuplicateExtension, UnsupportedAlgorithm):
        return ()


def certificate_problems(pem: bytes, *, host: str, now: float | None = None) -> tuple[str, ...]:
    """Problems of the first certificate in ``pem``, which should be for ``host``. With ``now`` (Unix time) its validity is checked, too."""
    certificates = read_certificates(pem)
    if not certificates:
        return ("saw no certificate, expected one in PEM",)
    leaf = certificates[0]
    problems: list[str] = []
    if now is not None:
        problems.extend(_times(leaf, now))
    if not leaf.is_for(host):
        problems.append(
            f"saw a certificate for {leaf.text_of_names}, expected {host}, the name that the API server uses; reissue it for that name"
        )
    return tuple(problems)


def _times(leaf: Certificate, now: float) -> Iterable[str]:
    if now > leaf.ends:
        yield f"it expired on {leaf.text_of_end}: the API server does not trust it any more; renew it"
    elif now < leaf.begins:
        yield f"it is not valid until {_day(datetime.fromtimestamp(leaf.begins, UTC))}; check the clocks, or reissue it"
    elif leaf.ends - now < SOON.total_seconds():
        yield f"it expires on {leaf.text_of_end}, in {max(0, int(leaf.ends - now) // 86400)} days; renew it"


def _day(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _names(leaf: x509.Certificate) -> list[str]:
    try:
        alternative = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return alternative.get_values_for_type(x509.DNSName)


def _is_for(name: str, host: str) -> bool:
    """Whether a certificate's name covers ``host``. A star stands for the first part of a name only."""
    name, host = name.lower().removesuffix("."), host.lower()
    return name == host or (name.startswith("*.") and name[1:] == f".{host.partition('.')[2]}")


def _public_bytes(key: object) -> bytes:
    found: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return found
