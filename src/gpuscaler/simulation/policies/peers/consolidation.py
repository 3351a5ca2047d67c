"""Karpenter's consolidation: removes nodes if their pods fit elsewhere, or replaces several by one cheaper machine.

Source: sigs.k8s.io/karpenter v1.15.0, ``pkg/controllers/disruption`` (consolidation.go, multinodeconsolidation.go,
singlenodeconsolidation.go, balanced.go, and ``SimulateScheduling`` of helpers.go) and ``pkg/utils/disruption``.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering
from gpuscaler.simulation.policies.peers.claims import Claim
from gpuscaler.simulation.policies.peers.settings import KarpenterSettings
from gpuscaler.simulation.policies.peers.trials import Trial
from gpuscaler.simulation.world.autoscaler import ObservedMachine

#: Maximum number of nodes that one command of multi-node consolidation removes.
MOST_NODES = 100
#: A spot machine is replaced by another spot machine only if there are this many cheaper types; as many are requested.
SPOT_TO_SPOT_TYPES = 15
#: A move is balanced if it saves at least this part of what it disrupts, both as shares of the pool (1 / ``BalancedK``).
BALANCED = 1 / 2


class Candidate(Struct, frozen=True, gc=False):
    """A node that may be disrupted, and its disruption cost: 1, plus about 1 for each of its pods, depending on its priority."""

    observed: ObservedMachine
    disruption: float

    @property
    def name(self) -> str:
        return self.observed.node

    @property
    def price(self) -> float:
        return self.observed.offering.price

    @property
    def ratio(self) -> float:
        """Cost per unit of disruption: nodes with the highest ratio are tried first."""
        return self.price / self.disruption


class Command(Struct, frozen=True, gc=False):
    """Nodes to remove: at once, or when one machine of ``options`` that replaces them is open.

    ``targets`` are the nodes that their pods would move to, ``pods`` those that would move to the new machine.
    """

    nodes: tuple[str, ...]
    why: str
    options: tuple[Offering, ...] = ()
    pods: tuple[str, ...] = ()
    targets: frozenset[str] = frozenset()


class Totals(Struct, frozen=True, gc=False):
    """The total cost of a pool's nodes, and the total disruption cost of all of them."""

    cost: float
    disruption: float


def candidate_of(observed: ObservedMachine) -> Candidate:
    return Candidate(observed, disruption_of(observed.pods.values()))


def disruption_of(pods: Iterable[PodSpec]) -> float:
    """The disruption cost of a node with these pods (``ComputeRescheduleDisruptionCost``); an empty one counts as 1."""
    return 1.0 + sum(min(10.0, max(0.0, 1.0 + spec.priority / 2**25)) for spec in pods)


def totals_of(machines: Iterable[ObservedMachine]) -> dict[str, Totals]:
    """Totals by pool, over machines in any state."""
    totals: dict[str, Totals] = defaultdict(lambda: Totals(0.0, 0.0))
    for observed in machines:
        total = totals[observed.offering.pool]
        totals[observed.offering.pool] = Totals(
            total.cost + observed.offering.price, total.disruption + disruption_of(observed.pods.values())
        )
    return totals


