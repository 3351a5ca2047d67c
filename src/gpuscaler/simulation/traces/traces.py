"""Reads traces of jobs, in our own columns or as they were published; the header determines the format."""

import csv
import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from gpuscaler.simulation.traces.formats import philly
from gpuscaler.simulation.traces.formats.alibaba import OPENB, PAI_JOB_COLUMNS, PAI_SAMPLE, PAI_TASKS, SPOT, columns_without_header
from gpuscaler.simulation.traces.formats.fields import Fields, Layout
from gpuscaler.simulation.traces.formats.slurm import SLURM
from gpuscaler.simulation.traces.formats.tidy import TIDY
from gpuscaler.simulation.traces.jobs import (
    KEPT_ROWS,
    MIB,
    MOST_SECONDS,
    BadRow,
    CsvRow,
    Job,
    Trace,
    TraceError,
    fields_of,
    header_of,
    open_text,
    printable_names,
    read_csv_rows,
)

__all__ = ["KEPT_ROWS", "MIB", "MOST_SECONDS", "BadRow", "Job", "Trace", "TraceError", "open_text", "read_trace"]

#: Formats of CSV files; if a header fits several, the first is used.
LAYOUTS = (TIDY, OPENB, SPOT, PAI_SAMPLE, PAI_TASKS, SLURM)

#: Maximum number of different notes of a file that are reported.
MOST_NOTES = 5
WEEK = 7 * 86_400.0
#: The first Monday of 1970, in seconds.
MONDAY = 4 * 86_400.0


def read_trace(path: Path) -> Trace:
    """Read a trace. A malformed row is skipped; a file of the wrong shape raises :class:`TraceError`."""
    collected = _JobCollector()
    with open_text(path) as text:
        start = _leading_lines(text)
        if any("\0" in line for line in start):
            raise TraceError(f"{path}: saw an archive or another binary file, expected CSV or JSON, gzip or plain; unpack it first")
        if start and start[-1].lstrip()[:1] in {"[", "{"}:
            _read_json("".join(start) + text.read(), path, collected)
            calendar, finish = True, None
        else:
            layout = _read_csv(itertools.chain(start, text), path, collected)
            calendar, finish = layout.calendar, layout.finish
    jobs, bad = collected.jobs, collected.bad
    if not jobs:
        why = f"; the first problem is in line {bad[0].line}: {bad[0].reason}" if bad else ""
        raise TraceError(f"{path}: no usable job, expected at least one row{why}")
    if finish is not None:
        jobs = finish(jobs, path)
    jobs.sort(key=lambda job: job.submit)
    if calendar:
        begin = (jobs[0].submit - MONDAY) // WEEK * WEEK + MONDAY
        jobs = [replace(job, submit=job.submit - begin) for job in jobs]
    return Trace(path.name, tuple(jobs), collected.count, tuple(bad), tuple(collected.notes.most_common(MOST_NOTES)))


class _JobCollector:
    """Jobs so far, and the skipped rows."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.bad: list[BadRow] = []
        self.count = 0
        self.notes: Counter[str] = Counter()
        self._seen: set[str] = set()

    def add(self, line: int, read_job: Callable[[], Job]) -> bool:
        try:
            job = read_job()
            if job.id in self._seen:
                raise ValueError(f"job_id {job.id} was used before")
        except ValueError as error:
            self.count += 1
            if len(self.bad) < KEPT_ROWS:
                self.bad.append(BadRow(line, str(error)))
        else:
            self._seen.add(job.id)
            self.jobs.append(job)
            return True
        return False


def _leading_lines(text: io.TextIOWrapper) -> list[str]:
    """The lines up to the first that is not blank."""
    lines = []
    for line in iter(text.readline, ""):
        lines.append(line)
        if line.strip():
            break
    return lines


def _read_csv(lines: Iterable[str], path: Path, collected: _JobCollector) -> Layout:
    rows = read_csv_rows(lines)
    top = header_of(rows)
    columns = columns_without_header(top)
    header = columns or tuple(top)
    layout = _layout(header, path)
    places = {name: header.index(name) for name in header}
    body: Iterable[tuple[int, CsvRow]] = itertools.chain([(1, top)], rows) if columns else rows
    for line, row in body:
        added = collected.add(line, partial(_job, row, places, width=len(header), layout=layout))
        if added and layout.note in places and not isinstance(row, csv.Error):
            collected.notes.update({printable_names([part.strip()]) for part in row[places[layout.note]].split(";")} - {""})
    return layout


def _job(row: CsvRow, places: dict[str, int], *, width: int, layout: Layout) -> Job:
    return layout.job(Fields(fields_of(row, width), places))


def _layout(header: tuple[str, ...], path: Path) -> Layout:
    """The format that a header belongs to, or the error that names what the closest format lacks."""
    if header == PAI_JOB_COLUMNS:
        raise TraceError(
            f"{path}: columns plan_gpu, plan_cpu missing: jobs without their requests; give pai_task_table.csv of the same trace"
        )

    def lacks(layout: Layout) -> list[str]:
        return [name for name in layout.needed if name not in header]

    for layout in LAYOUTS:
        if not lacks(layout):
            return layout
    nearest = min(LAYOUTS, key=lambda layout: len(lacks(layout)) / len(layout.needed))
    missing = lacks(nearest)
    header_text = printable_names(header) or "no header"
    missing_columns = "column " + missing[0] if len(missing) == 1 else "columns " + ", ".join(missing)
    hint = "" if nearest is TIDY else f"; read as {nearest.title}"
    raise TraceError(
        f"{path}: {missing_columns} missing; seen: {header_text}{hint}. See docs/reference/traces.md for the columns of a trace"
    )


def _read_json(text: str, path: Path, collected: _JobCollector) -> None:
    for number, (line, entry) in enumerate(philly.entries(text, path)):
        if number == 0:
            philly.check_first_entry(entry, path)
        collected.add(line, partial(philly.philly_job, entry))
