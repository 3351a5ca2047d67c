"""Evaluates queries: each once for all clients, ahead of use, with the age of the samples behind every number.

The answer to an instant query has the time of the evaluation, but not the age of the samples: Prometheus looks back five minutes. So each
query has a companion that asks for the :func:`timestamp` of the raw series. Both times are from the server's clock, and so comparable.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from gpuscaler.metrics.sources.objects import Key
from gpuscaler.metrics.sources.prometheus import PrometheusAway, PrometheusError, QueryRefused, Sample

Combine: TypeAlias = Literal["mean", "sum", "max"]
#: Most samples that are processed without yielding to the event loop: about 2 ms.
_AT_ONCE = 2_000
#: Limits of stored questions, and of numbers in all of them: clients that may read a metric can request it with ever new selectors.
_MOST, _MOST_NUMBERS = 10_000, 2_000_000


class Question(Struct, frozen=True, gc=False):
    """A query, and its companion ``ages``, whose values are the Unix times of the raw samples; the oldest one counts.

    ``namespace_label`` and ``name_label`` are the labels in both results that identify the object; without a namespace label all objects
    are in ``namespace``. Without a name label every element is a series of an external metric. Several elements of an object are combined.
    ``below_zero`` is whether negative numbers are served. ``metric`` is for messages and metrics.
    """

    metric: str
    promql: str
    ages: str
    namespace: str = ""
    namespace_label: str = ""
    name_label: str = ""
    combine: Combine = "mean"
    scope: str = "cluster"
    below_zero: bool = False


class Cell(Struct, frozen=True, gc=False):
    """A number, the Unix time of the oldest sample behind it, and the age of that sample at the evaluation, in seconds.

    For a number without samples, as from ``or vector(0)``, the time is that of the evaluation.
    """

    number: float
    timestamp: float
    age: float


class ExternalSeries(Struct, frozen=True, gc=False):
    """One element of an external metric."""

    labels: dict[str, str]
    cell: Cell


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The result of a question: numbers by object, or series of an external metric. ``at`` is when it was asked (monotonic).

    ``sampled`` is when the oldest raw sample of each object was taken, in Unix seconds.
    """

    at: float
    cells: dict[Key, Cell]
    series: tuple[ExternalSeries, ...] = ()
    sampled: Mapping[Key, float] = field(default_factory=dict)


