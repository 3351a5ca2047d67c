"""Pools whose nodes nothing tells apart: instance type and labels of a node say its pool, and may say another one."""

from collections.abc import Mapping, Sequence

import msgspec

from gpuscaler.clouds.aws.hints import LABEL
from gpuscaler.clouds.aws.pools import FoundPool

#: Of one instance type: by the keys that pools are told by, the place of the first pool with these values.
_Claims = dict[tuple[str, ...], dict[tuple[str | None, ...], int]]


def told_apart(pools: Sequence[FoundPool]) -> list[FoundPool]:
    """The pools with more to be told by first, since the first that fits counts; those that another one's labels fit have a warning."""
    ordered = sorted(pools, key=lambda one: -len(one.pool.match_labels))
    claims: dict[str, _Claims] = {}
    for place, one in enumerate(ordered):
        keys = tuple(sorted(one.pool.match_labels))
        for name in {offering.instance_type for offering in one.pool.offerings}:
            same = claims.setdefault(name, {}).setdefault(keys, {})
            same.setdefault(tuple(one.pool.match_labels[key] for key in keys), place)
    return [_warned(one, place, ordered, claims) for place, one in enumerate(ordered)]


def _warned(one: FoundPool, place: int, ordered: Sequence[FoundPool], claims: Mapping[str, _Claims]) -> FoundPool:
    places = {_first(offering.labels, claims[offering.instance_type]) for offering in one.pool.offerings}
    others = sorted(ordered[other].pool.name for other in places - {place, None} if other is not None)
    said = [f"its nodes cannot be told from those of {name}; give both a label of their own by a tag {LABEL}KEY" for name in others]
    return msgspec.structs.replace(one, warnings=(*one.warnings, *said)) if said else one


def _first(labels: Mapping[str, str], claims: _Claims) -> int | None:
    """The place of the pool that a node with ``labels`` is counted to."""
    places = [same[values] for keys, same in claims.items() if (values := tuple(map(labels.get, keys))) in same]
    return min(places, default=None)
