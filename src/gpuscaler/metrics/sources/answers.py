"""Makes answers from the numbers of a table: the fresh values of the requested objects, as the same tuple while nothing changes."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from gpuscaler.metrics.sources.evaluating import Cell, State, Table, Timing
from gpuscaler.metrics.sources.objects import Index, Key
from gpuscaler.metrics.sources.values import Value, format_value
from gpuscaler.model.selectors import LabelSelector

#: Limits of the cache: answers, and values in all of them.
_MOST, _MOST_VALUES = 20_000, 1_000_000


class Answer(NamedTuple):
    """A cached answer. ``values`` are valid for the table of ``at``, for ``selection``, and until ``until`` (monotonic)."""

    state: State
    at: float
    until: float
    objects: Index | None
    selection: tuple[Key, ...]
    values: tuple[Value, ...]


@dataclass(slots=True)
class Freshness:
    """Age of the oldest sample in the last answer, in seconds, by metric."""

    oldest: dict[str, float] = field(default_factory=dict)
    stale: int = 0


class AnswerCache:
    """Makes and caches answers. ``clock`` is monotonic, in seconds."""

    def __init__(self, timing: Timing, clock: Callable[[], float]) -> None:
        self.freshness = Freshness()
        #: Number of requests that were answered from the cache.
        self.kept = 0
        self._timing, self._clock = timing, clock
        self._answers: dict[Hashable, Answer] = {}
        #: Number of cached values.
        self.size = 0

    def forget(self) -> None:
        """Clear the cache, for example because the rules changed."""
        self._answers.clear()
        self.size = 0

    def cached(self, question: Hashable, namespace: str = "", labels: LabelSelector | None = None) -> tuple[Value, ...] | None:
        """The previous answer, if nothing has changed since. This counts as a request for the metric."""
        answer = self._answers.get(question)
        if answer is None:
            return None
        now = self._clock()
        table = answer.state.table
        if table is None or table.at != answer.at or now > answer.until:
            return None
        if answer.objects is not None and labels is not None and answer.objects.select(namespace, labels) is not answer.selection:
            return None
        answer.state.asked_at = now
        self.kept += 1
        return answer.values

    def make(
        self,
        question: Hashable,
        state: State,
        table: Table,
        *,
        is_held: bool,
        group_resource: str,
        selection: tuple[Key, ...] = (),
        index: Index | None = None,
    ) -> tuple[Value, ...]:
        """Make the answer from ``table``: for ``selection``, or for every external series if ``group_resource`` is empty.

        ``is_held``: the table replaces a newer one that is unavailable, so samples count as being as fresh as they were then.
        """
        now = self._clock()
        passed = 0.0 if is_held else now - table.at
        metric = state.question.metric
        values: list[Value] = []
        oldest = 0.0
        for (namespace, name), cell, labels in _entries(table, selection, of_objects=bool(group_resource)):
            text = self._format_fresh(cell, passed)
            if text is not None:
                oldest = max(oldest, cell.age + passed)
                values.append(Value(metric, text, cell.timestamp, group_resource, namespace, name, None, labels))
        if values:
            self.freshness.oldest[metric] = oldest
        answer = tuple(values)
        if not is_held:
            # After this time the oldest sample or the table is too old.
            until = min(now + self._timing.stale - oldest, table.at + self._timing.result_lifetime)
            before = self._answers.pop(question, None)
            self.size += len(answer) - (len(before.values) if before is not None else 0)
            if len(self._answers) >= _MOST or self.size > _MOST_VALUES:
                self.forget()
                self.size = len(answer)
            self._answers[question] = Answer(state, table.at, until, index, selection, answer)
        return answer

    def missing(self, table: Table, key: Key) -> str:
        """The reason why ``table`` has no number for an object."""
        cell = table.cells.get(key)
        if cell is None:
            return "it has no fresh sample"
        old = cell.age + self._clock() - table.at
        return f"its last sample is {old:.0f} s old, expected one from the last {self._timing.stale:g} s"

    def _format_fresh(self, cell: Cell, passed: float) -> str | None:
        if cell.age + passed > self._timing.stale:
            self.freshness.stale += 1
            return None
        return _text(cell.number)


@lru_cache(maxsize=16_384)
def _text(number: float) -> str | None:
    """A number as a quantity. Cached, since gauges have few values, and ten thousand pods have the same ones."""
    return format_value(number)


def _entries(table: Table, selection: tuple[Key, ...], *, of_objects: bool) -> Iterator[tuple[Key, Cell, dict[str, str]]]:
    """The requested entries of ``table``: name, number, and labels of an external series."""
    if not of_objects:
        yield from ((("", ""), series.cell, series.labels) for series in table.series)
        return
    for key in selection:
        cell = table.cells.get(key)
        if cell is not None:
            yield key, cell, {}
