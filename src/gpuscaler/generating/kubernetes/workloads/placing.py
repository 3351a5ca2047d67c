"""Which pool and which namespace each example uses, so that a machine, the limits and the team's quota admit it alone."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpuscaler.generating.description.choosing import listed_price
from gpuscaler.generating.description.resolved import EXAMPLES_NAMESPACE, Description, NodeGroup
from gpuscaler.model.pools import DEFAULT_DOLLARS
from gpuscaler.model.quantities import format_count
from gpuscaler.model.taints import Taint

GPU: Final = "nvidia.com/gpu"
#: Pods of each example. Those of large ones have whole machines, those of the others one GPU.
_PODS: Final[Mapping[str, int]] = {"training": 1, "gang": 2, "notebook": 1, "inference": 2}
_LARGE: Final = frozenset({"training", "gang"})
#: No autoscaler of an example goes beyond this number of replicas.
_MOST_REPLICAS: Final = 8
#: The part of a machine's free CPUs and memory that examples request; the rest is for DaemonSets.
_SHARE: Final = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an example runs: ``pods`` with ``gpus`` each, in ``namespace``, on machines of ``groups``, which are all of one pool.

    ``taints`` are all that its nodes may have in the long run. ``most`` is how many such pods quota and limits admit.
    """

    namespace: str
    pool: str
    groups: tuple[NodeGroup, ...]
    taints: tuple[Taint, ...]
    gpus: int
    pods: int
    most: int = 0

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group.instance_type.name for group in self.groups))

    @property
    def markets(self) -> frozenset[str]:
        return frozenset(group.market for group in self.groups)

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels that all groups of the pool have."""
        return self.groups[0].labels

    @property
    def cpus(self) -> int:
        """Whole CPUs that a pod can have on each type of the pool."""
        return max(1, math.floor(self._least("cpu") * _SHARE / 1000))

    @property
    def memory_gib(self) -> int:
        return max(1, math.floor(self._least("memory") * _SHARE / 2**30))

    def _least(self, resource: str) -> float:
        return min(group.instance_type.allocatable[resource] * self.gpus / group.gpus for group in self.groups)


def places(description: Description) -> Mapping[str, Place]:
    """Return the place of each example. An example is left out if no pool, limit and quota admit it.

    Each is looked at alone: a person tries one after the other, and a quota need not have room for two.
    """
    quotas = _quotas(description)
    found = dict[str, Place]()
    for name in description.workloads:
        for team, place in _candidates(description, name):
            if not _beyond_limits(description, place) and place.gpus * place.pods <= quotas.get(team, math.inf):
                found[name] = replace(place, most=_most(description, place, quotas.get(team, math.inf)))
                break
    return found


def omitted(description: Description) -> list[str]:
    """Return a sentence about each example that has no place: what each pool that could run it lacks."""
    found, quotas = places(description), _quotas(description)
    sentences = []
    for name in (name for name in description.workloads if name not in found):
        lacks = dict[str, list[str]]()
        for team, place in _candidates(description, name):
            lack = _beyond_limits(description, place) or (
                f"the quota of team {team} is {format_count(int(quotas[team]), 'GPU')}, and it asks for {place.gpus * place.pods}"
            )
            lacks.setdefault(lack, []).append(place.pool)
        reasons = [f"{_of_pools(pools)}: {lack}" for lack, pools in lacks.items()]
        why = "; ".join(reasons) or "no pool has GPUs of NVIDIA in machines with x86 processors"
        sentences.append(f"The example {name} is left out. {why[0].upper()}{why[1:]}.")
    return sentences


def _quotas(description: Description) -> Mapping[str, float]:
    return {team.name: math.inf if team.gpus is None else team.gpus for team in description.teams}


def _of_pools(pools: list[str]) -> str:
    names = list(dict.fromkeys(pools))
    return f"pool {names[0]}" if len(names) == 1 else f"pools {', '.join(names)}"


def _candidates(description: Description, name: str) -> Iterator[tuple[str, Place]]:
    """Yield teams ("" for none) with places, best first: large examples prefer large machines, the others small ones."""
    pools = dict[str, list[NodeGroup]]()
    for group in filter(_runs_examples, description.groups):
        pools.setdefault(group.pool, []).append(group)
    namespaces = description.team_namespaces
    sizes = {pool: (min(group.gpus for group in groups), price(description, groups)) for pool, groups in pools.items()}
    for pool in sorted(pools, key=sizes.__getitem__, reverse=name in _LARGE):
        teams = description.pool_teams.get(pool, ())
        for team in teams or (*namespaces, ""):
            yield (
                team,
                Place(
                    namespace=namespaces.get(team, EXAMPLES_NAMESPACE),
                    pool=pool,
                    groups=tuple(pools[pool]),
                    taints=description.node_taints(pools[pool]),
                    gpus=sizes[pool][0] if name in _LARGE else 1,
                    pods=_PODS[name],
                ),
            )


def _runs_examples(group: NodeGroup) -> bool:
    """Whether the images of the examples run on the group's machines."""
    return group.instance_type.gpu_manufacturer == "nvidia" and group.instance_type.arch == "amd64"


def price(description: Description, groups: Iterable[NodeGroup]) -> float:
    """Return the lowest list price of a machine of the groups, in dollars per hour."""
    return min(listed_price(group, description.cluster.region) for group in groups)


def machines(place: Place) -> int:
    """Return how many machines the pods need, if they are the smallest of the pool."""
    return math.ceil(place.pods / (min(group.gpus for group in place.groups) // place.gpus))


def _beyond_limits(description: Description, place: Place) -> str:
    """Return which limit the place's pods exceed, with what they need; "" if none."""
    count, controller = machines(place), description.controller
    need = f"it needs {format_count(count, 'machine')}"
    size = max(group.max for group in place.groups)
    if count > size:
        return f"max of a group is {size}, and {need}"
    gpus = count * min(group.gpus for group in place.groups)
    if controller.gpus is not None and gpus > controller.gpus:
        return f"controller.gpus is {controller.gpus}, and {need} with {format_count(gpus, 'GPU')} together"
    limit, dollars = controller.dollars_per_hour, count * price(description, place.groups)
    if dollars > (DEFAULT_DOLLARS if limit is None else limit):
        shown = f"{DEFAULT_DOLLARS:g} by default" if limit is None else f"{limit:g}"
        return f"controller.dollars_per_hour is {shown}, and {need}, for about {dollars:,.0f} dollars an hour"
    return ""


def _most(description: Description, place: Place, quota: float) -> int:
    """Return how many pods like the place's there may be."""
    most = min(_MOST_REPLICAS, quota // place.gpus)
    return next(
        (int(pods) for pods in range(int(most), place.pods, -1) if not _beyond_limits(description, replace(place, pods=pods))), place.pods
    )
