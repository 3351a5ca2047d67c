"""A run as one self-contained SVG picture that is legible on light and dark pages."""

import math
from collections.abc import Sequence
from html import escape

from gpuscaler.simulation.chart import Bin, bins
from gpuscaler.simulation.meter import Result

WIDTH, LEFT, RIGHT = 960, 64, 24
#: Top and height of the two panels.
GPUS, SPENT = (64, 230), (356, 92)
HEIGHT = 464
COUNT = 288

STYLE = """
  text { font: 13px ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #57606a; }
  .title { font-size: 16px; font-weight: 600; fill: #24292f; }
  .grid { stroke: #8c959f; stroke-opacity: .3; stroke-width: 1; }
  .used { fill: #2da44e; fill-opacity: .85; }
  .paid { fill: #bf8700; fill-opacity: .3; }
  .edge { fill: none; stroke: #bf8700; stroke-width: 1.5; }
  .wanted { fill: none; stroke: #57606a; stroke-width: 1; stroke-dasharray: 2 3; }
  .spent { fill: none; stroke: #0969da; stroke-width: 2; }
  .bound { stroke: #0969da; stroke-width: 1.5; stroke-dasharray: 5 4; }
  @media (prefers-color-scheme: dark) {
    text { fill: #9da7b3; }
    .title { fill: #e6edf3; }
    .used { fill: #3fb950; }
    .paid { fill: #d29922; }
    .edge { stroke: #d29922; }
    .wanted { stroke: #9da7b3; }
    .spent, .bound { stroke: #58a6ff; }
  }
"""


def svg_chart(result: Result) -> str:
    """GPUs wanted, used and paid over time, and dollars spent beside the lower bound."""
    data = bins(result.timeline, began=result.began, ended=result.ended, count=COUNT)
    hours = (result.ended - result.began) / 3600.0
    share = 100.0 * result.gpu_hours_used / result.gpu_hours_paid if result.gpu_hours_paid else 0.0
    title = f"{hours:.0f} hours of GPU work: ${result.cost:,.0f}, {share:.0f} % of paid GPU-hours at work"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="26">{escape(title)}</text>',
        *_legend(),
        *_gpu_panel(data, hours),
        *_money_panel(data, result),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _legend() -> list[str]:
    y = 46
    return [
        f'<rect class="used" x="{LEFT}" y="{y - 10}" width="14" height="10"/><text x="{LEFT + 20}" y="{y}">GPUs at work</text>',
        f'<rect class="paid" x="{LEFT + 130}" y="{y - 10}" width="14" height="10"/><path class="edge" d="M{LEFT + 130} {y - 10}h14"/>',
        f'<text x="{LEFT + 150}" y="{y}">GPUs paid</text>',
        f'<path class="wanted" d="M{LEFT + 240} {y - 5}h16"/><text x="{LEFT + 262}" y="{y}">GPUs wanted</text>',
    ]


def _gpu_panel(data: Sequence[Bin], hours: float) -> list[str]:
    top = nice(max((max(one.wanted, one.paid) for one in data), default=1.0))
    parts = _grid(GPUS, top, "")
    parts.append(f'<path class="paid" d="{_area([one.paid for one in data], GPUS, top)}"/>')
    parts.append(f'<path class="used" d="{_area([one.used for one in data], GPUS, top)}"/>')
    parts.append(f'<path class="edge" d="{_line([one.paid for one in data], GPUS, top)}"/>')
    parts.append(f'<path class="wanted" d="{_line([one.wanted for one in data], GPUS, top)}"/>')
    below = GPUS[0] + GPUS[1] + 18
    every = max(1, math.ceil(hours / 12))
    for hour in range(0, int(hours) + 1, every):
        x = LEFT + (WIDTH - LEFT - RIGHT) * hour / hours if hours else LEFT
        parts.append(f'<text x="{x:.0f}" y="{below}" text-anchor="middle">{hour} h</text>')
    return parts


def _money_panel(data: Sequence[Bin], result: Result) -> list[str]:
    top = nice(max(result.cost, result.lower_bound))
    head = SPENT[0] - 10
    parts = _grid(SPENT, top, "$")
    parts.append(f'<path class="spent" d="{_line([one.spent for one in data], SPENT, top)}"/>')
    bound = _y(result.lower_bound, SPENT, top)
    parts.append(f'<path class="bound" d="M{LEFT} {bound:.1f}H{WIDTH - RIGHT}"/>')
    text = f"dollars spent; dashed: no policy can serve this work for less than ${result.lower_bound:,.0f}"
    parts.append(f'<text x="{LEFT}" y="{head}">{escape(text)}</text>')
    return parts


def _grid(panel: tuple[int, int], top: float, unit: str) -> list[str]:
    parts = []
    for quarter in (0.0, 0.5, 1.0):
        y = _y(top * quarter, panel, top)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{unit}{top * quarter:,.0f}</text>')
    return parts


def _points(values: Sequence[float], panel: tuple[int, int], top: float) -> str:
    """A staircase: every stretch of time is level."""
    step = (WIDTH - LEFT - RIGHT) / max(1, len(values))
    return "".join(f"V{_y(value, panel, top):.1f}H{LEFT + (number + 1) * step:.1f}" for number, value in enumerate(values))


def _line(values: Sequence[float], panel: tuple[int, int], top: float) -> str:
    first = values[0] if values else 0.0
    return f"M{LEFT} {_y(first, panel, top):.1f}{_points(values, panel, top)}"


def _area(values: Sequence[float], panel: tuple[int, int], top: float) -> str:
    floor = _y(0.0, panel, top)
    return f"M{LEFT} {floor:.1f}{_points(values, panel, top)}V{floor:.1f}Z"


def _y(value: float, panel: tuple[int, int], top: float) -> float:
    start, height = panel
    return start + height * (1.0 - value / top)


def nice(value: float) -> float:
    """The next number at or above ``value`` that halves to a round one: 2, 4, 6, 8 or 10 times a power of ten."""
    if value <= 0:
        return 2.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (2.0, 4.0, 6.0, 8.0, 10.0, 20.0) if step * power >= value * 0.999999)
