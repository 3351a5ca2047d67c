"""What may still be bought: limits less what exists and what is on its way (I5)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.planning.membership import Member
from gpuscaler.planning.mix.problem import Limits as MixLimits
from gpuscaler.planning.state import State
from gpuscaler.planning.templates import Kind, gpus_by_row


@dataclass(frozen=True)
class Fleet:
    """The machines of a pool that exist or are coming."""

    machines: int = 0
    gpus: int = 0
    dollars_per_hour: float = 0.0


@dataclass
class Remaining:
    """Room under the limits, counted down as a plan buys. None is no limit.

    ``spent`` counts what was bought of offerings of which only so many can be had, by their key.
    """

    machines: int | None
    gpus: int | None
    dollars_per_hour: float | None
    pools: dict[str, int] = field(default_factory=dict)
    spent: dict[tuple[str, str, str, str], int] = field(default_factory=dict)

    def copy(self) -> "Remaining":
        return replace(self, pools=dict(self.pools), spent=dict(self.spent))

    def any(self) -> bool:
        """Whether there is any limit at all."""
        return bool(self.pools) or any(limit is not None for limit in (self.machines, self.gpus, self.dollars_per_hour))

    def for_mix(self) -> MixLimits:
        return MixLimits(machines=self.machines, gpus=self.gpus, dollars_per_hour=self.dollars_per_hour, pools=dict(self.pools))

    def spend(self, kind: Kind, times: int) -> None:
        """Take ``times`` machines of ``kind`` off what remains."""
        if self.machines is not None:
            self.machines -= times
        if self.gpus is not None:
            self.gpus -= times * kind.offering.gpus
        if self.dollars_per_hour is not None:
            self.dollars_per_hour -= times * kind.price
        if kind.pool.name in self.pools:
            self.pools[kind.pool.name] -= times
        if times and kind.count is not None:
            self.spent[kind.offering.key] = self.spent.get(kind.offering.key, 0) + times

    def most(self, kind: Kind, wanted: int) -> int:
        """How many of ``wanted`` machines of ``kind`` the limits admit."""
        room = [wanted, self.pools.get(kind.pool.name, wanted)]
        if self.machines is not None:
            room.append(self.machines)
        if kind.count is not None:
            room.append(kind.count - self.spent.get(kind.offering.key, 0))
        gpus = kind.offering.gpus
        if self.gpus is not None and gpus:
            room.append(self.gpus // gpus)
        if self.dollars_per_hour is not None and kind.price > 0:
            room.append(math.floor(self.dollars_per_hour / kind.price + 1e-9))
        return max(0, min(room))


def fleets(cluster: Cluster, policy: Policy, state: State, members: Mapping[str, Member]) -> dict[str, Fleet]:
    """What each pool has, registered or coming; a machine of the ledger that has registered is counted once (I3)."""
    prices = {offering.key: offering for pool in policy.pools for offering in pool.offerings}
    coming = {machine.node for machine in state.upcoming if machine.node}
    counted: dict[str, list[tuple[int, float]]] = {pool.name: [] for pool in policy.pools}
    gpus = dict(zip(cluster.table.names, gpus_by_row(cluster.table).tolist(), strict=True))
    for name, member in members.items():
        if name not in coming:
            bought = member.offering
            # A node whose device plug-in is not up yet, or that offers only slices, has the GPUs that it was bought with.
            counted[member.pool.name].append((max(gpus[name], bought.gpus), bought.price) if bought else (gpus[name], 0.0))
    for machine in state.upcoming:
        offering = prices.get((machine.pool, machine.market, machine.instance_type, machine.zone))
        if machine.pool in counted:
            counted[machine.pool].append((offering.gpus, offering.price) if offering else (0, 0.0))
    return {
        name: Fleet(len(machines), sum(gpus for gpus, _ in machines), math.fsum(price for _, price in machines))
        for name, machines in counted.items()
    }


def remaining(policy: Policy, state: State, have: Mapping[str, Fleet]) -> Remaining:
    """The room under the limits of ``policy`` when the pools have ``have``; never below zero."""
    limits = policy.limits
    machines = least(
        None if limits.machines is None else limits.machines - sum(fleet.machines for fleet in have.values()),
        None if limits.machines_per_minute is None else limits.machines_per_minute - state.bought_last_minute,
    )
    gpus = None if limits.gpus is None else max(0, limits.gpus - sum(fleet.gpus for fleet in have.values()))
    spent = math.fsum(fleet.dollars_per_hour for fleet in have.values())
    dollars = None if limits.dollars_per_hour is None else max(0.0, limits.dollars_per_hour - spent)
    pools = {pool.name: max(0, pool.max - have[pool.name].machines) for pool in policy.pools if pool.max is not None}
    return Remaining(machines, gpus, dollars, pools)


def least(*bounds: int | None) -> int | None:
    """The smallest bound that is given, not below zero; None when none is."""
    given: Iterable[int] = [bound for bound in bounds if bound is not None]
    return max(0, min(given)) if given else None
