"""Results of simulations for a person, and as JSON."""

from collections.abc import Sequence

import click
import msgspec
from rich.console import Console
from rich.table import Table

from gpuscaler.cli.printing import uncut_console
from gpuscaler.simulation.meter import Result
from gpuscaler.simulation.report import Inputs, document

#: Rows of one table before the rest is only counted; ``--json`` has everything.
ROWS = 20


def print_json(inputs: Inputs, results: Sequence[Result]) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(document(inputs, results)), indent=2))


def print_report(inputs: Inputs, results: Sequence[Result]) -> None:
    """What was replayed, the policies side by side, and the machines of each."""
    console = uncut_console()
    console.print(f"{inputs.trace}: {inputs.jobs:,} jobs, {inputs.pods:,} pods, submitted over {inputs.days:,.1f} days.")
    if inputs.set_aside:
        first = inputs.set_aside_rows[0]
        rows = "row" if inputs.set_aside == 1 else "rows"
        note = f"Set aside: {inputs.set_aside:,} malformed {rows}, the first in line {first['line']}: {first['reason']}."
        console.print(note, markup=False)
    console.print()
    print_comparison(console, results)
    for result in results:
        print_machines(console, result)
        print_services(console, result)
        print_unserved(console, result)
    console.print("Not read from a file:")
    for note in (*inputs.generated, *inputs.derived):
        console.print(f"  {note}", markup=False)


def print_comparison(console: Console, results: Sequence[Result]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for result in results:
        table.add_column(result.policy, justify="right")
    for title, cells in _rows(results):
        table.add_row(title, *cells)
    console.print(table)
    console.print()


def _rows(results: Sequence[Result]) -> list[tuple[str, list[str]]]:
    return [
        ("cost", [f"${one.cost:,.2f}" for one in results]),
        ("no policy can cost less than", [f"${one.lower_bound:,.2f}" for one in results]),
        ("GPU-hours used", [f"{one.gpu_hours_used:,.1f}" for one in results]),
        ("GPU-hours paid", [f"{one.gpu_hours_paid:,.1f}" for one in results]),
        ("wait, mean", [seconds(one.wait.mean) for one in results]),
        ("wait, median", [seconds(one.wait.p50) for one in results]),
        ("wait, 95 of 100 below", [seconds(one.wait.p95) for one in results]),
        ("wait, 99 of 100 below", [seconds(one.wait.p99) for one in results]),
        ("pods that ran", [f"{one.served:,}" for one in results]),
        ("pods that never ran", [f"{one.unserved:,}" for one in results]),
        ("evictions", [f"{one.evictions:,}" for one in results]),
        ("GPU-hours lost to them", [f"{one.lost_gpu_hours:,.1f}" for one in results]),
    ]


def print_machines(console: Console, result: Result) -> None:
    if not result.machine_hours:
        console.print(f"{result.policy} bought no machine.\n")
        return
    table = Table(title=f"Machines of {result.policy}", title_justify="left", box=None, pad_edge=False)
    for heading in ("pool", "type", "market", "zone"):
        table.add_column(heading)
    for heading in ("machines", "hours", "cost"):
        table.add_column(heading, justify="right")
    for row in result.machine_hours[:ROWS]:
        counts = (f"{row.machines:,}", f"{row.hours:,.1f}", f"${row.cost:,.2f}")
        table.add_row(row.pool, row.instance_type, row.market, row.zone, *counts)
    console.print(table)
    if len(result.machine_hours) > ROWS:
        console.print(f"… and {len(result.machine_hours) - ROWS} more offerings; --json has them all.")
    console.print()


def print_services(console: Console, result: Result) -> None:
    if not result.services:
        return
    table = Table(title=f"Services under {result.policy}", title_justify="left", box=None, pad_edge=False)
    table.add_column("service")
    for heading in ("load served", "replica-hours", "of them ready", "most replicas", "rescaled"):
        table.add_column(heading, justify="right")
    for one in result.services[:ROWS]:
        served = f"{one.served / one.load:.2%}" if one.load else "-"
        table.add_row(
            one.name, served, f"{one.replica_hours:,.1f}", f"{one.ready_hours:,.1f}", f"{one.most_replicas:,}", f"{one.rescales:,}"
        )
    console.print(table)
    if len(result.services) > ROWS:
        console.print(f"… and {len(result.services) - ROWS} more services; --json has them all.")
    console.print()


def print_unserved(console: Console, result: Result) -> None:
    if not result.unserved_reasons:
        return
    console.print(f"Never ran under {result.policy}:")
    for one in result.unserved_reasons[:5]:
        console.print(f"  {one.pods:,} {'pod' if one.pods == 1 else 'pods'}: {one.reason}", markup=False)
    console.print()


def seconds(value: float | None) -> str:
    """A duration a person reads at a glance; a dash where there is none."""
    if value is None:
        return "-"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"
