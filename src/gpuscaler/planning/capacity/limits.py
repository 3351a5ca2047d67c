"""The purchases that limits still admit: limits minus existing and ordered machines (I5)."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from gpuscaler.model.accelerators import count_accelerators
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.model.table import Mask
from gpuscaler.planning.capacity.node_templates import MachineKind, Templates
from gpuscaler.planning.capacity.pool_membership import Member
from gpuscaler.planning.capacity.similar_offerings import possible_offerings
from gpuscaler.planning.mix.problem import Limits as MixLimits
from gpuscaler.planning.state import State, Upcoming


@dataclass(frozen=True)
class Fleet:
    """The machines of a pool that exist or are ordered. ``vacated`` of them are ending and no longer count for the pool's maximum."""

    machines: int = 0
    gpus: int = 0
    dollars_per_hour: float = 0.0
    vacated: int = 0


@dataclass
class Remaining:
    """Room under the limits, counted down as a plan buys. None is no limit.

    ``spent`` counts the machines bought of offerings with a limited stock, by key. ``assumed`` says that the limits are defaults,
    ``held`` why nothing is bought during a hold.
    """

    machines: int | None
    gpus: int | None
    dollars_per_hour: float | None
    pools: dict[str, int] = field(default_factory=dict)
    spent: dict[OfferingKey, int] = field(default_factory=dict)
    assumed: bool = False
    held: str = ""

    def copy(self) -> "Remaining":
        return replace(self, pools=dict(self.pools), spent=dict(self.spent))

    def any(self) -> bool:
        """Whether there is any limit at all."""
        return bool(self.pools) or any(limit is not None for limit in (self.machines, self.gpus, self.dollars_per_hour))

    def for_mix(self) -> MixLimits:
        return MixLimits(machines=self.machines, gpus=self.gpus, dollars_per_hour=self.dollars_per_hour, pools=dict(self.pools))

    def spend(self, kind: MachineKind, times: int) -> None:
        """Subtract ``times`` machines of ``kind``."""
        if self.machines is not None:
            self.machines -= times
        if self.gpus is not None:
            self.gpus -= times * kind.gpus
        if self.dollars_per_hour is not None:
            self.dollars_per_hour -= times * kind.price
        if kind.pool.name in self.pools:
            self.pools[kind.pool.name] -= times
        if times and kind.count is not None:
            self.spent[kind.offering.key] = self.spent.get(kind.offering.key, 0) + times

    def admitted_count(self, kind: MachineKind, wanted: int) -> int:
        """How many of ``wanted`` machines of ``kind`` the limits admit."""
        room = [wanted, self.pools.get(kind.pool.name, wanted)]
        if self.machines is not None:
            room.append(self.machines)
        if kind.count is not None:
            room.append(kind.count - self.spent.get(kind.offering.key, 0))
        gpus = kind.gpus
        if self.gpus is not None and gpus:
            room.append(self.gpus // gpus)
        if self.dollars_per_hour is not None and kind.price > 0:
            room.append(math.floor(self.dollars_per_hour / kind.price + 1e-9))
        return max(0, min(room))

    def admitted(self, templates: Templates) -> Mask:
        """The kinds for which the limits admit one more machine: :meth:`admitted_count` of one is not 0."""
        mask = np.full(len(templates.kinds), self.machines is None or self.machines >= 1)
        if not mask.any():
            return mask
        if full := [name for name, left in self.pools.items() if left < 1]:
            mask &= np.array([kind.pool.name not in full for kind in templates.kinds], dtype=np.bool_)
        if self.gpus is not None:
            mask &= (templates.gpus == 0) | (templates.gpus <= self.gpus)
        if self.dollars_per_hour is not None:
            prices = templates.prices
            affordable = np.divide(self.dollars_per_hour, prices, out=np.full(len(prices), np.inf), where=prices > 0)
            mask &= affordable + 1e-9 >= 1
        for index in templates.counted:
            mask[index] = mask[index] and self.admitted_count(templates.kinds[index], 1) > 0
        return mask


class LimitUsage(NamedTuple):
    """The amounts that one machine counts for under the limits of its pool and of all pools."""

    pool: str
    gpus: int
    price: float


def limit_usage(node: Node, member: Member) -> LimitUsage:
    """The amounts that a node counts for. A node without a running device plug-in, or with slices only, counts its purchased GPUs.

    A node of a type that its pool does not offer counts the GPUs that it shows, and the price of the most expensive machine of the pool.
    """
    gpus, bought = count_accelerators(node.allocatable), member.offering
    if bought is not None:
        return LimitUsage(member.pool.name, bought.accelerators or max(gpus, bought.gpus), bought.price)
    rest = member.pool.offerings
    price = max((offering.price for offering in rest), default=0.0)
    return LimitUsage(member.pool.name, gpus or max((offering.gpus for offering in rest), default=0), price)


def fleets(policy: Policy, offerings: Mapping[OfferingKey, Offering], state: State, nodes: Mapping[str, LimitUsage]) -> dict[str, Fleet]:
    """The machines of each pool, registered (``nodes``, by name) or ordered; a registered machine of the ledger counts once (I3)."""
    coming = {machine.node for machine in state.upcoming if machine.node}
    gpus: dict[str, list[int]] = {pool.name: [] for pool in policy.pools}
    prices: dict[str, list[float]] = {pool.name: [] for pool in policy.pools}
    for name, (pool, has, costs) in nodes.items():
        if name not in coming:
            gpus[pool].append(has)
            prices[pool].append(costs)
    for machine in state.upcoming:
        # Until its offering is known, it counts for the most that it may be.
        if machine.pool in gpus:
            choices = possible_offerings(keys_of(machine), offerings)
            gpus[machine.pool].append(max((offering.gpus for offering in choices), default=0))
            prices[machine.pool].append(max((offering.price for offering in choices), default=0.0))
    vacated = Counter(ending.offering.pool for ending in state.ending)
    for ending in state.ending:
        if ending.node not in nodes and ending.offering.pool in gpus:
            # Its Node is gone, but the machine costs money until it is gone, too.
            choices = possible_offerings([ending.offering], offerings)
            gpus[ending.offering.pool].append(max((offering.gpus for offering in choices), default=0))
            prices[ending.offering.pool].append(max((offering.price for offering in choices), default=0.0))
    return {name: Fleet(len(prices[name]), sum(gpus[name]), math.fsum(prices[name]), vacated[name]) for name in prices}


def keys_of(machine: Upcoming) -> list[OfferingKey]:
    """Keys of all offerings that a machine may turn out to be, including the fallbacks that were asked for."""
    choices = machine.choices or ((machine.instance_type, machine.market, machine.zone),)
    return [OfferingKey(machine.pool, market, instance_type, zone) for instance_type, market, zone in (*choices, *machine.behind)]


@dataclass
class Slack:
    """Room that the limits leave after a plan, in accelerators and dollars per hour; infinite without a limit.

    Fallbacks that have more accelerators or cost more than planned use it up.
    """

    gpus: float
    dollars_per_hour: float

    def admit(self, planned: Offering, others: Iterable[Offering]) -> list[Offering]:
        """Those of ``others``, in order, that the limits admit in place of ``planned``; the most that one adds is subtracted."""
        if self.gpus == self.dollars_per_hour == math.inf:
            return list(others)
        extra_gpus, extra_dollars, admitted = 0, 0.0, []
        for offering in others:
            gpus, dollars = offering.gpus - planned.gpus, offering.price - planned.price
            if gpus <= self.gpus and dollars <= self.dollars_per_hour + 1e-9:
                extra_gpus, extra_dollars = max(extra_gpus, gpus), max(extra_dollars, dollars)
                admitted.append(offering)
        self.gpus -= extra_gpus
        self.dollars_per_hour -= extra_dollars
        return admitted


def slack(policy: Policy, state: State, have: Mapping[str, Fleet], planned: Iterable[Iterable[OfferingKey]]) -> Slack:
    """Room that the limits leave after the current fleets ``have`` and the machines of a plan; ``planned`` has the keys of each machine."""
    left, offerings = remaining(policy, state, have), policy.offerings
    if left.gpus is None and left.dollars_per_hour is None:
        return Slack(math.inf, math.inf)
    new = [[offerings[key] for key in keys if key in offerings] for keys in planned]
    gpus = sum(max((offering.gpus for offering in offerings), default=0) for offerings in new)
    dollars = math.fsum(max((offering.price for offering in may_be), default=0.0) for may_be in new)
    return Slack(
        math.inf if left.gpus is None else left.gpus - gpus,
        math.inf if left.dollars_per_hour is None else left.dollars_per_hour - dollars,
    )


def remaining(policy: Policy, state: State, have: Mapping[str, Fleet]) -> Remaining:
    """The room under the limits of ``policy`` when the pools have ``have``; never below zero."""
    limits = policy.limits
    machines = smallest_bound(
        0 if state.buying_held else None,
        None if limits.machines is None else limits.machines - sum(fleet.machines for fleet in have.values()),
        None if limits.machines_per_minute is None else limits.machines_per_minute - state.bought_last_minute,
    )
    gpus = None if limits.gpus is None else max(0, limits.gpus - sum(fleet.gpus for fleet in have.values()))
    spent = math.fsum(fleet.dollars_per_hour for fleet in have.values())
    dollars = None if limits.dollars_per_hour is None else max(0.0, limits.dollars_per_hour - spent)
    counted = {name: fleet.machines - fleet.vacated for name, fleet in have.items()}
    pools = {pool.name: max(0, pool.max - counted[pool.name]) for pool in policy.pools if pool.max is not None}
    return Remaining(machines, gpus, dollars, pools, assumed=limits.assumed, held=state.buying_held)


def smallest_bound(*bounds: int | None) -> int | None:
    """The smallest of the given bounds, not below zero; None when all are None."""
    given: Iterable[int] = [bound for bound in bounds if bound is not None]
    return max(0, min(given)) if given else None
