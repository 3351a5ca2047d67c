"""Printing of simulation results, as text and as JSON."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gpuscaler.cli.printing import uncut_console
from gpuscaler.model.quantities import format_count
from gpuscaler.simulation.measures.shares import Share
from gpuscaler.simulation.results.figures import (
    AT_LEAST,
    DOLLARS,
    FIGURES,
    SECONDS,
    by_policy,
    class_wait,
    classes_of,
    format_figure,
    mean_machines,
    mean_shares,
    reported_figures,
    single_value,
    spread,
)
from gpuscaler.simulation.results.report import Inputs, document, has_named_shares
from gpuscaler.simulation.world.meter import Result

#: Maximum rows of a table; the rest is only counted. ``--json`` has everything.
ROWS = 20
#: Maximum number of users or namespaces with a row; the rest is added up.
SHARES = 10
#: Files of a report.
DATA, PAGE = "report.json", "report.html"


def print_json(inputs: Inputs, results: Sequence[Result]) -> None:
    print_data(document(inputs, results))


def print_data(data: Mapping[str, Any]) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2))


def create_report_folder(folder: Path) -> None:
    """Create the folder for a report before the runs, so that no run is wasted if the folder cannot be created."""
    with _report_unwritable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def write_report(folder: Path, inputs: Inputs, results: Sequence[Result]) -> None:
    """Write the report as data and as a page."""
    from gpuscaler.simulation.results.page import report_page

    write(folder, document(inputs, results), report_page(inputs, results))


def write(folder: Path, data: Mapping[str, Any], page: str) -> None:
    """Write a report's data and its page into an existing folder."""
    with _report_unwritable(folder):
        (folder / DATA).write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n")
        (folder / PAGE).write_text(page, encoding="utf-8")
    click.echo(f"Report: {click.format_filename(folder / PAGE)}", err=True)


@contextmanager
def _report_unwritable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{error.filename or folder}: {error.strerror or error}; expected a writable folder"
        raise click.BadParameter(message, param_hint="--out") from error


def print_report(inputs: Inputs, results: Sequence[Result]) -> None:
    """Print the replayed trace, the policies side by side, and the machines of each."""
    console = uncut_console()
    print_trace(console, inputs)
    if inputs.seeds > 1:
        console.print(f"Mean ± standard deviation of {inputs.seeds} seeds, starting at {inputs.seed}.")
    console.print()
    print_comparison(console, results)
    print_classes(console, results)
    print_shares(console, "namespace", [(name, [result.namespaces for result in runs]) for name, runs in by_policy(results).items()])
    print_shares(console, "user", [(name, [result.users for result in runs]) for name, runs in by_policy(results).items()])
    for runs in by_policy(results).values():
        print_machines(console, runs)
        print_services(console, runs[0])
        print_unserved(console, runs[0])
    print_notes(console, inputs)


def print_trace(console: Console, inputs: Inputs) -> None:
    """Print a summary of the replayed trace."""
    console.print(
        f"{inputs.trace}: {format_count(inputs.jobs, 'job')}, {format_count(inputs.pods, 'pod')}, submitted over {inputs.days:,.1f} days.",
        markup=False,
    )
    if inputs.set_aside:
        first = inputs.set_aside_rows[0]
        rows = "row" if inputs.set_aside == 1 else "rows"
        note = f"Skipped: {inputs.set_aside:,} malformed {rows}, the first in line {first['line']}: {first['reason']}."
        console.print(note, markup=False)


def print_notes(console: Console, inputs: Inputs) -> None:
    """Print the inputs that did not come from a file."""
    console.print("Not read from a file:")
    for note in (*inputs.generated, *inputs.derived):
        console.print(f"  {note}", markup=False)


def print_comparison(console: Console, results: Sequence[Result]) -> None:
    policies = by_policy(results)
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in policies:
        table.add_column(name, justify="right")
    for figure in reported_figures(FIGURES, results):
        table.add_row(figure.title, *(format_figure(figure.unit, spread(figure, runs)) for runs in policies.values()))
    console.print(table)
    if any(result.wait.at_least for result in results):
        console.print(AT_LEAST)
    console.print()


