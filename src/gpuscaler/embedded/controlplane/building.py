"""The programs of a control plane: taken from a given folder, or compiled from Kubernetes' sources, once for each release."""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuscaler.embedded.controlplane.golang import BuildError, Say, digest_of, find_go, needed_version
from gpuscaler.embedded.controlplane.modules import go_mod_of, release_of
from gpuscaler.serving.cache_folder import cache_of

#: The default release. Its modules are pinned by the go.mod and go.sum beside the program.
DEFAULT: Final = "1.35.4"
#: The oldest Go release that can compile Kubernetes' modules.
OLDEST_GO: Final = (1, 22, 0)
ETCD, API_SERVER, CONTROLLERS, SCHEDULER = "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"
NAMES: Final = (ETCD, API_SERVER, CONTROLLERS, SCHEDULER)
#: The variable that tells tests of Kubernetes controllers where existing programs are (the convention of envtest).
ASSETS: Final = "KUBEBUILDER_ASSETS"
SOURCES: Final = Path(__file__).with_name("program")
PINNED: Final = Path(__file__).with_name("pinned")


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the programs are. ``tied`` ones end when their standard input ends; ``release`` is empty if it is unknown."""

    folder: Path
    release: str = ""
    tied: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Callbacks for the progress of compiling: ``say`` gets its steps, ``compiled`` the number of packages that are done."""

    say: Say
    compiled: Callable[[int], None] = lambda _count: None


def programs(version: str, *, environ: Mapping[str, str], progress: Progress) -> Programs:
    """The programs of Kubernetes ``version``; they are compiled first if necessary, which takes about four minutes on two cores.

    If ``environ`` has ``KUBEBUILDER_ASSETS``, the programs of that folder, whatever their release. Raises :exc:`BuildError`.
    """
    if assets := environ.get(ASSETS, ""):
        return _given(Path(assets))
    release = release_of(version)
    pinned = PINNED / release
    sources = [*SOURCES.iterdir(), *(pinned.iterdir() if pinned.is_dir() else ())]
    cache = cache_of(environ) / "controlplane"
    folder = cache / f"{release}-{digest_of(sources, release)}"
    if not (folder / "controlplane").exists():
        _compile(release, folder, environ=environ, progress=progress)
    return Programs(folder, release, tied=True)


def _given(folder: Path) -> Programs:
    missing = [name for name in NAMES if not (folder / name).exists()]
    if missing:
        raise BuildError(
            f"{ASSETS}={folder}: saw no {', '.join(missing)}, expected {', '.join(NAMES)}; add them, or unset {ASSETS} to compile them all"
        )
    return Programs(folder)


def _compile(release: str, folder: Path, *, environ: Mapping[str, str], progress: Progress) -> None:
    """Compile the programs of ``release`` into ``folder``, which appears only when it is complete."""
    go = find_go(environ, needed=OLDEST_GO, into=folder.parent / "go", say=progress.say)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder.parent) as name:
        work = Path(name)
        shutil.copytree(SOURCES, work, dirs_exist_ok=True)
        pinned = PINNED / release
        if pinned.is_dir():
            shutil.copytree(pinned, work, dirs_exist_ok=True)
        else:
            (work / "go.mod").write_text(go_mod_of(go, release), encoding="utf-8")
        needed = needed_version((work / "go.mod").read_text(encoding="utf-8"))
        go = find_go(environ, needed=needed, into=folder.parent / "go", say=progress.say)
        progress.say(f"Compiling the control plane of Kubernetes {release} with {go.version()}: takes minutes, happens once.")
        done = 0

        def count_package(line: str) -> None:
            nonlocal done
            # Lines about fetched modules begin with "go: ".
            if not line.startswith("go: "):
                done += 1
                progress.compiled(done)

        mode = "-mod=readonly" if pinned.is_dir() else "-mod=mod"
        try:
            go.build(work, work / "controlplane", flags=(mode,), link=_stamp(release), say=count_package)
        except BuildError as error:
            # A module proxy may have only some of the thirty modules of an old release.
            advice = "if some of its modules are not available, use another release with the same first two numbers"
            raise BuildError(f"Kubernetes {release}: cannot be compiled; {advice}.\n{error}") from error
        for program in NAMES:
            (work / program).symlink_to("controlplane")
        _move(work, folder)


def _stamp(release: str) -> str:
    """The version information of the programs, without which kubectl refuses them."""
    package = "k8s.io/component-base/version"
    major, minor, _ = release.split(".")
    values = {"gitVersion": f"v{release}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(f"-X {package}.{name}={value}" for name, value in values.items())


def _move(work: Path, folder: Path) -> None:
    """Put ``work`` in place, unless another process was faster."""
    try:
        work.rename(folder)
    except OSError:
        if not (folder / "controlplane").exists():
            raise
    else:
        work.mkdir()
