"""The JSON form of a discovered pool, as ``gpuscaler pools`` prints it."""

from collections.abc import Iterable, Sequence
from typing import Any

from gpuscaler.clouds.aws.discovery.pools import AwsPool
from gpuscaler.model.pools import Offering, sold_offerings

#: How many pool names a warning lists before it only counts the rest.
LISTED_NAMES = 3


def pool_as_json(aws_pool: AwsPool) -> dict[str, Any]:
    """The pool with the keys of the reference. Labels and resources are those that all of its machines have."""
    pool = aws_pool.pool
    offerings = sold_offerings(pool)
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
        "labels": common_labels(offerings),
        "taints": [str(taint) for taint in offerings[0].taints],
        "resources": least_resources(offerings),
        "offerings": [
            {"type": offering.instance_type, "market": offering.market, "zone": offering.zone, "price": offering.price}
            | ({} if offering.count is None else {"count": offering.count})
            for offering in pool.offerings
        ],
        "warnings": list(aws_pool.warnings),
    }


def pools_by_warning(pools: Iterable[AwsPool]) -> dict[str, list[str]]:
    """Pool names by warning: most warnings apply to many pools."""
    names: dict[str, list[str]] = {}
    for aws_pool in pools:
        for warning in aws_pool.warnings:
            names.setdefault(warning, []).append(aws_pool.pool.name)
    return names


def shortened_names(names: Sequence[str]) -> str:
    """The first of ``names``, and the number of the others."""
    return ", ".join(names[:LISTED_NAMES]) + (f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else "")


def common_labels(offerings: Iterable[Offering]) -> dict[str, str]:
    """The labels that all offerings share."""
    first, *others = (dict(offering.labels) for offering in offerings)
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def least_resources(offerings: Iterable[Offering]) -> dict[str, str]:
    """The smallest amount of each resource that any machine offers to pods, as Kubernetes quantities."""
    sizes = [offering.allocatable for offering in offerings]
    names = dict.fromkeys(name for size in sizes for name in size)
    least = {name: min(size.get(name, 0) for size in sizes) for name in names}
    return {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in least.items() if amount}
