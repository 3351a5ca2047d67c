"""Two sets of pools on the same trace: the differences and each part's share. ``a`` is the current set, ``b`` the alternative."""

import statistics
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.simulation.measures.waits import CLASSES, PodWait, Wait, wait_of
from gpuscaler.simulation.results.chart import thinned
from gpuscaler.simulation.results.figures import FIGURES, mean_machines, mean_shares, spread
from gpuscaler.simulation.world.meter import MachineHours, Result, UnservedReason

#: Waits that differ by fewer seconds count as equal: less is chance in the timing of the cloud's answers.
NOTICEABLE = 1.0
#: Maximum number of pods of a kind that are named.
NAMED = 5


class Change(Struct, frozen=True, gc=False):
    """A number with ``a`` and with ``b``, means over seeds, and the second minus the first; None if unknown."""

    a: float | None
    b: float | None
    difference: float | None


class OfferingChange(Struct, frozen=True, gc=False):
    """Hours and dollars of one offering."""

    pool: str
    instance_type: str
    market: str
    zone: str
    hours: Change
    cost: Change


class ClassChange(Struct, frozen=True, gc=False):
    """Machine cost in dollars of the pods of one kind; ``pod_class`` None is the cost that no pod held."""

    pod_class: str | None
    cost: Change


class WaitChange(Struct, frozen=True, gc=False):
    """Waits of one kind of pods over all seeds: of ``pods``, ``longer`` waited noticeably longer with ``b``, ``shorter`` less."""

    pod_class: str
    pods: int
    longer: int
    shorter: int
    a: Wait
    b: Wait


class ServedByOne(Struct, frozen=True, gc=False):
    """Pods of one kind that ran with only one of the two, over all seeds, and the names of some."""

    pod_class: str
    pods: int
    some: tuple[str, ...]


class Difference(Struct, frozen=True, gc=False):
    """All differences under one policy.

    ``offerings`` and ``classes`` each add up to the difference in cost. ``sd`` is the standard deviation of that difference over seeds
    (None for one), ``cheaper`` the number of the ``seeds`` with which ``b`` costs less. ``at_least_a`` and ``at_least_b`` name the figures
    that are lower bounds: their difference is unknown. ``why_not_a`` and ``why_not_b`` are the first seed's reasons why pods never ran.
    """

    policy: str
    seeds: int
    cost: Change
    sd: float | None
    cheaper: int
    figures: dict[str, Change]
    at_least_a: tuple[str, ...]
    at_least_b: tuple[str, ...]
    offerings: tuple[OfferingChange, ...]
    classes: tuple[ClassChange, ...]
    waits: tuple[WaitChange, ...]
    only_a: tuple[ServedByOne, ...]
    only_b: tuple[ServedByOne, ...]
    why_not_a: tuple[UnservedReason, ...]
    why_not_b: tuple[UnservedReason, ...]


def change_between(a: float | None, b: float | None) -> Change:
    """Return the change from ``a`` to ``b``."""
    return Change(a, b, None if a is None or b is None else b - a)


def reduced_for_comparison(result: Result) -> Result:
    """A result reduced to what a comparison needs."""
    return replace(thinned(result), waits=result.waits)


def difference(a: Sequence[Result], b: Sequence[Result]) -> Difference:
    """Compute what ``b`` changes. Both are of one policy and the same seeds in the same order; pods are paired by name and seed."""
    if [(result.policy, result.seed) for result in a] != [(result.policy, result.seed) for result in b]:
        raise ValueError("only runs of one policy on the same seeds can be compared")
    figures, at_least_a, at_least_b = _figures(a, b)
    costs = [other.cost - result.cost for result, other in zip(a, b, strict=True)]
    pairs = [pair for result, other in zip(a, b, strict=True) for pair in _paired(result.waits, other.waits)]
    return Difference(
        policy=a[0].policy,
        seeds=len(a),
        cost=change_between(statistics.fmean(result.cost for result in a), statistics.fmean(result.cost for result in b)),
        sd=statistics.stdev(costs) if len(costs) > 1 else None,
        cheaper=sum(cost < 0 for cost in costs),
        figures=figures,
        at_least_a=at_least_a,
        at_least_b=at_least_b,
        offerings=_offerings(a, b),
        classes=_classes(a, b),
        waits=_waits(a, b, pairs),
        only_a=_count_served((pod_wait for pod_wait, other in pairs if pod_wait.ran and not other.ran)),
        only_b=_count_served((other for pod_wait, other in pairs if other.ran and not pod_wait.ran)),
        why_not_a=a[0].unserved_reasons,
        why_not_b=b[0].unserved_reasons,
    )


