"""Prints the report of ``gpuscaler doctor``, and writes it as JSON."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from gpuscaler.doctor.running import number_of

if TYPE_CHECKING:
    from gpuscaler.doctor.findings import FilePatch, Group, Report

#: Objects of a group that are named; the rest is counted.
_NAMED = 3
#: How the first line of a command ends that passes a document to a program.
_DOCUMENT = re.compile(r"<<'\w+'$")


def print_report(report: "Report", *, checks: int, read: str = "") -> None:
    """Print findings in groups, then what could not be checked, what was ``read``, and totals."""
    from gpuscaler.doctor.findings import count_words, grouped
    from gpuscaler.model.quantities import format_count

    groups = grouped(report.findings)
    for group in groups:
        _print_group(group)
    if report.patches:
        _echo("patches, each for all findings of its file:")
        for entry in report.patches:
            _echo_patch(entry)
        _echo("")
    if report.unchecked:
        _echo("not checked, or only in part:")
        for line in _unchecked_lines(report):
            _echo(f"  {line}")
        _echo("  (--json has each check with its reason)")
        _echo("")
    counts = count_words(Counter(finding.severity for finding in report.findings))
    unchecked = f", {len({entry.check for entry in report.unchecked})} incomplete" if report.unchecked else ""
    silenced = f", {report.silenced} silenced" if report.silenced else ""
    # Totals are of findings, of which a group has many.
    shown = (
        f"; each mistake is shown once with its objects: {format_count(len(groups), 'mistake')}"
        if len(groups) < len(report.findings)
        else ""
    )
    if read:
        _echo(f"{read}.")
    _echo(f"{format_count(checks, 'check')}: {counts}{silenced}{unchecked}{shown}.")


def _unchecked_lines(report: "Report") -> Iterator[str]:
    """What could not be checked: a line for each reason, with the checks and the sources or subjects that it concerns."""
    checks: dict[str, set[str]] = {}
    subjects: dict[str, dict[str, None]] = {}
    sources: set[str] = set()
    for entry in report.unchecked:
        for subject, reason in ((source, f" could not be read: {why}") for source, why in entry.unread):
            checks.setdefault(reason, set()).add(entry.check)
            subjects.setdefault(reason, {})[subject] = None
            sources.add(reason)
        if not entry.unread:
            reason = f" could not be checked because {entry.reason}"
            checks.setdefault(reason, set()).add(entry.check)
            subjects.setdefault(reason, {})[entry.subject] = None
    for reason, names in subjects.items():
        shown = sorted(names) if reason in sources else list(names)[:_NAMED]
        more = [f"{len(names) - len(shown)} more"] if len(names) > len(shown) else []
        yield f"{_joined(_ranges(checks[reason]))}: {_joined([*shown, *more])}{reason}"


def _ranges(checks: Iterable[str]) -> list[str]:
    """Ids of checks in their order, those of three and more in a row as one range: D1 to D8."""
    runs: list[list[str]] = []
    for check in sorted(checks, key=number_of):
        letters, number = number_of(check)
        if runs and number_of(runs[-1][-1]) == (letters, number - 1):
            runs[-1].append(check)
        else:
            runs.append([check])
    return [text for run in runs for text in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run)]


def _joined(words: list[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _echo(text: str) -> None:
    """Print one line, of which parts are from files that anyone may have written.

    A terminal would obey their control characters, and a line break would begin a line that looks like one of the report.
    """
    from gpuscaler.cli.printing import escape_controls

    click.echo(escape_controls(text))


def _echo_command(command: str) -> None:
    r"""Print a command. Only those that pass a document to a program have several lines: elsewhere a shell reads them as ``$'\\n'``."""
    first, _, rest = command.partition("\n")
    if not _DOCUMENT.search(first):
        first, rest = command.replace("\n", "'$'\\n''"), ""
    _echo(f"  fix: {first}")
    for line in rest.split("\n") if rest else ():
        _echo(line)


def _echo_patch(entry: "FilePatch") -> None:
    """Print the command that applies a patch, whose lines have no other control characters than tabs and a last carriage return."""
    lines, end = entry.patch.splitlines(), "EOF"
    while end in lines:
        end += "_"
    name = f"./{entry.file}" if entry.file.startswith("-") else entry.file
    _echo(f"  fix: patch -p0 {shlex.quote(name)} <<'{end}'")
    click.echo(entry.patch, nl=False)
    click.echo(end)


def _print_group(group: "Group") -> None:
    first = group.first
    names = [f"{finding.object} ({finding.place})" if finding.place else finding.object for finding in group.findings[:_NAMED]]
    more = f" and {len(group.findings) - _NAMED} more" if len(group.findings) > _NAMED else ""
    _echo(f"{first.severity.upper()} {first.check} {', '.join(names)}{more}")
    _echo(f"  {first.field}: saw {first.seen}, expected {first.expected}")
    _echo(f"  effect: {first.effect}")
    if first.note:
        _echo(f"  note: {first.note}")
    for finding in group.findings[:_NAMED]:
        for command in finding.fix.commands:
            _echo_command(command)
    if more and first.fix.commands:
        _echo("  fix: the same for the others (--json has all commands)")
    for file in dict.fromkeys(finding.file for finding in group.findings if finding.fix.patch):
        _echo(f"  fix: the patch of {file}, below")
    if first.fix.advice:
        _echo(f"  fix: {first.fix.advice}")
    _echo(f"  see {first.page}")
    _echo("")


def report_json(report: "Report") -> dict[str, Any]:
    """The report with the keys of the reference."""
    return {
        "findings": [
            {
                "id": finding.check,
                "severity": finding.severity,
                "object": finding.object,
                "field": finding.field,
                "seen": finding.seen,
                "expected": finding.expected,
                "effect": finding.effect,
                "commands": list(finding.fix.commands),
                "advice": finding.fix.advice,
                "patch": finding.fix.patch,
                "page": finding.page,
                "place": finding.place,
                "note": finding.note,
            }
            for finding in report.findings
        ],
        "unchecked": [{"id": entry.check, "subject": entry.subject, "reason": entry.reason} for entry in report.unchecked],
        "silenced": report.silenced,
        "patches": [{"file": entry.file, "patch": entry.patch} for entry in report.patches],
    }
