"""The world of one case: its random numbers, its objects so far, and its vocabulary.

The vocabulary is small on purpose: with three zones, three apps and five ports most objects interact, and filters reject nodes often.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

Json = dict[str, Any]
T = TypeVar("T")

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
OLD_REGION = "failure-domain.beta.kubernetes.io/region"
RACK = "rack"
TOPOLOGY_KEYS = (ZONE, HOSTNAME, RACK, REGION)
ZONES = ("eu-west1-a", "eu-west1-b", "eu-west1-c")
NAMESPACES = ("default", "blue", "green")


@dataclass
class World:
    """One case while it is drawn. ``objects`` has the lists of the oracle's request, by their names there."""

    rng: random.Random
    nodes: list[Json] = field(default_factory=list)
    objects: dict[str, list[Json]] = field(default_factory=dict)
    favourites: dict[str, Any] = field(default_factory=dict)
    made: int = 0

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def one(self, items: Sequence[T]) -> T:
        return self.rng.choice(items)

    def weighted(self, items: dict[T, float]) -> T:
        return self.rng.choices(tuple(items), tuple(items.values()))[0]

    def mostly(self, name: str, items: dict[T, float]) -> T:
        """Like :meth:`weighted`, but two times out of three the item drawn first for ``name`` in this world, so that items interact."""
        favourite: T = self.favourites.setdefault(name, self.weighted(items))
        return favourite if self.chance(0.67) else self.weighted(items)

    def some(self, items: Sequence[T], most: int, least: int = 1) -> list[T]:
        """Between ``least`` and ``most`` different items."""
        return self.rng.sample(items, min(len(items), self.rng.randint(least, most)))

    def name(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}{self.made}"

    def add(self, kind: str, item: Json) -> Json:
        self.objects.setdefault(kind, []).append(item)
        return item

    def of(self, kind: str) -> list[Json]:
        return self.objects.get(kind, [])

    def node_name(self) -> str:
        """The name of a node, sometimes of one that is gone."""
        return "gone" if not self.nodes or self.chance(0.05) else str(self.one(self.nodes)["metadata"]["name"])


def or_null(world: World, items: list[Any]) -> list[Any] | None:
    """An empty list as Go may write it: as ``[]`` or as ``null``."""
    return items or (None if world.chance(0.5) else [])
