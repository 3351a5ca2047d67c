"""The tables of ``gpuscaler bench`` that use series of spot availability."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.bench import show

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuscaler.simulation.papers import Published
    from gpuscaler.simulation.traces.spot import SpotFile

SPOT = click.option(
    "--spot",
    "path",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Series of spot availability as CSV, plain or gzipped.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")


@click.command("cant-be-late")
@SPOT
@JSON
def cant_be_late(*, path: Path, as_json: bool) -> None:
    """Cost of a 48-hour job with a deadline of 60 hours, on spot and on-demand, under several policies."""
    from gpuscaler.simulation.papers.cant_be_late import cant_be_late_table

    _show(cant_be_late_table, path, as_json=as_json)


@click.command("skyserve")
@SPOT
@JSON
def skyserve(*, path: Path, as_json: bool) -> None:
    """Availability and cost of a fleet of replicas on spot in several zones, under several policies."""
    from gpuscaler.simulation.papers.skyserve import skyserve_table

    _show(skyserve_table, path, as_json=as_json)


def _show(table: "Callable[[SpotFile], Published]", path: Path, *, as_json: bool) -> None:
    from gpuscaler.simulation.traces.spot import read_spot
    from gpuscaler.simulation.traces.traces import TraceError

    try:
        file = read_spot(path)
        published = table(file)
    except TraceError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    if file.set_aside:
        first, rows = file.bad_rows[0], "row" if file.set_aside == 1 else "rows"
        click.echo(f"{path}: {file.set_aside} malformed {rows} skipped, the first in line {first.line}: {first.reason}", err=True)
    show(published, as_json=as_json)