def print_classes(console: Console, results: Sequence[Result]) -> None:
    """Print waiting times by size of pods; nothing if all pods are of one size."""
    names = classes_of(results)
    if len(names) < 2:
        return
    policies = {name: runs for name, runs in by_policy(results).items() if any(run.wait_by_class for run in runs)}
    table = Table(title="Waiting time by size of pod: median, p95", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    table.add_column("pods", justify="right")
    for name in policies:
        table.add_column(name, justify="right")
    for name in names:
        pods = max(class_wait.pods for result in results for class_wait in result.wait_by_class if class_wait.pod_class == name)
        waits = [[format_figure(SECONDS, class_wait(name, field, runs)) for field in ("p50", "p95")] for runs in policies.values()]
        table.add_row(name, f"{pods:,}", *(", ".join(pair) for pair in waits))
    console.print(table)
    console.print()


def print_shares(console: Console, kind: str, policies: Sequence[tuple[str, Sequence[Sequence[Share]]]]) -> None:
    """Print the cost by user or namespace under every policy, highest first; nothing if the trace has none."""
    shares_by_policy = [(name, mean_shares(runs)) for name, runs in policies if any(has_named_shares(shares) for shares in runs)]
    if not shares_by_policy:
        return
    table = Table(title=f"Cost by {kind}", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for name, _ in shares_by_policy:
        table.add_column(name, justify="right")
    names = list(dict.fromkeys(share.name for _, shares in shares_by_policy for share in shares.values() if share.name is not None))
    for owner in names[:SHARES]:
        table.add_row(escape(owner or "(unknown)"), *(_format_cost(shares, [owner]) for _, shares in shares_by_policy))
    if names[SHARES:]:
        table.add_row(f"{len(names) - SHARES} more", *(_format_cost(shares, names[SHARES:]) for _, shares in shares_by_policy))
    table.add_row("unattributed: boot and idle time", *(_format_cost(shares, [None]) for _, shares in shares_by_policy))
    console.print(table)
    console.print()


def _format_cost(shares: Mapping[str | None, Share], names: Sequence[str | None]) -> str:
    return format_figure(DOLLARS, single_value(sum(shares[name].cost for name in names if name in shares)))


def print_machines(console: Console, runs: Sequence[Result]) -> None:
    """Print the machines of a policy by offering, averaged over seeds."""
    policy, rows = runs[0].policy, mean_machines(runs)
    if not rows:
        if runs[0].wait_by_class:
            console.print(f"{policy} bought no machine.\n")
        return
    title = f"Machines of {policy}" + (", on average" if len(runs) > 1 else "")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("pool", "type", "market", "zone"):
        table.add_column(heading)
    for heading in ("machines", "hours", "cost"):
        table.add_column(heading, justify="right")
    for row in rows[:ROWS]:
        counts = (f"{row.machines:,}", f"{row.hours:,.1f}", f"${row.cost:,.2f}")
        table.add_row(row.pool, row.instance_type, row.market, row.zone, *counts)
    console.print(table)
    if len(rows) > ROWS:
        console.print(f"… and {len(rows) - ROWS} more offerings; --json prints all.")
    console.print()


def print_services(console: Console, result: Result) -> None:
    if not result.services:
        return
    table = Table(title=f"Services under {result.policy}", title_justify="left", box=None, pad_edge=False)
    table.add_column("service")
    for heading in ("load served", "replica-hours", "ready hours", "max replicas", "rescales"):
        table.add_column(heading, justify="right")
    for service_result in result.services[:ROWS]:
        served = f"{service_result.served / service_result.load:.2%}" if service_result.load else "-"
        table.add_row(
            service_result.name,
            served,
            f"{service_result.replica_hours:,.1f}",
            f"{service_result.ready_hours:,.1f}",
            f"{service_result.most_replicas:,}",
            f"{service_result.rescales:,}",
        )
    console.print(table)
    if len(result.services) > ROWS:
        console.print(f"… and {len(result.services) - ROWS} more services; --json prints all.")
    console.print()


def print_unserved(console: Console, result: Result) -> None:
    if not result.unserved_reasons:
        return
    console.print(f"Never ran under {result.policy}:")
    for reason in result.unserved_reasons[:5]:
        console.print(f"  {reason.pods:,} {'pod' if reason.pods == 1 else 'pods'}: {reason.reason}", markup=False)
    console.print()
