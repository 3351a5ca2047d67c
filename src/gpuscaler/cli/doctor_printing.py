"""Prints the report of ``gpuscaler doctor``, and writes it as JSON."""

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gpuscaler.doctor.findings import Group, Report

#: Objects of a group that are named; the rest is counted.
_NAMED = 3


def print_report(report: "Report", *, checks: int) -> None:
    """Print findings in groups, then what could not be checked."""
    from gpuscaler.cli.printing import format_count
    from gpuscaler.doctor.findings import SEVERITIES, grouped

    groups = grouped(report.findings)
    for group in groups:
        _print_group(group)
    reasons: dict[str, list[str]] = {}
    for entry in report.unchecked:
        reasons.setdefault(entry.reason, []).append(f"{entry.subject} ({entry.check})")
    for reason, subjects in reasons.items():
        click.echo(f"could not check {', '.join(subjects)} because {reason}")
    counts = [f"{sum(finding.severity == severity for finding in report.findings)} {severity}" for severity in SEVERITIES]
    unchecked = f", {format_count(len({entry.check for entry in report.unchecked}), 'check')} incomplete" if report.unchecked else ""
    silenced = f", {report.silenced} silenced" if report.silenced else ""
    click.echo(f"{format_count(checks, 'check')}: {', '.join(counts)}{silenced}{unchecked}.")


def _print_group(group: "Group") -> None:
    first = group.first
    names = [f"{finding.object} ({finding.place})" if finding.place else finding.object for finding in group.findings[:_NAMED]]
    more = f" and {len(group.findings) - _NAMED} more" if len(group.findings) > _NAMED else ""
    click.echo(f"{first.severity.upper()} {first.check} {', '.join(names)}{more}")
    click.echo(f"  {first.field}: saw {first.seen}, expected {first.expected}")
    click.echo(f"  effect: {first.effect}")
    if first.note:
        click.echo(f"  note: {first.note}")
    for finding in group.findings[:_NAMED]:
        for command in finding.fix.commands:
            click.echo(f"  fix: {command}")
        if finding.fix.patch:
            click.echo(f"  fix: patch -p0 <<'EOF'\n{finding.fix.patch}EOF")
    if more and (first.fix.commands or first.fix.patch):
        click.echo("  fix: the same for the others (--json has all commands and patches)")
    if first.fix.advice:
        click.echo(f"  fix: {first.fix.advice}")
    click.echo(f"  see {first.page}\n")


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
    }
