"""Shared by tests of the optimiser: small random problems, a check of solutions, and the exact optimum by exhaustive search."""

import itertools
import random
from functools import cache

from gpuscaler.planning.mix import Item, Limits, MixKind, Problem, SharedCap, Solution


def packs(shares: list[int], devices: int) -> bool:
    """Whether shares of devices (thousandths) fit, by trying every device for every share."""
    free = [1000] * devices

    def place(index: int) -> bool:
        if index == len(shares):
            return True
        tried = set()
        for device, room in enumerate(free):
            if room >= shares[index] and room not in tried:
                tried.add(room)
                free[device] -= shares[index]
                if place(index + 1):
                    return True
                free[device] += shares[index]
        return False

    return place(0)


def fits(problem: Problem, kind: int, pods: dict[int, int]) -> bool:
    """Whether one machine of ``kind`` may hold ``pods``."""
    items, capacity = problem.items, problem.kinds[kind].capacity
    for i, count in pods.items():
        item = items[i]
        if item.allowed is not None and kind not in item.allowed:
            return False
        if item.per_machine is not None and count > item.per_machine:
            return False
    names = {name for i in pods for name in items[i].request}
    if any(sum(items[i].request.get(name, 0) * n for i, n in pods.items()) > capacity.get(name, 0) for name in names):
        return False
    if any(sum(pods.get(i, 0) for i in set(t.items)) > t.cap for t in problem.shared_caps):
        return False
    if any((a != b and pods.get(a, 0) and pods.get(b, 0)) or (a == b and pods.get(a, 0) > 1) for a, b in problem.exclusive_pairs):
        return False
    whole, shares = 0, []
    for i, count in pods.items():
        share = items[i].request.get(problem.device_resource, 0)
        if share >= 1000:
            whole += share // 1000 * count
        elif share:
            shares += [share] * count
    devices = capacity.get(problem.device_resource, 0) // 1000
    return not (whole or shares) or (whole <= devices and packs(sorted(shares, reverse=True), devices - whole))


def assert_valid(problem: Problem, solution: Solution) -> None:
    """Assert that every pod is placed once or unmet, every machine holds its pods, limits hold, and the cost is not below the bound."""
    placed = [0] * len(problem.items)
    for group in solution.groups:
        assert group.times > 0
        assert group.pods
        assert fits(problem, group.kind, dict(group.pods)), (problem, group)
        for i, n in group.pods.items():
            placed[i] += n * group.times
    for i, item in enumerate(problem.items):
        assert placed[i] + solution.unplaced.get(i, 0) == item.count
    cost = sum(problem.kinds[p.kind].price * p.times for p in solution.groups)
    assert abs(cost - solution.cost) < 1e-6
    assert solution.cost >= solution.lower_bound - 1e-9
    limits = problem.limits
    for index, kind in enumerate(problem.kinds):
        if kind.available is not None:
            assert sum(p.times for p in solution.groups if p.kind == index) <= kind.available
    for pool, most in limits.pools.items():
        assert sum(p.times for p in solution.groups if problem.kinds[p.kind].pool == pool) <= most
    if limits.machines is not None:
        assert sum(p.times for p in solution.groups) <= limits.machines
    if limits.gpus is not None:
        assert sum(problem.kinds[p.kind].gpus_counted * p.times for p in solution.groups) <= limits.gpus
    if limits.dollars_per_hour is not None:
        assert solution.cost <= limits.dollars_per_hour + 1e-6


