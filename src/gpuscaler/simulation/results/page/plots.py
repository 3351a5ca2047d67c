"""The four plots of a report: GPUs paid and wanted, machines, dollars over time, and waiting times."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpuscaler.simulation.measures.fleet import STRETCHES
from gpuscaler.simulation.results.chart import Bin, timeline_bins
from gpuscaler.simulation.results.figures import SECONDS, format_figure, single_value
from gpuscaler.simulation.results.page.drawing import (
    LEFT,
    RIGHT,
    WIDTH,
    Frame,
    LegendKey,
    area,
    axis_end,
    band,
    hour_marks,
    legend,
    level_lines,
    step_line,
    svg_path,
    svg_picture,
    svg_text,
    wait_marks,
)
from gpuscaler.simulation.results.page.style import SERIES
from gpuscaler.simulation.world.meter import Result

PANEL, GAP, BELOW = 150.0, 34.0, 26.0
TALL = 260.0

#: Machines that share a band: their name, and their market.
MachineKind = tuple[str, str]


def capacity_plot(results: Sequence[Result]) -> str | None:
    """GPUs wanted, in use and paid over time, one panel per result on one scale; None if there were no GPUs."""
    results = [result for result in results if result.timeline]
    data = [timeline_bins(result.timeline, began=result.began, ended=result.ended, count=STRETCHES) for result in results]
    most = max((max(part.wanted, part.paid) for part in (part for bins in data for part in bins)), default=0.0)
    if most <= 0:
        return None
    keys = (
        LegendKey("used", "GPUs in use", box=True),
        LegendKey("paid", "GPUs paid, not in use", box=True),
        LegendKey("wanted", "GPUs wanted"),
    )
    parts, top = legend(keys, 0)
    hours = max(_hours(result) for result in results)
    for result, line in zip(results, data, strict=True):
        frame = Frame(top + GAP, PANEL, hours, axis_end(most))
        parts += [svg_text(LEFT, frame.top - 10, result.policy, name=True), *level_lines(frame), *_gpus(line, frame, _hours(result))]
        parts += hour_marks(frame)
        top = frame.bottom + BELOW
    description = "; ".join(
        f"{result.policy}: at most {max((part.wanted for part in line), default=0):,.0f} GPUs wanted and "
        f"{max((part.paid for part in line), default=0):,.0f} paid"
        for result, line in zip(results, data, strict=True)
    )
    return svg_picture("capacity", title="GPUs paid against GPUs wanted over time", description=description, parts=parts, height=top)


def _gpus(data: Sequence[Bin], frame: Frame, hours: float) -> list[str]:
    if not data:
        return []
    paid, used, wanted = ([getattr(interval, name) for interval in data] for name in ("paid", "used", "wanted"))
    return [
        svg_path("paid", area(paid, frame, hours)),
        svg_path("used", area(used, frame, hours)),
        svg_path("edge", step_line(paid, frame, hours)),
        svg_path("wanted", step_line(wanted, frame, hours)),
    ]


def machines_plot(results: Sequence[Result]) -> str | None:
    """Machines of every type and market over time, stacked, one panel per result on one scale; None if there were none."""
    results = [result for result in results if result.fleet]
    if not results:
        return None
    kinds = _kinds(results)
    stacks = [_stack(result, kinds) for result in results]
    most = max(map(_peak, stacks))
    keys = [LegendKey(f"band fill{number}", name, box=True, hatched=market == "spot") for number, (name, market) in enumerate(kinds)]
    parts, top = legend(keys, 0)
    hours = max(_hours(result) for result in results)
    for result, stack in zip(results, stacks, strict=True):
        frame = Frame(top + GAP, PANEL, hours, axis_end(most))
        parts += [svg_text(LEFT, frame.top - 10, result.policy, name=True), *level_lines(frame)]
        parts += _bands(stack, frame, _hours(result))
        parts += hour_marks(frame)
        top = frame.bottom + BELOW
    description = "; ".join(f"{result.policy}: at most {_peak(stack):,.0f} machines" for result, stack in zip(results, stacks, strict=True))
    return svg_picture("machines", title="Machines by type and market over time", description=description, parts=parts, height=top)


def _bands(stack: Mapping[MachineKind, Sequence[float]], frame: Frame, hours: float) -> list[str]:
    parts = []
    floor = [0.0] * STRETCHES
    for number, ((_, market), counts) in enumerate(stack.items()):
        ceiling = [low + high for low, high in zip(floor, counts, strict=True)]
        if any(counts):
            drawn = band(floor, ceiling, frame, hours)
            parts.append(svg_path(f"band fill{number}", drawn))
            if market == "spot":
                parts.append(f'<path d="{drawn}" fill="url(#spot)"/>')
        floor = ceiling
    return parts


def _peak(stack: Mapping[MachineKind, Sequence[float]]) -> float:
    return max(map(sum, zip(*stack.values(), strict=True)))


def _kinds(results: Sequence[Result]) -> list[MachineKind]:
    """The types and markets with most machine-hours, by their share in a result, and the name for all others."""
    parts: dict[MachineKind, float] = {}
    for result in results:
        hours: dict[MachineKind, float] = defaultdict(float)
        for row in result.machine_hours:
            hours[_kind(row.instance_type, row.market)] += row.hours
        for kind, own in hours.items():
            parts[kind] = max(parts.get(kind, 0.0), own / sum(hours.values()))
    ordered = sorted(parts, key=lambda kind: (-parts[kind], kind))
    return ordered if len(ordered) <= SERIES else [*ordered[: SERIES - 1], ("other offerings", "")]


def _kind(instance_type: str, market: str) -> MachineKind:
    """The name and market of a band; on-demand is the default and has no market."""
    return instance_type if market == "on-demand" else f"{instance_type} ({market})", market


def _stack(result: Result, kinds: Sequence[MachineKind]) -> dict[MachineKind, list[float]]:
    """Average numbers of machines in each interval, for each of ``kinds``."""
    stack = {kind: [0.0] * STRETCHES for kind in kinds}
    for presence in result.fleet:
        kind = _kind(presence.instance_type, presence.market)
        sums = stack[kind if kind in stack else kinds[-1]]
        for number, count in enumerate(presence.machines):
            sums[number] += count
    return stack


def spending_plot(results: Sequence[Result]) -> str | None:
    """Dollars spent from the beginning on, one line per result, and the bound that holds for all; None if nothing was spent."""
    results = [result for result in results if result.timeline]
    lines = [(result, timeline_bins(result.timeline, began=result.began, ended=result.ended, count=STRETCHES)) for result in results]
    most = max((part.spent for _, line in lines for part in line), default=0.0)
    if most <= 0:
        return None
    keys = [LegendKey(f"line line{number % SERIES}", f"{result.policy}, ${result.cost:,.2f}") for number, result in enumerate(results)]
    # If services or failures make one policy's work less than another's, the bounds differ.
    bound = min(result.lower_bound for result in results)
    keys.append(LegendKey("bound", f"no policy can cost less than ${bound:,.2f}"))
    parts, top = legend(keys, 0)
    frame = Frame(top + 12, TALL, max(_hours(result) for result in results), axis_end(max(most, bound)))
    parts += [*level_lines(frame, before="$"), *hour_marks(frame)]
    parts.append(svg_path("bound", f"M{LEFT} {frame.y(bound):.1f}H{WIDTH - RIGHT}"))
    for number, (result, line) in enumerate(lines):
        hours = _hours(result)
        drawn = "".join(f"L{frame.x(hours * (place + 1) / len(line)):.1f} {frame.y(part.spent):.1f}" for place, part in enumerate(line))
        if drawn:
            parts.append(svg_path(f"line line{number % SERIES}", f"M{LEFT} {frame.bottom:.1f}{drawn}"))
    description = "; ".join(f"{result.policy} spent ${result.cost:,.2f}" for result in results)
    return svg_picture("spending", title="Dollars spent over time", description=description, parts=parts, height=frame.bottom + BELOW)


def waiting_plot(results: Sequence[Result]) -> str | None:
    """The share of all pods that ran within a time, one line per result; None if no pod ran."""
    results = [result for result in results if result.wait_curve.seconds]
    if not results:
        return None
    keys = [LegendKey(f"line line{number % SERIES}", result.policy) for number, result in enumerate(results)]
    parts, top = legend(keys, 0)
    longest = max(result.wait_curve.seconds[-1] for result in results)
    frame = Frame(top + 12, TALL, max(60.0, longest * 1.2), 100.0, logarithmic=True)
    parts += [*level_lines(frame, after=" %"), *wait_marks(frame)]
    for number, result in enumerate(results):
        curve = result.wait_curve
        drawn = "".join(
            f"H{frame.x(seconds):.1f}V{frame.y(100 * share):.1f}" for seconds, share in zip(curve.seconds, curve.shares, strict=True)
        )
        parts.append(svg_path(f"line line{number % SERIES}", f"M{LEFT} {frame.bottom:.1f}{drawn}H{WIDTH - RIGHT}"))
    description = "; ".join(
        f"{result.policy}: half of the pods ran within {_wait('p50', result)}, 95 % within {_wait('p95', result)}" for result in results
    )
    return svg_picture("waiting", title="Pods that ran within a time", description=description, parts=parts, height=frame.bottom + BELOW)


def _wait(field: str, result: Result) -> str:
    return format_figure(SECONDS, single_value(getattr(result.wait, field), at_least=field in result.wait.at_least))


def _hours(result: Result) -> float:
    return (result.ended - result.began) / 3600.0
