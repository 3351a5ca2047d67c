"""The resource linear programme: pods and machines may be split freely, only the sums of resources count."""

from dataclasses import dataclass, replace

import numpy as np

from gpuscaler.planning.mix.columns.lp import INFINITY, Columns, load, quiet_solver, run
from gpuscaler.planning.mix.instance import Floats, Ints, ProblemArrays, undominated

#: Free kinds are compared as if they cost this much.
_FREE = 1e-9
#: The most entries of the programme's matrix before groups are left out of it, and the number of kinds in a guide.
_MOST_ENTRIES, _GUIDES = 20_000, 24


@dataclass(frozen=True, slots=True)
class Prices:
    """Dual prices: ``items`` (I,) dollars per pod, ``resources`` (K, R) dollars per unit on each kind, ``charges`` (L,) per limit unit."""

    items: Floats
    resources: Floats
    charges: Floats

    def kind_costs(self, instance: ProblemArrays) -> Floats:
        """The cost of a machine of each kind, charges included; shape (K,)."""
        cost = instance.price.copy()
        for row, charge in zip(instance.limits, self.charges, strict=True):
            cost += row.weights * charge
        return cost

    def bound(self, instance: ProblemArrays, served: Floats) -> float:
        """The lower bound that these prices prove for the pods ``served``, if no pattern is worth more than its machine costs."""
        charged = sum(charge * row.amount for charge, row in zip(self.charges, instance.limits, strict=True))
        return max(float(self.items @ served) - float(charged), 0.0)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The optimum of the resource programme: its prices, the machines of each kind (K,), and the pods on each kind (I, K), in fractions."""

    prices: Prices
    machines: Floats
    flows: Floats
    iterations: int


@dataclass(frozen=True, slots=True)
class _Programme:
    """Options of the programme: its kinds (``basis``), number of resources, penalty of unplaced pods, and whether items' own caps count."""

    basis: Ints
    resources: int
    penalty: Floats | None
    capped: bool


def relaxed_values(instance: ProblemArrays, prices: Prices) -> Floats:
    """For each kind, an upper bound on the value of the pods that one machine can hold, by weak duality; shape (K,)."""
    worth = prices.items[:, None] - instance.request @ prices.resources.T
    gained = np.einsum("ik,ik->k", instance.copies, np.maximum(worth, 0.0))
    return np.asarray((prices.resources * instance.capacity).sum(axis=1) + gained)


def resource_prices(instance: ProblemArrays, *, penalty: Floats | None = None) -> Relaxed:
    """Solve the resource programme; its prices are made safe against rounding.

    With ``penalty`` (I,) a pod may stay unplaced at that cost; without it, limits must leave room for everything.
    """
    programme = _programme(instance, penalty)
    relaxed = _solve(instance, programme)
    return replace(relaxed, prices=scale_to_safe(instance, relaxed.prices))


def _programme(instance: ProblemArrays, penalty: Floats | None) -> _Programme:
    """The programme with as many constraints as its size allows; leaving constraints out keeps its bound valid."""
    groups = instance.capacity.shape[1]
    programme = _Programme(_basis(instance, groups, capped=True), groups, penalty, capped=True)
    for resources in (groups, instance.real):
        if len(programme.basis) * len(instance.demand) * programme.resources <= _MOST_ENTRIES:
            break
        programme = _Programme(_basis(instance, resources, capped=False), resources, penalty, capped=False)
    return programme


def guide(instance: ProblemArrays, prices: Prices, *, penalty: Floats | None = None) -> Relaxed:
    """A sketch of a mix that includes every cap and group: the programme over a few kinds of every size, with similar items merged.

    ``prices`` are passed through. Items are similar if they have the same admission, groups and caps; each gets its part of the result.
    """
    ease = np.where(instance.capped, np.log2(np.maximum(instance.demand, 1.0) / np.maximum(instance.copies.max(axis=1), 1.0)).round(), -1.0)
    signature = np.column_stack([instance.request[:, instance.real :], ease])
    places: dict[tuple[bytes, bytes], int] = {}
    rows = zip(np.packbits(instance.copies > 0, axis=1), signature, strict=True)
    classes = np.array([places.setdefault((admits.tobytes(), group.tobytes()), len(places)) for admits, group in rows])
    member = (np.arange(classes.max() + 1)[:, None] == classes).astype(np.float64)
    demand = member @ instance.demand
    # A class may have no demand left.
    part = member * instance.demand / np.maximum(demand, 1.0)[:, None]
    capped = member @ instance.capped > 0
    merged = replace(
        instance,
        demand=demand,
        request=part @ instance.request,
        copies=np.where(capped[:, None], member @ instance.copies, demand[:, None]) * (member @ instance.copies > 0),
        capped=capped,
    )
    unmet = None if penalty is None else part @ penalty
    relaxed = _solve(merged, _Programme(_kinds_of_every_size(merged), instance.capacity.shape[1], unmet, capped=True))
    return Relaxed(prices, relaxed.machines, part.T @ relaxed.flows, relaxed.iterations)


