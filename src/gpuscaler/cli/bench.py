"""``gpuscaler bench NAME``: reproduces published tables."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpuscaler.simulation.papers import Published

#: Tables by name: the module and the name of the command that makes each, and its line in the overview.
TABLES: Mapping[str, tuple[str, str, str]] = {
    "cant-be-late": ("gpuscaler.cli.spot_tables", "cant_be_late", "Jobs with a deadline on spot and on-demand (NSDI 2024)."),
    "skyserve": ("gpuscaler.cli.spot_tables", "skyserve", "A fleet of replicas on spot in several zones (EuroSys 2025)."),
    "fgd": ("gpuscaler.cli.fgd_table", "fgd", "GPUs that schedulers leave unallocated when pods share them (ATC 2023)."),
}


class Tables(click.Group):
    """Command group that imports a table only when it is requested."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return sorted(TABLES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        if name not in TABLES:
            return None
        module, attribute, _ = TABLES[name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        with formatter.section("Tables"):
            formatter.write_dl([(name, TABLES[name][2]) for name in sorted(TABLES)])


@click.group(cls=Tables, subcommand_metavar="NAME [OPTIONS]")
def bench() -> None:
    """Reproduce a published table: the published value, our value, the difference, and the inputs that could not be matched."""


def show(table: "Published", *, as_json: bool) -> None:
    """Print a table as text or as JSON."""
    import msgspec
    from rich.table import Table

    from gpuscaler.cli.printing import uncut_console

    if as_json:
        document = msgspec.to_builtins(table)
        for row, result in zip(document["rows"], table.rows, strict=True):
            row["difference"] = result.difference
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))
        return
    console = uncut_console()
    console.print(f"{table.title}, {table.unit}. Published: {table.source}.", markup=False)
    for note in table.inputs:
        console.print(note, markup=False)
    console.print()
    grid = Table(box=None, pad_edge=False)
    figures = list(dict.fromkeys(heading for row in table.rows for heading in row.figures))
    grid.add_column("policy")
    for heading in ("published", "ours", "difference", *figures):
        grid.add_column(heading, justify="right")
    for row in table.rows:
        extra_cells = [_number(row.figures.get(heading)) for heading in figures]
        grid.add_row(row.policy, _number(row.published), _number(row.ours), _number(row.difference, "+"), *extra_cells)
    console.print(grid)
    if table.unmatched:
        console.print("\nNot matched:")
    for note in table.unmatched:
        console.print(f"  {note}", markup=False)


def _number(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign},.2f}"
