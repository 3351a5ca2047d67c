"""A mix under construction: the number of machines of each kind, and the pods on each."""

from dataclasses import dataclass

import numpy as np

from gpuscaler.planning.mix.instance import EPSILON, Floats, Ints, ProblemArrays


@dataclass(frozen=True, slots=True)
class Mixture:
    """``times[p]`` machines of kind ``kinds[p]``, each holding ``held[p]`` (copies by item); shapes (P,), (P,), (P, I)."""

    kinds: Ints
    held: Floats
    times: Ints

    @classmethod
    def of(cls, parts: list[tuple[int, Floats, int]], items: int) -> "Mixture":
        """Make a mix from (kind, copies, times). Equal machines are counted together, and the order depends only on content."""
        counted: dict[tuple[int, bytes], int] = {}
        for kind, held, times in parts:
            if times > 0 and held.any():
                place = (kind, held.tobytes())
                counted[place] = counted.get(place, 0) + times
        places = sorted(counted)
        return cls(
            np.array([kind for kind, _ in places], dtype=np.int64),
            np.array([np.frombuffer(raw) for _, raw in places], dtype=np.float64).reshape(len(places), items),
            np.array([counted[place] for place in places], dtype=np.int64),
        )

    def parts(self) -> list[tuple[int, Floats, int]]:
        """The (kind, copies, times) that make up the mix."""
        return [(int(k), h, int(t)) for k, h, t in zip(self.kinds, self.held, self.times, strict=True)]

    def cost(self, instance: ProblemArrays) -> float:
        """Dollars per hour."""
        return float(instance.price[self.kinds] @ self.times)

    def served(self) -> Floats:
        """Pods placed, by item."""
        return np.asarray(self.times @ self.held, dtype=np.float64)

    def within_limits(self, instance: ProblemArrays) -> bool:
        """Whether every limit holds."""
        return all(float(row.weights[self.kinds] @ self.times) <= row.amount * (1 + EPSILON) for row in instance.limits)


def rank(instance: ProblemArrays, mixture: Mixture) -> tuple[float, ...]:
    """A sort key for mixes, smaller is better: unplaced pods by tier, then cost, then number of machines."""
    unmet = instance.demand - mixture.served()
    tiers = np.bincount(instance.tier, weights=unmet, minlength=1)
    return (*(float(t) for t in tiers), round(mixture.cost(instance), 9), float(mixture.times.sum()))


def trim(mixture: Mixture, demand: Floats) -> Mixture:
    """The same machines without the copies that exceed ``demand``, taken first from the machines that hold the fewest of an item."""
    surplus = mixture.served() - demand
    parts = mixture.parts()
    for item in np.flatnonzero(surplus > 0):
        left, kept = int(surplus[item]), []
        for kind, held, times in sorted(parts, key=lambda part: (part[1][item], part[0], part[1].tobytes())):
            # As many machines as possible lose all their copies of the item, then one loses the rest.
            have = int(held[item])
            empty = min(times, left // have) if have else 0
            left -= empty * have
            partly = 1 if have and left and times > empty else 0
            for count, copies in ((empty, 0), (partly, have - left), (times - empty - partly, have)):
                if count:
                    pods = held.copy()
                    pods[item] = copies
                    kept.append((kind, pods, count))
            left = 0 if partly else left
        parts = kept
    return Mixture.of(parts, len(demand))
