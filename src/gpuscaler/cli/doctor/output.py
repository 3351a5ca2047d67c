"""The options of the report that all commands of the doctor have: its form, and the exit status that follows from it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gpuscaler.doctor.checks.checking import Check
    from gpuscaler.doctor.findings import Report

F = TypeVar("F", bound=Callable[..., Any])
#: Exit statuses: something could not be checked, and nothing could be read.
INCOMPLETE, NOTHING_READ = 3, 5

_OPTIONS = (
    click.option(
        "--fail-on",
        type=click.Choice(("critical", "warning", "info")),
        default="warning",
        show_default=True,
        help="The least severity of a finding that ends the command with 1.",
    ),
    click.option("--partial-ok", is_flag=True, help="Exit with 0 instead of 3 if something could not be checked and nothing was found."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    click.option("--sarif", "as_sarif", is_flag=True, help="Print SARIF, which code hosts and editors show."),
)


@dataclass(frozen=True, slots=True)
class Output:
    """How the report is printed, and which findings fail the command."""

    fail_on: str
    partial_ok: bool
    as_json: bool
    as_sarif: bool

    def print(self, report: "Report", checks: "Sequence[Check]", *, read: str = "") -> None:
        """Print the report of ``checks`` on standard output. ``read`` says what was read, for people."""
        from gpuscaler.cli.doctor.printing import print_report, report_json
        from gpuscaler.cli.doctor.sarif import report_sarif

        if self.as_json:
            click.echo(json.dumps(report_json(report), indent=2))
        elif self.as_sarif:
            click.echo(json.dumps(report_sarif(report, checks), indent=2))
        else:
            print_report(report, checks=count_ids(checks), read=read)

    def exit_status(self, report: "Report", *, anything_read: bool, unreachable: bool = False) -> int:
        """The exit status of the command. Findings come before what could not be checked."""
        if report.at_least(self.fail_on):
            return 1
        if not anything_read:
            return INCOMPLETE if unreachable else NOTHING_READ
        return INCOMPLETE if report.unchecked and not self.partial_ok else 0


def count_ids(checks: "Sequence[Check]") -> int:
    """The number of checks as users count them: several functions may look for parts of one mistake."""
    return len({check.id for check in checks})


def output_options(command: F) -> F:
    """The options of the report, as the argument ``output``."""

    @wraps(command)
    def wrapper(*args: Any, fail_on: str, partial_ok: bool, as_json: bool, as_sarif: bool, **more: Any) -> Any:
        if as_json and as_sarif:
            raise click.UsageError("saw --json together with --sarif, expected one of them")
        return command(*args, output=Output(fail_on, partial_ok, as_json, as_sarif), **more)

    decorated: Any = wrapper
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    result: F = decorated
    return result
