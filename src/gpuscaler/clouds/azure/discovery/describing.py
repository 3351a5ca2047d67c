"""The JSON form of a discovered pool, as ``gpuscaler pools`` prints it."""

from typing import Any

from gpuscaler.clouds.azure.discovery.pools import AzurePool
from gpuscaler.clouds.discovery.describing import template_as_json


def pool_as_json(azure_pool: AzurePool, machines: int | None = None) -> dict[str, Any]:
    """The pool with the keys of the reference, those of AWS where they mean the same. ``machines`` is how many there are, if known."""
    pool, resources = azure_pool.pool, azure_pool.resources
    return {
        "name": pool.name,
        "group": resources.own_name,
        "region": azure_pool.location,
        "subscription": azure_pool.subscription,
        "resource_group": azure_pool.resource_group,
        "source": azure_pool.source,
        "launch": azure_pool.way,
        "min": pool.min,
        "max": pool.max,
        "desired": azure_pool.capacity,
        "machines": azure_pool.capacity if machines is None else machines,
        "priority": pool.priority,
        **template_as_json(pool),
        "warnings": list(azure_pool.warnings),
    }
