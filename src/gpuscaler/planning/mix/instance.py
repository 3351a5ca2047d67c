"""A problem as arrays: sorted by content, equal items merged, kinds that can never pay dropped.

All amounts are float64 that hold integers below 2**53, so sums and floors are exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuscaler.planning.mix.problem import Item, MixError, Problem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: Comparisons of prices and values, relative.
EPSILON = 1e-9
DEVICE = 1000.0
#: Kinds compared at once.
_CHUNK = 64


@dataclass(frozen=True, slots=True)
class LimitRow:
    """``sum(weights[k] * machines of kind k) <= amount``; ``name`` is its name in the duals."""

    name: str
    weights: Floats
    amount: float


@dataclass(frozen=True, slots=True)
class ProblemArrays:
    """I items, K kinds, R resources.

    ``copies[i, k]`` is the most copies of item i that one machine of kind k holds when it holds nothing else, never above the demand;
    0 also means not allowed. ``tier[i]`` ranks priorities, 0 first. ``excluded[i]`` are the items that may not share a machine with item i.
    Shared caps are modelled as extra resources after the first ``real`` columns: a machine provides ``cap`` units, and each pod uses one.
    ``capped`` marks the items that have a binding cap of their own. ``members[i]`` are the problem's items that item i was merged from, in
    key order; ``origin[k]`` is the problem's index of kind k.
    """

    demand: Floats
    request: Floats
    copies: Floats
    tier: Ints
    capped: Mask
    real: int
    capacity: Floats
    price: Floats
    limits: tuple[LimitRow, ...]
    excluded: tuple[tuple[int, ...], ...]
    device: int | None
    members: tuple[tuple[int, ...], ...]
    origin: tuple[int, ...]


def build(problem: Problem) -> ProblemArrays:
    """Convert ``problem`` to arrays and reduce it; raises :class:`MixError` if it contradicts itself."""
    check(problem)
    resources = sorted({name for item in problem.items for name, amount in item.request.items() if amount > 0 and item.count > 0})
    kind_order = sorted(range(len(problem.kinds)), key=lambda k: problem.kinds[k].key)
    capacity = _matrix([problem.kinds[k].capacity for k in kind_order], resources)
    members = _merge(problem)
    firsts = [problem.items[group[0]] for group in members]
    request = _matrix([item.request for item in firsts], resources)
    real = len(resources)
    request, capacity = _with_groups(problem, members, request, capacity)
    demand = np.array([sum(problem.items[i].count for i in group) for group in members], dtype=np.float64)
    device = resources.index(problem.device_resource) if problem.device_resource in resources else None
    allowed = _allowed(firsts, kind_order)
    copies = np.where(allowed, _copies(request, capacity, device), 0.0)
    caps = np.array([_cap(problem, group) for group in members], dtype=np.float64)
    copies, demands = np.minimum(copies, np.minimum(demand, caps)[:, None]), demand

    buyable: Mask = np.any(copies > 0, axis=1)
    members = [group for group, ok in zip(members, buyable, strict=True) if ok]
    demand, request, copies = demand[buyable], request[buyable], copies[buyable]
    price = np.array([problem.kinds[k].price for k in kind_order], dtype=np.float64)
    limits = _limit_rows(problem, kind_order, demand, price)
    useful = np.flatnonzero(copies.any(axis=0))
    room = np.minimum(capacity, demand @ request)[useful]
    keep = useful[undominated(room, allowed[buyable][:, useful], price[useful], [row.weights[useful] for row in limits])]
    origin = tuple(kind_order[int(k)] for k in keep)
    priorities = [problem.items[group[0]].priority for group in members]
    ranks = {value: rank for rank, value in enumerate(sorted(set(priorities), reverse=True))}
    return ProblemArrays(
        demand=demand,
        request=request,
        copies=np.ascontiguousarray(copies[:, keep]),
        tier=np.array([ranks[p] for p in priorities], dtype=np.int64),
        capped=(caps < demands)[buyable],
        real=real,
        capacity=np.ascontiguousarray(capacity[keep]),
        price=price[keep],
        limits=tuple(LimitRow(row.name, row.weights[keep], row.amount) for row in limits),
        excluded=_excluded(problem, members),
        device=device,
        members=tuple(members),
        origin=origin,
    )


def residual(instance: ProblemArrays, demand: Floats) -> ProblemArrays:
    """The same instance with ``demand`` pods of each item."""
    return replace(instance, demand=demand, copies=np.minimum(instance.copies, demand[:, None]))


def check(problem: Problem) -> None:
    """Raise :class:`MixError`, naming the object, if indices, keys or amounts are invalid."""
    for object_name, keys in (("item", [item.key for item in problem.items]), ("kind", [kind.key for kind in problem.kinds])):
        if len(set(keys)) != len(keys):
            twice = min(key for key in keys if keys.count(key) > 1)
            raise MixError(f"{object_name} key {twice!r} is used more than once; give every {object_name} its own key")
    for item in problem.items:
        _check_item(item, problem)
    for kind in problem.kinds:
        if not (kind.price >= 0.0 and np.isfinite(kind.price)):
            raise MixError(f"kind {kind.key!r} has the price {kind.price!r}; expected a finite number of dollars that is not negative")
    indices = [i for group in problem.shared_caps for i in group.items] + [i for pair in problem.exclusive_pairs for i in pair]
    if any(not 0 <= i < len(problem.items) for i in indices):
        raise MixError(f"shared_caps and exclusive_pairs name items 0 to {len(problem.items) - 1}; saw {min(indices)} to {max(indices)}")


def _check_item(item: Item, problem: Problem) -> None:
    if item.count < 0 or any(amount < 0 for amount in item.request.values()):
        raise MixError(f"item {item.key!r} has a negative count or request; expected amounts of zero or more")
    if item.allowed and not (min(item.allowed) >= 0 and max(item.allowed) < len(problem.kinds)):
        raise MixError(f"item {item.key!r} allows kinds {min(item.allowed)} to {max(item.allowed)}; there are {len(problem.kinds)} kinds")
    share = item.request.get(problem.device_resource, 0)
    if share > DEVICE and share % DEVICE:
        raise MixError(f"item {item.key!r} requests {share} of {problem.device_resource}; expected at most 1000, or a multiple of 1000")


def _matrix(rows: Sequence[Mapping[str, int]], resources: Sequence[str]) -> Floats:
    flat = [row.get(name, 0) for row in rows for name in resources]
    return np.array(flat, dtype=np.float64).reshape(len(rows), len(resources))


def _merge(problem: Problem) -> list[tuple[int, ...]]:
    """Groups of items that are the same for every machine, in key order. An item with a binding ``per_machine`` cap is not merged."""
    own = {i for pair in problem.exclusive_pairs for i in pair if pair[0] == pair[1]}
    partners: dict[int, set[int]] = {}
    for a, b in problem.exclusive_pairs:
        if a != b:
            partners.setdefault(a, set()).add(b)
            partners.setdefault(b, set()).add(a)
    grouped: dict[int, list[int]] = {}
    for g, shared in enumerate(problem.shared_caps):
        for i in set(shared.items):
            grouped.setdefault(i, []).append(g)
    classes: dict[object, list[int]] = {}
    for i in sorted(range(len(problem.items)), key=lambda i: problem.items[i].key):
        item = problem.items[i]
        if item.count == 0:
            continue
        capped = i in own or (item.per_machine is not None and item.per_machine < item.count)
        signature = (
            tuple(sorted((name, amount) for name, amount in item.request.items() if amount)),
            None if item.allowed is None else tuple(sorted(set(item.allowed))),
            item.priority,
            tuple(grouped.get(i, ())),
            tuple(sorted(partners.get(i, ()))),
            i if capped else None,
        )
        classes.setdefault(signature, []).append(i)
    return [tuple(group) for group in classes.values()]


def _cap(problem: Problem, group: tuple[int, ...]) -> float:
    item = problem.items[group[0]]
    if (group[0], group[0]) in problem.exclusive_pairs:
        return min(1.0, np.inf if item.per_machine is None else max(item.per_machine, 0.0))
    return np.inf if item.per_machine is None or len(group) > 1 else float(max(item.per_machine, 0))


def _copies(request: Floats, capacity: Floats, device: int | None) -> Floats:
    """The most copies of each item alone on each kind, by resources only; shape (I, K)."""
    devices = np.floor(capacity[:, device] / DEVICE) if device is not None else np.zeros(0)
    copies = np.full((len(request), len(capacity)), np.inf)
    for resource in range(request.shape[1]):
        requesting = np.flatnonzero(request[:, resource])
        amount = request[requesting, resource, None]
        fit = np.floor(capacity[None, :, resource] / amount)
        if resource == device:
            fit = np.where(amount <= DEVICE, np.floor(DEVICE / amount) * devices[None, :], fit)
        copies[requesting] = np.minimum(copies[requesting], fit)
    return copies


def _allowed(items: Sequence[Item], kind_order: Sequence[int]) -> Mask:
    position = {k: p for p, k in enumerate(kind_order)}
    mask = np.zeros((len(items), len(kind_order)), dtype=np.bool_)
    for row, item in enumerate(items):
        mask[row, slice(None) if item.allowed is None else [position[k] for k in item.allowed]] = True
    return mask


def _limit_rows(problem: Problem, order: Sequence[int], demand: Floats, price: Floats) -> tuple[LimitRow, ...]:
    """Only limits that could bind: no optimal plan buys more machines than there are pods."""
    pods = float(demand.sum())
    kinds, limits = [problem.kinds[k] for k in order], problem.limits
    rows = [
        LimitRow(f"kind:{kind.key}", (np.arange(len(kinds)) == row).astype(np.float64), float(kind.available))
        for row, kind in enumerate(kinds)
        if kind.available is not None and kind.available < pods
    ]
    for pool in sorted(limits.pools):
        if limits.pools[pool] < pods:
            weights = np.array([float(kind.pool == pool) for kind in kinds])
            rows.append(LimitRow(f"pool:{pool}", weights, float(limits.pools[pool])))
    if limits.machines is not None and limits.machines < pods:
        rows.append(LimitRow("machines", np.ones(len(kinds)), float(limits.machines)))
    if limits.gpus is not None:
        rows.append(LimitRow("gpus", np.array([float(kind.gpus_counted) for kind in kinds]), float(limits.gpus)))
    if limits.dollars_per_hour is not None:
        rows.append(LimitRow("dollars", price, float(limits.dollars_per_hour)))
    rows = [LimitRow(row.name, row.weights, max(row.amount, 0.0)) for row in rows]
    return tuple(row for row in rows if float(row.weights.max(initial=0.0)) * pods > row.amount)


def undominated(capacity: Floats, admits: Mask, price: Floats, weights: Sequence[Floats]) -> Ints:
    """Kinds for which no other kind has at least the same room, admits the same items, costs no more and weighs no more; ascending.

    ``capacity`` is (K, R), ``admits`` (I, K), ``price`` and each of ``weights`` (K,). Of equal kinds, the first stays.
    """
    classes = {row.tobytes(): row.astype(np.float64) for row in admits}
    # One row per kind; a smaller entry is never better. ``copies`` follows from room and admission, so it need not be compared.
    vector = np.column_stack([capacity, *classes.values(), -price, *(-w for w in weights)])
    # The largest, then the cheapest come first, so that a dominating kind comes before those it dominates.
    order = np.lexsort((np.arange(len(price)), price, -vector.sum(axis=1)))
    firsts: dict[bytes, int] = {}
    for row in order.tolist():
        firsts.setdefault(vector[row].tobytes(), row)
    order = np.array(list(firsts.values()), dtype=np.int64)
    kept = order[:0]
    for start in range(0, len(order), _CHUNK):
        fresh = order[start : start + _CHUNK]
        fresh = fresh[~_covered(vector[kept], vector[fresh]).any(axis=0)]
        kept = np.concatenate([kept, fresh[~np.triu(_covered(vector[fresh], vector[fresh]), 1).any(axis=0)]])
    return np.sort(kept)


def _covered(some: Floats, others: Floats) -> Mask:
    """Whether each of ``some`` (A, V) is nowhere smaller than each of ``others`` (B, V); shape (A, B)."""
    mask = np.ones((len(some), len(others)), dtype=np.bool_)
    for column in range(some.shape[1]):
        mask &= some[:, column, None] >= others[None, :, column]
    return mask


def _with_groups(problem: Problem, members: Sequence[tuple[int, ...]], request: Floats, capacity: Floats) -> tuple[Floats, Floats]:
    """Append a resource for every shared cap."""
    columns: dict[bytes, tuple[Floats, float]] = {}
    for shared in problem.shared_caps:
        inside = set(shared.items)
        takes = np.array([float(group[0] in inside) for group in members])
        cap = min(float(max(shared.cap, 0)), columns.get(takes.tobytes(), (takes, np.inf))[1])
        columns[takes.tobytes()] = (takes, cap)
    kept = [columns[raw] for raw in sorted(columns) if columns[raw][0].any()]
    caps = np.array([cap for _, cap in kept])
    return np.column_stack([request, *(takes for takes, _ in kept)]), np.hstack([capacity, np.tile(caps, (len(capacity), 1))])


def _excluded(problem: Problem, members: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    place = {i: row for row, group in enumerate(members) for i in group}
    partners: list[set[int]] = [set() for _ in members]
    for a, b in problem.exclusive_pairs:
        if a in place and b in place and place[a] != place[b]:
            partners[place[a]].add(place[b])
            partners[place[b]].add(place[a])
    return tuple(tuple(sorted(group)) for group in partners)
