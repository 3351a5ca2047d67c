"""``gpuscaler pools``: prints the pools of the cluster found in an account or a file."""

import json
import os
import sys
import time
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import click

from gpuscaler.cli.reaching import FORBIDDEN, UNREACHABLE, access_options

if TYPE_CHECKING:
    from gpuscaler.clouds.aws.discovery.discovery import DiscoveryResult
    from gpuscaler.kube.access import Access
    from gpuscaler.model.nodes import Node
    from gpuscaler.settings import RunSettings
    from gpuscaler.settings.aws_file import AwsSettings

#: Maximum rows of the table of skipped entries; the rest is only counted. ``--json`` has everything.
ROWS = 20


@click.command()
@click.option("--config", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The run file, with cloud: aws.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Folder that caches instance types and list prices; default: ~/.cache/gpuscaler.",
)
@click.option("--compare", is_flag=True, help="Compare with the nodes of the cluster, and use the nodes' values where they differ.")
@access_options
def pools(*, config: Path, as_json: bool, cache: Path | None, compare: bool, kubeconfig: Path | None, context: str) -> None:
    """Print the pools found in the account, their origin, and the groups that were skipped. Nothing is changed.

    Exits with 1 if there is no pool, 3 if a region could not be read, 5 if AWS rejects the credentials or denies access.
    """
    from gpuscaler.serving.cache_folder import cache_of

    settings = _settings(config)
    discovered = _discover(settings, cache or cache_of(os.environ))
    if compare:
        discovered = _compare_with_nodes(discovered, kubeconfig, context)
    if as_json:
        click.echo(json.dumps(as_document(discovered), indent=2))
    else:
        print_discovered(discovered)
    if discovered.failed:
        sys.exit(FORBIDDEN if discovered.forbidden else UNREACHABLE)
    if not discovered.pools:
        if not discovered.set_aside:
            click.echo(_no_groups_message(settings.aws), err=True)
        sys.exit(1)


def _settings(path: Path) -> "RunSettings":
    from gpuscaler.settings import SettingsError, load_settings

    try:
        settings = load_settings(path)
    except SettingsError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    if settings.cloud != "aws":
        seen = f"cloud {settings.cloud}" if settings.cloud else "no cloud"
        click.echo(
            f"{path}: saw {seen}, expected cloud: aws, because this command reads an AWS account; use validate to check a file with pools",
            err=True,
        )
        sys.exit(2)
    return settings


def _no_groups_message(aws: "AwsSettings") -> str:
    """Return the advice for an account in which no group belongs to the cluster."""
    tags = f"k8s.io/cluster-autoscaler/enabled and k8s.io/cluster-autoscaler/{aws.cluster}"
    regions = ", ".join(aws.regions) or "the account"
    return (
        f"{regions}: saw no Auto Scaling group of cluster {aws.cluster}, expected one for each pool; "
        f"tag them {tags}, or name them in aws.groups"
    )


def _discover(settings: "RunSettings", cache: Path) -> "DiscoveryResult":
    from gpuscaler.clouds.aws.api.calls import Calls, MissingPackageError
    from gpuscaler.control.process.aws import make_discovery

    try:
        calls = Calls(sleep=time.sleep, random=SystemRandom(), endpoint_url=settings.aws.endpoint_url)
    except MissingPackageError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    discovery = make_discovery(settings.aws, calls, now=time.time, folder=cache)
    try:
        return discovery.discover()
    finally:
        discovery.close()


def _compare_with_nodes(discovered: "DiscoveryResult", kubeconfig: Path | None, context: str) -> "DiscoveryResult":
    import asyncio

    import msgspec

    from gpuscaler.cli.reaching import report_api_errors, resolve_access
    from gpuscaler.clouds.aws.discovery.comparing import corrected_by_nodes

    access = resolve_access(kubeconfig, context)
    with report_api_errors(access):
        nodes = asyncio.run(_nodes(access))
    return msgspec.structs.replace(discovered, pools=tuple(corrected_by_nodes(aws_pool, nodes) for aws_pool in discovered.pools))


async def _nodes(access: "Access") -> dict[str, "Node"]:
    """Return the cluster's nodes by the EC2 instance id of their machines."""
    from gpuscaler.kube.client import Client
    from gpuscaler.kube.http import HttpTransport
    from gpuscaler.kube.snapshot import snapshot

    async with HttpTransport(access) as transport:
        listed = await snapshot(Client(transport, dry_run=True))
    return {node.provider_id.rpartition("/")[2]: node for node in listed.cluster.nodes.values() if node.provider_id.startswith("aws://")}


def as_document(discovered: "DiscoveryResult") -> dict[str, Any]:
    """Return the JSON document, with the keys of the reference."""
    from gpuscaler.clouds.aws.discovery.describing import pool_as_json

    return {
        "pools": [pool_as_json(aws_pool) for aws_pool in discovered.pools],
        "set_aside": [{"object": skipped.object, "reason": skipped.reason} for skipped in discovered.set_aside],
    }


def print_discovered(discovered: "DiscoveryResult") -> None:
    """Print the pools as tables."""
    from rich.table import Table

    from gpuscaler.cli.printing import format_count, uncut_console
    from gpuscaler.clouds.discovery.describing import pools_by_warning, shortened_names

    console = uncut_console()
    console.print(f"{format_count(len(discovered.pools), 'pool')}, {len(discovered.set_aside)} skipped.\n")
    if discovered.pools:
        table = Table(title="Pools", title_justify="left", box=None, pad_edge=False)
        for heading in ("pool", "region", "found by", "machines", "min", "max", "types", "markets", "zones", "from $/h", "bought by"):
            table.add_column(heading, justify="right" if heading in ("machines", "min", "max", "from $/h") else "left")
        for aws_pool in discovered.pools:
            table.add_row(*_row(aws_pool))
        console.print(table)
        console.print()
    for warning, names in pools_by_warning(discovered.pools).items():
        console.print(f"{shortened_names(names)}: {warning}", markup=False)
    if discovered.set_aside:
        console.print("\nSkipped:")
        for skipped in discovered.set_aside[:ROWS]:
            console.print(f"  {skipped.object}: {skipped.reason}", markup=False)
        if len(discovered.set_aside) > ROWS:
            console.print(f"  and {len(discovered.set_aside) - ROWS} more (--json has all)")


def _row(aws_pool: Any) -> tuple[str, ...]:
    from gpuscaler.model.pools import sold_offerings

    offerings = sold_offerings(aws_pool.pool)
    types = list(dict.fromkeys(offering.instance_type for offering in offerings))
    some_types = ", ".join(types[:3]) + (f" and {len(types) - 3} more" if len(types) > 3 else "")
    return (
        aws_pool.pool.name,
        aws_pool.group.region,
        aws_pool.source,
        str(aws_pool.group.present_count),
        str(aws_pool.pool.min),
        "-" if aws_pool.pool.max is None else str(aws_pool.pool.max),
        some_types,
        ", ".join(dict.fromkeys(offering.market for offering in offerings)),
        ", ".join(dict.fromkeys(offering.zone for offering in offerings)),
        f"{min(offering.price for offering in offerings):.3f}",
        aws_pool.bought_by,
    )
