"""``gpuscaler pools``: prints the pools of the cluster found in an account or a file."""

import json
import math
import os
import sys
import time
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gpuscaler.cli.reaching import FORBIDDEN, UNREACHABLE, access_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuscaler.clouds.azure.discovery.discovery import DiscoveryResult
    from gpuscaler.model.aside import Skipped
    from gpuscaler.model.nodes import Node
    from gpuscaler.settings import RunSettings

#: Maximum rows of the table of skipped entries; the rest is only counted. ``--json`` has everything.
ROWS = 20


class FoundPools(NamedTuple):
    """What was found in an account: its pools with the keys of the reference, what was skipped, and whether a part was not readable."""

    pools: "list[dict[str, Any]]"
    set_aside: "tuple[Skipped, ...]"
    failed: bool
    forbidden: bool

    def as_document(self) -> "dict[str, Any]":
        """Return the JSON document, with the keys of the reference."""
        return {
            "pools": self.pools,
            "set_aside": [{"object": skipped.object, "reason": skipped.reason} for skipped in self.set_aside],
        }

    def names_by_warning(self) -> "dict[str, list[str]]":
        """Return the names of pools by warning: most warnings apply to many pools."""
        names: dict[str, list[str]] = {}
        for pool in self.pools:
            for warning in pool["warnings"]:
                names.setdefault(warning, []).append(pool["name"])
        return names