class Consolidation:
    """Searches for one command on the current cluster. ``totals`` are needed only for the policy Balanced."""

    def __init__(self, trial: Trial, rules: KarpenterSettings, totals: Mapping[str, Totals]) -> None:
        self._trial = trial
        self._rules = rules
        self._totals = totals

    def find(self, candidates: Sequence[Candidate], budgets: Mapping[str, int]) -> Command | None:
        """Several nodes at once if possible, else one; None if nothing is possible within ``budgets`` (nodes by pool)."""
        ordered = sorted(candidates, key=lambda candidate: -candidate.ratio)
        return self._find_several(ordered, budgets) or self._find_one(ordered, budgets)

    def _find_several(self, ordered: Sequence[Candidate], budgets: Mapping[str, int]) -> Command | None:
        """The longest prefix of the list for which a binary search finds a command; a larger half is tried only if the last one held."""
        counts: Counter[str] = Counter()
        allowed = []
        for candidate in ordered:
            pool = candidate.observed.offering.pool
            if counts[pool] < budgets[pool]:
                counts[pool] += 1
                allowed.append(candidate)
        best = None
        low, high = 1, min(len(allowed) - 1, MOST_NODES)
        while low <= high:
            middle = (low + high) // 2
            command = self.compute(allowed[: middle + 1])
            if command is not None:
                best, low = command, middle + 1
            else:
                high = middle - 1
        return best

    def _find_one(self, ordered: Sequence[Candidate], budgets: Mapping[str, int]) -> Command | None:
        """The first node with a command; the pools take turns."""
        queues: dict[str, list[Candidate]] = defaultdict(list)
        for candidate in ordered:
            queues[candidate.observed.offering.pool].append(candidate)
        turns = sorted(
            ((place, pool, candidate) for pool, queue in queues.items() for place, candidate in enumerate(queue)), key=lambda turn: turn[:2]
        )
        for _, pool, candidate in turns:
            replaceable = self._rules.spot_to_spot or candidate.observed.offering.market != "spot"
            if budgets[pool] > 0 and self._trial.may_succeed_without(candidate.observed, replaceable=replaceable):
                command = self.compute([candidate])
                if command is not None:
                    return command
        return None

    def compute(self, candidates: Sequence[Candidate]) -> Command | None:
        """A command that deletes or replaces these nodes together, or None (``computeConsolidation``)."""
        nodes = tuple(candidate.name for candidate in candidates)
        packed = self._trial.without([candidate.observed for candidate in candidates])
        if packed is None or len(packed.claims) > 1:
            return None
        moved = [pod for candidate in candidates for pod in candidate.observed.pods]
        targets = frozenset(packed.placed[pod] for pod in moved if pod in packed.placed)
        command = Command(nodes, "its pods fit on other nodes", targets=targets)
        if packed.claims:
            (claim,) = packed.claims
            options = claim.options(self._replacement(claim, candidates))
            if not options:
                return None
            replacement = "a cheaper machine" if len(nodes) == 1 else f"a machine cheaper than these {len(nodes)}"
            command = replace(command, why=f"its pods fit on {replacement}", options=options, pods=tuple(claim.pods))
        return command if self._is_worthwhile(command, candidates) else None

    def is_still_valid(self, command: Command, candidates: Sequence[Candidate]) -> bool:
        """Whether a command that was found earlier is still valid (``validateCommand``)."""
        packed = self._trial.without([candidate.observed for candidate in candidates])
        if packed is None or len(packed.claims) != bool(command.options):
            return False
        types = {offering.instance_type for claim in packed.claims for offering in claim.left()}
        return all(offering.instance_type in types for offering in command.options)

    def _replacement(self, claim: Claim, candidates: Sequence[Candidate]) -> list[Offering]:
        """The offerings that may replace the candidates: their types are cheaper even in their most expensive zone.

        If a pool has both markets, the replacement is spot only: falling back to on-demand might be more expensive.
        """
        markets = {offering.market for offering in claim.table.offerings}
        price = sum(candidate.price for candidate in candidates)
        fitting = claim.left()
        if "spot" in markets and all(candidate.observed.offering.market == "spot" for candidate in candidates):
            if not self._rules.spot_to_spot:
                return []
            offerings = _cheaper([offering for offering in fitting if offering.market == "spot"], price)
            if len(candidates) == 1:
                offerings = _cheapest_types(offerings, SPOT_TO_SPOT_TYPES)
        else:
            offerings = _cheaper(fitting, price)
            if {"spot", "on-demand"} <= markets:
                offerings = [offering for offering in offerings if offering.market == "spot"]
        return offerings if len(candidates) == 1 else _other_types(offerings, candidates)

    def _is_worthwhile(self, command: Command, candidates: Sequence[Candidate]) -> bool:
        """Whether the policy accepts a move: Balanced accepts those that save enough for their disruption, in every affected pool."""
        if self._rules.consolidation_policy != "Balanced":
            return True
        price = sum(candidate.price for candidate in candidates)
        saved = price - min((offering.price for offering in command.options), default=0.0)
        for pool in {candidate.observed.offering.pool for candidate in candidates}:
            of_pool = [candidate for candidate in candidates if candidate.observed.offering.pool == pool]
            share = sum(candidate.price for candidate in of_pool) / price if price else 1.0
            totals = self._totals[pool]
            if saved * share * totals.disruption < BALANCED * sum(candidate.disruption for candidate in of_pool) * totals.cost:
                return False
        return True


def _cheaper(offerings: Iterable[Offering], ceiling: float) -> list[Offering]:
    """The offerings of types that cost less than ``ceiling`` in any of their zones (``WorstLaunchPrice``)."""
    types: dict[str, list[Offering]] = defaultdict(list)
    for offering in offerings:
        types[offering.instance_type].append(offering)
    return [offering for group in types.values() if _worst_price(group) < ceiling for offering in group]


def _worst_price(offerings: Collection[Offering]) -> float:
    """The highest price in the market that a launch would take: reserved, then spot, then on-demand."""
    for market in ("reserved", "spot", "on-demand"):
        prices = [offering.price for offering in offerings if offering.market == market]
        if prices:
            return max(prices)
    return math.inf


def _cheapest_types(offerings: Iterable[Offering], number: int) -> list[Offering]:
    """Offerings of the ``number`` cheapest types; empty if there are fewer types."""
    ordered = sorted(offerings, key=lambda offering: (offering.price, offering.key))
    types = list(dict.fromkeys(offering.instance_type for offering in ordered))
    cheapest = set(types[:number])
    return [offering for offering in ordered if offering.instance_type in cheapest] if len(types) >= number else []


def _other_types(offerings: Sequence[Offering], candidates: Sequence[Candidate]) -> list[Offering]:
    """Only offerings cheaper than a candidate of the same type: otherwise that candidate could stay (``filterOutSameInstanceType``)."""
    types = {offering.instance_type for offering in offerings}
    ceiling = min((candidate.price for candidate in candidates if candidate.observed.offering.instance_type in types), default=math.inf)
    return _cheaper(offerings, ceiling)
