"""Traces of jobs: tidy CSV files, gzip or plain, one job a row."""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

#: Columns that a trace must have. ``trace, gpu_model, priority, user, start_s, status, note`` may be there too.
REQUIRED_COLUMNS = ("job_id", "submit_s", "duration_s", "n_pods", "gpus_per_pod", "gpu_milli", "cpu_milli", "mem_mib")
#: How many set-aside rows are kept with their reason; all of them are counted.
KEPT_ROWS = 100

MIB = 1024 * 1024

#: Far beyond any real job, and small enough that sums over a trace stay exact in 64 bits and seconds keep their fractions.
MOST_SECONDS, MOST_GPUS, MOST_PODS, MOST_MILLICORES, MOST_MIB = 1e11, 10_000, 100_000, 1e9, 1e8


class TraceError(Exception):
    """A trace file that cannot be used as a whole; the message names the file, what was seen and what was expected."""


class Job(Struct, frozen=True, gc=False):
    """One job. Times in seconds since the trace began.

    ``gpu_milli`` is the part of one GPU that each pod takes, 1000 being whole GPUs; ``cpu_milli`` and ``memory`` (bytes) are per pod,
    None where the trace does not say. ``gpu_models`` are the models that would do, empty when any would.
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

    @property
    def gpu_share(self) -> float:
        """GPUs that one pod takes, as a number."""
        return self.gpus * self.gpu_milli / 1000.0


class BadRow(Struct, frozen=True, gc=False):
    """A row that was set aside. ``line`` counts from 1, the header included."""

    line: int
    reason: str


class Trace(Struct, frozen=True, gc=False):
    """Jobs in order of submission. ``set_aside`` counts malformed rows, ``bad_rows`` are the first of them."""

    name: str
    jobs: tuple[Job, ...]
    set_aside: int = 0
    bad_rows: tuple[BadRow, ...] = ()

    @property
    def fractional(self) -> bool:
        """Whether any job takes a part of a GPU."""
        return any(job.gpus and job.gpu_milli < 1000 for job in self.jobs)


def read_trace(path: Path) -> Trace:
    """Read a trace. A malformed row is set aside; a file of the wrong shape raises :class:`TraceError`."""
    jobs: list[Job] = []
    bad: list[BadRow] = []
    with opened(path) as text:
        rows = csv.reader(text, strict=True)
        header = next(rows, [])
        columns = _columns(header, path)
        seen: set[str] = set()
        count = 0
        for row in rows:
            if not row:
                continue
            try:
                if len(row) != len(header):
                    raise ValueError(f"{len(row)} fields, expected {len(header)}")
                job = _job(row, columns)
                _unique(job, seen)
            except ValueError as error:
                count += 1
                if len(bad) < KEPT_ROWS:
                    bad.append(BadRow(rows.line_num, str(error)))
            else:
                jobs.append(job)
    if not jobs:
        why = f"; the first problem is in line {bad[0].line}: {bad[0].reason}" if bad else ""
        raise TraceError(f"{path}: no usable job, expected at least one row{why}")
    jobs.sort(key=lambda job: job.submit)
    return Trace(path.name, tuple(jobs), count, tuple(bad))


@contextmanager
def opened(path: Path) -> Iterator[io.TextIOWrapper]:
    """The file as text, unpacked where its first bytes are gzip's; foreign errors become TraceError."""
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
        raise TraceError(f"{path}: not UTF-8 text at byte {error.start}; expected a CSV file, gzip or plain") from error
    except csv.Error as error:
        raise TraceError(f"{path}: not a CSV file ({error})") from error


def _columns(header: list[str], path: Path) -> Mapping[str, int]:
    names = [name.strip() for name in header]
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    if missing:
        seen = ", ".join(names[:20]) if any(names) else "no header"
        wanted = "column " + missing[0] if len(missing) == 1 else "columns " + ", ".join(missing)
        raise TraceError(f"{path}: {wanted} missing; seen: {seen}. See docs/reference/traces.md for the columns of a trace")
    return {name: names.index(name) for name in names}


def _job(row: list[str], columns: Mapping[str, int]) -> Job:
    def text(name: str) -> str:
        return row[columns[name]].strip() if name in columns else ""

    gpus = _whole(text("gpus_per_pod") or "0", "gpus_per_pod", most=MOST_GPUS)
    gpu_milli = _whole(text("gpu_milli") or "1000", "gpu_milli", least=1, most=1000) if gpus else 1000
    if gpus > 1 and gpu_milli < 1000:
        raise ValueError(f"gpu_milli is {gpu_milli} with {gpus} GPUs, expected 1000: only a single GPU can be shared")
    memory = _optional(text("mem_mib"), "mem_mib", most=MOST_MIB)
    priority = text("priority")
    return Job(
        id=_named(text("job_id")),
        submit=_seconds(text("submit_s"), "submit_s"),
        duration=_seconds(text("duration_s"), "duration_s"),
        pods=_whole(text("n_pods") or "1", "n_pods", least=1, most=MOST_PODS),
        gpus=gpus,
        gpu_milli=gpu_milli,
        cpu_milli=_optional(text("cpu_milli"), "cpu_milli", most=MOST_MILLICORES),
        memory=memory * MIB if memory is not None else None,
        gpu_models=tuple(sorted({model.strip() for model in text("gpu_model").split("|")} - {""})),
        # Kubernetes' priorities are numbers; QoS words, which some traces have here, order nothing in the scheduler.
        priority=int(priority) if priority.lstrip("-").isdecimal() else 0,
        user=text("user"),
    )


def _named(text: str) -> str:
    if not text or len(text) > 240 or "/" in text or "#" in text or not text.isprintable():
        raise ValueError(f"job_id is {text[:40]!r}, expected a name of 1 to 240 characters without '/' and '#'")
    return text


def _unique(job: Job, seen: set[str]) -> None:
    if job.id in seen:
        raise ValueError(f"job_id {job.id} was used before")
    seen.add(job.id)


def _number(text: str, name: str, *, least: int = 0, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{name} is {text[:40]!r}, expected a number") from None
    if not least <= number <= most:
        raise ValueError(f"{name} is {text[:40]}, expected a number from {least} to {most:.0f}")
    return number


def _seconds(text: str, name: str) -> float:
    return _number(text, name, most=MOST_SECONDS)


def _whole(text: str, name: str, *, least: int = 0, most: float) -> int:
    number = _number(text, name, least=least, most=most)
    if number != int(number):
        raise ValueError(f"{name} is {text[:40]}, expected a whole number")
    return int(number)


def _optional(text: str, name: str, *, most: float) -> int | None:
    return math.ceil(_number(text, name, most=most)) if text else None
