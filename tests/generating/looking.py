"""What `gpuscaler doctor manifests` says about generated files."""

from collections.abc import Iterable

from tests.generating.corpus import generated

from gpuscaler.cli.doctor.manifests import known_machines, problems_of_rules
from gpuscaler.doctor.findings import Report
from gpuscaler.doctor.manifests.reading import read_manifests
from gpuscaler.doctor.manifests.running import lint_manifests

#: The time at which files are looked at: 1 December 2026.
NOW = 1_796_083_200.0


def look_at(name: str, paths: Iterable[str] = ()) -> Report:
    """The report about the files of a description at ``paths``, or about all that are YAML."""
    files = generated(name)
    texts = [(path, files[path].text(explain=True)) for path in paths or files if path.endswith(".yaml")]
    return lint_manifests(read_manifests(texts, now=NOW, machines=known_machines(), read_rules=problems_of_rules))


def complaints(report: Report) -> list[str]:
    """All that a person would have to read; empty if the files are clean and every check could look at them."""
    found = [f"{finding.check} {finding.place or finding.object} {finding.field}: saw {finding.seen}" for finding in report.findings]
    return found + [f"{entry.check} {entry.subject}: {entry.reason}" for entry in report.unchecked]
