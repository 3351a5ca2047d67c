"""Azure for `gpuscaler run`: scale sets and agent pools are the pools; this process buys from them and ends their machines."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import Random

from gpuscaler.clouds.azure.api.arm import Arm
from gpuscaler.clouds.azure.api.credentials import ENDPOINT_URL, credentials_from
from gpuscaler.clouds.azure.api.http import Http
from gpuscaler.clouds.azure.discovery.accounts import Account
from gpuscaler.clouds.azure.discovery.discovery import Discovery
from gpuscaler.clouds.azure.prices.source import PriceSource
from gpuscaler.clouds.azure.provider import AzureProvider
from gpuscaler.control.process.endpoints import dry_run_fence, resolve_endpoint
from gpuscaler.control.process.pools import DiscoveredPools
from gpuscaler.control.process.running import ProcessContext, ProviderSetup
from gpuscaler.settings.clouds.azure import AzureSettings
from gpuscaler.settings.run_settings import RunSettings


def make_arm(
    environ: Mapping[str, str],
    *,
    endpoint_url: str,
    fence: Callable[[float], None],
    now: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    random: Random | None = None,
    http: Http | None = None,
) -> tuple[Arm, Http]:
    """The calls of Azure Resource Manager with the credentials that ``environ`` describes, and the connections, which it closes."""
    http, url = http or Http(environ), endpoint_url or ENDPOINT_URL
    credentials = credentials_from(environ, http, now, endpoint_url=url)
    return Arm(credentials, fence=fence, now=now, sleep=sleep, endpoint_url=url, http=http, random=random), http


def accounts_of(settings: AzureSettings) -> tuple[Account, ...]:
    """Where the settings look for pools."""
    return tuple(
        Account(
            subscription=subscription.id,
            cluster=subscription.cluster.name,
            cluster_group=subscription.cluster.resource_group,
            resource_groups=subscription.resource_groups,
            pools=subscription.pools,
            tags=subscription.tags,
            exclude=subscription.exclude,
        )
        for subscription in settings.subscriptions
    )


def make_discovery(
    settings: AzureSettings, arm: Arm, http: Http, *, now: Callable[[], float], endpoint_url: str, folder: Path | None = None
) -> Discovery:
    """The discovery of the pools that the settings select; ``folder`` keeps data that rarely changes across restarts."""
    return Discovery(
        arm,
        accounts_of(settings),
        now=now,
        api=settings.api,
        overrides=settings.overrides,
        prices=PriceSource(http, now=now, own=settings.prices, endpoint_url=endpoint_url, folder=folder),
    )


async def make_azure_provider(
    settings: RunSettings,
    context: ProcessContext,
    *,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
    http: Http | None = None,
) -> ProviderSetup:
    """The provider, once the subscriptions have been read. ``environ`` has the credentials, by default this process's environment.

    ``folder`` keeps data that rarely changes across restarts. Without ``http``, connections are made as ``environ`` says. On a dry run
    nothing is written.
    """
    url = await resolve_endpoint(context.client, "azure.endpoint_url", settings.azure.endpoint_url)
    arm, http = make_arm(
        os.environ if environ is None else environ,
        endpoint_url=url,
        fence=dry_run_fence if context.dry_run else context.client.fence,
        now=context.now,
        random=Random(context.identity),
        http=http,
    )
    discovery = make_discovery(settings.azure, arm, http, now=context.now, endpoint_url=url, folder=folder)
    provider = AzureProvider(arm, discovery, now=context.now)
    discovered_pools = DiscoveredPools(provider.read_account, random=Random(context.identity))
    try:
        await discovered_pools.read_until_known()
    except BaseException:
        await provider.close()
        raise

    def reload(now: RunSettings) -> None:
        discovery.set_overrides(now.azure.overrides)
        discovered_pools.read_soon()

    return ProviderSetup(provider=provider, parts=[discovered_pools.run], reload=reload, discovered_pools=discovered_pools)
