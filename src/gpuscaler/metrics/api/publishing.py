"""Makes self-signed certificates for the server, and publishes their authorities in the APIServices that lead to it.

An authority's key is discarded after it has signed, so that reading the cluster's objects does not allow issuing certificates. Each replica
of the server has its own authority, and ``caBundle`` contains all of them. An APIService of another program is never changed.
"""

import asyncio
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from msgspec import Struct

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Conflict, NotFound, Unreachable
from gpuscaler.kube.resources import Resource
from gpuscaler.metrics.api.paths import VERSIONS
from gpuscaler.serving.certificates import VALID, CertificateAuthority

_LOG = structlog.get_logger(__name__)
API_SERVICES = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)
#: Common name by which an authority is recognized as ours.
AUTHORITY = "gpuscaler metrics"
#: Number of our newest authorities that stay in a bundle: those of all replicas, and of replicas that are being replaced.
MOST = 8
#: Seconds between checks of the APIServices, and after a failed check.
CHECK_SECONDS, RETRY_SECONDS = 30.0, 5.0
#: A certificate is replaced when this many seconds of its validity are left.
_LEFT = VALID.total_seconds() / 2
CERTIFICATE, KEY = "apiserver.crt", "apiserver.key"


class ServiceName(Struct, frozen=True):
    """The Service that leads to the server."""

    name: str
    namespace: str

    def hosts(self) -> tuple[str, ...]:
        """The names under which the Service is reached: kube-aggregator requires the second."""
        return (self.name, f"{self.name}.{self.namespace}.svc", f"{self.name}.{self.namespace}", "localhost", "127.0.0.1")


@dataclass(slots=True)
class OwnCertificate:
    """A certificate for ``service`` in files of ``folder``. ``wall`` is the time in Unix seconds. Raises OSError for an unusable folder.

    ``authority`` is the PEM of the authority of the certificate in use. :meth:`renew` makes the next one before it is used.
    """

    folder: Path
    service: ServiceName
    wall: Callable[[], float]
    authority: bytes = field(default=b"", init=False)
    _ends: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (CERTIFICATE, KEY):
            (self.folder / name).unlink(missing_ok=True)
        self.serve(self.renew())

    @property
    def files(self) -> tuple[Path, Path]:
        return self.folder / CERTIFICATE, self.folder / KEY

    @property
    def due(self) -> bool:
        return self._ends - self.wall() < _LEFT

    def renew(self) -> CertificateAuthority:
        """Make a new authority, to be published and then passed to :meth:`serve`."""
        return CertificateAuthority(AUTHORITY, now=self.wall())

    def serve(self, authority: CertificateAuthority) -> None:
        """From now on, serve a certificate of ``authority``."""
        authority.issue(self.service.hosts()[1], hosts=self.service.hosts()).write(self.folder, CERTIFICATE.partition(".")[0])
        self.authority, self._ends = authority.certificate, self.wall() + VALID.total_seconds()


class WireService(Struct):
    name: str = ""
    namespace: str = ""


class WireSpec(Struct, rename="camel"):
    service: WireService | None = None
    ca_bundle: str | None = None
    insecure_skip_tls_verify: bool = msgspec.field(default=False, name="insecureSkipTLSVerify")


class WireMetadata(Struct, rename="camel"):
    resource_version: str = ""


class WireApiService(Struct):
    metadata: WireMetadata = msgspec.field(default_factory=WireMetadata)
    spec: WireSpec = msgspec.field(default_factory=WireSpec)


_api_service = msgspec.json.Decoder(WireApiService).decode


