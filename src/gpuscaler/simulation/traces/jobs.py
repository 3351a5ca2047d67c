"""Jobs of a trace as data, and opening of trace files."""

import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

#: Maximum number of skipped rows that are kept with their reason; all of them are counted.
KEPT_ROWS = 100

MIB = 1024 * 1024

#: Far beyond any real job, and small enough that sums over a trace stay exact in 64 bits and seconds keep their fractions.
MOST_SECONDS, MOST_GPUS, MOST_PODS, MOST_MILLICORES, MOST_MIB = 1e11, 10_000, 100_000, 1e9, 1e8


def printable_names(names: Iterable[object]) -> str:
    """The first names of an unexpected file, safe to print; empty if there are none."""
    cut = (str(name)[:40] for name in itertools.islice(names, 20))
    return ", ".join("".join(sign if sign.isprintable() else "?" for sign in name) for name in cut if name)


class TraceError(Exception):
    """A trace file that cannot be used as a whole; the message names the file, what was seen and what was expected."""


class Job(Struct, frozen=True, gc=False):
    """One job. Times in seconds since the trace began.

    ``gpu_milli`` is the part of one GPU that each pod takes, 1000 being whole GPUs; ``cpu_milli`` and ``memory`` (bytes) are per pod, None
    if the trace does not say. ``gpu_models`` are the acceptable models, empty for any. ``user`` and ``namespace`` (a department, a virtual
    cluster) are its owner, empty if the trace does not say.
    """

    id: str
    submit: float
    duration: float
    pods: int = 1
    gpus: int = 0
    gpu_milli: int = 1000
    cpu_milli: int | None = None
    memory: int | None = None
    gpu_models: tuple[str, ...] = ()
    priority: int = 0
    user: str = ""
    namespace: str = ""

    @property
    def gpu_share(self) -> float:
        """GPUs that one pod takes, as a number."""
        return self.gpus * self.gpu_milli / 1000.0


class BadRow(Struct, frozen=True, gc=False):
    """A skipped row. ``line`` counts from 1, the header included; of JSON it is where the entry begins."""

    line: int
    reason: str


class Trace(Struct, frozen=True, gc=False):
    """Jobs in order of submission. ``set_aside`` counts malformed rows, ``bad_rows`` are the first of them.

    ``notes`` are remarks of the file on some of its jobs, such as what was derived, and the number of jobs; the most frequent first.
    """

    name: str
    jobs: tuple[Job, ...]
    set_aside: int = 0
    bad_rows: tuple[BadRow, ...] = ()
    notes: tuple[tuple[str, int], ...] = ()

    @property
    def fractional(self) -> bool:
        """Whether any job takes a part of a GPU."""
        return any(job.gpus and job.gpu_milli < 1000 for job in self.jobs)


@contextmanager
def open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a file as text, unpacked if its first bytes are gzip's; foreign errors become TraceError."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with io.TextIOWrapper(gzip.GzipFile(fileobj=raw) if packed else raw, encoding="utf-8-sig", newline="") as text:
                yield text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: damaged gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text at byte {error.start}; expected a CSV or JSON file, gzip or plain") from error
    except csv.Error as error:
        raise TraceError(f"{path}: not a CSV file ({error})") from error


#: A row of CSV, or its error.
CsvRow = list[str] | csv.Error


def read_csv_rows(lines: Iterable[str]) -> Iterator[tuple[int, CsvRow]]:
    """Rows of CSV with the line that each ends in, without blank lines; a row that cannot be parsed comes as its error.

    Raises csv.Error for a quote that is never closed: row boundaries after it are unknown.
    """
    reader = csv.reader(lines, strict=True)
    while True:
        row: CsvRow
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "end of data" in str(error):
                raise
            row = error
        if row:
            yield reader.line_num, row


def header_of(rows: Iterator[tuple[int, CsvRow]]) -> list[str]:
    """The first row that is not empty, with blanks around names removed; empty if there is none."""
    for _, row in rows:
        if isinstance(row, csv.Error):
            raise row
        if any(row):
            return [name.strip() for name in row]
    return []


def fields_of(row: CsvRow, count: int) -> list[str]:
    """The fields of a row that has ``count`` of them. Raises ValueError for any other."""
    if isinstance(row, csv.Error):
        raise ValueError(f"not a row of CSV: {row}")
    if len(row) != count:
        raise ValueError(f"{len(row)} fields, expected {count}")
    return row
