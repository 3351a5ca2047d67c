"""``gpuscaler generate``: a trace to simulate with, for those who have none."""

import io
import sys

import click

PROFILES = ("openb", "philly")


@click.command()
@click.option(
    "--profile", type=click.Choice(PROFILES), default=PROFILES[0], show_default=True, help="The trace whose marginals are drawn from."
)
@click.option("--jobs", default=1500, show_default=True, type=click.IntRange(1, 1_000_000), help="How many jobs.")
@click.option("--days", default=1, show_default=True, type=click.IntRange(1, 3650), help="Over how many days they are submitted.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of everything that is drawn.")
def generate(*, profile: str, jobs: int, days: int, seed: int) -> None:
    """Write a trace of jobs as CSV to standard output, for `gpuscaler simulate --trace`.

    openb: Alibaba's cluster of 2023, in which pods share GPUs. philly: Microsoft's training cluster of 2017, with gangs and long jobs.
    """
    from gpuscaler.simulation.formats.tidy import write
    from gpuscaler.simulation.generator import generate as draw
    from gpuscaler.simulation.marginals import PROFILES as MARGINALS

    text = io.StringIO()
    write(draw(seed=seed, jobs=jobs, profile=MARGINALS[profile], days=days), text, note=f"generated like {profile}, seed {seed}")
    sys.stdout.write(text.getvalue())
    click.echo(f"{jobs:,} jobs; {MARGINALS[profile].source}", err=True)