@dataclass(slots=True)
class Publisher:
    """Keeps the authorities of ``own_certificate`` in the APIServices that lead to ``service``, while :meth:`run` runs.

    Without one (certificate files were given) it only checks. Only the API groups in ``groups`` are served. ``states`` has the problem
    of each APIService, empty if there is none; ``others`` has the APIServices of other programs, with the service they lead to.
    """

    client: Client
    service: ServiceName
    own_certificate: OwnCertificate | None
    groups: Collection[str] = tuple(VERSIONS)
    states: dict[str, str] = field(default_factory=dict, init=False)
    others: dict[str, str] = field(default_factory=dict, init=False)
    _following: CertificateAuthority | None = field(default=None, init=False)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            published = await self.check()
            failing = [name for name, state in self.states.items() if state and name not in self.others]
            await asyncio.sleep(RETRY_SECONDS if failing or not published else CHECK_SECONDS)

    async def check(self) -> bool:
        """Check once and repair; return whether every reachable APIService trusts the certificate in use."""
        made = self.own_certificate
        if made is not None and made.due and self._following is None:
            self._following = made.renew()
        following = self._following
        authorities = [
            authority for authority in (made.authority if made else b"", following.certificate if following else b"") if authority
        ]
        names = [f"{version}.{group}" for group, versions in VERSIONS.items() if group in self.groups for version in versions]
        published = all([await self._maintain(name, authorities) for name in names])
        if following is not None and made is not None and published:
            # Clients trust the new certificate only now that its authority is published.
            made.serve(following)
            self._following = None
        return published

    async def _maintain(self, name: str, authorities: Sequence[bytes]) -> bool:
        checked = True
        try:
            state = await self._repair(name, authorities)
        except NotFound:
            state = f"saw no such APIService, expected one that leads to {self._expected_service}; apply it, or do without this API"
        except Conflict:
            return False
        except (ApiError, Unreachable, msgspec.MsgspecError) as error:
            state, checked = str(error), False
        if state != self.states.get(name, ""):
            _LOG.warning("APIService", name=name, problem=state) if state else _LOG.info("APIService has no problems", name=name)
        self.states[name] = state
        return checked

    @property
    def _expected_service(self) -> str:
        return f"Service {self.service.namespace}/{self.service.name}"

    async def _repair(self, name: str, authorities: Sequence[bytes]) -> str:
        """The remaining problem of the APIService, after repairing what can be repaired."""
        api_service = _api_service(await self.client.get(API_SERVICES, name))
        service = api_service.spec.service or WireService()
        if (service.namespace, service.name) != (self.service.namespace, self.service.name):
            self.others[name] = f"{service.namespace}/{service.name}"
            other, expected = self.others[name], self._expected_service
            return f"it leads to Service {other}, expected {expected}; it stays unchanged, and its metrics are not served here"
        self.others.pop(name, None)
        if api_service.spec.insecure_skip_tls_verify:
            instead = "remove it" if authorities else "put the authority of its certificate in caBundle instead"
            return f"insecureSkipTLSVerify is set, so an attacker on the network path can forge metrics; {instead}"
        bundle = merge_bundle(api_service.spec.ca_bundle or "", authorities) if authorities else api_service.spec.ca_bundle
        if bundle != api_service.spec.ca_bundle:
            change = {"metadata": {"resourceVersion": api_service.metadata.resource_version}, "spec": {"caBundle": bundle}}
            await self.client.merge_patch(API_SERVICES, name, change)
        return ""


def merge_bundle(bundle: str, authorities: Iterable[bytes]) -> str:
    """``bundle`` (PEM in base64) with ``authorities`` (at least one) added. Of our own ones, those expired and surplus are removed."""
    mine = [certificate for pem in authorities for certificate in x509.load_pem_x509_certificates(pem)]
    try:
        present = x509.load_pem_x509_certificates(b64decode(bundle)) if bundle else []
    except (Base64Error, ValueError):
        present = []
    others = [certificate for certificate in present if certificate not in mine]
    latest = max(certificate.not_valid_before_utc for certificate in mine)
    ours = sorted(
        (certificate for certificate in others if _is_ours(certificate) and certificate.not_valid_after_utc > latest),
        key=lambda certificate: certificate.not_valid_before_utc,
    )
    stays = [
        certificate for certificate in others if not _is_ours(certificate) or certificate in ours[max(0, len(ours) - MOST + len(mine)) :]
    ]
    if all(certificate in present for certificate in mine) and len(stays) + len(mine) == len(present):
        return bundle
    return b64encode(b"".join(certificate.public_bytes(Encoding.PEM) for certificate in (*stays, *mine))).decode()


def _is_ours(authority: x509.Certificate) -> bool:
    return any(name_attribute.value == AUTHORITY for name_attribute in authority.subject.get_attributes_for_oid(NameOID.COMMON_NAME))
