"""Applies the user's settings to discovered pools: exclusions, overrides, and names that are unique over the parts of an account."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import msgspec

from gpuscaler.clouds.discovery.describing import DiscoveredPool
from gpuscaler.model.overrides import EVERY_POOL, PoolOverride, apply_override
from gpuscaler.model.pools import Pool
from gpuscaler.model.well_known import POOL_LABEL

D = TypeVar("D", bound=DiscoveredPool)

#: Prefix of an entry of ``exclude`` that names a tag instead of a group.
TAG = "tag:"


def matching_exclusion(name: str, tags: Mapping[str, str], exclude: Iterable[str], *, fold: Callable[[str], str] = str) -> str:
    """The entry of ``exclude`` that excludes a group: a name, a pattern such as ``system-*``, ``tag:KEY`` or ``tag:KEY=VALUE``.

    ``fold`` makes names and keys equal that the cloud does not distinguish.
    """
    folded_tags = {fold(key): value for key, value in tags.items()}
    for entry in exclude:
        key, separator, value = entry.removeprefix(TAG).partition("=")
        if not entry.startswith(TAG):
            if fnmatchcase(fold(name), fold(entry)):
                return entry
        elif fold(key) in folded_tags and (not separator or folded_tags[fold(key)] == value):
            return entry
    return ""


def with_unique_names(pools: Iterable[D], place_of: Callable[[D], str]) -> list[D]:
    """Append the place, or a number, to the names of pools that would share one, in two places or by the same label.

    A pool whose group alone has the name keeps it: a tag or label of another group must not rename it, since settings, orders and limits
    refer to it by that name.
    """
    listed = list(pools)
    counts = Counter(discovered.pool.name for discovered in listed)
    owners = Counter(discovered.pool.name for discovered in listed if discovered.default_name == discovered.pool.name)
    taken = {name for name, count in counts.items() if 1 in (count, owners[name])}
    named = []
    for discovered in listed:
        name = discovered.pool.name
        if counts[name] > 1 and not (owners[name] == 1 and discovered.default_name == name):
            name = f"{name[:40]}.{place_of(discovered)}"
            numbered = (f"{name}.{number}" if number else name for number in range(len(listed) + 1))
            name = next(candidate for candidate in numbered if candidate not in taken)
        taken.add(name)
        named.append(discovered if name == discovered.pool.name else renamed(discovered, name))
    return named


def renamed(discovered: D, name: str) -> D:
    """The same pool under another name, with a warning about it. The label with the name of its pool is what gpuscaler writes on nodes."""
    offerings = tuple(
        msgspec.structs.replace(offering, pool=name, labels=with_pool_label(offering.labels, name))
        for offering in discovered.pool.offerings
    )
    labels = with_pool_label(discovered.pool.match_labels, name)
    pool = msgspec.structs.replace(discovered.pool, name=name, offerings=offerings, match_labels=labels)
    return _changed(discovered, pool=pool, warning=f"the pool is called {name} here, since another pool has its name")


def with_pool_label(labels: Mapping[str, str], pool: str) -> Mapping[str, str]:
    """``labels`` of a node template; if they name the pool, by the name ``pool``, with which gpuscaler overwrites every other one."""
    return {**labels, POOL_LABEL: pool} if labels.get(POOL_LABEL, pool) != pool else labels


def with_overrides(pools: Iterable[D], overrides: Mapping[str, PoolOverride]) -> list[D]:
    """The pools with the user's overrides, by pool name, applied: first that of every pool, which leaves what tags of a group set."""
    changed = []
    every = overrides.get(EVERY_POOL, PoolOverride(EVERY_POOL))
    for discovered in pools:
        untagged = msgspec.structs.replace(every, **dict.fromkeys(discovered.tagged))
        override = overrides.get(discovered.pool.name, PoolOverride(discovered.pool.name))
        pool = apply_override(apply_override(discovered.pool, untagged), override)
        too_large = pool.max is not None and pool.min > pool.max
        warning = f"its minimum {pool.min} is above its maximum {pool.max}" if too_large else ""
        changed.append(_changed(discovered, pool=pool, warning=warning))
    # By labels, the first matching pool wins, so the most specific come first; the list of machines is more reliable if there is one.
    return sorted(changed, key=lambda discovered: -len(discovered.pool.match_labels))


def _changed(discovered: D, *, pool: Pool, warning: str) -> D:
    warnings = (*discovered.warnings, warning) if warning else discovered.warnings
    # A protocol cannot say that all of its classes are structs.
    struct: Any = discovered
    changed: D = msgspec.structs.replace(struct, pool=pool, warnings=warnings)
    return changed
