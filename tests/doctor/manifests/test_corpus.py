"""Everything in the broken files is found on its line, and mended by the printed patches; the clean files have no critical finding.

The first lines of a broken file say what has to be found: ``# finds: L3 Deployment default/web line 12``, or ``# finds by hand: …`` where
a person has to mend it. A folder of files that belong together says it in its first file. JSON has no comments: its expectations are in a
file of the same name that ends with ``.expected``.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuscaler.cli.doctor.manifests import known_machines, problems_of_rules
from gpuscaler.doctor.findings import CRITICAL, Finding, Report
from gpuscaler.doctor.manifests.reading import read_manifests
from gpuscaler.doctor.manifests.running import lint_manifests

FOLDER = Path(__file__).parent
#: The time at which all files are looked at: 1 December 2026.
NOW = 1_796_083_200.0
_EXPECTATION = re.compile(r"# finds( by hand)?: (\S+) (.+?) line (\d+)(?: of (\S+))?$")


@dataclass(frozen=True)
class Broken:
    """A file or a folder; what has to be found in it as (check, object, line, file), and what of that no patch mends."""

    path: Path
    expected: frozenset[tuple[str, str, int, str]]
    by_hand: frozenset[tuple[str, str, str]]


def _files(path: Path) -> list[Path]:
    return sorted(item for item in path.iterdir() if item.suffix != ".expected") if path.is_dir() else [path]


def _read(path: Path) -> Broken:
    expected, by_hand = set(), set()
    first = _files(path)[0]
    comments = path.with_suffix(".expected") if path.with_suffix(".expected").exists() else first
    for line in comments.read_text().splitlines():
        if match := _EXPECTATION.match(line):
            file = match[5] or first.name
            expected.add((match[2], match[3], int(match[4]), file))
            if match[1]:
                by_hand.add((match[2], match[3], file))
    assert expected, f"{path} says nothing about what has to be found"
    return Broken(path, frozenset(expected), frozenset(by_hand))


def _paths(name: str) -> list[Path]:
    return sorted(path for path in (FOLDER / name).iterdir() if path.suffix != ".expected")


BROKEN = [_read(path) for path in _paths("broken")]


def look_at(paths: list[Path]) -> Report:
    texts = [(path.name, path.read_text()) for path in paths]
    return lint_manifests(read_manifests(texts, now=NOW, machines=known_machines(), read_rules=problems_of_rules))


def _key(finding: Finding) -> tuple[str, str, int, str]:
    file, _, line = finding.place.rpartition(":")
    return finding.check, finding.object, int(line), file


@pytest.mark.parametrize("file", BROKEN, ids=lambda file: file.path.name)
def test_a_broken_file_has_exactly_its_findings(file: Broken) -> None:
    report = look_at(_files(file.path))

    assert {_key(finding) for finding in report.findings} == file.expected
    assert not report.unchecked
    assert all(finding.fix.patch or finding.fix.advice for finding in report.findings)
    assert not [finding for finding in report.findings if finding.fix.commands]


@pytest.mark.parametrize("file", BROKEN, ids=lambda file: file.path.name)
def test_the_patches_mend_all_that_no_person_has_to(file: Broken, tmp_path: Path) -> None:
    copies = [Path(shutil.copy(path, tmp_path)) for path in _files(file.path)]
    # As a user would: apply the patches of all files, and look again.
    for entry in look_at(copies).patches:
        done = subprocess.run(["patch", "-p0", "--fuzz=0"], input=entry.patch, text=True, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{entry.patch}"
        assert "offset" not in done.stdout

    left = {(finding.check, finding.object, finding.place.rpartition(":")[0]) for finding in look_at(copies).findings}
    assert left == file.by_hand


@pytest.mark.parametrize("path", _paths("clean"), ids=lambda path: path.name)
def test_a_clean_file_has_no_critical_finding(path: Path) -> None:
    report = look_at(_files(path))

    assert not [finding for finding in report.findings if finding.severity == CRITICAL]
    allowed = set(re.findall(r"# has: (\S+)", _files(path)[0].read_text()))
    assert {finding.check for finding in report.findings} == allowed
    # Files of other programs are no success.
    assert bool(report.unchecked) == ("# not recognised" in _files(path)[0].read_text())


def test_each_rule_has_a_broken_file() -> None:
    from gpuscaler.doctor.manifests.all_lints import LINTS

    found = {check for file in BROKEN for check, *_ in file.expected}
    assert {lint.id for lint in LINTS} <= found
