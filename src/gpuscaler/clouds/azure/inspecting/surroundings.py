"""What surrounds pools in a subscription: sizes, quotas, locks, settings of Azure's own autoscaling, identities."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from gpuscaler.clouds.azure.api.arm import SKUS, USAGES, Arm
from gpuscaler.clouds.azure.api.ids import group_path
from gpuscaler.clouds.azure.documents.skus import Sku, skus_of
from gpuscaler.clouds.azure.inspecting.inspection import AUTOSCALE, IDENTITY, LOCK, SKU, USAGE, Inspection, entries_of
from gpuscaler.clouds.azure.inspecting.pools import Places
from gpuscaler.model.azure_names import fold_id

#: Versions of the APIs, as azure-rest-api-specs lists them as stable.
LOCKS, AUTOSCALES, IDENTITIES = "2016-09-01", "2022-10-01", "2023-01-31"
_AT_SCOPE: Final = {"$filter": "atScope()"}


async def read_sizes(arm: Arm, places: Places, inspection: Inspection) -> Mapping[tuple[str, str, str], Sku]:
    """Read the sizes and the quotas of ``places``; returns the known sizes by subscription, location and folded name."""
    found: dict[tuple[str, str, str], Sku] = {}
    read = await asyncio.gather(*(_read_skus(arm, *place, sizes, inspection) for place, sizes in places.items()))
    for place, skus in zip(places, read, strict=True):
        found |= {(*place, name): sku for name, sku in skus.items()}
    await asyncio.gather(*(_read_usages(arm, *place, inspection) for place in places))
    return found


async def _read_skus(arm: Arm, subscription: str, location: str, sizes: Collection[str], inspection: Inspection) -> Mapping[str, Sku]:
    path = f"/subscriptions/{subscription}/providers/Microsoft.Compute/skus"
    parameters = {"$filter": f"location eq '{location}'"}
    documents = await inspection.ask(SKU, f"subscription {subscription}", arm.pages(path, version=SKUS, parameters=parameters))
    if documents is None:
        return {}
    skus, unreadable = skus_of(documents, location, sizes)
    for size in sizes:
        name = fold_id(size)
        if name in unreadable:
            inspection.note(SKU, f"{size}: {unreadable[name]}")
        else:
            inspection.add(SKU, [_sku(skus.get(name))], Size=size, Subscription=subscription, Location=location)
    return skus


def _sku(sku: Sku | None) -> dict[str, Any]:
    """A size with what the subscription may do with it; not ``Known`` if the location does not offer it."""
    if sku is None:
        return {"Known": False}
    return {
        "Known": True,
        "Family": sku.family,
        "VCpus": sku.vcpus,
        "Gpus": sku.gpus,
        "Model": sku.product,
        "Zones": sku.zones,
        "Restricted": sorted(sku.restricted),
        "RestrictedEverywhere": sku.restricted_everywhere,
        "Reason": sku.reason,
        "Spot": sku.spot,
    }


async def _read_usages(arm: Arm, subscription: str, location: str, inspection: Inspection) -> None:
    path = f"/subscriptions/{subscription}/providers/Microsoft.Compute/locations/{location}/usages"
    documents = await inspection.ask(USAGE, f"subscription {subscription}", arm.pages(path, version=USAGES))
    inspection.add(USAGE, entries_of(documents), Subscription=subscription, Location=location)


async def read_locks(arm: Arm, subscription: str, groups: Sequence[str], inspection: Inspection) -> None:
    """Read the locks of the subscription itself, and those in and of the resource groups."""
    whole = f"/subscriptions/{subscription}"
    scopes = [(whole, _AT_SCOPE), *((group_path(subscription, group), {}) for group in groups)]

    async def read(scope: str, parameters: Mapping[str, str]) -> list[Mapping[str, Any]]:
        path = f"{scope}/providers/Microsoft.Authorization/locks"
        return entries_of(await inspection.ask(LOCK, scope, arm.pages(path, version=LOCKS, parameters=parameters)))

    listed = await asyncio.gather(*(read(scope, parameters) for scope, parameters in scopes))
    locks = {fold_id(str(lock.get("id"))): lock for locks in listed for lock in locks}
    inspection.add(LOCK, locks.values(), Subscription=subscription, Groups=list(groups))


async def read_autoscale_settings(arm: Arm, subscription: str, inspection: Inspection) -> None:
    """Read settings of Azure Monitor that change sizes of scale sets: they may be in any resource group."""
    path = f"/subscriptions/{subscription}/providers/Microsoft.Insights/autoscalesettings"
    documents = await inspection.ask(AUTOSCALE, f"subscription {subscription}", arm.pages(path, version=AUTOSCALES))
    inspection.add(AUTOSCALE, entries_of(documents), Subscription=subscription)


async def read_identities(arm: Arm, subscription: str, client_ids: Collection[str], inspection: Inspection) -> None:
    """Read the managed identities with ``client_ids``, and from whom they accept tokens (``Credentials``)."""
    wanted = set(map(fold_id, client_ids))
    path = f"/subscriptions/{subscription}/providers/Microsoft.ManagedIdentity/userAssignedIdentities"
    where = f"subscription {subscription}"
    for identity in entries_of(await inspection.ask(IDENTITY, where, arm.pages(path, version=IDENTITIES))):
        properties, ident = identity.get("properties"), identity.get("id")
        if not isinstance(properties, Mapping) or not isinstance(ident, str) or fold_id(str(properties.get("clientId"))) not in wanted:
            continue
        below = f"{ident}/federatedIdentityCredentials"
        credentials = await inspection.ask(IDENTITY, ident, arm.pages(below, version=IDENTITIES))
        if credentials is not None:
            inspection.add(IDENTITY, [identity], Subscription=subscription, Credentials=entries_of(credentials))
