"""Runs external programs isolated from this machine's settings, except the paths to programs."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tools.release.source import Refused

#: Variables that programs need to be found, to keep their own files, and to reach registries; all others are removed.
KEPT = (
    *("PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "STORAGE_DRIVER", "BUILDAH_ISOLATION", "REGISTRY_AUTH_FILE"),
    *("UV_DEFAULT_INDEX", "UV_CACHE_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"),
)


def run(*command: str | Path, folder: Path, epoch: int | None = None, more: Mapping[str, str] | None = None) -> str:
    """Return the output of ``command``. Raises :exc:`Refused` with the end of its output if it fails."""
    environ = {name: os.environ[name] for name in KEPT if name in os.environ} | {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0"}
    if epoch is not None:
        environ["SOURCE_DATE_EPOCH"] = str(epoch)
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environ, **(more or {})},
        capture_output=True,
        text=True,
        check=False,
        umask=0o022,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        words = " ".join(str(word) for word in command[:3])
        raise Refused(f"`{words} …` ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:].strip()}")
    return done.stdout


def require_program(program: str, *, why: str) -> None:
    if shutil.which(program) is None:
        raise Refused(f"{program} is not on PATH; it {why}")
