"""The source of a release: one commit, its version and its notes; and the conditions that it must meet."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path("src/gpuscaler/__init__.py")
CHART = Path("charts/gpuscaler/Chart.yaml")
CHANGELOG = Path("CHANGELOG.md")


class Refused(Exception):  # noqa: N818 - nothing broke: what is asked for may not be done, or cannot be here
    """The obstacles to a release, in sentences that say what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """A commit: ``folder`` has exactly its files, ``epoch`` is its time in seconds, ``notes`` is Markdown."""

    folder: Path
    version: str
    commit: str
    epoch: int
    notes: str


def git(*words: str, repository: Path) -> str:
    done = subprocess.run(("git", *words), cwd=repository, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"git {words[0]} in {repository} failed: {done.stderr.strip()}; a release is built from a clone of the repository")
    return done.stdout.strip()


def export(repository: Path, folder: Path) -> None:
    """Write the files of the last commit into ``folder``: uncommitted and ignored files are in no release."""
    with subprocess.Popen(("git", "archive", "--format=tar", "HEAD"), cwd=repository, stdout=subprocess.PIPE) as archive:
        done = subprocess.run(("tar", "-x", "-C", str(folder)), stdin=archive.stdout, check=False, umask=0o022)
    if archive.returncode or done.returncode:
        raise Refused(f"the files of the last commit of {repository} could not be exported: git archive or tar failed")


def read(repository: Path, folder: Path, *, wanted: str = "", tag: str = "", draft: bool = False) -> Source:
    """Export the last commit of ``repository`` to ``folder`` and describe it.

    ``wanted`` and ``tag`` are the version and the tag that the caller intends to release; empty: those of the commit. A draft needs no tag,
    no clean tree, and no section of its own in the changelog. Raises :exc:`Refused` with all errors at once.
    """
    export(repository, folder)
    version = find_line(PACKAGE, r'^__version__ = "([^"]+)"$', folder=folder)
    heading = "Unreleased" if draft else re.escape(version)
    notes = section((folder / CHANGELOG).read_text(), heading)
    wrong = list(disagreements(folder, version=version, wanted=wanted))
    if not draft:
        wrong += list(release_obstacles(repository, version=version, tag=tag))
        if not notes:
            wrong.append(f"{CHANGELOG} has no section `## [{version}] - DATE` with text: move the entries of `## [Unreleased]` there")
    if wrong:
        raise Refused("\n".join(wrong))
    return Source(
        folder=folder,
        version=version,
        commit=git("rev-parse", "HEAD", repository=repository),
        epoch=int(git("show", "--no-patch", "--format=%ct", "HEAD", repository=repository)),
        notes=notes,
    )


def find_line(path: Path, pattern: str, *, folder: Path) -> str:
    match = re.search(pattern, (folder / path).read_text(), re.MULTILINE)
    if match is None:
        raise Refused(f"{path} has no line {pattern}")
    return match[1]


def disagreements(folder: Path, *, version: str, wanted: str) -> Iterator[str]:
    if wanted and wanted != version:
        yield f"VERSION={wanted} was requested, but {PACKAGE} says {version}: set it there and in {CHART}, and run `make manifest`"
    for key in ("version", "appVersion"):
        if (chart_version := find_line(CHART, rf'^{key}: "?([^"\n]+)"?$', folder=folder)) != version:
            yield f"{CHART} says {key} {chart_version}, but {PACKAGE} {version}: set it to {version}, and run `make manifest`"


def release_obstacles(repository: Path, *, version: str, tag: str) -> Iterator[str]:
    expected = f"v{version}"
    changed = git("status", "--porcelain", repository=repository).splitlines()
    if changed:
        names = ", ".join(line.split(maxsplit=1)[-1] for line in changed[:5])
        yield f"the working tree has uncommitted changes: {names}{', …' if len(changed) > 5 else ''}; commit or remove them"
    tags = git("tag", "--points-at", "HEAD", repository=repository).split()
    if tag and tag != expected:
        yield f"the tag {tag} was pushed, but version {version} needs {expected}: set the version in {PACKAGE}, or tag the right commit"
    if expected not in tags:
        has = f"has the tags {', '.join(tags)}" if tags else "has no tag"
        yield f"the commit {has}, but version {version} needs {expected}: `git tag --annotate {expected}`, or try with DRAFT=1"


def section(changelog: str, heading: str) -> str:
    """The text below ``## [heading]`` or ``## [heading] - 2026-11-23``, up to the next heading of that level; empty if there is none."""
    match = re.search(rf"^## \[{heading}\](?: - \d{{4}}-\d\d-\d\d)?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return match[1].strip() if match else ""
