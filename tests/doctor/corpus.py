"""The corpus: files of broken and clean clusters, as kubectl prints them.

The first lines of a broken file say what has to be found, one object in each: ``# finds: D34 PodDisruptionBudget default/web``. A finding
that a person has to mend, because no command can, is marked: ``# finds by hand: D42 APIService v1beta1.custom.metrics.k8s.io``.

A clean file is what tools make by default. It has no critical finding, and says in the same way which others are right about it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.findings import Report
from gpuscaler.doctor.running import run_checks

FOLDER = Path(__file__).parent
#: The time at which all files are looked at: 1 December 2026.
NOW = 1_796_083_200.0


@dataclass(frozen=True)
class CorpusFile:
    """A file, the findings that it has to have (check and object), and those of them that no command mends."""

    path: Path
    expected: frozenset[tuple[str, str]]
    by_hand: frozenset[tuple[str, str]]


def broken_files() -> list[CorpusFile]:
    files = [_read(path) for path in sorted((FOLDER / "broken").glob("*.yaml"))]
    silent = [file.path for file in files if not file.expected]
    assert not silent, f"{silent} say nothing about what has to be found"
    return files


def clean_files() -> list[CorpusFile]:
    """The files, each with the findings that are right about it."""
    return [_read(path) for path in sorted((FOLDER / "clean").glob("*.yaml"))]


def _read(path: Path) -> CorpusFile:
    expected, by_hand = set(), set()
    for line in path.read_text().splitlines():
        for marker in ("# finds: ", "# finds by hand: "):
            if line.startswith(marker):
                check, _, name = line.removeprefix(marker).partition(" ")
                expected.add((check, name))
                if "by hand" in marker:
                    by_hand.add((check, name))
    return CorpusFile(path, frozenset(expected), frozenset(by_hand))


def objects_of(path: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.load_all(path.read_bytes(), Loader=yaml.CSafeLoader) if item]


def look_at(objects: list[dict[str, Any]]) -> Report:
    """What all checks find in a cluster of exactly ``objects``."""
    return run_checks(evidence_of_objects(objects, now=NOW), CHECKS)
