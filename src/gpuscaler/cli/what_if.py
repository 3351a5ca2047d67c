"""``gpuscaler what-if``: compares two pools files on the same trace."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gpuscaler.cli.reaching import FILE
from gpuscaler.cli.replaying import SWEPT, PolicyName, ReplayOptions, check_options, read_settings, replay_options, report_unusable_files
from gpuscaler.cli.simulate import POLICIES

if TYPE_CHECKING:
    from rich.console import Console

    from gpuscaler.simulation.results.campaign import Setting
    from gpuscaler.simulation.results.comparing import Difference
    from gpuscaler.simulation.results.report import Inputs
    from gpuscaler.simulation.world.meter import Result

#: Runs of a policy with A and with B, one for each seed.
Pair = tuple["Sequence[Result]", "Sequence[Result]"]

#: Policies that buy machines.
BUYERS = POLICIES[:4]


@click.command("what-if")
@click.option("--pools", "pools_files", multiple=True, required=True, type=FILE, metavar="FILE", help="A pools file; give two: A, then B.")
@click.option("--policy", "policies", multiple=True, type=PolicyName(BUYERS), default=BUYERS[:1], help="Policy to simulate; repeatable.")
@replay_options
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def what_if(*, options: ReplayOptions, pools_files: tuple[str, ...], policies: tuple[str, ...], as_json: bool) -> None:
    """Replay a trace with two pools files, A and B, and explain the difference: cost, machines, waits, pods that run with only one.

    Both replays have the same jobs, delays and failures, seed by seed.
    """
    from gpuscaler.cli.reporting import print_data, write
    from gpuscaler.simulation.results.comparing import difference
    from gpuscaler.simulation.results.explaining import pool_changes
    from gpuscaler.simulation.results.report import inputs_of, printable

    if len(pools_files) != 2:
        raise click.BadParameter(f"saw {len(pools_files)}, expected two files: --pools A --pools B", param_hint="--pools")
    check_options(options, policies)
    with report_unusable_files(options):
        (setting, notes), (other_setting, other_notes) = read_settings(options, pools_files)
        pairs, swept = _run_pairs((setting, other_setting), tuple(dict.fromkeys(policies)), options)
    inputs = inputs_of(setting, pools=pools_files[0], seed=options.seed, seeds=options.seeds, derived=[*_notes(notes, other_notes), *swept])
    comparison = _Comparison(
        inputs=inputs,
        pools=[printable(path) for path in pools_files],
        changes=pool_changes(setting.policy, other_setting.policy),
        differences=[difference(*pair) for pair in pairs],
        runs=pairs,
    )
    if as_json:
        print_data(comparison.document())
    else:
        _print(comparison)
    if options.out is not None:
        write(options.out, comparison.document(), comparison.page())


def _run_pairs(settings: "Sequence[Setting]", names: Sequence[str], options: ReplayOptions) -> tuple[list[Pair], list[str]]:
    """Run every policy with A and with B; return the pairs and notes on the settings found by a sweep."""
    from gpuscaler.simulation.results.campaign import best_setting, run_each
    from gpuscaler.simulation.results.comparing import reduced_for_comparison

    workers = os.cpu_count() or 1
    columns: list[tuple[str, Sequence[str]]] = [(name, (name, name)) for name in names]
    for name in (name for name in names if options.sweep and name in SWEPT):
        best = [best_setting(setting, name, options.seed, workers=workers) for setting in settings]
        if set(best) != {name}:
            columns.append((f"{name} at its best", best))
    runs = [(setting, best[side], seed) for _, best in columns for side, setting in enumerate(settings) for seed in options.all_seeds]
    results = iter(run_each(runs, workers=workers, reduce=reduced_for_comparison))
    pairs = [[[msgspec.structs.replace(next(results), policy=title) for _ in options.all_seeds] for _ in settings] for title, _ in columns]
    sweep_notes = [f"{title}: with A {best[0]}, with B {best[1]}" for title, best in columns[len(names) :]]
    return [(a, b) for a, b in pairs], sweep_notes


def _notes(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """Return the notes on derived values, marked if they apply to one of the files only."""
    return [
        *(note if note in b else f"A: {note}" for note in a),
        *(f"B: {note}" for note in b if note not in a),
    ]


@dataclass(frozen=True)
class _Comparison:
    """The comparison, printable as text, as data and as a page."""

    inputs: "Inputs"
    pools: Sequence[str]
    changes: Sequence[str]
    differences: "Sequence[Difference]"
    runs: Sequence[Pair]

    def document(self) -> dict[str, Any]:
        from gpuscaler.simulation.results.explaining import explain
        from gpuscaler.simulation.results.report import policy_document

        return {
            "inputs": {**msgspec.to_builtins(self.inputs), "pools": list(self.pools)},
            "pool_changes": self.changes,
            "differences": [{**msgspec.to_builtins(difference), "explanation": explain(difference)} for difference in self.differences],
            "a": [policy_document(result) for a, _ in self.runs for result in a],
            "b": [policy_document(result) for _, b in self.runs for result in b],
        }

    def page(self) -> str:
        from gpuscaler.simulation.results.explaining import explain
        from gpuscaler.simulation.results.page import report_page

        named = [
            msgspec.structs.replace(result, policy=f"{side}: {result.policy}")
            for pair in self.runs
            for side, results in zip("AB", pair, strict=True)
            for result in results
        ]
        lead = {"B differs from A:": self.changes or ["no pool differs"]}
        lead |= {f"Under {difference.policy}:": explain(difference) for difference in self.differences}
        a, b = self.pools
        inputs = msgspec.structs.replace(self.inputs, pools=f"A: {a}, and B: {b}")
        return report_page(inputs, named, heading="What if the pools were different:", lead=lead)


def _print(comparison: _Comparison) -> None:
    from gpuscaler.cli.printing import uncut_console
    from gpuscaler.cli.reporting import print_notes, print_trace
    from gpuscaler.simulation.results.explaining import explain

    console = uncut_console()
    inputs = comparison.inputs
    print_trace(console, inputs)
    if inputs.seeds > 1:
        console.print(f"Means of {inputs.seeds} seeds, starting at {inputs.seed}.")
    console.print("A: {}\nB: {}".format(*comparison.pools), markup=False)
    for line in comparison.changes or ["no pool differs"]:
        console.print(f"  {line}", markup=False)
    for difference in comparison.differences:
        console.print(f"\nUnder {difference.policy}:")
        for sentence in explain(difference):
            console.print(f"  {sentence}", markup=False)
        console.print()
        _print_figures(console, difference)
    print_notes(console, inputs)


def _print_figures(console: "Console", difference: "Difference") -> None:
    from rich.table import Table

    from gpuscaler.simulation.results.figures import AT_LEAST, FIGURES, format_figure, single_value

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading in ("A", "B", "B - A"):
        table.add_column(heading, justify="right")
    for figure in FIGURES:
        change = difference.figures[figure.key]
        if figure.always or change.a or change.b:
            bounds = (figure.key in difference.at_least_a, figure.key in difference.at_least_b)
            a, b = (
                format_figure(figure.unit, single_value(value, at_least=at)) for value, at in zip((change.a, change.b), bounds, strict=True)
            )
            table.add_row(figure.title, a, b, _format_change(figure.unit, change.difference))
    console.print(table)
    if difference.at_least_a or difference.at_least_b:
        console.print(AT_LEAST)
    console.print()


def _format_change(unit: str, value: float | None) -> str:
    """Format a difference with its sign; a difference that is displayed as zero has none."""
    from gpuscaler.simulation.results.figures import format_figure, single_value

    text = format_figure(unit, single_value(None if value is None else abs(value)))
    return text if not value or text == format_figure(unit, single_value(0.0)) else f"{'-' if value < 0 else '+'}{text}"
