"""Debian packages that tests need, unpacked into the user's cache if the system does not have them installed."""

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lacking import skip_or_fail

from gpuscaler.serving.cache_folder import cache_of


def packaged(package: str, path: str) -> Path:
    """The file ``path`` of a Debian package, from the cache or downloaded. Without the package, the test is skipped or fails."""
    cache = cache_of(os.environ)
    kept = cache / package
    if (kept / path).exists():
        return kept / path
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        skip_or_fail(f"saw no apt-get, expected it or the installed package {package}; install the package {package}")
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as name:
        folder = Path(name)
        file, why = _downloaded(package, folder)
        if file is None:
            skip_or_fail(
                f"saw no package {package} ({why}), expected it to be installed or in a Debian mirror; install the package {package}"
            )
        subprocess.run(["dpkg-deb", "-x", file, folder / "unpacked"], check=True, timeout=300)
        if not (kept / path).exists():
            (folder / "unpacked").rename(kept)
    return kept / path


def _downloaded(package: str, folder: Path) -> tuple[Path | None, str]:
    """The package file, or None with the reason. If the system has no package lists, they are downloaded into ``folder``."""
    lists, words = folder / "lists", ["apt-get", "-q"]
    (lists / "partial").mkdir(parents=True)
    own = [*words, "-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={folder}"]
    why = ""
    for command in ([*words, "download", package], [*own, "update"], [*own, "download", package]):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
        why = done.stderr.strip().rpartition("\n")[2]
        if files := list(folder.glob(f"{package}_*.deb")):
            return files[0], ""
    return None, why
