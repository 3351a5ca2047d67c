"""``gpuscaler simulate``: what a trace of jobs would have cost."""

from typing import TYPE_CHECKING

import click

from gpuscaler.cli.plan import FILE
from gpuscaler.cli.replaying import Asked, prepare, progress_bar, replay_options, settings_of, telling

if TYPE_CHECKING:
    from gpuscaler.simulation.campaign import Setting
    from gpuscaler.simulation.meter import Result

POLICIES = ("gpuscaler", "karpenter", "cluster-autoscaler", "static", "optimal-hindsight")


@click.command()
@click.option("--pools", "pools_file", required=True, type=FILE, metavar="FILE", help="The pools file.")
@click.option(
    "--policy", "policies", multiple=True, type=click.Choice(POLICIES), default=POLICIES[:1], help="Who decides; may be repeated."
)
@replay_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def simulate(*, asked: Asked, pools_file: str, policies: tuple[str, ...], as_json: bool) -> None:
    """Replay a trace of jobs in virtual time through the planner, and print what it cost and how long jobs waited.

    Machines boot, show their GPUs later, cost by the second, fail, and leave when idle; spot machines go when their market runs dry.
    Several policies and seeds run in parallel.
    """
    from gpuscaler.cli.reporting import print_json, print_report, write_report
    from gpuscaler.simulation.report import inputs_of

    prepare(asked, policies)
    with telling(asked):
        ((setting, derived),) = settings_of(asked, [pools_file])
        results = _results(setting, tuple(dict.fromkeys(policies)), asked.all_seeds, sweep=asked.sweep)
    inputs = inputs_of(setting, pools=pools_file, seed=asked.seed, seeds=asked.seeds, derived=derived)
    if asked.out is not None:
        write_report(asked.out, inputs, results)
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
