"""Certificates that a server and its clients accept from each other, and from nobody else."""

import asyncio
import ssl
import stat
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gpuscaler.serving.authorities import Authority, signing_key

pytestmark = pytest.mark.looptime(False)


def context(purpose: ssl.Purpose, authority: Authority, files: tuple[Path, Path]) -> ssl.SSLContext:
    made = ssl.create_default_context(purpose, cadata=authority.certificate.decode())
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(*files)
    return made


async def who_asks(folder: Path, ours: Authority, theirs: Authority, host: str) -> list[str]:
    """The subject of a client of ``theirs``, as a server of ``ours`` sees it when it is asked as ``host``."""
    seen: list[str] = []

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(value for part in writer.get_extra_info("peercert")["subject"] for _, value in part)
        writer.close()

    server_side = context(ssl.Purpose.CLIENT_AUTH, ours, ours.issue("server", hosts=("127.0.0.1", "kubernetes")).write(folder, "server"))
    client_side = context(ssl.Purpose.SERVER_AUTH, ours, theirs.issue("ada", groups=("system:masters",)).write(folder, "ada"))
    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=server_side)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_side, server_hostname=host)
        # A client hears of its refusal after it believes to be connected.
        with suppress(ssl.SSLError, ConnectionError):
            await reader.read()
        writer.close()
    return seen


async def test_a_client_is_known_by_its_name_and_its_groups(tmp_path: Path) -> None:
    authority = Authority("ours", now=time.time())
    assert await who_asks(tmp_path, authority, authority, "127.0.0.1") == ["system:masters", "ada"]
    assert stat.S_IMODE((tmp_path / "ada.key").stat().st_mode) == 0o600


async def test_a_server_is_not_taken_for_another_one(tmp_path: Path) -> None:
    authority = Authority("ours", now=time.time())
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        await who_asks(tmp_path, authority, authority, "elsewhere")


async def test_a_client_of_another_authority_is_not_let_in(tmp_path: Path) -> None:
    assert await who_asks(tmp_path, Authority("ours", now=time.time()), Authority("theirs", now=time.time()), "127.0.0.1") == []


def test_signing_keys_are_each_of_their_own() -> None:
    assert signing_key() != signing_key()
