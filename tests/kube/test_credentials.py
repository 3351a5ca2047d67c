"""Tokens in files: read again by age and after a refusal, and kept while the file is missing."""

import asyncio
from pathlib import Path

import pytest

from gpuscaler.kube.credentials import TokenFile
from gpuscaler.kube.errors import CredentialsError

SECRET = "s3cr3t-TOKEN-that-must-not-be-seen"


async def token(token_file: TokenFile) -> str:
    return (await token_file.current()).headers["authorization"]


async def test_a_token_file_is_read_again_after_a_minute(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    token_file = TokenFile(file, "user 'u'")
    assert await token(token_file) == "Bearer one"
    file.write_text("two")
    await asyncio.sleep(59)
    assert await token(token_file) == "Bearer one"
    await asyncio.sleep(2)
    assert await token(token_file) == "Bearer two"


async def test_a_refused_token_is_read_again_at_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    token_file = TokenFile(file, "user 'u'")
    first = await token_file.current()
    assert await token_file.renewed(first) is None
    file.write_text("two")
    second = await token_file.renewed(first)
    assert second is not None
    assert second.headers == {"authorization": "Bearer two"}
    assert await token_file.current() is second


@pytest.mark.parametrize("content", [None, "", "a b", "\x00"])
async def test_a_missing_file_leaves_the_last_token_in_use(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    token_file = TokenFile(file, "user 'u'")
    first = await token_file.current()
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    await asyncio.sleep(61)
    assert await token_file.current() is first
    assert await token_file.renewed(first) is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "user 'u': token file: saw {file}: No such file or directory, expected a file with a token"),
        (b"", "user 'u': token file: saw {file}, which is empty, expected a token"),
        (f"{SECRET} {SECRET}".encode(), "user 'u': token file: saw {file}: its content cannot be sent in a header"),
        (SECRET.encode() + b"\xff", "user 'u': token file: saw {file}: its content cannot be sent in a header"),
    ],
)
async def test_a_token_that_never_existed_is_reported(tmp_path: Path, content: bytes | None, expected: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CredentialsError) as raised:
        await TokenFile(file, "user 'u'").current()
    assert expected.format(file=file) in str(raised.value)
    assert SECRET not in str(raised.value) + repr(raised.value.__context__) + str(raised.value.__context__)


async def test_a_token_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(SECRET)
    token_file = TokenFile(file, "user 'u'")
    assert SECRET not in repr(await token_file.current()) + repr(token_file)
