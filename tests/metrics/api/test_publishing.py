"""The server's own certificate. Its authority is written only into the APIServices that refer to this server."""

import ssl
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from tests.kube.doubles import Scripted, answer, refusal

from gpuscaler.kube.client import Client
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.metrics.api.publishing import AUTHORITY, MOST, OwnCertificate, Publisher, ServiceName, merge_bundle
from gpuscaler.serving.certificates import VALID, CertificateAuthority

NOW = 1_767_225_600.0
PLACE = ServiceName("gpuscaler-metrics", "gpu")
OURS = {"name": "gpuscaler-metrics", "namespace": "gpu"}
DAY = 86400.0


class Registry:
    """An API server with APIServices, by name; the first ``clash`` writes conflict."""

    def __init__(self, **services: dict[str, str]) -> None:
        names = {
            "custom1": "v1beta1.custom.metrics.k8s.io",
            "custom2": "v1beta2.custom.metrics.k8s.io",
            "external": "v1beta1.external.metrics.k8s.io",
        }
        self.objects: dict[str, dict[str, Any]] = {
            names[short]: {"metadata": {"resourceVersion": "1"}, "spec": {"service": service}} for short, service in services.items()
        }
        self.clash = 0
        self.writes: list[str] = []
        self.client = Client(Scripted([self._answer]))

    async def _answer(self, request: Request) -> Answer:
        name = request.path.rpartition("/")[2]
        api_service = self.objects.get(name)
        if api_service is None:
            return refusal(404, "not found", reason="NotFound", content_type="application/json")
        if request.method == "PATCH":
            change = msgspec.json.decode(request.body)
            if self.clash or change["metadata"]["resourceVersion"] != api_service["metadata"]["resourceVersion"]:
                self.clash -= 1
                return refusal(409, "changed", reason="Conflict", content_type="application/json")
            self.writes.append(name)
            api_service["spec"].update(change["spec"])
        return answer(200, api_service, content_type="application/json")

    def bundles(self) -> set[str]:
        return {api_service["spec"].get("caBundle", "") for api_service in self.objects.values()}


def authorities(bundle: str) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(b64decode(bundle))


def make_certificate(folder: Path, clock: list[float]) -> OwnCertificate:
    return OwnCertificate(folder, PLACE, lambda: clock[0])


def test_the_certificate_is_for_the_name_that_kube_aggregator_requires(tmp_path: Path) -> None:
    self_made = make_certificate(tmp_path / "certs", [NOW])
    leaf = x509.load_pem_x509_certificate(self_made.files[0].read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)

    assert "gpuscaler-metrics.gpu.svc" in names
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(self_made.authority))
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self_made.files)
    assert self_made.files[1].stat().st_mode & 0o077 == 0


async def test_our_certificate_authority_is_written_once_into_each_api_service_that_refers_to_our_service(tmp_path: Path) -> None:
    registry, self_made = Registry(custom1=OURS, custom2=OURS, external=OURS), make_certificate(tmp_path, [NOW])
    publisher = Publisher(registry.client, PLACE, self_made)

    assert await publisher.check()
    assert await publisher.check()
    assert len(registry.writes) == 3
    (bundle,) = registry.bundles()
    assert b64decode(bundle) == self_made.authority


async def test_an_api_service_of_another_program_is_reported_and_not_changed(tmp_path: Path) -> None:
    keda = {"name": "keda-operator-metrics-apiserver", "namespace": "keda"}
    registry = Registry(custom1=OURS, custom2=OURS, external=keda)
    publisher = Publisher(registry.client, PLACE, make_certificate(tmp_path, [NOW]))

    assert await publisher.check()
    assert registry.objects["v1beta1.external.metrics.k8s.io"]["spec"] == {"service": keda}
    assert publisher.others == {"v1beta1.external.metrics.k8s.io": "keda/keda-operator-metrics-apiserver"}
    assert "stays unchanged" in publisher.states["v1beta1.external.metrics.k8s.io"]
    assert len(registry.writes) == 2