def _kinds_of_every_size(instance: ProblemArrays) -> Ints:
    """A few kinds from each set of kinds that admit the same items, from the cheapest to the most expensive."""
    places: dict[bytes, int] = {}
    admits = np.array([places.setdefault(column.tobytes(), len(places)) for column in np.packbits(instance.copies > 0, axis=0).T])
    classes = len(places)
    chosen: set[int] = set()
    for which in range(classes):
        kinds = np.flatnonzero(admits == which)
        kinds = kinds[np.lexsort((kinds, instance.price[kinds]))]
        spaced = np.geomspace(1, len(kinds), num=max(_GUIDES // classes, 3)).astype(np.int64) - 1
        chosen.update(kinds[spaced].tolist())
    return np.array(sorted(chosen), dtype=np.int64)


def _basis(instance: ProblemArrays, resources: int, *, capped: bool) -> Ints:
    """The kinds that the programme needs: one that offers no more per dollar than another is never needed, whatever its size."""
    per_dollar = 1.0 / np.maximum(instance.price, _FREE)
    weights = [row.weights * per_dollar for row in instance.limits]
    room = np.column_stack([instance.capacity[:, :resources], *(instance.copies[instance.capped] if capped else ())])
    return undominated(room * per_dollar[:, None], instance.copies > 0, np.ones(len(per_dollar)), weights)


def _solve(instance: ProblemArrays, programme: _Programme) -> Relaxed:
    basis, resources = programme.basis, programme.resources
    scale = np.maximum(instance.capacity[:, :resources].max(axis=0, initial=1.0), 1.0)
    item, kind = np.nonzero(instance.copies[:, basis] > 0)
    columns, caps = _columns(instance, programme, scale, item, kind)
    items, cells, limits = len(instance.demand), len(basis) * resources, len(instance.limits)
    highs = quiet_solver()
    load(
        highs,
        columns,
        row_lower=np.concatenate([instance.demand, np.full(cells + limits + caps, -INFINITY)]),
        row_upper=np.concatenate([np.full(items, INFINITY), np.zeros(cells), [row.amount for row in instance.limits], np.zeros(caps)]),
    )
    optimum = run(highs)
    value = np.zeros((len(basis), instance.capacity.shape[1]))
    value[:, :resources] = np.maximum(-optimum.duals[items : items + cells].reshape(len(basis), resources), 0.0) / scale
    charges = np.maximum(-optimum.duals[items + cells : items + cells + limits], 0.0)
    item_values = np.maximum(optimum.duals[:items], 0.0)
    prices = Prices(item_values, _spread_prices(instance, item_values, value), charges)
    machines, flows = np.zeros(len(instance.price)), np.zeros(instance.copies.shape)
    flows[item, basis[kind]] = optimum.values[: len(item)]
    machines[basis] = optimum.values[len(item) : len(item) + len(basis)]
    return Relaxed(prices, machines, flows, optimum.iterations)


def _columns(instance: ProblemArrays, programme: _Programme, scale: Floats, item: Ints, kind: Ints) -> tuple[Columns, int]:
    """Build the matrix. Columns: a flow for each (``item``, ``kind``), the machines of each kind, unplaced pods.

    Rows: items, (kind, resource), limits, and a row for every flow of a capped item if caps count; also returns the number of the latter.
    """
    basis, resources = programme.basis, programme.resources
    request, capacity = instance.request[:, :resources] / scale, instance.capacity[basis][:, :resources] / scale
    items, flows, cells = len(instance.demand), len(item), len(basis) * resources
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
    capped = np.flatnonzero(instance.capped[item]) if programme.capped else np.zeros(0, dtype=np.int64)
    own = items + cells + len(instance.limits) + np.arange(len(capped))
    row += [own, own]
    column += [capped, flows + kind[capped]]
    value += [np.ones(len(capped)), -instance.copies[item[capped], basis[kind[capped]]]]
    if programme.penalty is not None:
        row.append(np.arange(items))
        column.append(flows + len(basis) + np.arange(items))
        value.append(np.ones(items))
        cost.append(programme.penalty)
    columns = Columns.of(np.concatenate(row), np.concatenate(column), np.concatenate(value), np.concatenate(cost))
    return columns, len(capped)


def _spread_prices(instance: ProblemArrays, items: Floats, values: Floats) -> Floats:
    """Resource prices for every kind: the row of ``values`` that gives the lowest bound on the worth of its machine."""
    best = np.full(len(instance.price), INFINITY)
    chosen = np.zeros_like(instance.capacity)
    for value in {row.tobytes(): row for row in values}.values():
        worth = instance.capacity @ value + np.maximum(items - instance.request @ value, 0.0) @ instance.copies
        chosen[worth < best] = value
        best = np.minimum(best, worth)
    return chosen


def scale_to_safe(instance: ProblemArrays, prices: Prices, worth: Floats | None = None) -> Prices:
    """Scale item values down until no kind's ``worth`` (default: relaxed) exceeds its cost: Farley's bound, valid for any prices."""
    worth = relaxed_values(instance, prices) if worth is None else worth
    cost = prices.kind_costs(instance)
    ratio = np.divide(cost, worth, out=np.full(len(cost), INFINITY), where=worth > cost)
    scale = min(float(ratio.min(initial=1.0)), 1.0)
    return Prices(prices.items * scale, prices.resources * scale, prices.charges)