@click.command()
@click.option("--config", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The run file, with cloud: aws or azure.")
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

    Exits with 1 if there is no pool, 3 if a part could not be read, 5 if the cloud rejects the credentials or denies access.
    """
    from gpuscaler.serving.cache_folder import cache_of

    settings = _settings(config)
    found = _discover(settings, cache or cache_of(os.environ), live_nodes(kubeconfig, context) if compare else None)
    if as_json:
        click.echo(json.dumps(found.as_document(), indent=2))
    else:
        print_found(found)
    if found.failed:
        sys.exit(FORBIDDEN if found.forbidden else UNREACHABLE)
    if not found.pools:
        if not found.set_aside:
            click.echo(_no_groups_message(settings), err=True)
        sys.exit(1)


def _settings(path: Path) -> "RunSettings":
    from gpuscaler.settings import SettingsError, load_settings

    try:
        settings = load_settings(path)
    except SettingsError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    if not settings.has_account_pools:
        seen = f"cloud {settings.cloud}" if settings.cloud else "no cloud"
        click.echo(
            f"{path}: saw {seen}, expected cloud: aws or cloud: azure, because this command reads an account; "
            "use validate to check a file with pools",
            err=True,
        )
        sys.exit(2)
    return settings


def _no_groups_message(settings: "RunSettings") -> str:
    """Return the advice for an account in which no group belongs to the cluster."""
    if settings.cloud == "azure":
        clusters = ", ".join(subscription.cluster.name for subscription in settings.azure.subscriptions if subscription.cluster.name)
        return (
            f"{clusters or 'the resource groups'}: saw no agent pool with accelerators and no scale set of the cluster, expected one for "
            "each pool; name agent pools without accelerators in azure.subscriptions[].pools"
        )
    tags = f"k8s.io/cluster-autoscaler/enabled and k8s.io/cluster-autoscaler/{settings.aws.cluster}"
    regions = ", ".join(settings.aws.regions) or "the account"
    return (
        f"{regions}: saw no Auto Scaling group of cluster {settings.aws.cluster}, expected one for each pool; "
        f"tag them {tags}, or name them in aws.groups"
    )


def _discover(settings: "RunSettings", cache: Path, nodes: "Sequence[Node] | None") -> FoundPools:
    """Return what is found in the account; with ``nodes``, pools have the nodes' values where they differ."""
    return (_discover_in_azure if settings.cloud == "azure" else _discover_in_aws)(settings, cache, nodes)


def _discover_in_aws(settings: "RunSettings", cache: Path, nodes: "Sequence[Node] | None") -> FoundPools:
    from gpuscaler.clouds.aws.api.calls import Calls, MissingPackageError
    from gpuscaler.clouds.aws.discovery.comparing import corrected_by_nodes
    from gpuscaler.clouds.aws.discovery.describing import pool_as_json
    from gpuscaler.control.process.aws import make_discovery

    try:
        calls = Calls(sleep=time.sleep, random=SystemRandom(), endpoint_url=settings.aws.endpoint_url)
    except MissingPackageError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    discovery = make_discovery(settings.aws, calls, now=time.time, folder=cache)
    try:
        discovered = discovery.discover()
    finally:
        discovery.close()
    pools = discovered.pools
    if nodes is not None:
        by_id = {node.provider_id.rpartition("/")[2]: node for node in nodes if node.provider_id.startswith("aws://")}
        pools = tuple(corrected_by_nodes(aws_pool, by_id) for aws_pool in pools)
    return FoundPools([pool_as_json(aws_pool) for aws_pool in pools], discovered.set_aside, bool(discovered.failed), discovered.forbidden)


def _discover_in_azure(settings: "RunSettings", cache: Path, nodes: "Sequence[Node] | None") -> FoundPools:
    import asyncio

    from gpuscaler.clouds.azure.discovery.comparing import corrected_by_nodes
    from gpuscaler.clouds.azure.discovery.describing import pool_as_json
    from gpuscaler.control.process.azure import make_arm, make_discovery
    from gpuscaler.control.process.endpoints import dry_run_fence

    async def discover() -> "DiscoveryResult":
        url = settings.azure.endpoint_url
        arm, http = make_arm(os.environ, endpoint_url=url, fence=dry_run_fence, now=time.time)
        try:
            return await make_discovery(settings.azure, arm, http, now=time.time, endpoint_url=url, folder=cache).discover()
        finally:
            await arm.close()

    discovered = asyncio.run(discover())
    pools = discovered.pools
    if nodes is not None:
        pools = tuple(corrected_by_nodes(azure_pool, nodes) for azure_pool in pools)
    return FoundPools(
        [pool_as_json(azure_pool) for azure_pool in pools], discovered.set_aside, bool(discovered.failed), discovered.forbidden
    )


def live_nodes(kubeconfig: Path | None, context: str) -> "Sequence[Node]":
    """Return the nodes of the cluster."""
    import asyncio

    from gpuscaler.cli.reaching import report_api_errors, resolve_access
    from gpuscaler.kube.client import Client
    from gpuscaler.kube.http import HttpTransport
    from gpuscaler.kube.snapshot import snapshot

    access = resolve_access(kubeconfig, context)

    async def read() -> "Sequence[Node]":
        async with HttpTransport(access) as transport:
            return tuple((await snapshot(Client(transport, dry_run=True))).cluster.nodes.values())

    with report_api_errors(access):
        return asyncio.run(read())


def print_found(found: FoundPools) -> None:
    """Print the pools as tables."""
    from rich.table import Table

    from gpuscaler.cli.printing import uncut_console
    from gpuscaler.clouds.discovery.describing import shortened_names
    from gpuscaler.model.quantities import format_count

    console = uncut_console()
    console.print(f"{format_count(len(found.pools), 'pool')}, {len(found.set_aside)} skipped.\n")
    if found.pools:
        table = Table(title="Pools", title_justify="left", box=None, pad_edge=False)
        for heading in ("pool", "region", "found by", "machines", "min", "max", "types", "markets", "from $/h", "zones", "bought by"):
            table.add_column(heading, justify="right" if heading in ("machines", "min", "max", "from $/h") else "left")
        for pool in found.pools:
            table.add_row(*_row(pool))
        console.print(table)
        console.print()
    for warning, names in found.names_by_warning().items():
        console.print(f"{shortened_names(names)}: {warning}", markup=False)
    if found.set_aside:
        console.print("\nSkipped:")
        for skipped in found.set_aside[:ROWS]:
            console.print(f"  {skipped.object}: {skipped.reason}", markup=False)
        if len(found.set_aside) > ROWS:
            console.print(f"  and {len(found.set_aside) - ROWS} more (--json has all)")


def _row(pool: "dict[str, Any]") -> tuple[str, ...]:
    # Offerings that are no longer sold are left out, unless there are no others.
    offerings = [offering for offering in pool["offerings"] if offering.get("count") != 0 or offering["market"] == "reserved"]
    offerings = offerings or pool["offerings"]
    types = list(dict.fromkeys(offering["type"] for offering in offerings))
    some_types = ", ".join(types[:3]) + (f" and {len(types) - 3} more" if len(types) > 3 else "")
    least: dict[str, float] = {}
    for offering in offerings:
        least[offering["market"]] = min(offering["price"], least.get(offering["market"], math.inf))
    return (
        pool["name"],
        pool["region"],
        pool["source"],
        str(pool["machines"]),
        str(pool["min"]),
        "-" if pool["max"] is None else str(pool["max"]),
        some_types,
        ", ".join(least),
        ", ".join(f"{price:.3f}" for price in least.values()),
        ", ".join(dict.fromkeys(offering["zone"] for offering in offerings)),
        pool["launch"],
    )
