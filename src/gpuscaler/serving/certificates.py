"""Self-made certificates: for a control plane and its clients, and for servers without a configured certificate."""

import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: Validity of all certificates; a cluster that runs for longer has to be restarted.
VALID = timedelta(days=365)
#: Certificates start this much earlier, so that clocks that are slightly off accept them.
EARLIER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate and its key, both as PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write ``name.crt`` and ``name.key``, readable by their owner only."""
        files = folder / f"{name}.crt", folder / f"{name}.key"
        for file, content in zip(files, (self.certificate, self.key), strict=True):
            write_private(file, content)
        return files

    def load_into(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Load this certificate into ``context`` and return it."""
        # OpenSSL reads keys from files only. The folder is private and removed immediately.
        with tempfile.TemporaryDirectory() as folder:
            context.load_cert_chain(*self.write(Path(folder), "pair"))
        return context


class CertificateAuthority:
    """A certificate authority called ``name``, created at ``now``, in seconds since the epoch."""

    def __init__(self, name: str, *, now: float) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._begin = datetime.fromtimestamp(now, UTC) - EARLIER
        self._name = _subject_name(name, ())
        self.certificate = self._signed(self._name, self._key).certificate

    def issue(self, name: str, *, groups: tuple[str, ...] = (), hosts: tuple[str, ...] = ()) -> CertificatePair:
        """Issue a certificate for the client ``name`` in ``groups``, and for a server that is reached as one of ``hosts``."""
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        return self._signed(_subject_name(name, groups), ec.generate_private_key(ec.SECP256R1()), uses=uses, hosts=hosts)

    def self_signed(self, *, hosts: tuple[str, ...]) -> CertificatePair:
        """Issue a certificate for a server that is reached as one of ``hosts`` and is its own authority, with the authority's key."""
        return self._signed(self._name, self._key, uses=[ExtendedKeyUsageOID.SERVER_AUTH], hosts=hosts)

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, uses: Sequence[x509.ObjectIdentifier] = (), hosts: Sequence[str] = ()
    ) -> CertificatePair:
        is_own, ours = key is self._key, self._key.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._begin)
            .not_valid_after(self._begin + VALID)
            .add_extension(x509.BasicConstraints(ca=is_own, path_length=0 if is_own else None), critical=True)
            .add_extension(_usage(signs_certificates=is_own), critical=True)
        )
        if is_own:
            builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(ours), critical=False)
        else:
            builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ours), critical=False)
        if uses:
            builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(map(_host, hosts)), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return CertificatePair(certificate.public_bytes(serialization.Encoding.PEM), pem(key))


def signing_key() -> tuple[bytes, bytes]:
    """Return a key that signs tokens of service accounts, and its public part, both as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem(key), public


def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def write_private(file: Path, content: bytes) -> None:
    """Write a file that is readable by its owner only from the moment it is created."""
    file.touch(mode=0o600)
    file.write_bytes(content)


def _subject_name(name: str, groups: tuple[str, ...]) -> x509.Name:
    organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organisations, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
