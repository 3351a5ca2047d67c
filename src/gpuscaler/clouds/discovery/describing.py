"""Parts of the description of discovered pools that are the same in all clouds: common labels, least resources, pools by warning."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from gpuscaler.clouds.protocol import UnreadPart
from gpuscaler.model.aside import Skipped
from gpuscaler.model.pools import Offering, Pool, sold_offerings

#: How many pool names a warning lists before it only counts the rest.
LISTED_NAMES = 3


class DiscoveredPool(Protocol):
    """A pool and how it was found, as each cloud describes it; ``warnings`` are one sentence each.

    ``default_name`` is the name that the pool has unless a tag gives another one: that of its group, as a label value. ``tagged`` are the
    fields of the pool that tags of its group set.
    """

    @property
    def pool(self) -> Pool: ...
    @property
    def default_name(self) -> str: ...
    @property
    def tagged(self) -> tuple[str, ...]: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...


def template_as_json(pool: Pool) -> dict[str, Any]:
    """What a machine of the pool has and costs, with the keys of the reference: labels, taints and resources that all machines have."""
    offerings = sold_offerings(pool)
    return {
        "labels": common_labels(offerings),
        "taints": [str(taint) for taint in offerings[0].taints],
        "resources": least_resources(offerings),
        "offerings": [
            {"type": offering.instance_type, "market": offering.market, "zone": offering.zone, "price": offering.price}
            | ({} if offering.count is None else {"count": offering.count})
            for offering in pool.offerings
        ],
    }


def pools_by_warning(pools: Iterable[DiscoveredPool]) -> dict[str, list[str]]:
    """Pool names by warning: most warnings apply to many pools."""
    names: dict[str, list[str]] = {}
    for discovered in pools:
        for warning in discovered.warnings:
            names.setdefault(warning, []).append(discovered.pool.name)
    return names


def unread_parts(set_aside: Iterable[Skipped], causes: Mapping[str, str]) -> tuple[UnreadPart, ...]:
    """The parts of an account that could not be read: the entries of ``set_aside`` whose objects have ``causes``."""
    return tuple(UnreadPart(skipped.object, skipped.reason, causes[skipped.object]) for skipped in set_aside if skipped.object in causes)


def shortened_names(names: Sequence[str]) -> str:
    """The first of ``names``, and the number of the others."""
    return ", ".join(names[:LISTED_NAMES]) + (f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else "")


def common_labels(offerings: Iterable[Offering]) -> Mapping[str, str]:
    """The labels that all offerings share."""
    first, *others = (dict(offering.labels) for offering in offerings)
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def least_resources(offerings: Iterable[Offering]) -> Mapping[str, str]:
    """The smallest amount of each resource that any machine offers to pods, as Kubernetes quantities."""
    sizes = [offering.allocatable for offering in offerings]
    names = dict.fromkeys(name for size in sizes for name in size)
    least = {name: min(size.get(name, 0) for size in sizes) for name in names}
    return {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in least.items() if amount}
