"""``gpuscaler generate``: generates a trace for the simulator, or configuration of other systems."""

import io
import json
import re
import sys

import click

PROFILES = ("openb", "philly")
#: Cluster names that EKS and kops allow. Other characters, above all a star, have a special meaning in a policy.
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ARN = re.compile(r"arn:(aws|aws-cn|aws-us-gov):(sqs:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9._-]+|iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]+)")


@click.group(invoke_without_command=True)
@click.option("--profile", type=click.Choice(PROFILES), default=PROFILES[0], show_default=True, help="The trace whose marginals are used.")
@click.option("--jobs", default=1500, show_default=True, type=click.IntRange(1, 1_000_000), help="Number of jobs.")
@click.option("--days", default=1, show_default=True, type=click.IntRange(1, 3650), help="Number of days over which they are submitted.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of all random values.")
@click.pass_context
def generate(ctx: click.Context, *, profile: str, jobs: int, days: int, seed: int) -> None:
    """Write a trace of jobs as CSV to standard output, for `gpuscaler simulate --trace`, or with COMMAND something else.

    Profiles: openb is Alibaba's cluster of 2023, in which pods share GPUs; philly is Microsoft's training cluster of 2017, with gangs and
    long jobs.
    """
    if ctx.invoked_subcommand is not None:
        return
    from gpuscaler.simulation.traces.formats.tidy import write_trace
    from gpuscaler.simulation.traces.generator import generate as draw
    from gpuscaler.simulation.traces.marginals import PROFILES as MARGINALS

    text = io.StringIO()
    write_trace(draw(seed=seed, jobs=jobs, profile=MARGINALS[profile], days=days), text, note=f"generated like {profile}, seed {seed}")
    sys.stdout.write(text.getvalue())
    click.echo(f"{jobs:,} jobs; {MARGINALS[profile].source}", err=True)


@generate.command()
@click.option("--cluster", required=True, metavar="NAME", help="The cluster's name, as in the tags of its groups.")
@click.option("--queue", default="", metavar="ARN", help="The SQS queue of interruption notices.")
@click.option("--node-role", default="", metavar="ARN", help="The role of the nodes, if their launch templates set one.")
@click.option("--read-only", is_flag=True, help="Only the permissions for `gpuscaler pools` and a dry run.")
@click.option(
    "--partition", type=click.Choice(["aws", "aws-cn", "aws-us-gov"]), default="aws", show_default=True, help="The AWS partition."
)
def iam(*, cluster: str, queue: str, node_role: str, read_only: bool, partition: str) -> None:
    """Write the IAM policy that gpuscaler needs for one cluster to standard output."""
    from gpuscaler.clouds.aws.discovery.iam import policy

    if not _CLUSTER.fullmatch(cluster):
        raise click.BadParameter(f"saw {cluster!r}, expected letters, digits, '-', '_' and '.'", param_hint="--cluster")
    for option, text, kind in (("--queue", queue, "sqs"), ("--node-role", node_role, "iam")):
        if text and (not _ARN.fullmatch(text) or text.split(":")[2] != kind):
            example = "arn:aws:sqs:us-east-1:123456789012:notices" if kind == "sqs" else "arn:aws:iam::123456789012:role/nodes"
            raise click.BadParameter(f"saw {text!r}, expected an ARN such as {example}", param_hint=option)
    document = policy(cluster, queue=queue, node_role=node_role, change=not read_only, partition=partition)
    click.echo(json.dumps(document, indent=2))
