"""What commands do that plan with the pools of an account: read it once, change nothing."""

import sys
import time
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, NamedTuple

import click

from gpuscaler.cli.reaching import FORBIDDEN, UNREACHABLE

if TYPE_CHECKING:
    from gpuscaler.clouds.protocol import Looked
    from gpuscaler.model.cluster import Cluster
    from gpuscaler.model.instances import Inventory
    from gpuscaler.model.pools import Policy
    from gpuscaler.settings import RunSettings


class Account(NamedTuple):
    """The policy with the pools that were found, and the machines that they have."""

    policy: "Policy"
    inventory: "Inventory"


def read_account(settings: "RunSettings", *, cache: Path) -> Account:
    """What the account has for ``settings``; notes go to standard error. Where it cannot be read the command ends with 3 or 5."""
    import asyncio

    from msgspec.structs import replace

    from gpuscaler.clouds.aws.api.calls import Calls, MissingError

    try:
        calls = Calls(sleep=time.sleep, random=SystemRandom(), endpoint_url=settings.aws.endpoint_url)
    except MissingError as error:
        click.echo(str(error), err=True)
        sys.exit(2)

    async def read() -> "tuple[Looked, Inventory]":
        from gpuscaler.clouds.aws.provider import AwsProvider
        from gpuscaler.control.process.aws import discovery_of, withheld

        discovery = discovery_of(settings.aws, calls, now=time.time, folder=cache)
        provider = AwsProvider(calls, discovery, fence=withheld, now=time.time)
        try:
            return await provider.look(), await provider.inventory()
        finally:
            await provider.close()

    from gpuscaler.clouds.protocol import UNAUTHORISED, CloudError

    try:
        looked, inventory = asyncio.run(read())
    except CloudError as error:
        click.echo(str(error), err=True)
        sys.exit(FORBIDDEN if error.cause == UNAUTHORISED else UNREACHABLE)
    aside = [f"{len(looked.set_aside)} set aside in the account (gpuscaler pools says what, and why)"] if looked.set_aside else []
    nothing = [] if looked.pools else ["saw no group of the cluster in the account, expected one; gpuscaler pools looks closer"]
    for note in (*looked.failed, *nothing, *aside):
        click.echo(f"note: {note}", err=True)
    return Account(replace(settings.policy, pools=looked.pools), inventory)


def belonging(cluster: "Cluster", inventory: "Inventory") -> "Cluster":
    """The cluster, whose nodes say what their machines are by the account's own list."""
    from msgspec.structs import replace

    from gpuscaler.model.cluster import Delta

    bought = {one.id: one.key for one in inventory.instances}
    nodes = (replace(node, bought=bought[node.provider_id]) for node in cluster.nodes.values() if node.provider_id in bought)
    return cluster.apply(Delta(upserts=tuple(nodes)))
