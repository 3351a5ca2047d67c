"""``gpuscaler what-if``: what would change with another pools file."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gpuscaler.cli.plan import FILE
from gpuscaler.cli.replaying import Asked, replay_options, settings_of, telling
from gpuscaler.cli.simulate import POLICIES

if TYPE_CHECKING:
    from rich.console import Console

    from gpuscaler.simulation.comparing import Difference
    from gpuscaler.simulation.meter import Result
    from gpuscaler.simulation.report import Inputs

#: Policies that buy machines.
BUYERS = POLICIES[:4]


@click.command("what-if")
@click.option("--pools", "pools_files", multiple=True, required=True, type=FILE, metavar="FILE", help="A pools file; give two: A, then B.")
@click.option("--policy", "policies", multiple=True, type=click.Choice(BUYERS), default=BUYERS[:1], help="Who decides; may be repeated.")
@replay_options
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def what_if(*, asked: Asked, pools_files: tuple[str, ...], policies: tuple[str, ...], as_json: bool) -> None:
    """Replay a trace with two pools files, A and B, and explain the difference: cost, machines, waits, and which pods run with one only.

    Both meet the same jobs, delays and failures, seed by seed.
    """
    from gpuscaler.simulation.campaign import run_each
    from gpuscaler.simulation.comparing import difference, with_waits
    from gpuscaler.simulation.explaining import pool_changes
    from gpuscaler.simulation.report import inputs_of, printable

    if len(pools_files) != 2:
        raise click.BadParameter(f"saw {len(pools_files)}, expected two files: --pools A --pools B", param_hint="--pools")
    names = tuple(dict.fromkeys(policies))
    with telling(asked):
        (one, own), (other, others) = settings_of(asked, pools_files)
        runs = [(setting, name, seed) for setting in (one, other) for name in names for seed in asked.all_seeds]
        results = run_each(runs, workers=os.cpu_count() or 1, told=with_waits)
    half = len(results) // 2
    a, b = results[:half], results[half:]
    pairs = [(a[at : at + asked.seeds], b[at : at + asked.seeds]) for at in range(0, half, asked.seeds)]
    differences = [difference(*pair) for pair in pairs]
    inputs = inputs_of(one, pools=pools_files[0], seed=asked.seed, seeds=asked.seeds, derived=_notes(own, others))
    changes = pool_changes(one.policy, other.policy)
    names_of_files = [printable(path) for path in pools_files]
    if as_json:
        _print_json(inputs, names_of_files, changes, differences, (a, b))
    else:
        _print(inputs, names_of_files, changes, differences)


def _notes(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """What is derived, marked where it is so for one of the files only."""
    return [
        *(note if note in b else f"A: {note}" for note in a),
        *(f"B: {note}" for note in b if note not in a),
    ]


def _print_json(
    inputs: "Inputs",
    pools: Sequence[str],
    changes: Sequence[str],
    differences: "Sequence[Difference]",
    results: "tuple[Sequence[Result], Sequence[Result]]",
) -> None:
    import msgspec

    from gpuscaler.simulation.explaining import explained
    from gpuscaler.simulation.report import policy_document

    document: dict[str, Any] = {
        "inputs": {**msgspec.to_builtins(inputs), "pools": list(pools)},
        "pool_changes": changes,
        "differences": [{**msgspec.to_builtins(one), "explanation": explained(one)} for one in differences],
        "a": [policy_document(result) for result in results[0]],
        "b": [policy_document(result) for result in results[1]],
    }
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))


def _print(inputs: "Inputs", pools: Sequence[str], changes: Sequence[str], differences: "Sequence[Difference]") -> None:
    from gpuscaler.cli.printing import uncut_console
    from gpuscaler.cli.reporting import print_notes, print_trace
    from gpuscaler.simulation.explaining import explained

    console = uncut_console()
    print_trace(console, inputs)
    if inputs.seeds > 1:
        console.print(f"Means of {inputs.seeds} seeds, from {inputs.seed} on.")
    console.print(f"A: {pools[0]}\nB: {pools[1]}", markup=False)
    for line in changes or ["no pool differs"]:
        console.print(f"  {line}", markup=False)
    for one in differences:
        console.print(f"\nUnder {one.policy}:")
        for sentence in explained(one):
            console.print(f"  {sentence}", markup=False)
        console.print()
        _print_figures(console, one)
    print_notes(console, inputs)


def _print_figures(console: "Console", one: "Difference") -> None:
    from rich.table import Table

    from gpuscaler.simulation.figures import AT_LEAST, FIGURES, exactly, shown

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading in ("A", "B", "B - A"):
        table.add_column(heading, justify="right")
    for figure in FIGURES:
        change = one.figures[figure.key]
        if figure.always or change.a or change.b:
            bounds = (figure.key in one.at_least_a, figure.key in one.at_least_b)
            a, b = (shown(figure.unit, exactly(value, at_least=at)) for value, at in zip((change.a, change.b), bounds, strict=True))
            table.add_row(figure.title, a, b, _by(figure.unit, change.difference))
    console.print(table)
    if one.at_least_a or one.at_least_b:
        console.print(AT_LEAST)
    console.print()


def _by(unit: str, value: float | None) -> str:
    """A difference with its sign, which one that looks like nothing does not have."""
    from gpuscaler.simulation.figures import exactly, shown

    text = shown(unit, exactly(None if value is None else abs(value)))
    return text if not value or text == shown(unit, exactly(0.0)) else f"{'-' if value < 0 else '+'}{text}"