def _figures(a: Sequence[Result], b: Sequence[Result]) -> tuple[dict[str, Change], tuple[str, ...], tuple[str, ...]]:
    """All figures, and the keys of those that are lower bounds with ``a`` and with ``b``."""
    spreads = {figure.key: (spread(figure, a), spread(figure, b)) for figure in FIGURES}
    changes = {}
    for key, (first, second) in spreads.items():
        pair = change_between(*(None if side is None else side.mean for side in (first, second)))
        exact = not (first and first.at_least) and not (second and second.at_least)
        changes[key] = pair if exact else Change(pair.a, pair.b, None)
    bounds = [tuple(key for key, pair in spreads.items() if (side := pair[number]) and side.at_least) for number in range(2)]
    return changes, bounds[0], bounds[1]


def _paired(a: Iterable[PodWait], b: Iterable[PodWait]) -> list[tuple[PodWait, PodWait]]:
    """The pods that existed in both runs: replicas of services may have been created in only one."""
    others = {pod_wait.pod: pod_wait for pod_wait in b}
    return [(pod_wait, others[pod_wait.pod]) for pod_wait in a if pod_wait.pod in others]


def _offerings(a: Sequence[Result], b: Sequence[Result]) -> tuple[OfferingChange, ...]:
    """Offerings, those that contribute most to the difference first."""
    rows = [{(row.pool, row.instance_type, row.market, row.zone): row for row in mean_machines(runs)} for runs in (a, b)]
    changes = []
    for key in sorted({*rows[0], *rows[1]}):
        machine_hours, other = (machine_hours.get(key, MachineHours(*key, hours=0.0, cost=0.0, machines=0)) for machine_hours in rows)
        changes.append(
            OfferingChange(
                *key, hours=change_between(machine_hours.hours, other.hours), cost=change_between(machine_hours.cost, other.cost)
            )
        )
    return tuple(sorted(changes, key=lambda offering_change: -abs(offering_change.cost.difference or 0.0)))


def _classes(a: Sequence[Result], b: Sequence[Result]) -> tuple[ClassChange, ...]:
    shares = [mean_shares([result.classes for result in runs]) for runs in (a, b)]
    names: list[str | None] = [name for name in CLASSES if any(name in of_run for of_run in shares)]
    costs = [[of_run[name].cost if name in of_run else 0.0 for of_run in shares] for name in (*names, None)]
    return tuple(ClassChange(name, change_between(*cost)) for name, cost in zip((*names, None), costs, strict=True) if any(cost))


def _waits(a: Sequence[Result], b: Sequence[Result], pairs: Sequence[tuple[PodWait, PodWait]]) -> tuple[WaitChange, ...]:
    changes = []
    for name in CLASSES:
        own = [[pod_wait for result in runs for pod_wait in result.waits if pod_wait.pod_class == name] for runs in (a, b)]
        both = [pair for pair in pairs if pair[0].pod_class == name]
        if any(own):
            longer = sum(_waited_longer(other, pod_wait) for pod_wait, other in both)
            shorter = sum(_waited_longer(pod_wait, other) for pod_wait, other in both)
            changes.append(WaitChange(name, len(own[0]), longer, shorter, wait_of(own[0]), wait_of(own[1])))
    return tuple(changes)


def _waited_longer(pod_wait: PodWait, other: PodWait) -> bool:
    """Whether a pod waited noticeably longer than another; unknown, so False, for two that never ran."""
    return other.ran and (not pod_wait.ran or pod_wait.seconds > other.seconds + NOTICEABLE)


def _count_served(pods: Iterable[PodWait]) -> tuple[ServedByOne, ...]:
    kinds: dict[str, list[str]] = {}
    for pod_wait in pods:
        kinds.setdefault(pod_wait.pod_class, []).append(pod_wait.pod)
    return tuple(ServedByOne(name, len(kinds[name]), tuple(dict.fromkeys(kinds[name]))[:NAMED]) for name in CLASSES if name in kinds)
