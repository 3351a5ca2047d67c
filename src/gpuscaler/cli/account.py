"""Reading the pools of an account once, for commands that plan with them. Nothing is changed."""

import os
import sys
import time
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, NamedTuple

import click

from gpuscaler.cli.reaching import FORBIDDEN, UNREACHABLE

if TYPE_CHECKING:
    from gpuscaler.clouds.protocol import AccountReport
    from gpuscaler.model.cluster import Cluster
    from gpuscaler.model.instances import Inventory
    from gpuscaler.model.pools import Policy
    from gpuscaler.settings import RunSettings


class Account(NamedTuple):
    """The policy with the pools found in the account, and the machines of these pools."""

    policy: "Policy"
    inventory: "Inventory"


def read_account(settings: "RunSettings", *, cache: Path) -> Account:
    """Read the account of ``settings``; notes go to standard error. If the account cannot be read, the command exits with 3 or 5."""
    from msgspec.structs import replace

    from gpuscaler.clouds.aws.api.calls import MissingPackageError
    from gpuscaler.clouds.protocol import UNAUTHORISED, CloudError

    try:
        report, inventory = pools_and_machines(settings, cache=cache)
    except MissingPackageError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except CloudError as error:
        click.echo(str(error), err=True)
        sys.exit(FORBIDDEN if error.cause == UNAUTHORISED else UNREACHABLE)
    skipped = [f"{len(report.set_aside)} skipped in the account (gpuscaler pools lists them with reasons)"] if report.set_aside else []
    missing = [] if report.pools else ["saw no pool of the cluster in the account, expected one; run gpuscaler pools for details"]
    for note in (*(part.text for part in report.failed), *missing, *skipped):
        click.echo(f"note: {note}", err=True)
    return Account(replace(settings.policy, pools=report.pools), inventory)


def pools_and_machines(settings: "RunSettings", *, cache: Path) -> "tuple[AccountReport, Inventory]":
    """Read the pools and machines of the account. Raises CloudError, and MissingPackageError without the cloud's package."""
    import asyncio

    return asyncio.run((_read_azure if settings.cloud == "azure" else _read_aws)(settings, cache))


async def _read_aws(settings: "RunSettings", cache: Path) -> "tuple[AccountReport, Inventory]":
    from gpuscaler.clouds.aws.api.calls import Calls
    from gpuscaler.clouds.aws.provider import AwsProvider
    from gpuscaler.control.process.aws import make_discovery
    from gpuscaler.control.process.endpoints import dry_run_fence

    calls = Calls(sleep=time.sleep, random=SystemRandom(), endpoint_url=settings.aws.endpoint_url)
    discovery = make_discovery(settings.aws, calls, now=time.time, folder=cache)
    provider = AwsProvider(calls, discovery, fence=dry_run_fence, now=time.time)
    try:
        return await provider.read_account(), await provider.inventory()
    finally:
        await provider.close()


async def _read_azure(settings: "RunSettings", cache: Path) -> "tuple[AccountReport, Inventory]":
    from gpuscaler.clouds.azure.provider import AzureProvider
    from gpuscaler.control.process.azure import make_arm, make_discovery
    from gpuscaler.control.process.endpoints import dry_run_fence

    url = settings.azure.endpoint_url
    arm, http = make_arm(os.environ, endpoint_url=url, fence=dry_run_fence, now=time.time)
    discovery = make_discovery(settings.azure, arm, http, now=time.time, endpoint_url=url, folder=cache)
    provider = AzureProvider(arm, discovery, now=time.time)
    try:
        return await provider.read_account(), await provider.inventory()
    finally:
        await provider.close()


def with_bought_offerings(cluster: "Cluster", inventory: "Inventory") -> "Cluster":
    """Return the cluster with the offering of each node taken from the account's list of instances."""
    from msgspec.structs import replace

    from gpuscaler.model.cluster import Delta

    bought = {instance.id: instance.key for instance in inventory.instances}
    nodes = (replace(node, bought=bought[node.provider_id]) for node in cluster.nodes.values() if node.provider_id in bought)
    return cluster.apply(Delta(upserts=tuple(nodes)))
