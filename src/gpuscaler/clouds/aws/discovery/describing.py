"""The JSON form of a discovered pool, as ``gpuscaler pools`` prints it."""

from typing import Any

from gpuscaler.clouds.aws.discovery.pools import AwsPool
from gpuscaler.clouds.discovery.describing import template_as_json


def pool_as_json(aws_pool: AwsPool) -> dict[str, Any]:
    """The pool with the keys of the reference. Labels and resources are those that all of its machines have."""
    pool = aws_pool.pool
    return {
        "name": pool.name,
        "group": aws_pool.group.name,
        "region": aws_pool.group.region,
        "source": aws_pool.source,
        "launch": aws_pool.bought_by,
        "min": pool.min,
        "max": pool.max,
        "desired": aws_pool.group.desired,
        "machines": aws_pool.group.present_count,
        "priority": pool.priority,
        **template_as_json(pool),
        "warnings": list(aws_pool.warnings),
    }
