"""``gpuscaler simulate``: computes the cost of a trace of jobs."""

import os
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.reaching import FILE
from gpuscaler.cli.replaying import (
    SWEPT,
    PolicyName,
    ReplayOptions,
    check_options,
    progress_bar,
    read_settings,
    replay_options,
    report_unusable_files,
)

if TYPE_CHECKING:
    from gpuscaler.simulation.results.campaign import Setting
    from gpuscaler.simulation.world.meter import Result

POLICIES = ("gpuscaler", "karpenter", "cluster-autoscaler", "static", "optimal-hindsight")
HINDSIGHT = POLICIES[-1]


@click.command()
@click.option("--pools", "pools_file", required=True, type=FILE, metavar="FILE", help="The pools file.")
@click.option(
    "--policy", "policies", multiple=True, type=PolicyName(POLICIES), default=POLICIES[:1], help="Policy to simulate; repeatable."
)
@replay_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def simulate(*, options: ReplayOptions, pools_file: str, policies: tuple[str, ...], as_json: bool) -> None:
    """Replay a trace of jobs in virtual time through the planner, and print the cost and the waiting times of jobs.

    Machines boot, expose their GPUs after a delay, are billed by the second, can fail, and are removed when idle. Spot machines are
    reclaimed when their market has no capacity. Several policies and seeds run in parallel.
    """
    from gpuscaler.cli.reporting import print_json, print_report, write_report
    from gpuscaler.simulation.results.report import inputs_of

    check_options(options, policies)
    names = tuple(dict.fromkeys(policies))
    with report_unusable_files(options):
        ((setting, derived),) = read_settings(options, [pools_file])
        best = _best_settings(setting, names, options) if options.sweep else ()
        results = _run_simulations(setting, (*names, *best), options.all_seeds)
    derived += _hindsight_notes(setting) if HINDSIGHT in names else ()
    derived += _sweep_notes(names, best) if options.sweep else ()
    inputs = inputs_of(setting, pools=pools_file, seed=options.seed, seeds=options.seeds, derived=derived)
    if as_json:
        print_json(inputs, results)
    else:
        print_report(inputs, results)
    # Last: a full disk must not lose the results.
    if options.out is not None:
        write_report(options.out, inputs, results)


def _best_settings(setting: "Setting", names: tuple[str, ...], options: ReplayOptions) -> tuple[str, ...]:
    from gpuscaler.simulation.results.campaign import best_of_sweeps

    return best_of_sweeps(setting, names, options.seed, workers=os.cpu_count() or 1)


def _hindsight_notes(setting: "Setting") -> list[str]:
    """Return notes on the bound that is listed among the policies."""
    notes = [f"{HINDSIGHT}: not a policy but a loose lower bound: fractions of machines, without boot and idle time"]
    if setting.load is not None:
        notes.append(f"{HINDSIGHT}: without the services of {setting.load.name}, because their replicas depend on the policy")
    return notes


def _sweep_notes(names: tuple[str, ...], best: tuple[str, ...]) -> list[str]:
    """Describe the result of a sweep."""
    tried = "of the settings that a sweep tried on this trace,"
    notes = [f"{name}: {tried} the cheapest" for name in best]
    return notes + [
        f"{name}: {tried} the defaults were the cheapest" for name in SWEPT if name in names and not any(name in chosen for chosen in best)
    ]


def _run_simulations(setting: "Setting", names: tuple[str, ...], seeds: range) -> "list[Result]":
    """Run a single simulation with a progress bar, or several in parallel."""
    from gpuscaler.simulation.results.campaign import run_all, run_one

    if len(names) * len(seeds) > 1:
        return run_all(setting, names, seeds, workers=os.cpu_count() or 1)
    with progress_bar(f"{setting.trace.name}, {names[0]}", sum(job.pods for job in setting.trace.jobs)) as progress:
        return [run_one(setting, names[0], seeds[0], progress)]
