"""The table of ``gpuscaler bench`` for a cluster filled with pods that share GPUs."""

import sys
from pathlib import Path

import click

from gpuscaler.cli.bench import show

POLICIES = ("Random", "DotProd", "Clustering", "Packing", "BestFit", "FGD", "gpuscaler")
SEEDS = 10


@click.command("fgd")
@click.option("--trace", "trace_file", required=True, metavar="FILE", type=click.Path(path_type=Path), help="The pods, as a trace of jobs.")
@click.option(
    "--nodes", "nodes_file", required=True, metavar="FILE", type=click.Path(path_type=Path), help="Nodes as CSV, plain or gzipped."
)
@click.option("--cluster", default="alibaba-openb-v2023", show_default=True, help="Cluster to take from the file of nodes.")
@click.option("--policy", "policies", multiple=True, type=click.Choice(POLICIES), default=POLICIES, help="Scheduler; repeatable.")
@click.option("--seeds", default=SEEDS, show_default=True, type=click.IntRange(1, 1000), help="Number of runs, starting at seed 42.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def fgd(*, trace_file: Path, nodes_file: Path, cluster: str, policies: tuple[str, ...], seeds: int, as_json: bool) -> None:
    """Unallocated GPUs per scheduler, after pods that request all GPUs of a cluster were placed one by one.

    All seven schedulers take about a minute and a half for ten seeds.
    """
    from gpuscaler.simulation.papers.fgd.table import fgd_table
    from gpuscaler.simulation.papers.fgd.workload import read_nodes, workload_of_trace
    from gpuscaler.simulation.traces.traces import TraceError, read_trace

    try:
        trace = read_trace(trace_file)
        published = fgd_table(
            read_nodes(nodes_file, cluster), workload_of_trace(trace), policies=tuple(dict.fromkeys(policies)), seeds=seeds
        )
    except TraceError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    if trace.set_aside:
        first = trace.bad_rows[0]
        click.echo(f"{trace_file}: {trace.set_aside} malformed rows skipped, the first in line {first.line}: {first.reason}", err=True)
    show(published, as_json=as_json)
