"""The tables of ``gpuscaler bench`` that are run on series of spot availability."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.bench import show

if TYPE_CHECKING:
    from gpuscaler.simulation.tables.series import SeriesFile

SPOT = click.option(
    "--spot",
    "path",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Series of spot availability as CSV, gzip or plain.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")


@click.command("cant-be-late")
@SPOT
@JSON
def cant_be_late(*, path: Path, as_json: bool) -> None:
    """Cost of a job of 48 hours that must be done in 60, on spot and on-demand, under several policies."""
    from gpuscaler.simulation.tables.cant_be_late import table

    show(table(_series(path)), as_json=as_json)


def _series(path: Path) -> "SeriesFile":
    from gpuscaler.simulation.tables.series import SeriesError, read_series

    try:
        return read_series(path)
    except SeriesError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
