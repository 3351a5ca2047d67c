"""AWS for `gpuscaler run`: Auto Scaling groups are the pools; this process buys from them, ends their machines and reads their notices."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from random import Random

from gpuscaler.clouds.aws.api.calls import Calls, MissingPackageError
from gpuscaler.clouds.aws.discovery.discovery import Discovery
from gpuscaler.clouds.aws.discovery.regions import Scope
from gpuscaler.clouds.aws.provider import AwsProvider
from gpuscaler.control.process.endpoints import dry_run_fence, resolve_endpoint
from gpuscaler.control.process.pools import DiscoveredPools
from gpuscaler.control.process.running import ProcessContext, ProviderSetup, UnusableError
from gpuscaler.settings.clouds.aws import AwsSettings
from gpuscaler.settings.run_settings import RunSettings


def make_discovery(settings: AwsSettings, calls: Calls, *, now: Callable[[], float], folder: Path | None = None) -> Discovery:
    """The discovery of groups that the settings select; ``folder`` keeps data that rarely changes across restarts."""
    return Discovery(
        calls,
        Scope(settings.cluster, settings.groups, settings.tags, settings.exclude),
        regions=settings.regions,
        now=now,
        launch=settings.launch,
        overrides=settings.overrides,
        prices=settings.prices,
        folder=folder,
    )


async def make_aws_provider(
    settings: RunSettings,
    context: ProcessContext,
    *,
    folder: Path | None = None,
    calls: Calls | None = None,
    executor: Executor | None = None,
) -> ProviderSetup:
    """The provider, once the account has been read. Raises :class:`UnusableError` if boto3 is not installed.

    ``folder`` keeps data that rarely changes across restarts. Without ``calls`` and ``executor``, the installed boto3 and threads are used.
    On a dry run nothing is written, and the queue is not read: a message that is read is gone for the process that acts.
    """
    aws_settings = settings.aws
    if calls is None:
        calls = await asyncio.to_thread(
            _make_calls, await resolve_endpoint(context.client, "aws.endpoint_url", aws_settings.endpoint_url), context.identity
        )
    discovery = make_discovery(aws_settings, calls, now=context.now, folder=folder)
    provider = AwsProvider(
        calls,
        discovery,
        fence=dry_run_fence if context.dry_run else context.client.fence,
        now=context.now,
        queue_url="" if context.dry_run else aws_settings.queue_url,
        queue_region=next(iter(aws_settings.regions), ""),
        executor=executor,
    )
    discovered_pools = DiscoveredPools(provider.read_account, random=Random(context.identity))
    try:
        await discovered_pools.read_until_known()
    except BaseException:
        await provider.close()
        raise

    def reload(now: RunSettings) -> None:
        discovery.set_overrides(now.aws.overrides)
        discovered_pools.read_soon()

    return ProviderSetup(provider=provider, parts=[discovered_pools.run], reload=reload, discovered_pools=discovered_pools)


def _make_calls(endpoint_url: str, identity: str) -> Calls:
    try:
        return Calls(sleep=time.sleep, random=Random(identity), endpoint_url=endpoint_url)
    except MissingPackageError as error:
        raise UnusableError(str(error)) from error
