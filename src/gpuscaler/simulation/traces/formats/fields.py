"""Checked values of one row of a trace. A :class:`ValueError` names the column, what was seen and what was expected."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpuscaler.simulation.traces.jobs import MOST_MIB, MOST_MILLICORES, MOST_PODS, MOST_SECONDS, Job

WHOLE = 1000
GIB = 1024**3


class Fields:
    """One row by the names of its columns; a column that the file does not have is empty."""

    __slots__ = ("_columns", "_row")

    def __init__(self, row: Sequence[str], columns: Mapping[str, int]) -> None:
        self._row, self._columns = row, columns

    def text(self, name: str) -> str:
        return self._row[self._columns[name]].strip() if name in self._columns else ""

    def number(self, name: str, *, least: float = 0, most: float) -> float:
        return parse_number(self.text(name), name, least=least, most=most)

    def whole(self, name: str, *, default: int | None = None, least: int = 0, most: float) -> int:
        text = self.text(name)
        if not text and default is not None:
            return default
        value = parse_number(text, name, least=least, most=most)
        if value != int(value):
            raise ValueError(f"{name} is {text[:40]}, expected a whole number")
        return int(value)

    def seconds(self, name: str) -> float:
        return self.number(name, most=MOST_SECONDS)

    def pods(self, name: str) -> int:
        return self.whole(name, default=1, least=1, most=MOST_PODS)

    def milli(self, name: str, *, unit: float = 1.0) -> int | None:
        """Millicores of a column in units of ``unit`` millicores; None if it is empty."""
        return math.ceil(round(self.number(name, most=MOST_MILLICORES / unit) * unit, 6)) if self.text(name) else None

    def memory(self, name: str, *, unit: int) -> int | None:
        """Bytes of a column in units of ``unit`` bytes; None if it is empty."""
        most = MOST_MIB * 1024**2 / unit
        return math.ceil(self.number(name, most=most) * unit) if self.text(name) else None

    def models(self, name: str) -> tuple[str, ...]:
        return tuple(sorted({model.strip() for model in self.label(name).split("|")} - {""}))

    def label(self, name: str) -> str:
        return parse_label(self.text(name), name)

    def identity(self, name: str) -> str:
        return parse_identity(self.text(name), name)


@dataclass(frozen=True, slots=True)
class Layout:
    """A format of CSV files. ``needed`` columns distinguish it from others; ``job`` reads a row.

    ``calendar`` times are counted from 1970 and shifted so that second 0 is the Monday before the first of them. ``finish`` adds data from
    other files beside this one. The column ``note`` lists, separated by semicolons, the changes to a row before publication.
    """

    title: str
    needed: tuple[str, ...]
    job: Callable[[Fields], Job]
    calendar: bool = False
    finish: Callable[[list[Job], Path], list[Job]] | None = None
    note: str = ""


def parse_number(text: str, name: str, *, least: float = 0, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} is {text[:40]!r}, expected a number") from None
    if not least <= value <= most:
        raise ValueError(f"{name} is {text[:40]}, expected a number from {least} to {most:.0f}")
    return value


def parse_identity(text: str, name: str) -> str:
    """A name that pod names can be made from."""
    if not text or len(text) > 240 or "/" in text or "#" in text or not text.isprintable():
        raise ValueError(f"{name} is {text[:40]!r}, expected a name of 1 to 240 characters without '/' and '#'")
    return text


def parse_label(text: str, name: str) -> str:
    """The owner of a job, or the model it wants: may be empty, but must be safe to print on a terminal."""
    if len(text) > 240 or not text.isprintable():
        raise ValueError(f"{name} is {text[:40]!r}, expected at most 240 printable characters")
    return text


def parse_timestamp(text: str, name: str) -> float:
    """Seconds since 1970 of a date with a time, such as ``2020-06-09 18:41:01``; without an offset it counts as UTC."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name} is {text[:40]!r}, expected a date with a time") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def duration_between(seconds: float, name: str) -> float:
    """A duration computed from two times."""
    if not 0 <= seconds <= MOST_SECONDS:
        raise ValueError(f"{name} is {seconds:.0f} s, expected an end that is not before the start")
    return seconds


def device_share(gpus: float) -> tuple[int, int]:
    """Devices, and thousandths of each, that serve ``gpus``: a part of one device, or whole devices, rounded up."""
    if gpus <= 0:
        return 0, WHOLE
    return (1, max(1, round(gpus * WHOLE))) if gpus < 1 else (math.ceil(round(gpus, 6)), WHOLE)


def split_over_nodes(gpus: int, nodes: int) -> tuple[int, int]:
    """Pods, and GPUs of each, for GPUs on some nodes: one pod per node if that divides evenly, else pods of equal size with all GPUs."""
    if gpus % nodes == 0:
        return nodes, gpus // nodes
    each = math.gcd(gpus, nodes)
    return gpus // each, each
