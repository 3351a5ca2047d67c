"""The groups of a description as a table: what may be bought, and what a machine of it costs."""

from collections.abc import Iterator, Mapping
from typing import Final

from gpuscaler.generating.description.choosing import listed_price
from gpuscaler.generating.description.resolved import Description, NodeGroup

#: The columns, and whether they are numbers. The price is that of a machine, by market.
HEADINGS: Final[Mapping[str, bool]] = {
    "pool": False,
    "type": False,
    "markets": False,
    "zones": False,
    "groups": True,
    "min machines": True,
    "max machines": True,
    "max GPUs": True,
    "$/h of a machine": True,
}


def rows_of(description: Description) -> Iterator[tuple[str, ...]]:
    """Yield a row for each type of each pool."""
    alike = dict[tuple[str, str], list[NodeGroup]]()
    for group in description.groups:
        alike.setdefault((group.pool, group.instance_type.name), []).append(group)
    for (pool, type_), groups in alike.items():
        prices = {group.market: listed_price(group, description.cluster.region) for group in groups}
        most = sum(group.max for group in groups)
        yield (
            pool,
            type_,
            ", ".join(prices),
            ", ".join(dict.fromkeys(group.zone or "-" for group in groups)),
            str(len(groups)),
            str(sum(group.min for group in groups)),
            str(most),
            str(most * groups[0].gpus),
            ", ".join(f"{price:.2f}" for price in prices.values()),
        )