async def test_an_api_service_that_is_missing_or_insecure_is_reported(tmp_path: Path) -> None:
    registry = Registry(custom1=OURS, custom2=OURS)
    registry.objects["v1beta2.custom.metrics.k8s.io"]["spec"]["insecureSkipTLSVerify"] = True
    publisher = Publisher(registry.client, PLACE, make_certificate(tmp_path, [NOW]))

    assert await publisher.check()
    assert "saw no such APIService" in publisher.states["v1beta1.external.metrics.k8s.io"]
    assert "insecureSkipTLSVerify" in publisher.states["v1beta2.custom.metrics.k8s.io"]
    assert registry.writes == ["v1beta1.custom.metrics.k8s.io"]


async def test_with_a_given_certificate_only_api_services_without_tls_verification_are_reported() -> None:
    registry = Registry(custom1=OURS, custom2=OURS)
    registry.objects["v1beta2.custom.metrics.k8s.io"]["spec"]["insecureSkipTLSVerify"] = True
    publisher = Publisher(registry.client, PLACE, None, ("custom.metrics.k8s.io",))

    assert await publisher.check()
    assert {name: state for name, state in publisher.states.items() if state} == {
        "v1beta2.custom.metrics.k8s.io": "insecureSkipTLSVerify is set, so an attacker on the network path can forge metrics; "
        "put the authority of its certificate in caBundle instead"
    }
    assert registry.writes == []


async def test_a_conflicting_write_is_repeated_on_the_new_version_of_the_api_service(tmp_path: Path) -> None:
    registry, self_made = Registry(custom1=OURS, custom2=OURS, external=OURS), make_certificate(tmp_path, [NOW])
    registry.clash = 1
    publisher = Publisher(registry.client, PLACE, self_made)

    assert not await publisher.check()
    assert await publisher.check()
    assert registry.bundles() == {b64encode(self_made.authority).decode()}


async def test_two_replicas_put_both_authorities_into_one_ca_bundle(tmp_path: Path) -> None:
    registry = Registry(custom1=OURS, custom2=OURS, external=OURS)
    first, second = make_certificate(tmp_path / "a", [NOW]), make_certificate(tmp_path / "b", [NOW])
    for self_made in (first, second, first):
        await Publisher(registry.client, PLACE, self_made).check()

    (bundle,) = registry.bundles()
    assert b64decode(bundle) == first.authority + second.authority


async def test_a_renewed_certificate_is_served_only_after_its_authority_is_published(tmp_path: Path) -> None:
    registry, clock = Registry(custom1=OURS, custom2=OURS, external=OURS), [NOW]
    self_made = make_certificate(tmp_path, clock)
    publisher = Publisher(registry.client, PLACE, self_made)
    await publisher.check()
    before, served = self_made.authority, self_made.files[0].read_bytes()
    clock[0] += VALID.total_seconds() / 2 + DAY
    registry.clash = 1

    assert not await publisher.check()
    assert self_made.files[0].read_bytes() == served
    assert await publisher.check()
    assert self_made.files[0].read_bytes() != served
    (bundle,) = registry.bundles()
    assert before in b64decode(bundle)
    assert self_made.authority in b64decode(bundle)
    assert not self_made.due


def test_a_ca_bundle_keeps_authorities_of_others_and_our_newest_ones() -> None:
    foreign = CertificateAuthority("other", now=NOW).certificate
    old = [CertificateAuthority(AUTHORITY, now=NOW + day * DAY).certificate for day in range(MOST + 3)]
    ended = CertificateAuthority(AUTHORITY, now=NOW - 400 * DAY).certificate
    mine = CertificateAuthority(AUTHORITY, now=NOW + 100 * DAY).certificate
    bundle = merge_bundle(b64encode(b"".join([foreign, ended, *old])).decode(), [mine])

    assert authorities(bundle) == [x509.load_pem_x509_certificate(pem) for pem in (foreign, *old[-(MOST - 1) :], mine)]
    assert merge_bundle(bundle, [mine]) == bundle


@pytest.mark.parametrize("bundle", ["", "%%%", b64encode(b"no certificate").decode()])
def test_an_invalid_ca_bundle_is_replaced(bundle: str) -> None:
    mine = CertificateAuthority(AUTHORITY, now=NOW).certificate
    assert b64decode(merge_bundle(bundle, [mine])) == mine