def small_problem(seed: int, *, limited: bool = False, extras: bool = True) -> Problem:
    """2 to 4 items of 1 to 4 pods over 2 to 4 kinds, with random caps, groups, pairs, shared devices and (if ``limited``) limits."""
    draw = random.Random(seed)
    count = draw.randint(2, 4)
    devices = extras and draw.random() < 0.3
    kinds = []
    for n in range(draw.randint(2, 4)):
        capacity = {"cpu": draw.choice((4, 6, 8, 12)) * 1000, "memory": draw.choice((8, 12, 16, 24)), "pods": draw.choice((4, 8))}
        gpus = draw.choice((0, 1, 2))
        if devices and gpus:
            capacity["gpuscaler.io/gpu-milli"] = 1000 * gpus
        price = round(capacity["cpu"] / 10_000 + gpus * draw.choice((0.5, 1.0)) + draw.random() / 3, 2)
        limit = draw.choice((None, 1, 2)) if limited else None
        kinds.append(MixKind(f"k{n}", capacity, price, pool=draw.choice("ab"), available=limit, gpus_counted=gpus))
    items = []
    for n in range(count):
        request = {"cpu": draw.choice((500, 1000, 2000, 3000)), "memory": draw.choice((1, 2, 4, 6)), "pods": 1}
        if devices and draw.random() < 0.6:
            request["gpuscaler.io/gpu-milli"] = draw.choice((300, 400, 500, 600, 700, 1000))
        allowed = tuple(k for k in range(len(kinds)) if draw.random() < 0.8) if draw.random() < 0.3 else None
        cap = draw.choice((1, 2)) if extras and draw.random() < 0.3 else None
        items.append(Item(f"i{n}", draw.randint(1, 4), request, allowed, cap, draw.choice((0, 0, 5)) if limited else 0))
    shared_caps = (SharedCap((0, 1), draw.randint(1, 3)),) if extras and draw.random() < 0.3 else ()
    exclusive_pairs = ((0, count - 1),) if extras and draw.random() < 0.3 else ()
    limits = Limits()
    if limited:
        limits = Limits(
            machines=draw.choice((None, 1, 2, 3)),
            gpus=draw.choice((None, 1, 2)),
            dollars_per_hour=draw.choice((None, None, 1.5, 3.0)),
            pools={"a": draw.choice((1, 2, 9))},
        )
    return Problem(tuple(items), tuple(kinds), shared_caps, exclusive_pairs, limits)


def exact(problem: Problem) -> tuple[tuple[int, ...], float]:
    """The best (unmet pods by priority, highest first; cost), by dynamic programming over all possible remaining demands."""
    items, kinds, limits = problem.items, problem.kinds, problem.limits
    ranges = [range(item.count + 1) for item in items]
    patterns = [
        (k, pods)
        for k in range(len(kinds))
        for pods in itertools.product(*ranges)
        if any(pods) and fits(problem, k, {i: n for i, n in enumerate(pods) if n})
    ]
    pools = sorted(limits.pools)
    weights = [
        tuple([1, kind.gpus_counted] + [int(kind.pool == pool) for pool in pools] + [int(k == j) for j in range(len(kinds))])
        for k, kind in enumerate(kinds)
    ]
    free = 99
    amounts = [limits.machines, limits.gpus, *(limits.pools[pool] for pool in pools), *(kind.available for kind in kinds)]
    full = tuple(free if a is None else a for a in amounts)

    @cache
    def cheapest(left: tuple[int, ...], spare: tuple[int, ...]) -> float:
        first = next((i for i, n in enumerate(left) if n), None)
        if first is None:
            return 0.0
        best = float("inf")
        for k, pods in patterns:
            if pods[first] and all(n <= m for n, m in zip(pods, left, strict=True)):
                rest = tuple(a if a == free else a - w for a, w in zip(spare, weights[k], strict=True))
                if min(rest) >= 0:
                    less = tuple(m - n for n, m in zip(pods, left, strict=True))
                    best = min(best, kinds[k].price + cheapest(less, rest))
        return best

    tiers = sorted({item.priority for item in items}, reverse=True)
    outcomes = []
    for served in itertools.product(*ranges):
        cost = cheapest(served, full)
        if cost <= (limits.dollars_per_hour if limits.dollars_per_hour is not None else 1e9) + 1e-9:
            unmet = tuple(sum(item.count - n for item, n in zip(items, served, strict=True) if item.priority == t) for t in tiers)
            outcomes.append((unmet, round(cost, 6)))
    return min(outcomes)


def unmet_by_priority(problem: Problem, solution: Solution) -> tuple[int, ...]:
    """Unmet pods, highest priority first, as :func:`exact` counts them."""
    tiers = sorted({item.priority for item in problem.items}, reverse=True)
    return tuple(sum(solution.unplaced.get(i, 0) for i, item in enumerate(problem.items) if item.priority == tier) for tier in tiers)
