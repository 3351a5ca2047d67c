"""Loads of services over time: CSV files, gzip or plain, of request rates by model or of GPU duty cycles by pod."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct

from gpuscaler.simulation.traces.jobs import KEPT_ROWS, MOST_SECONDS, BadRow, TraceError, fields_of, header_of, open_text, read_csv_rows

#: Far above any real service, and small enough that sums stay sufficiently exact.
MOST_REQUESTS = 1e9

Unit = Literal["requests/s", "busy GPUs"]


class _LoadFormat(NamedTuple):
    """One kind of file: the columns of name and value, the largest value, and the factor to the series' unit."""

    name: str
    value: str
    most: float
    scale: float
    unit: Unit
    #: Whether an empty value means a missing measurement, which is no mistake.
    gaps: bool


#: Second 0 of ``t_s`` is the beginning of a run.
TIME_COLUMN = "t_s"
RATES = _LoadFormat("model", "rate_rps", MOST_REQUESTS, 1.0, "requests/s", gaps=False)
DUTY_CYCLES = _LoadFormat("pod", "gpu_duty_cycle_pct", 100.0, 0.01, "busy GPUs", gaps=True)


class LoadSeries(Struct, frozen=True, gc=False):
    """The load of one model or pod. A value holds from its time, in seconds, to the next; the last as long as the one before it."""

    name: str
    times: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def end(self) -> float:
        """When the last value ends."""
        step = self.times[-1] - self.times[-2] if len(self.times) > 1 else 60.0
        return self.times[-1] + step

    @property
    def changes(self) -> list[tuple[float, float]]:
        """The times at which the value changes, and the new value."""
        before = (None, *self.values)
        return [(at, value) for at, value, last in zip(self.times, self.values, before, strict=False) if value != last]


class LoadFile(Struct, frozen=True, gc=False):
    """The series of a file, by name. ``set_aside`` counts malformed rows, ``gaps`` those without a measurement."""

    name: str
    unit: Unit
    series: tuple[LoadSeries, ...]
    set_aside: int = 0
    bad_rows: tuple[BadRow, ...] = ()
    gaps: int = 0


def read_load(path: Path) -> LoadFile:
    """Read a load.

    A malformed row is skipped; a file of the wrong shape raises :class:`~gpuscaler.simulation.traces.traces.TraceError`.
    """
    points: dict[str, dict[float, float]] = {}
    bad: list[BadRow] = []
    count = gaps = 0
    with open_text(path) as text:
        rows = read_csv_rows(text)
        header = header_of(rows)
        shape = _format_of(header, path)
        columns = {name: header.index(name) for name in (TIME_COLUMN, shape.name, shape.value)}
        for line, row in rows:
            try:
                gaps += not _add_row(fields_of(row, len(header)), shape, columns, points)
            except ValueError as error:
                count += 1
                if len(bad) < KEPT_ROWS:
                    bad.append(BadRow(line, str(error)))
    if not points:
        why = f"; the first problem is in line {bad[0].line}: {bad[0].reason}" if bad else ""
        raise TraceError(f"{path}: no usable load, expected at least one row with a {shape.value}{why}")
    series = tuple(_series(name, points[name]) for name in sorted(points))
    return LoadFile(path.name, shape.unit, series, count, tuple(bad), gaps)


def _format_of(header: list[str], path: Path) -> _LoadFormat:
    """The kind of file that has these columns; otherwise the error is about the kind that lacks fewest."""

    def missing(shape: _LoadFormat) -> list[str]:
        return [name for name in (TIME_COLUMN, shape.name, shape.value) if name not in header]

    shape = min((RATES, DUTY_CYCLES), key=lambda shape: len(missing(shape)))
    lacking = missing(shape)
    if lacking:
        columns = ", ".join(header[:20]) if any(header) else "no header"
        missing_columns = "column " + lacking[0] if len(lacking) == 1 else "columns " + ", ".join(lacking)
        raise TraceError(f"{path}: {missing_columns} missing; seen: {columns}. See docs/reference/services.md for the columns of a load")
    return shape


def _add_row(row: list[str], shape: _LoadFormat, columns: Mapping[str, int], points: dict[str, dict[float, float]]) -> bool:
    """Add a row to its series; return whether it contains a measurement."""
    name = row[columns[shape.name]].strip()
    if not name or len(name) > 100 or not name.isprintable() or "/" in name or "#" in name:
        raise ValueError(f"{shape.name} is {name[:40]!r}, expected a name of 1 to 100 characters without '/' and '#'")
    at = _number(row[columns[TIME_COLUMN]], TIME_COLUMN, most=MOST_SECONDS)
    text = row[columns[shape.value]].strip()
    if not text and shape.gaps:
        return False
    value = _number(text, shape.value, most=shape.most) * shape.scale
    series = points.setdefault(name, {})
    if at in series:
        raise ValueError(f"{shape.name} {name} has a value at {TIME_COLUMN} {at:g} already")
    series[at] = value
    return True


def _number(text: str, name: str, *, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{name} is {text.strip()[:40]!r}, expected a number") from None
    if not 0 <= number <= most:
        raise ValueError(f"{name} is {text.strip()[:40]}, expected a number from 0 to {most:.0f}")
    return number


def _series(name: str, points: Mapping[float, float]) -> LoadSeries:
    times = tuple(sorted(points))
    return LoadSeries(name, times, tuple(points[at] for at in times))


def sum_series(name: str, several: tuple[LoadSeries, ...]) -> LoadSeries:
    """The sum of several series. Each counts from its first time to its end."""
    changes: dict[float, float] = {}

    def change(at: float, by: float) -> None:
        changes[at] = changes.get(at, 0.0) + by

    for series in several:
        before = 0.0
        for at, value in zip(series.times, series.values, strict=True):
            change(at, value - before)
            before = value
        change(series.end, -before)
    times, values, total = tuple(sorted(changes)), [], 0.0
    for at in times:
        total += changes[at]
        # A running sum of differences drifts; rounding is far below any measurement.
        values.append(max(0.0, round(total, 9)))
    return LoadSeries(name, times, tuple(values))
