"""Parses the repository's Dockerfile, and runs the steps of a stage without a container, in folders below a given root."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.charts.rendering import ROOT

FILE = ROOT / "Dockerfile"
#: Paths that the steps write, besides the folder of the stage.
OUTSIDE = "/opt/"


class Step(NamedTuple):
    """One instruction: ``RUN``, ``COPY``, …, and what follows it."""

    word: str
    rest: str


class Stage(NamedTuple):
    base: str
    name: str
    steps: tuple[Step, ...]

    def of(self, word: str) -> list[str]:
        return [step.rest for step in self.steps if step.word == word]


def stages() -> list[Stage]:
    """Return the stages with their base images; build arguments before the first stage have their defaults."""
    stages: list[Stage] = []
    arguments: dict[str, str] = {}
    for step in instructions(FILE.read_text()):
        if step.word == "FROM":
            base, _, name = step.rest.partition(" AS ")
            stages.append(Stage(re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], base), name, ()))
        elif not stages:
            name, _, value = step.rest.partition("=")
            arguments[name] = value
        else:
            stages[-1] = stages[-1]._replace(steps=(*stages[-1].steps, step))
    return stages


def instructions(text: str) -> Iterator[Step]:
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in lines.replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield Step(word, rest.strip())


def is_sent(path: str) -> bool:
    """Whether .dockerignore, which excludes everything by default, admits a file or folder."""
    patterns = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    return any(Path(path).match(pattern) or pattern.startswith(f"{path}/") for pattern in patterns)


def carry_out(stage: Stage, root: Path, *, arguments: dict[str, str]) -> None:
    """Run the COPY and RUN steps of ``stage`` below ``root``. ``arguments`` are build arguments."""
    folder = root / "source"
    environment = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(root)}
    folder.mkdir()
    for step in stage.steps:
        match step.word:
            case "ARG":
                name, _, default = step.rest.partition("=")
                environment[name] = arguments.get(name, default.strip('"'))
            case "ENV":
                environment |= dict(pair.split("=", 1) for pair in step.rest.split())
            case "COPY":
                *sources, target = step.rest.split()
                for source in sources:
                    copy(ROOT / source, folder / target)
            case "RUN":
                done = subprocess.run(
                    ("bash", "-euc", step.rest.replace(OUTSIDE, f"{root}{OUTSIDE}")),
                    cwd=folder,
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"{step.rest}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def copy(source: Path, target: Path) -> None:
    """Copy like COPY: the content of a folder, or a file into a folder."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    else:
        shutil.copy(source, target)
