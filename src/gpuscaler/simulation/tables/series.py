"""Series of spot availability: in which spans of time a zone gave machines of a type."""

import bisect
import csv
import gzip
import io
import zlib
from pathlib import Path

from msgspec import Struct

from gpuscaler.simulation.traces import BadRow

COLUMNS = ("kind", "dataset", "cloud", "zone", "instance_type", "t_s", "nodes_available")
#: How many set-aside rows are kept with their reason; all of them are counted.
KEPT_ROWS = 100


class SeriesError(Exception):
    """A file of series that cannot be used as a whole; the message names the file, what was seen and what was expected."""


class ZoneSeries(Struct, frozen=True, gc=False):
    """How many machines a zone would give, from each of ``times`` on (seconds, ascending, the first 0) until the next; over at ``end``."""

    dataset: str
    zone: str
    instance_type: str
    times: tuple[float, ...]
    nodes: tuple[int, ...]
    end: float

    def at(self, moment: float) -> int:
        """Machines that could be had at ``moment``; none before the series begins or after its end."""
        index = bisect.bisect_right(self.times, moment) - 1
        return self.nodes[index] if index >= 0 and moment < self.end else 0

    def sampled(self, step: float) -> tuple[int, ...]:
        """The series looked at every ``step`` seconds, from its beginning to its end."""
        return tuple(self.at(number * step) for number in range(int(self.end // step)))


class SeriesFile(Struct, frozen=True, gc=False):
    """Series of one file in order of data set and zone. ``set_aside`` counts malformed rows, ``bad_rows`` are the first of them."""

    series: tuple[ZoneSeries, ...]
    set_aside: int = 0
    bad_rows: tuple[BadRow, ...] = ()


def read_series(path: Path) -> SeriesFile:
    """Read the series of kind ``availability`` of a CSV file, gzip or plain.

    A row says how many machines can be had from ``t_s`` on; one without a number of machines ends its series. A malformed row is set aside;
    a file of the wrong shape raises :class:`SeriesError`.
    """
    reader = csv.DictReader(io.StringIO(_text(path), newline=""))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise SeriesError(f"{path}: column {', '.join(missing)} missing; expected {', '.join(COLUMNS)}")
    points: dict[tuple[str, str, str], dict[float, int | None]] = {}
    bad: list[BadRow] = []
    for row in reader:
        if row["kind"] == "availability":
            try:
                at, nodes = _point(row)
            except ValueError as error:
                bad.append(BadRow(reader.line_num, str(error)))
            else:
                points.setdefault((row["dataset"], row["zone"], row["instance_type"]), {})[at] = nodes
    series = tuple(one for key in sorted(points) if (one := _series(key, points[key])) is not None)
    if not series:
        raise SeriesError(f"{path}: no series of kind availability with a beginning and an end, expected at least one")
    return SeriesFile(series, len(bad), tuple(bad[:KEPT_ROWS]))


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw).decode("utf-8-sig")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SeriesError(f"{path}: damaged gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise SeriesError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise SeriesError(f"{path}: not UTF-8 text at byte {error.start}; expected a CSV file, gzip or plain") from error


def _point(row: dict[str, str | None]) -> tuple[float, int | None]:
    at, nodes = row["t_s"] or "", row["nodes_available"]
    if nodes is None:
        raise ValueError("fewer fields than the header")
    try:
        moment = float(at)
        count = int(nodes) if nodes else None
    except ValueError:
        raise ValueError(f"t_s is {at[:40]!r} and nodes_available {nodes[:40]!r}, expected numbers") from None
    if not 0 <= moment < 1e11 or (count is not None and not 0 <= count < 1e9):
        raise ValueError(f"t_s is {at[:40]} and nodes_available {nodes[:40]}, expected them from 0 up")
    return moment, count


def _series(key: tuple[str, str, str], points: dict[float, int | None]) -> ZoneSeries | None:
    """The series of ``points`` up to its first end; its last point ends it where no row does."""
    times = sorted(points)
    end = next((at for at in times if points[at] is None), times[-1])
    kept = [at for at in times if at < end]
    if not kept:
        return None
    nodes = tuple(points[at] or 0 for at in kept)
    start = kept[0]
    return ZoneSeries(*key, tuple(at - start for at in kept), nodes, end - start)
