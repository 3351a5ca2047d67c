"""Reproducible archives: their bytes depend only on names and contents."""

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO


def pack(target: Path, files: Mapping[str, bytes | Path], *, epoch: int) -> None:
    """Write ``files`` by their names into a tar, compressed if ``target`` ends in ``.tgz``. A Path is a file to read."""
    if target.suffix == ".tgz":
        inside = io.BytesIO()
        _tar(inside, files, epoch)
        # The header contains neither the file's name nor the time.
        target.write_bytes(gzip.compress(inside.getvalue(), mtime=epoch))
    else:
        with target.open("wb") as file:
            _tar(file, files, epoch)


def _tar(into: IO[bytes], files: Mapping[str, bytes | Path], epoch: int) -> None:
    with tarfile.open(mode="w", fileobj=into, format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            content = files[name]
            member = tarfile.TarInfo(name)
            member.mtime, member.mode = epoch, 0o644
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            else:
                member.size = content.stat().st_size
                with content.open("rb") as file:
                    tar.addfile(member, file)


def below(folder: Path, *, prefix: str = "") -> dict[str, bytes | Path]:
    """The files under ``folder`` by their relative names, with ``prefix`` before each."""
    return {prefix + path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
