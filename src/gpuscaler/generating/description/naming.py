"""Names of node groups: the pool's name, the type if there are several, the market and the zone, as far as the cloud has room for them."""

import re
from collections.abc import Iterator, Sequence

from gpuscaler.catalogue import InstanceType
from gpuscaler.model.offerings import SPOT

#: AKS: names of agent pools of Linux have at most 12 lower-case letters and digits, and begin with a letter.
AGENT_POOL_LENGTH = 12


def group_names(
    cloud: str, pool: str, types: Sequence[InstanceType], markets: Sequence[str], zones: Sequence[str]
) -> Iterator[tuple[InstanceType, str, str, str]]:
    """Yield type, market, zone and name of each group of a pool. Names on Azure may equal those of another pool."""
    groups = [(index, type_, market, zone) for index, type_ in enumerate(types, 1) for market in markets for zone in zones]
    several = len(types) > 1
    if cloud != "azure":
        for _, type_, market, zone in groups:
            yield type_, market, zone, "-".join(filter(None, (pool, short_type(type_.name) if several else "", market, _zone_suffix(zone))))
        return
    suffixes = [f"{index if several else ''}{'spot' if market == SPOT else 'od'}{zone}" for index, _, market, zone in groups]
    stem = _stem(pool, AGENT_POOL_LENGTH - max(map(len, suffixes), default=0))
    for (_, type_, market, zone), suffix in zip(groups, suffixes, strict=True):
        yield type_, market, zone, stem + suffix


def _stem(pool: str, room: int) -> str:
    """Return at most ``room`` letters and digits of a pool's name, with something of each of its words: "training-a100" is "traa100"."""
    words = pool.split("-")
    if not words[0][:1].isalpha():
        words.insert(0, "p")
    while sum(map(len, words)) > room:
        longest = max(words, key=len)
        words[words.index(longest)] = longest[:-1]
    return "".join(words)


def short_type(instance_type: str) -> str:
    """Return the type's name as part of a group's name: letters, digits and '-'."""
    return re.sub("[^a-z0-9]+", "-", instance_type.removeprefix("Standard_").lower())


def _zone_suffix(zone: str) -> str:
    return zone[-1:]
