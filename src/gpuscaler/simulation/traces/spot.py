"""Series of spot markets: tidy CSV files of availability or of prices, gzip or plain.

A file of availability has a row for each change: ``zone, instance_type, max_nodes_probed, t_s, nodes_available`` (and ``kind, dataset,
sample_gap_s`` if there are several). A file of prices has a row for each day and place: ``date, instance_type, region, on_demand_usd_h,
spot_usd_h``. The header decides which of the two a file is.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path

from msgspec import Struct

from gpuscaler.simulation.cloud.markets import Steps
from gpuscaler.simulation.traces.jobs import KEPT_ROWS, BadRow, TraceError, fields_of, header_of, open_text, read_csv_rows

AVAILABILITY_COLUMNS = ("zone", "instance_type", "max_nodes_probed", "t_s", "nodes_available")
PRICE_COLUMNS = ("date", "instance_type", "region", "on_demand_usd_h", "spot_usd_h")
#: How long the last value of a series holds if its sampling interval is unknown: seconds of availability, of prices.
LAST_SAMPLE, LAST_PRICE = 195.0, 7 * 86_400.0
#: A value that the file leaves out: the previous one continues; as the last value it only marks the end of the series.
UNKNOWN = float("nan")
MOST_NODES, MOST_DOLLARS, MOST_SECONDS = 1e6, 1e6, 1e11


class SpotError(TraceError):
    """A spot file or a map that cannot be used as a whole; the message names the file, what was seen and what was expected."""


class MarketSeries(Struct, frozen=True, gc=False):
    """Values of one market from second 0 on: ``steps`` are (second, value); they repeat after ``period`` seconds.

    ``name`` is its name in a map; ``place`` is a zone (availability) or a region (prices).
    """

    name: str
    instance_type: str
    place: str
    steps: tuple[tuple[float, float], ...]
    period: float

    def as_steps(self, *, shift: float = 0.0, factor: float = 1.0) -> Steps:
        times, values = zip(*self.steps, strict=True)
        return Steps(times, (value * factor for value in values), period=self.period, shift=shift)

    @property
    def mean(self) -> float:
        """The average over time."""
        return self.as_steps().integral(0.0, self.period) / self.period


class SpotFile(Struct, frozen=True, gc=False):
    """The contents of a file.

    Series of ``availability`` (machines; infinity if all requested machines came), of ``spot`` prices and of ``on_demand`` prices (US
    dollars per hour). ``set_aside`` counts malformed rows, ``bad_rows`` are the first of them.
    """

    name: str
    availability: tuple[MarketSeries, ...] = ()
    spot: tuple[MarketSeries, ...] = ()
    on_demand: tuple[MarketSeries, ...] = ()
    set_aside: int = 0
    bad_rows: tuple[BadRow, ...] = ()


#: A row as (name, instance type, place, second, values)
SpotRow = tuple[str, str, str, float, tuple[float, ...]]


def read_spot(path: Path) -> SpotFile:
    """Read a file of availability or of prices. A malformed row is skipped; a file of the wrong shape raises :class:`SpotError`."""
    rows: list[SpotRow] = []
    bad: list[BadRow] = []
    count = 0
    with open_text(path) as text:
        csv_rows = read_csv_rows(text)
        header = header_of(csv_rows)
        prices = "date" in header or "spot_usd_h" in header
        parse = _price_row if prices else _availability_row
        _check(header, PRICE_COLUMNS if prices else AVAILABILITY_COLUMNS, path)
        for line, row in csv_rows:
            try:
                rows.append(parse(dict(zip(header, map(str.strip, fields_of(row, len(header))), strict=True))))
            except ValueError as error:
                count += 1
                if len(bad) < KEPT_ROWS:
                    bad.append(BadRow(line, str(error)))
    if not rows:
        why = f"; the first problem is in line {bad[0].line}: {bad[0].reason}" if bad else ""
        raise SpotError(f"{path}: no usable row, expected at least one{why}")
    if prices:
        return SpotFile(
            path.name, spot=_series(rows, 1, LAST_PRICE), on_demand=_series(rows, 0, LAST_PRICE), set_aside=count, bad_rows=tuple(bad)
        )
    return SpotFile(path.name, availability=_series(rows, 0, LAST_SAMPLE), set_aside=count, bad_rows=tuple(bad))


def _check(header: Sequence[str], columns: Sequence[str], path: Path) -> None:
    missing = [name for name in columns if name not in header]
    if missing:
        missing_columns = "column " + missing[0] if len(missing) == 1 else "columns " + ", ".join(missing)
        header_text = ", ".join(header[:20]) if any(header) else "no header"
        raise SpotError(
            f"{path}: {missing_columns} missing; seen: {header_text}. See docs/reference/spot-markets.md for the columns of spot files"
        )


def _availability_row(row: Mapping[str, str]) -> SpotRow:
    kind = row.get("kind", "")
    if kind not in ("", "availability"):
        raise ValueError(f"kind is {kind[:40]!r}, expected availability")
    most = _number(row, "max_nodes_probed", most=MOST_NODES)
    nodes = _number(row, "nodes_available", most=MOST_NODES) if row["nodes_available"] else UNKNOWN
    # All requested machines came: how many more there were is unknown.
    machines = float("inf") if nodes >= most > 0 else nodes
    name = "/".join(filter(None, (row.get("dataset", ""), row["zone"], row["instance_type"])))
    return name, _required(row, "instance_type"), _required(row, "zone"), _number(row, "t_s", most=MOST_SECONDS), (machines,)


def _price_row(row: Mapping[str, str]) -> SpotRow:
    try:
        day = date.fromisoformat(row["date"])
    except ValueError:
        raise ValueError(f"date is {row['date'][:40]!r}, expected one such as 2026-11-21") from None
    names = ("on_demand_usd_h", "spot_usd_h")
    prices = tuple(_number(row, name, most=MOST_DOLLARS) if row[name] else UNKNOWN for name in names)
    if not all(prices):
        raise ValueError("a price is 0, expected US dollars per hour")
    name = f"{row['instance_type']}/{row['region']}"
    return name, _required(row, "instance_type"), _required(row, "region"), day.toordinal() * 86_400.0, prices


def _required(row: Mapping[str, str], name: str) -> str:
    if not row[name]:
        raise ValueError(f"{name} is empty, expected a name")
    return row[name]


def _number(row: Mapping[str, str], name: str, *, most: float) -> float:
    try:
        number = float(row[name])
    except ValueError:
        raise ValueError(f"{name} is {row[name][:40]!r}, expected a number") from None
    if not 0 <= number <= most:
        raise ValueError(f"{name} is {row[name][:40]}, expected a number from 0 to {most:.0f}")
    return number


def _series(rows: Iterable[SpotRow], value: int, last: float) -> tuple[MarketSeries, ...]:
    """Rows as series, each from its own first row on; of two rows of one moment the later in the file counts."""
    groups: dict[tuple[str, str, str], dict[float, float]] = {}
    for name, instance_type, place, at, values in rows:
        groups.setdefault((name, instance_type, place), {})[at] = values[value]
    series = []
    for (name, instance_type, place), points in sorted(groups.items()):
        moments = sorted(points)
        steps = [(at, points[at]) for at in moments if not math.isnan(points[at])]
        if steps:
            start = steps[0][0]
            end = moments[-1] if math.isnan(points[moments[-1]]) else moments[-1] + last
            series.append(MarketSeries(name, instance_type, place, tuple((at - start, amount) for at, amount in steps), end - start))
    return tuple(series)
