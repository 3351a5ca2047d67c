"""Reads the Azure subscriptions that a run file names, for ``gpuscaler doctor``."""

import asyncio
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuscaler.cli.doctor.reading import with_documents
from gpuscaler.doctor.checks.trusting import may_help
from gpuscaler.doctor.evidence import ACCOUNT, Evidence

if TYPE_CHECKING:
    from gpuscaler.clouds.azure.api.arm import Arm
    from gpuscaler.settings import RunSettings
    from gpuscaler.settings.clouds.azure import AzureSettings

#: The annotation of a ServiceAccount with the client id of its identity.
_CLIENT_ID = "azure.workload.identity/client-id"


def with_azure_account(evidence: Evidence, settings: "RunSettings") -> Evidence:
    """``evidence`` with what the subscriptions of ``settings`` have, as far as the caller's rights go."""
    from gpuscaler.clouds.protocol import CloudError
    from gpuscaler.control.process.azure import make_arm
    from gpuscaler.control.process.endpoints import dry_run_fence

    async def read() -> Evidence:
        url = settings.azure.endpoint_url
        arm, _ = make_arm(os.environ, endpoint_url=url, fence=dry_run_fence, now=time.time)
        try:
            return await inspected(evidence, settings.azure, arm)
        finally:
            await arm.close()

    try:
        return asyncio.run(read())
    except CloudError as error:
        return replace(evidence, unread={**evidence.unread, ACCOUNT: error.detail})


async def inspected(evidence: Evidence, azure: "AzureSettings", arm: "Arm") -> Evidence:
    """``evidence`` with what ``arm`` answers about the subscriptions of ``azure``."""
    from gpuscaler.clouds.azure.inspecting.account import inspect_account
    from gpuscaler.control.process.azure import accounts_of
    from gpuscaler.model.overrides import EVERY_POOL

    client_ids = {account.annotations.get(_CLIENT_ID, "").strip() for account in evidence.of("ServiceAccount")} - {""}
    machines = (node.provider_id for node in evidence.cluster.nodes.values())
    ours = [account for account in evidence.of("ServiceAccount") if account.labels.get("app.kubernetes.io/name") == "gpuscaler"]
    # A tenant can name its objects like those of gpuscaler.
    ours.sort(key=lambda account: not may_help(evidence, account.namespace))
    own = next((ident for account in ours if (ident := account.annotations.get(_CLIENT_ID, "").strip())), "")
    read = await inspect_account(arm, accounts_of(azure), api=azure.api, machines=machines, client_ids=client_ids, own_client_id=own)
    pools = [
        {"Name": override.name, "Min": override.min, "Max": override.max} for override in azure.overrides if override.name != EVERY_POOL
    ]
    return with_documents(evidence, {**read.documents, "azure/PoolSetting": pools}, read.unread)
