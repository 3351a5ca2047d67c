"""Draws plots as SVG: axes, steps, bands, legends. Pictures are inline, so that the page's style applies to them."""

import math
from collections.abc import Sequence
from html import escape

from msgspec import Struct

WIDTH, LEFT, RIGHT = 960, 74, 20
#: Approximate width of a letter, for legends that wrap.
LETTER = 7.4
LEGEND_ROW = 20

HOUR, DAY = 3600.0, 86_400.0
#: Distances of marks on a time axis, in hours.
STEPS = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 24 * 7, 24 * 14, 24 * 28, 24 * 56, 24 * 182, 24 * 364)
#: Marks on an axis of waits, in seconds.
WAITS = (
    (1.0, "1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (HOUR, "1 h"),
    (10 * HOUR, "10 h"),
    (DAY, "1 d"),
    (10 * DAY, "10 d"),
)


class Frame(Struct, frozen=True):
    """A panel: its position, and the values at its right end and its top. Values begin with 0, or with 1 if x is logarithmic."""

    top: float
    height: float
    x_end: float
    y_end: float
    logarithmic: bool = False

    def x(self, value: float) -> float:
        part = math.log(max(1.0, value)) / math.log(self.x_end) if self.logarithmic else value / self.x_end
        return LEFT + (WIDTH - LEFT - RIGHT) * part

    def y(self, value: float) -> float:
        return self.top + self.height * (1.0 - value / self.y_end)

    @property
    def bottom(self) -> float:
        return self.top + self.height


class LegendKey(Struct, frozen=True):
    """An entry of a legend: the SVG classes of its sample, a line or a box, and its name."""

    classes: str
    name: str
    box: bool = False
    hatched: bool = False


def svg_picture(ident: str, *, title: str, description: str, parts: Sequence[str], height: float) -> str:
    """A whole picture. ``description`` is its description in words; ``ident`` is unique on the page."""
    return "\n".join(
        (
            f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-labelledby="{ident}-title {ident}-told">',
            f'<title id="{ident}-title">{escape(title)}</title>',
            f'<desc id="{ident}-told">{escape(description)}</desc>',
            *parts,
            "</svg>",
        )
    )


def svg_text(x: float, y: float, words: str, *, anchor: str = "start", name: bool = False) -> str:
    kind = ' class="name"' if name else ""
    place = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind}{place}>{escape(words)}</text>'


def svg_path(classes: str, drawn: str) -> str:
    return f'<path class="{classes}" d="{drawn}"/>'


def axis_end(value: float) -> float:
    """The end of an axis: the next number at or above ``value`` that is easily halved, 2 if there is nothing to show."""
    if value <= 0:
        return 2.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 1.2, 1.6, 2.0, 2.4, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0) if step * power >= value * 0.999999)


def level_lines(frame: Frame, *, before: str = "", after: str = "") -> list[str]:
    """Lines at zero, half and full height of the y axis, with their values."""
    parts = []
    for part in (0.0, 0.5, 1.0):
        value = frame.y_end * part
        y = frame.y(value)
        digits = 0 if frame.y_end >= 30 or value == int(value) else 1 if frame.y_end >= 1 else 3
        parts.append(svg_path("grid", f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}"))
        parts.append(svg_text(LEFT - 8, y + 4, f"{before}{value:,.{digits}f}{after}", anchor="end"))
    return parts


def hour_marks(frame: Frame) -> list[str]:
    """Marks of time under a frame whose x is in hours."""
    step = next((step_size for step_size in STEPS if frame.x_end / step_size <= 10), STEPS[-1] * math.ceil(frame.x_end / STEPS[-1] / 10))
    parts = []
    for number in range(int(frame.x_end / step + 1e-9) + 1):
        hours = number * step
        words = f"{hours / 24:,.0f} d" if step >= 24 else f"{hours:,g} h" if step >= 1 else f"{hours * 60:,.0f} min"
        parts += _mark(frame, hours, words)
    return parts


def wait_marks(frame: Frame) -> list[str]:
    """Marks of waits, on a logarithmic axis of seconds."""
    return [part for seconds, words in WAITS if seconds <= frame.x_end * 1.0001 for part in _mark(frame, seconds, words)]


def _mark(frame: Frame, value: float, words: str) -> list[str]:
    x = frame.x(value)
    return [
        svg_path("grid", f"M{x:.1f} {frame.bottom:.1f}v5"),
        svg_text(x, frame.bottom + 19, words, anchor="middle" if x > LEFT else "start"),
    ]


def step_line(values: Sequence[float], frame: Frame, end: float) -> str:
    """A step line: ``values`` hold over equal intervals of the x axis, up to ``end``."""
    return f"M{LEFT} {frame.y(values[0]):.1f}{_stairs(values, frame, end)}"


def area(values: Sequence[float], frame: Frame, end: float) -> str:
    """The area under a step line."""
    return f"M{LEFT} {frame.bottom:.1f}{_stairs(values, frame, end)}V{frame.bottom:.1f}Z"


def band(lower: Sequence[float], upper: Sequence[float], frame: Frame, end: float) -> str:
    """The area between two step lines."""
    back = "".join(
        f"V{frame.y(lower[number]):.1f}H{frame.x(end * number / len(lower)):.1f}"
        for number in reversed(range(len(lower)))
        if number == 0 or lower[number] != lower[number - 1]
    )
    return f"M{LEFT} {frame.y(lower[0]):.1f}{_stairs(upper, frame, end)}{back}Z"


def _stairs(values: Sequence[float], frame: Frame, end: float) -> str:
    """A step line's path, with one step for each run of equal values."""
    return "".join(
        f"V{frame.y(value):.1f}H{frame.x(end * (number + 1) / len(values)):.1f}"
        for number, value in enumerate(values)
        if number == len(values) - 1 or values[number + 1] != value
    )


def legend(keys: Sequence[LegendKey], top: float) -> tuple[list[str], float]:
    """The entries in rows from ``top`` on, and the position where they end."""
    parts: list[str] = []
    x, y = float(LEFT), top
    for key in keys:
        wide = 40 + LETTER * len(key.name)
        if x > LEFT and x + wide > WIDTH:
            x, y = float(LEFT), y + LEGEND_ROW
        if key.box:
            box = f'x="{x:.1f}" y="{y + 3:.1f}" width="16" height="11"'
            parts.append(f'<rect class="{key.classes}" {box}/>')
            if key.hatched:
                parts.append(f'<rect {box} fill="url(#spot)"/>')
        else:
            parts.append(svg_path(key.classes, f"M{x:.1f} {y + 9:.1f}h24"))
        parts.append(svg_text(x + (22 if key.box else 30), y + 13, key.name))
        x += wide + 14
    return parts, y + LEGEND_ROW


#: The pattern of spot machines, defined once on a page.
HATCH = (
    '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs><pattern id="spot" width="6" height="6" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path class="hatch" d="M0 0v6"/></pattern></defs></svg>'
)
