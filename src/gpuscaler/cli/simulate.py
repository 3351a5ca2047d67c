"""``gpuscaler simulate``: what a trace of jobs would have cost."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.plan import FILE
from gpuscaler.cli.replaying import Asked, progress_bar, replay_options, settings_of, telling

if TYPE_CHECKING:
    from gpuscaler.simulation.campaign import Setting
    from gpuscaler.simulation.meter import Result

POLICIES = ("gpuscaler", "karpenter", "cluster-autoscaler", "static", "optimal-hindsight")
#: Those that a sweep tries with other settings.
SWEPT = ("karpenter", "cluster-autoscaler")


@click.command()
@click.option("--pools", "pools_file", required=True, type=FILE, metavar="FILE", help="The pools file.")
@click.option(
    "--policy", "policies", multiple=True, type=click.Choice(POLICIES), default=POLICIES[:1], help="Who decides; may be repeated."
)
@replay_options
@click.option("--sweep", is_flag=True, help="Also show each peer at the setting that costs least on this very trace.")
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also write the report there: report.json, and report.html with plots.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def simulate(*, asked: Asked, pools_file: str, policies: tuple[str, ...], sweep: bool, out: Path | None, as_json: bool) -> None:
    """Replay a trace of jobs in virtual time through the planner, and print what it cost and how long jobs waited.

    Machines boot, show their GPUs later, cost by the second, fail, and leave when idle; spot machines go when their market runs dry.
    Several policies and seeds run in parallel.
    """
    from gpuscaler.cli.reporting import print_json, print_report, writable, write_report
    from gpuscaler.simulation.report import inputs_of

    if sweep and not set(SWEPT) & set(policies):
        raise click.BadParameter(f"saw no policy with settings to try, expected {' or '.join(SWEPT)} among --policy", param_hint="--sweep")
    if out is not None:
        writable(out)
    with telling(asked):
        ((setting, derived),) = settings_of(asked, [pools_file])
        results = _results(setting, tuple(dict.fromkeys(policies)), asked.all_seeds, sweep=sweep)
    inputs = inputs_of(setting, pools=pools_file, seed=asked.seed, seeds=asked.seeds, derived=derived)
    if out is not None:
        write_report(out, inputs, results)
    if as_json:
        print_json(inputs, results)
    else:
        print_report(inputs, results)


def _results(setting: "Setting", names: tuple[str, ...], seeds: range, *, sweep: bool) -> "list[Result]":
    """One run where the bar can follow it, several in parallel."""
    import os

    from gpuscaler.simulation.campaign import best_of_sweeps, run_all, run_one

    if sweep:
        names += best_of_sweeps(setting, names, seeds[0], workers=os.cpu_count() or 1)
    if len(names) * len(seeds) > 1:
        return run_all(setting, names, seeds, workers=os.cpu_count() or 1)
    with progress_bar(f"{setting.trace.name}, {names[0]}", sum(job.pods for job in setting.trace.jobs)) as progress:
        return [run_one(setting, names[0], seeds[0], progress)]
