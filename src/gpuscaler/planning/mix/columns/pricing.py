"""Finds the most valuable pods for one machine: a search over all kinds at once, item by item, with a limited width.

A state is a kind and the copies chosen of the items so far. With resource prices m, a full machine is worth at most g(m) (see
:mod:`~gpuscaler.planning.mix.columns.relax`), and every choice that departs from that optimum loses a known amount: a copy of an item that
is not worth its resources, or a missing copy of an item that is. States that have lost more than the distance from g to the target cannot
reach it and are cut. If there are still too many, the least promising are dropped, and the upper bound accounts for them. If nothing is
dropped, the search is exact.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpuscaler.planning.mix.columns.relax import sharpen
from gpuscaler.planning.mix.fill import fill
from gpuscaler.planning.mix.instance import EPSILON, Floats, Ints, ProblemArrays
from gpuscaler.planning.mix.work import Meter

#: How many patterns a search returns: at least so many per kind, and about so many over all kinds if that is more.
_FEW, _MANY = 3, 60


@dataclass(frozen=True, slots=True)
class ImprovingPatterns:
    """Patterns worth more than their target: ``kinds`` (P,), ``held`` (P, I).

    ``worth`` (K,) is an upper bound on the worth of any pattern of each kind; ``prices`` (K, R) are the resource prices behind these
    bounds. ``complete``: no pattern worth more than its target is missing, except those that another one contains.
    """

    kinds: Ints
    held: Floats
    worth: Floats
    prices: Floats
    complete: bool


@dataclass(slots=True)
class _States:
    """Rows of the search: position in the list of kinds, room left, loss so far, copies by item."""

    row: Ints
    room: Floats
    loss: Floats
    held: Floats

    def pick(self, which: Ints) -> "_States":
        return _States(self.row[which], self.room[which], self.loss[which], self.held[which])


@dataclass(frozen=True, slots=True)
class _Steps:
    """The decisions for each kind, one item per step; shapes (kinds, I); ``request`` (kinds, I, R) has NaN for resources not requested.

    ``gain`` is the worth of a copy beyond its resources, ``wanted`` the most copies on a machine, ``count`` (kinds,) the number of items.
    """

    item: Ints
    gain: Floats
    wanted: Floats
    request: Floats
    count: Ints

    @classmethod
    def of(cls, instance: ProblemArrays, copies: Floats, margin: Floats) -> "_Steps":
        # Large items first: they have few copies, and leave little room for the many small ones that fill the rest.
        item = np.argsort(np.where(copies > 0, copies, np.inf), axis=1, kind="stable")
        request = instance.request[item]
        return cls(
            item,
            np.take_along_axis(margin, item, axis=1),
            np.take_along_axis(copies, item, axis=1),
            np.where(request > 0, request, np.nan),
            (copies > 0).sum(axis=1),
        )


def search(
    instance: ProblemArrays,
    *,
    values: Floats,
    targets: Floats,
    starts: tuple[Floats, ...],
    width: int,
    meter: Meter,
    keep: int | None = None,
    worthless: bool = False,
) -> ImprovingPatterns:
    """Search patterns worth more than ``targets`` (K,) at item ``values``.

    ``starts`` are resource prices (K, R) to compute bounds with. At most ``width`` states exist at once, and the best ``keep`` patterns of
    each kind are returned. With ``worthless``, items of value 0 are put on machines too. ``worth`` is valid for any width: a kind without a
    pattern above its target gets the target itself, or its own bound if that is lower.
    """
    all_kinds = np.arange(len(instance.price))
    prices, bound = sharpen(instance, all_kinds, values, starts)
    meter.add(1000 + 400 * len(starts) + 2 * instance.copies.size)
    open_kinds = all_kinds[bound > targets * (1 + EPSILON)]
    worth = np.minimum(bound, targets)
    if not len(open_kinds):
        return ImprovingPatterns(all_kinds[:0], np.zeros((0, len(values))), worth, prices, True)
    copies = np.where((values > 0) | worthless, instance.copies[:, open_kinds].T, 0.0)
    margin = values - prices[open_kinds] @ instance.request.T
    with np.errstate(divide="ignore", invalid="ignore"):
        # An item with no affordable copy need not be decided.
        copies[(margin < -EPSILON) & ((bound - targets)[open_kinds, None] / -margin + EPSILON < 1.0)] = 0.0
    states, dropped = _expand_all(instance, open_kinds, copies, margin, targets[open_kinds], bound[open_kinds], width, meter)
    value = states.held @ values
    # The worth that the search could not rule out: the best of its states, and the best that it dropped.
    top = np.maximum(dropped, targets[open_kinds])
    np.maximum.at(top, states.row, value)
    worth[open_kinds] = np.minimum(top, bound[open_kinds])
    improving = np.flatnonzero(value > targets[open_kinds][states.row] * (1 + EPSILON))
    states, value = states.pick(improving), value[improving]
    best = _best_of_each(states.row, value, keep) if keep else _varied(states, value, len(open_kinds))
    complete = len(best) == len(value) and not np.isfinite(dropped).any()
    states = states.pick(best)
    kinds, held = open_kinds[states.row], states.held
    if instance.device is not None and len(kinds):
        # The search checks devices only by their sum. Patterns without a placement are cut down until there is one.
        share = instance.request[:, instance.device]
        held = fill(instance, np.argsort(-share, kind="stable"), states.held, kinds)
        complete = complete and bool(np.all(held == states.held))
        improving = np.flatnonzero(held @ values > targets[kinds] * (1 + EPSILON))
        kinds, held = kinds[improving], held[improving]
    return ImprovingPatterns(kinds, held, worth, prices, complete)


def _best_of_each(row: Ints, value: Floats, keep: int) -> Ints:
    """Indices of the ``keep`` largest values of each row."""
    if len(row) <= keep:
        return np.arange(len(row))
    order = np.lexsort((np.arange(len(row)), -value, row))
    return np.asarray(np.sort(order[_position(row[order]) < keep]))


def _varied(states: _States, value: Floats, kinds: int) -> Ints:
    """Indices of the best few of each row, and of the best that holds each item; the more rows, the fewer per row."""
    most = max(_FEW, _MANY // kinds)
    order = np.lexsort((np.arange(len(value)), -value, states.row))
    starts = np.flatnonzero(np.diff(states.row[order], prepend=-1))
    chosen = []
    for start, end in pairwise([*starts.tolist(), len(order)]):
        row_states = order[start:end]
        holds = states.held[row_states] > 0
        firsts = set(holds.argmax(axis=0)[holds.any(axis=0)].tolist()) | set(range(min(_FEW, len(row_states))))
        chosen += row_states[sorted(firsts)[:most]].tolist()
    return np.array(sorted(chosen), dtype=np.int64)


def _position(sorted_rows: Ints) -> Ints:
    """The position of each entry among equal entries, for sorted entries."""
    first = np.flatnonzero(np.diff(sorted_rows, prepend=-1))
    return np.asarray(np.arange(len(sorted_rows)) - np.repeat(first, np.diff(np.append(first, len(sorted_rows)))))


def _expand_all(  # noqa: PLR0917  (one call, from search)
    instance: ProblemArrays, kinds: Ints, copies: Floats, margin: Floats, targets: Floats, bound: Floats, width: int, meter: Meter
) -> tuple[_States, Floats]:
    """Decide one item after the other; returns the remaining states and, by kind, the highest bound among the dropped ones."""
    slack = bound - targets
    dropped = np.full(len(kinds), -np.inf)
    steps = _Steps.of(instance, copies, margin)
    states = _States(np.arange(len(kinds)), instance.capacity[kinds].copy(), np.zeros(len(kinds)), np.zeros(copies.shape))
    for step in range(int(steps.count.max(initial=0))):
        gain, item = steps.gain[states.row, step], steps.item[states.row, step]
        low, high = _range(instance, states, steps, step, slack)
        children = np.maximum(high - low + 1, 0).astype(np.int64)
        kept = _within(states, bound[states.row] - states.loss, children, width, dropped)
        children = children[kept]
        parent = np.repeat(kept, children)
        offset = np.arange(len(parent)) - np.repeat(np.cumsum(children) - children, children)
        chosen, gain, item = high[parent] - offset, gain[parent], item[parent]
        states = states.pick(parent)
        states.loss += np.where(gain > 0, chosen - steps.wanted[states.row, step], chosen) * -gain
        states.room -= chosen[:, None] * instance.request[item]
        states.held[np.arange(len(parent)), item] = chosen
        meter.add(250 + 0.2 * len(parent) * (instance.request.shape[1] + 4))
        if not len(parent):
            break
    return states, dropped


def _range(instance: ProblemArrays, states: _States, steps: _Steps, step: int, slack: Floats) -> tuple[Floats, Floats]:
    """The fewest and the most copies of its next item that each state may take, by room and by its slack."""
    gain, wanted = steps.gain[states.row, step], steps.wanted[states.row, step]
    high = np.fmin(np.floor(np.fmin.reduce(states.room / steps.request[states.row, step], axis=1)), wanted)
    item = steps.item[states.row, step] if any(instance.excluded) else None
    for other, partners in enumerate(instance.excluded) if item is not None else ():
        if partners:
            high[(item == other) & states.held[:, list(partners)].any(axis=1)] = 0.0
    # How many copies more, or fewer, than a machine with split pods would hold.
    affords = np.floor((slack[states.row] - states.loss) / np.maximum(np.abs(gain), EPSILON) + EPSILON)
    high = np.where(gain < -EPSILON, np.minimum(high, affords), high)
    low = np.where(gain > EPSILON, np.maximum(wanted - affords, 0.0), 0.0)
    # The last item of a kind is taken as often as it fits: its value is positive and nothing follows.
    return np.where(step >= steps.count[states.row] - 1, np.maximum(low, high), low), high


def _within(states: _States, bound: Floats, children: Ints, width: int, dropped: Floats) -> Ints:
    """States to expand so that there are at most ``width`` children, the best of each kind first; the others go into ``dropped``."""
    alive = np.flatnonzero(children > 0)
    if int(children[alive].sum()) <= width:
        return alive
    order = alive[np.lexsort((alive, -bound[alive], states.row[alive]))]
    order = order[np.argsort(_position(states.row[order]), kind="stable")]
    cut = int(np.searchsorted(np.cumsum(children[order]), width, side="right"))
    cut = max(cut, 1)
    np.maximum.at(dropped, states.row[order[cut:]], bound[order[cut:]])
    return np.asarray(np.sort(order[:cut]))
