"""Limits on removals: minimum sizes, disruption budgets and PodDisruptionBudgets, counted over the whole plan."""

from collections import Counter
from collections.abc import Mapping, Set
from functools import cached_property

from gpuscaler.model.pools import Budget, Pool
from gpuscaler.model.schedules import parse_schedule
from gpuscaler.planning.scale_down.blockers import Blocker, Protection
from gpuscaler.planning.scale_down.contract import Situation
from gpuscaler.planning.scale_down.disruption import SOLE_REPLICA, Disruption, ReplicaGroup
from gpuscaler.planning.scale_down.pod_classes import Grouping

IDLE, CONSOLIDATION = "idle", "consolidation"
#: Karpenter's names of the same reasons.
KARPENTER_REASONS = {"empty": IDLE, "underutilized": CONSOLIDATION}


def is_active(budget: Budget, now: float) -> bool:
    """Whether ``budget`` restricts at ``now`` (seconds since the epoch). Source: Karpenter's ``Budget.IsActive``."""
    if budget.schedule is None:
        return True
    return parse_schedule(budget.schedule).open_at(now, budget.duration or 0.0)


def applies_to(budget: Budget, reason: str) -> bool:
    reasons = {KARPENTER_REASONS.get(name.lower(), name.lower()) for name in budget.reasons}
    return not reasons or reason in reasons


def allowance(text: str, nodes: int) -> int:
    """``"5"`` or ``"10%"`` of ``nodes`` as a count; percentages are rounded up, as in Karpenter."""
    if text.endswith("%"):
        return -(-int(text[:-1]) * nodes // 100)
    return int(text)


def allowed_disruptions(pool: Pool, reason: str, *, nodes: int, now: float) -> int | None:
    """How many of ``nodes`` machines may be disrupted at once: the most restrictive active budget, None without one.

    A budget that cannot be parsed allows nothing: unreadable configuration must not cause disruptions.
    """
    counts = []
    for budget in pool.budgets:
        try:
            if applies_to(budget, reason) and is_active(budget, now):
                counts.append(allowance(budget.nodes, nodes))
        except ValueError:
            counts.append(0)
    return min(counts, default=None)


class Allowances:
    """The allowances of one plan, computed on first use. :meth:`refusal` checks, :meth:`take` books, :meth:`release` undoes.

    Machines of a pool that are already disrupted (leaving, deleted, not Ready) use up its disruption budgets; those that are leaving
    also count against its minimum size.
    """

    def __init__(self, situation: Situation, leaving: Set[str]) -> None:
        """``leaving`` are the nodes with a removal in progress."""
        self._situation = situation
        self._leaving = leaving

    @cached_property
    def disruption(self) -> Disruption:
        """The rules of pods, owners and namespaces about moving pods in this plan."""
        return Disruption(self._situation.cluster, self._leaving)

    @cached_property
    def _replicas(self) -> dict[str, int]:
        """How many ready replicas of each owner may still be moved: one stays."""
        return {}

    @cached_property
    def _total(self) -> Counter[str]:
        return Counter([member.pool.name for member in self._situation.members.values()])

    @cached_property
    def _above_minimum(self) -> dict[str, int]:
        members = self._situation.members
        leave = Counter([members[name].pool.name for name in self._leaving if name in members])
        return {pool.name: self._total[pool.name] - leave[pool.name] - pool.min for pool in self._situation.policy.pools}

    @cached_property
    def _budgets(self) -> dict[tuple[str, str], int | None]:
        members = self._situation.members
        unready = {node.name for node in self._situation.cluster.nodes.values() if not node.ready}
        disrupted = Counter([members[name].pool.name for name in self._leaving | unready if name in members])
        remaining: dict[tuple[str, str], int | None] = {}
        for pool in self._situation.policy.pools:
            for reason in (IDLE, CONSOLIDATION):
                limit = allowed_disruptions(pool, reason, nodes=self._total[pool.name], now=self._situation.now)
                remaining[pool.name, reason] = None if limit is None else limit - disrupted[pool.name]
        return remaining

    @cached_property
    def _disruptions(self) -> dict[str, int]:
        """The evictions that each PodDisruptionBudget allows, less those that removals in progress still need."""
        cluster, policy, now = self._situation.cluster, self._situation.policy, self._situation.now
        left = {key: budget.disruptions_allowed for key, budget in cluster.budgets.items()}
        protection, grouping = Protection(cluster, policy, now), Grouping(cluster, now, {})
        for name in self._leaving & cluster.nodes.keys() if left else ():
            load = grouping.load(cluster.nodes[name]).load
            # Terminating pods no longer count as healthy.
            staying = {running_class: tuple(pod for pod in pods if not pod.deleted) for running_class, pods in load.items()}
            for key, count in protection.evictions(staying).items():
                left[key] -= count
        return left

    def refusal(self, pool: Pool, reason: str, evictions: Mapping[str, int] | None = None) -> Blocker | None:
        """Why one more machine of ``pool`` may not be removed, or None.

        ``evictions`` counts its pods by the key of the PodDisruptionBudget that covers them.
        """
        if self._above_minimum[pool.name] <= 0:
            return Blocker("minimum-size", f"pool {pool.name} keeps at least {pool.min} machine{'s' if pool.min != 1 else ''}")
        budget = self._budgets[pool.name, reason]
        if budget is not None and budget <= 0:
            return Blocker("budget", f"the disruption budgets of pool {pool.name} allow no more removals for the reason {reason} now")
        for key, count in sorted((evictions or {}).items()):
            left = self._left(key)
            if count > left and isinstance(key, ReplicaGroup):
                detail = f"this plan may move {max(0, left)} more of its ready replicas; moving the pods takes {count}"
                return Blocker(SOLE_REPLICA, f"{key} must keep one ready replica: {detail}")
            if count > left:
                detail = f"{max(0, left)} more eviction{'s' if left != 1 else ''}"
                return Blocker("pdb", f"PodDisruptionBudget {key} allows {detail} in this plan; moving the pods takes {count}")
        return None

    def take(self, pool: Pool, evictions: Mapping[str, int] | None = None) -> None:
        self._adjust(pool, evictions or {}, 1)

    def release(self, pool: Pool, evictions: Mapping[str, int] | None = None) -> None:
        self._adjust(pool, evictions or {}, -1)

    def _adjust(self, pool: Pool, evictions: Mapping[str, int], sign: int) -> None:
        self._above_minimum[pool.name] -= sign
        for reason in (IDLE, CONSOLIDATION):
            left = self._budgets[pool.name, reason]
            if left is not None:
                self._budgets[pool.name, reason] = left - sign
        for key, count in evictions.items():
            if isinstance(key, ReplicaGroup):
                self._replicas[key] = self._left(key) - sign * count
            else:
                self._disruptions[key] -= sign * count

    def _left(self, key: str) -> int:
        """The evictions that are left for ``key``, a PodDisruptionBudget or the replicas of an owner."""
        if not isinstance(key, ReplicaGroup):
            return self._disruptions[key]
        if key not in self._replicas:
            self._replicas[key] = self.disruption.ready(key) - 1
        return self._replicas[key]
