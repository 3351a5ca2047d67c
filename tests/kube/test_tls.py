"""TLS contexts: recreated when files change, kept when files are broken, never waiting for a password."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key

from gpuscaler.kube.errors import AccessError
from gpuscaler.kube.tls import ClientCertificate, Contexts, Tls

CA = trustme.CA()
MINE = CA.issue_cert("me@example.org")
CERTIFICATE = ClientCertificate(MINE.cert_chain_pems[0].bytes(), MINE.private_key_pem.bytes())


def make_contexts(tls: Tls) -> tuple[Contexts, list[str]]:
    warnings: list[str] = []
    return Contexts(tls, warnings.append), warnings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ca.crt"
    CA.cert_pem.write_to_path(str(path))
    return path


def renew(file: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(file))


def half_write(file: Path) -> None:
    file.write_text("-----BEGIN CERTIFICATE-----\nMII")


async def test_a_context_is_kept_while_its_files_are_unchanged(file: Path) -> None:
    contexts, _ = make_contexts(Tls(authority_file=file))
    first = await contexts.current(None)
    await asyncio.sleep(3600)
    assert await contexts.current(None) is first


async def test_a_renewed_file_is_read_within_a_minute(file: Path) -> None:
    contexts, warnings = make_contexts(Tls(authority_file=file))
    first = await contexts.current(None)
    renew(file)
    assert await contexts.current(None) is first
    await asyncio.sleep(61)
    second = await contexts.current(None)
    assert second is not first
    assert second.get_ca_certs() != first.get_ca_certs()
    assert warnings == []


@pytest.mark.parametrize("damage", [half_write, Path.unlink])
async def test_a_broken_file_leaves_the_old_context_in_use_and_is_reported(file: Path, damage: Callable[[Path], None]) -> None:
    contexts, warnings = make_contexts(Tls(owner="cluster 'c'", authority_file=file))
    first = await contexts.current(None)
    damage(file)
    await asyncio.sleep(61)
    assert await contexts.current(None) is first
    assert [text.startswith("cluster 'c': certificate-authority: saw") for text in warnings] == [True]
    renew(file)
    await asyncio.sleep(61)
    assert await contexts.current(None) is not first


async def test_a_new_issued_certificate_makes_a_new_context() -> None:
    contexts, _ = make_contexts(Tls(authority=CA.cert_pem.bytes()))
    first = await contexts.current(CERTIFICATE)
    assert await contexts.current(CERTIFICATE) is first
    renewed = CA.issue_cert("me@example.org")
    assert await contexts.current(ClientCertificate(renewed.cert_chain_pems[0].bytes(), renewed.private_key_pem.bytes())) is not first


def test_an_encrypted_key_is_refused_instead_of_prompting_at_the_terminal() -> None:
    key = load_pem_private_key(CERTIFICATE.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password"))
    with pytest.raises(AccessError, match=r"user 'u': saw a client certificate and key that cannot be used .*unencrypted key"):
        Tls(user="user 'u'", certificate=CERTIFICATE.chain, key=locked).context()


def test_an_empty_certificate_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("\n")
    with pytest.raises(AccessError, match=r"certificate-authority: saw .*ca.crt, which is empty, expected PEM"):
        Tls(authority_file=tmp_path / "ca.crt").context()


def test_without_a_certificate_authority_those_of_the_system_are_trusted() -> None:
    assert Tls().context().check_hostname
