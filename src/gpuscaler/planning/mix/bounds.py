"""The resource linear programme: pods and machines may be split at will, only the sums of resources count."""

from dataclasses import dataclass

import numpy as np

from gpuscaler.planning.mix.instance import Floats, Instance, Ints, undominated
from gpuscaler.planning.mix.lp import INFINITY, Columns, load, run, silent

#: Kinds that cost nothing are compared as if they cost this much.
_FREE = 1e-9


@dataclass(frozen=True, slots=True)
class Prices:
    """Dual prices: ``items`` (I,) dollars per pod, ``resources`` (K, R) dollars per unit on each kind, ``charges`` (L,) per limit unit."""

    items: Floats
    resources: Floats
    charges: Floats

    def kind_costs(self, instance: Instance) -> Floats:
        """What a machine of each kind costs with its charges, shape (K,)."""
        cost = instance.price.copy()
        for row, charge in zip(instance.limits, self.charges, strict=True):
            cost += row.weights * charge
        return cost

    def bound(self, instance: Instance, served: Floats) -> float:
        """The lower bound these prices prove for the pods ``served``, if no pattern is worth more than its machine costs."""
        charged = sum(charge * row.amount for charge, row in zip(self.charges, instance.limits, strict=True))
        return max(float(self.items @ served) - float(charged), 0.0)


def relaxed_values(instance: Instance, prices: Prices) -> Floats:
    """For each kind, an upper bound on the value of what one machine can hold, by weak duality; shape (K,)."""
    worth = prices.items[:, None] - instance.request @ prices.resources.T
    gained = np.einsum("ik,ik->k", instance.copies, np.maximum(worth, 0.0))
    return np.asarray((prices.resources * instance.capacity).sum(axis=1) + gained)


def resource_prices(instance: Instance, *, penalty: Floats | None = None) -> tuple[Prices, int]:
    """Solve the resource programme; returns its prices, made safe against rounding, and the simplex iterations it took.

    With ``penalty`` (I,) a pod may stay unmet at that cost; without one, limits must leave room for everything.
    """
    rows = instance.limits
    per_dollar = 1.0 / np.maximum(instance.price, _FREE)
    # In this programme a kind that gives no more per dollar than another one is never needed, whatever its size.
    scaled, weights = instance.capacity * per_dollar[:, None], [row.weights * per_dollar for row in rows]
    basis = undominated(scaled, instance.copies > 0, np.ones(len(per_dollar)), weights)
    scale = np.maximum(instance.capacity.max(axis=0, initial=1.0), 1.0)
    columns = _columns(instance, basis, scale, penalty=penalty)
    items, cells = len(instance.demand), len(basis) * len(scale)
    highs = silent()
    load(
        highs,
        columns,
        row_lower=np.concatenate([instance.demand, np.full(cells + len(rows), -INFINITY)]),
        row_upper=np.concatenate([np.full(items, INFINITY), np.zeros(cells), [row.amount for row in rows]]),
    )
    optimum = run(highs)
    value = np.maximum(-optimum.duals[items : items + cells].reshape(len(basis), len(scale)), 0.0) / scale
    charges = np.maximum(-optimum.duals[items + cells :], 0.0)
    found = np.maximum(optimum.duals[:items], 0.0)
    return safe(instance, Prices(found, _spread(instance, found, value), charges)), optimum.iterations


def _columns(instance: Instance, basis: Ints, scale: Floats, *, penalty: Floats | None) -> Columns:
    """Columns: a flow for every (item, kind) that fits, the machines of each kind, pods unmet. Rows: items, (kind, resource), limits."""
    request, capacity = instance.request / scale, instance.capacity[basis] / scale
    item, kind = np.nonzero(instance.copies[:, basis] > 0)
    items, kinds, resources = len(instance.demand), len(basis), len(scale)
    flows, cells = len(item), kinds * resources
    flow, resource = np.nonzero(request[item])
    machine, room = np.nonzero(capacity)
    row = [item, items + kind[flow] * resources + resource, items + machine * resources + room]
    column = [np.arange(flows), flow, flows + machine]
    value = [np.ones(flows), request[item[flow], resource], -capacity[machine, room]]
    cost = [np.zeros(flows), instance.price[basis]]
    for number, limit in enumerate(instance.limits):
        weighs = np.flatnonzero(limit.weights[basis])
        row.append(np.full(len(weighs), items + cells + number))
        column.append(flows + weighs)
        value.append(limit.weights[basis][weighs])
    if penalty is not None:
        row.append(np.arange(items))
        column.append(flows + kinds + np.arange(items))
        value.append(np.ones(items))
        cost.append(penalty)
    return Columns.of(np.concatenate(row), np.concatenate(column), np.concatenate(value), np.concatenate(cost))


def _spread(instance: Instance, items: Floats, values: Floats) -> Floats:
    """Resource prices for every kind: of the rows of ``values``, the one that bounds the worth of its machine lowest."""
    best = np.full(len(instance.price), INFINITY)
    chosen = np.zeros_like(instance.capacity)
    for value in np.unique(values, axis=0):
        worth = relaxed_values(instance, Prices(items, np.broadcast_to(value, chosen.shape), np.zeros(0)))
        chosen[worth < best] = value
        best = np.minimum(best, worth)
    return chosen


def safe(instance: Instance, prices: Prices, worth: Floats | None = None) -> Prices:
    """Scale item values down until no kind's ``worth`` (default: relaxed) exceeds its cost: Farley's bound, valid whatever came in."""
    worth = relaxed_values(instance, prices) if worth is None else worth
    cost = prices.kind_costs(instance)
    ratio = np.divide(cost, worth, out=np.full(len(cost), INFINITY), where=worth > cost)
    scale = min(float(ratio.min(initial=1.0)), 1.0)
    return Prices(prices.items * scale, prices.resources * scale, prices.charges)