class QueryRunner(Protocol):
    async def query(self, promql: str) -> list[Sample]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times in seconds.

    Questions in use are evaluated every ``period``, and a result is used for twice as long, to bridge one failed evaluation. A question
    that was not asked within ``use_window`` (autoscalers ask every 15 s) is not evaluated any more. A sample older than ``stale`` is
    dropped. ``hold`` is how long the last result is used if Prometheus does not answer. No request waits longer than ``patience``,
    even if it is queued behind others.
    """

    period: float = 10.0
    use_window: float = 120.0
    stale: float = 120.0
    hold: float = 0.0
    patience: float = 12.0

    @property
    def result_lifetime(self) -> float:
        return 2 * self.period


@dataclass(slots=True)
class Counts:
    """Counts of questions and samples by outcome; ``evaluations`` by scope, ``dropped`` by reason, ``failures`` by metric."""

    hits: int = 0
    waits: int = 0
    held: int = 0
    evaluations: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)

    def add(self, counts: dict[str, int], key: str, more: int = 1) -> None:
        counts[key] = counts.get(key, 0) + more


@dataclass(slots=True)
class State:
    """The state of a question. ``table`` is its last result."""

    question: Question
    asked_at: float
    table: Table | None = None
    tried_at: float = -math.inf
    error: PrometheusError | None = None
    flight: "asyncio.Task[None] | None" = None


class Evaluator:
    """Answers questions from their last evaluation; :meth:`run` keeps evaluating those in use. ``clock`` is monotonic.

    At most ``at_once`` evaluations run concurrently. If there are more than ``most`` questions, or more than ``most_numbers`` numbers in
    all of them together, the least recently asked ones are forgotten.
    """

    def __init__(
        self,
        prometheus: QueryRunner,
        *,
        clock: Callable[[], float],
        timing: Timing | None = None,
        at_once: int = 10,
        most_questions: int = _MOST,
        most_numbers: int = _MOST_NUMBERS,
    ) -> None:
        self.timing = timing or Timing()
        self.counts = Counts()
        self.states: dict[Question, State] = {}
        self._prometheus, self._clock = prometheus, clock
        self._limit = asyncio.Semaphore(at_once)
        self._most, self._most_numbers = most_questions, most_numbers

    async def run(self) -> None:
        """Evaluate the questions in use, until cancelled."""
        try:
            while True:
                self._evaluate_due()
                await asyncio.sleep(self.timing.period / 10)
        finally:
            for state in self.states.values():
                if state.flight is not None:
                    state.flight.cancel()

    def state(self, question: Question) -> State:
        """The state of ``question``, which counts as asked. Raises :class:`PrometheusAway` if too many questions wait for an answer."""
        now = self._clock()
        state = self.states.get(question)
        if state is None:
            if len(self.states) >= self._most:
                self._make_room()
            state = self.states[question] = State(question, now)
        state.asked_at = now
        return state

    def usable(self, state: State) -> Table | None:
        """The last result if it is recent enough to be used without waiting."""
        table = state.table
        return table if table is not None and self._clock() - table.at <= self.timing.result_lifetime else None

    async def table(self, state: State) -> tuple[Table, bool]:
        """The result, and whether it is an old one because there is no new one. Raises :class:`PrometheusError`."""
        table = self.usable(state)
        if table is not None:
            self.counts.hits += 1
            return table, False
        self.counts.waits += 1
        if state.flight is None and (state.error is None or self._due(state)):
            self._start(state)
        if state.flight is not None:
            # Shielded: other requests continue to wait for it when one gives up.
            with suppress(TimeoutError):
                async with asyncio.timeout(self.timing.patience):
                    await asyncio.shield(state.flight)
        table = self.usable(state)
        if table is not None:
            return table, False
        if state.table is not None and self._clock() - state.table.at <= self.timing.hold:
            self.counts.held += 1
            return state.table, True
        if state.error is None:
            within = min(self.timing.patience, self.timing.result_lifetime)
            running = sum(other.flight is not None for other in self.states.values())
            raise PrometheusAway(
                f"Prometheus: saw no recent answer for {state.question.metric} while {running} evaluations are running, expected one "
                f"within {within:g} s; reduce the load on Prometheus, or raise period in --settings"
            )
        # A new exception each time: the traceback of a stored one would grow each time it is raised.
        raise type(state.error)(*state.error.args) from state.error

    def _evaluate_due(self) -> None:
        now, timing = self._clock(), self.timing
        for state in list(self.states.values()):
            # When the objects change, a question that names them is replaced by another one, and the old one is not asked again.
            use_window = min(timing.use_window, 4 * timing.period) if state.question.scope == "names" else timing.use_window
            is_unused = now - state.asked_at > use_window
            if is_unused and (state.table is None or now - state.table.at > max(timing.result_lifetime, timing.hold)):
                self._forget(state)
            elif not is_unused and state.flight is None and self._due(state):
                self._start(state)

    def _make_room(self) -> None:
        """Forget a tenth of the idle questions, so that this is not needed for each new question."""
        idle = sorted((state for state in self.states.values() if state.flight is None), key=lambda state: state.asked_at)
        if not idle:
            raise PrometheusAway(f"Prometheus: saw {len(self.states)} questions waiting for an answer, expected fewer; try again later")
        for state in idle[: max(1, len(idle) // 10)]:
            self._forget(state)

    def _forget(self, state: State) -> None:
        # Cached answers refer to the state, so its table is removed, too.
        del self.states[state.question]
        state.table = None

    def _trim(self, newest: State) -> None:
        """Forget the least recently asked questions while all results together are too large; never ``newest``."""
        total = sum(_size(state) for state in self.states.values())
        if total <= self._most_numbers:
            return
        for state in sorted(self.states.values(), key=lambda state: state.asked_at):
            if total <= self._most_numbers:
                return
            if state is not newest and state.flight is None:
                total -= _size(state)
                self._forget(state)

    def _due(self, state: State) -> bool:
        """Whether the next evaluation is due; after a failure the period is halved."""
        return self._clock() - state.tried_at >= self.timing.period / (1 if state.error is None else 2)

    def _start(self, state: State) -> None:
        state.flight = asyncio.create_task(self._evaluate(state), name=f"evaluate {state.question.metric}")

    async def _evaluate(self, state: State) -> None:
        """Evaluate once. Only raises when cancelled: errors are stored in the state."""
        question = state.question
        try:
            async with self._limit:
                state.tried_at = began = self._clock()
                self.counts.add(self.counts.evaluations, question.scope)
                values, ages = await self._query_both(question)
            state.table = await self._make_table(state, values, ages, began)
            state.error = None
            self._trim(state)
        except PrometheusError as error:
            self.counts.add(self.counts.failures, question.metric)
            state.error = error
            if isinstance(error, QueryRefused):
                # Prometheus rejects the query of the rule, so an earlier result is not an answer to it.
                state.table = None
        finally:
            state.flight = None

    async def _query_both(self, question: Question) -> tuple[list[Sample], list[Sample]]:
        try:
            async with asyncio.TaskGroup() as tasks:
                values = tasks.create_task(self._prometheus.query(question.promql))
                ages = tasks.create_task(self._prometheus.query(question.ages))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return values.result(), ages.result()

    async def _make_table(self, state: State, values: Sequence[Sample], ages: Sequence[Sample], at: float) -> Table:
        question = state.question
        oldest: dict[Key, float] = {}
        for place, sample in enumerate(ages):
            key, stamp = self._key(question, sample), sample.number
            if math.isfinite(stamp) and stamp < oldest.get(key, math.inf):
                oldest[key] = stamp
            if place % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        numbers_by_key: dict[Key, list[float]] = {}
        evaluated = values[0].value[0] if values else 0.0
        series: list[ExternalSeries] = []
        for place, sample in enumerate(values):
            key, number = self._key(question, sample), sample.number
            reason = describe_unusable(number, below_zero=question.below_zero)
            if reason:
                # One unusable sample makes the value of its object unknown: a mean of the others would be something else.
                self.counts.add(self.counts.dropped, reason)
                numbers_by_key.setdefault(key, []).append(math.nan)
            elif key not in oldest and self._has_just_expired(state, key, evaluated):
                self.counts.add(self.counts.dropped, "stale")
            elif question.name_label:
                numbers_by_key.setdefault(key, []).append(number)
            else:
                series.append(ExternalSeries(sample.metric, _cell(number, oldest.get(key), evaluated)))
            if place % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        cells = {
            key: _cell(number, oldest.get(key), evaluated)
            for key, numbers in numbers_by_key.items()
            if not math.isnan(number := combine(question.combine, numbers))
        }
        return Table(at, cells, tuple(series), oldest)

    def _has_just_expired(self, state: State, key: Key, evaluated: float) -> bool:
        """Whether the last known raw sample is too old.

        The two queries are not evaluated at exactly the same time. A sample that Prometheus drops between them is seen only by the first
        one, and its number would look like one that needs no sample.
        """
        before = state.table.sampled.get(key) if state.table is not None else None
        return before is not None and evaluated - before > self.timing.stale

    def _key(self, question: Question, sample: Sample) -> Key:
        labels = sample.metric
        if not question.name_label:
            return "", ""
        namespace = labels.get(question.namespace_label, "") if question.namespace_label else question.namespace
        return namespace, labels.get(question.name_label, "")


def _cell(number: float, sampled: float | None, evaluated: float) -> Cell:
    return Cell(number, evaluated, 0.0) if sampled is None else Cell(number, sampled, evaluated - sampled)


def _size(state: State) -> int:
    return len(state.table.cells) + len(state.table.series) if state.table is not None else 0


def describe_unusable(number: float, *, below_zero: bool = False) -> str:
    """Why a number cannot be used for scaling. The HorizontalPodAutoscaler accepts any number: a negative one removes all replicas.

    With ``below_zero``, for a person's own rule, negative numbers are served as prometheus-adapter does.
    """
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "infinite"
    return "negative" if number < 0 and not below_zero else ""


def combine(how: Combine, numbers: Sequence[float]) -> float:
    """Combine several numbers of one object; NaN if one of them is NaN."""
    if len(numbers) == 1:
        return numbers[0]
    if any(map(math.isnan, numbers)):
        return math.nan
    if how == "max":
        return max(numbers)
    total = math.fsum(numbers)
    return total if how == "sum" else total / len(numbers)
