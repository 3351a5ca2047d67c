"""Certificates that a server and its clients accept from each other and from no others."""

import asyncio
import ssl
import stat
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gpuscaler.serving.certificates import CertificateAuthority, CertificatePair, signing_key

pytestmark = pytest.mark.looptime(False)


def context(purpose: ssl.Purpose, trusted: bytes, pair: CertificatePair) -> ssl.SSLContext:
    made = ssl.create_default_context(purpose, cadata=trusted.decode())
    made.verify_mode = ssl.CERT_REQUIRED
    return pair.load_into(made)


async def client_subject(
    ours: CertificateAuthority, theirs: CertificateAuthority, host: str, served: CertificatePair | None = None
) -> list[str]:
    """Return the subject of a client of ``theirs``, as seen by a server of ``ours`` that is reached as ``host``."""
    seen: list[str] = []

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(value for part in writer.get_extra_info("peercert")["subject"] for _, value in part)
        writer.close()

    trusted = served.certificate if served else ours.certificate
    server_side = context(ssl.Purpose.CLIENT_AUTH, ours.certificate, served or ours.issue("server", hosts=("127.0.0.1", "kubernetes")))
    client_side = context(ssl.Purpose.SERVER_AUTH, trusted, theirs.issue("ada", groups=("system:masters",)))
    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=server_side)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_side, server_hostname=host)
        # A client learns of its rejection only after its side of the handshake is complete.
        with suppress(ssl.SSLError, ConnectionError):
            await reader.read()
        writer.close()
    return seen


async def test_a_client_certificate_contains_its_name_and_groups() -> None:
    authority = CertificateAuthority("ours", now=time.time())
    assert await client_subject(authority, authority, "127.0.0.1") == ["system:masters", "ada"]


def test_certificate_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    files = CertificateAuthority("ours", now=time.time()).issue("ada").write(tmp_path, "ada")
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]


async def test_a_server_certificate_is_not_valid_for_another_server() -> None:
    authority = CertificateAuthority("ours", now=time.time())
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        await client_subject(authority, authority, "elsewhere")


async def test_a_self_signed_server_is_valid_for_its_names_only() -> None:
    authority = CertificateAuthority("ours", now=time.time())
    served = authority.self_signed(hosts=("127.0.0.1", "localhost"))
    for host in ("127.0.0.1", "localhost"):
        assert await client_subject(authority, authority, host, served) == ["system:masters", "ada"]
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        await client_subject(authority, authority, "elsewhere", served)


async def test_a_client_of_another_authority_is_rejected() -> None:
    assert (
        await client_subject(CertificateAuthority("ours", now=time.time()), CertificateAuthority("theirs", now=time.time()), "127.0.0.1")
        == []
    )


def test_every_signing_key_is_different() -> None:
    assert signing_key() != signing_key()
