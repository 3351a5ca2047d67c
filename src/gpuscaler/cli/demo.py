"""``gpuscaler demo``: a day of GPU work in virtual time, and what it cost."""

import shutil
import time
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from rich.console import Console

    from gpuscaler.simulation.meter import Decision, Result

#: About a day's work for some fifty GPUs: enough to see machines come and go, little enough to be over in seconds.
JOBS = 1500
POOLS = "demo_pools.yaml"
#: The chart's characters where the terminal has no better ones.
ASCII = str.maketrans("█▇▆▅▄▃▂▁░·┤┼─", "#####...:,|+-")
#: Decisions that are shown.
SHOWN = 8


@click.command()
@click.option("--seed", default=1, show_default=True, type=click.IntRange(min=0), help="Seed of the workload and of the machines' delays.")
@click.option(
    "--svg",
    "picture",
    metavar="FILE",
    # Opened before the replay, so that a file that cannot be written is told at once; renamed into place after it.
    type=click.File("w", encoding="utf-8", lazy=False, atomic=True),
    help="Also draw the day as an SVG file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def demo(seed: int, picture: TextIO | None, as_json: bool) -> None:
    """Replay a generated day of GPU work through the planner, in seconds, and show what it bought, gave back and paid.

    Nothing is needed and nothing is changed: machines and time are simulated, prices are list prices.
    """
    from gpuscaler.cli.reporting import print_json
    from gpuscaler.settings import parse_policy
    from gpuscaler.simulation.campaign import Setting, run_one
    from gpuscaler.simulation.generator import generate
    from gpuscaler.simulation.marginals import OPENB
    from gpuscaler.simulation.report import inputs_of
    from gpuscaler.simulation.scheduler import MOST_ALLOCATED
    from gpuscaler.simulation.svg import svg_chart

    policy = parse_policy((resources.files("gpuscaler.simulation") / POOLS).read_text(encoding="utf-8"), POOLS)
    trace = generate(seed=seed, jobs=JOBS)
    began = time.perf_counter()
    setting = Setting(trace=trace, policy=policy, scoring=MOST_ALLOCATED)
    result = run_one(setting, "gpuscaler", seed)
    seconds = time.perf_counter() - began
    if picture is not None:
        picture.write(svg_chart(result))
    inputs = inputs_of(setting, pools=POOLS, seed=seed, generated=[OPENB.source])
    if as_json:
        print_json(inputs, [result])
    else:
        _tell(result, jobs=len(trace.jobs), seed=seed, seconds=seconds)


def _tell(result: "Result", *, jobs: int, seed: int, seconds: float) -> None:
    from gpuscaler.cli.printing import uncut_console
    from gpuscaler.cli.reporting import print_comparison, print_machines

    console = uncut_console()
    console.print(f"A day of GPU work: {jobs:,} jobs, drawn with seed {seed} from the mix of Alibaba's openb trace of 2023.")
    console.print("Machines are simulated; prices are AWS list prices of us-east-1. Every decision is the production planner's;")
    console.print("pods that fit an open node are bound by a model of kube-scheduler that fills nodes (MostAllocated).\n")
    _draw(console, result)
    bought = sum(row.machines for row in result.machine_hours)
    back = sum(decision.kind == "remove" for decision in result.decisions)
    console.print(f"Machines bought: {bought:,}; given back: {back:,}. The planner was asked {result.plans:,} times.\n")
    print_comparison(console, [result])
    print_machines(console, [result])
    console.print("Some of the decisions, and why:")
    for one in _some(result.decisions):
        console.print(f"  {_clock(one.at - result.began)}  {one.kind:6}  {one.what}", markup=False)
        console.print(f"                 {one.why}", markup=False)
    hours = (result.ended - result.began) / 3600
    console.print(f"\n{hours:.1f} hours of virtual time in {seconds:.1f} s. The same on a trace of your own: gpuscaler simulate --help")


def _draw(console: "Console", result: "Result") -> None:
    from gpuscaler.simulation.chart import bins, text_chart

    width = max(24, min(shutil.get_terminal_size((100, 24)).columns - 8, 112))
    hours = (result.ended - result.began) / 3600
    lines = ["GPUs over the day:  █ at work   ░ paid, not at work   · wanted, machine on its way"]
    lines += text_chart(bins(result.timeline, began=result.began, ended=result.ended, count=width), height=12, hours=hours)
    for line in lines:
        console.print(line if console.encoding.startswith("utf") else line.translate(ASCII), markup=False)
    console.print()


def _some(decisions: "Sequence[Decision]") -> "list[Decision]":
    """A few of them in order of time: the first, the purchases for most pods, and some of every part of the day."""
    largest = sorted(decisions, key=lambda one: (-one.pods, one.at))[:2]
    spread = decisions[:: max(1, len(decisions) // (SHOWN - len(largest)))]
    chosen = dict.fromkeys([*largest, *spread])
    return sorted(list(chosen)[:SHOWN], key=lambda one: one.at)


def _clock(seconds: float) -> str:
    return f"{int(seconds // 3600):02d}:{int(seconds % 3600 // 60):02d}"
