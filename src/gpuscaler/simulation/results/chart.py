"""Charts of a run: GPUs wanted, used and paid over time."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.simulation.measures.fleet import STRETCHES
from gpuscaler.simulation.world.meter import Result, TimelineSample

EIGHTHS = " ▁▂▃▄▅▆▇█"


class Bin(Struct, frozen=True, gc=False):
    """Averages over one interval; ``spent`` is the spending from the beginning to its end, in dollars."""

    wanted: float
    used: float
    paid: float
    spent: float


def timeline_bins(timeline: Sequence[TimelineSample], *, began: float, ended: float, count: int) -> tuple[Bin, ...]:
    """``count`` equal intervals from ``began`` to ``ended``, each with the time-weighted averages of the samples in it."""
    width = (ended - began) / count
    if width <= 0 or not timeline:
        return ()
    result: list[Bin] = []
    spent = 0.0
    position = 0
    for number in range(count):
        start, end = began + number * width, began + (number + 1) * width
        sums = [0.0, 0.0, 0.0, 0.0]
        while position < len(timeline):
            sample = timeline[position]
            until = timeline[position + 1].at if position + 1 < len(timeline) else ended
            share = max(0.0, min(until, end) - max(sample.at, start))
            for index, value in enumerate((sample.wanted, sample.used, sample.paid, sample.dollars_per_hour)):
                sums[index] += share * value
            if until > end:
                break
            position += 1
        spent += sums[3] / 3600.0
        result.append(Bin(sums[0] / width, sums[1] / width, sums[2] / width, spent))
    return tuple(result)


def thinned(result: Result) -> Result:
    """The same result with a timeline of at most ``STRETCHES`` averages, and without what only a single run needs.

    A comparison of many runs would not fit into memory otherwise: the events of a run grow with its trace, its report does not.
    """
    if len(result.timeline) <= STRETCHES:
        return replace(result, decisions=(), waits=())
    data = timeline_bins(result.timeline, began=result.began, ended=result.ended, count=STRETCHES)
    width = (result.ended - result.began) / STRETCHES
    before = (0.0, *(interval.spent for interval in data))
    samples = tuple(
        TimelineSample(
            result.began + number * width, interval.wanted, interval.used, interval.paid, (interval.spent - before[number]) * 3600.0 / width
        )
        for number, interval in enumerate(data)
    )
    return replace(result, timeline=samples, decisions=(), waits=())


def text_chart(data: Sequence[Bin], *, height: int, hours: float) -> list[str]:
    """Lines of a bar chart: full blocks are GPUs in use, light ones GPUs that are paid, dots GPUs that pods still wait for."""
    top = max((max(interval.wanted, interval.paid) for interval in data), default=0.0)
    if top <= 0:
        return ["no pod requested a GPU"]
    step = top / height
    margin = len(f"{top:.0f}")
    lines = []
    for row in reversed(range(height)):
        label = f"{(row + 1) * step:{margin}.0f}" if row % 3 == (height - 1) % 3 else " " * margin
        lines.append(f"{label} ┤" + "".join(_bar_character(interval, row * step, step) for interval in data))
    lines.append(f"{0:{margin}d} ┼" + "─" * len(data))
    lines.append(" " * (margin + 2) + _hour_scale(len(data), hours))
    return lines


def _bar_character(interval: Bin, low: float, step: float) -> str:
    if interval.used >= low + step:
        return EIGHTHS[8]
    part = round(8 * (interval.used - low) / step)
    if part >= 1:
        return EIGHTHS[part]
    middle = low + step / 2
    if interval.paid > middle:
        return "░"
    return "·" if interval.wanted > middle else " "


def _hour_scale(width: int, hours: float) -> str:
    """A scale of hours under a chart of ``width`` columns: a mark about every dozen columns."""
    step = max(1, round(12 * hours / width)) if width else 1
    line = [" "] * (width + 4)
    for hour in range(0, int(hours) + 1, step):
        for offset, letter in enumerate(f"{hour}h"):
            position = int(hour * width / hours) + offset
            if position < len(line):
                line[position] = letter
    return "".join(line).rstrip()
