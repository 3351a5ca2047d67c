"""Rendering of a frame of the demo in a terminal of any width, with and without colours."""

import io
import re
from collections import defaultdict
from collections.abc import Sequence

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from gpuscaler.cli.printing import escape_controls
from gpuscaler.control.records.events import happening as kinds
from gpuscaler.control.records.words import format_dollars, format_duration
from gpuscaler.embedded.demo.decisions import DecisionLine, lines
from gpuscaler.embedded.demo.frames import Frame, Machine, Pending, PoolView
from gpuscaler.model.quantities import format_count

#: States of GPUs: the character of each, an ASCII character instead, and its colour.
STATES = {"used": ("█", "#", "green"), "idle": ("░", ".", "yellow"), "arriving": ("▒", "+", "cyan"), "leaving": ("▚", "x", "magenta")}
COLOURS = {
    kinds.ORDERED: "green",
    kinds.INSTEAD: "green",
    kinds.OPENED: "cyan",
    kinds.DECIDED: "magenta",
    kinds.REFUSED: "red",
    kinds.LOST: "red",
    kinds.BROKEN: "red",
    kinds.FAILED: "red",
    kinds.ACTED: "red",
    kinds.UNPLACED: "yellow",
}
#: Maximum rows of pending pods, and minimum rows of decisions.
PODS, DECISIONS = 4, 5
#: The lag from which it is shown, in seconds of real time.
LATE = 1.0


class Screen:
    """A frame that rich can print in ``height`` rows. ``began`` is its second 0, in seconds since the epoch."""

    def __init__(self, frame: Frame, *, began: float, height: int) -> None:
        self._frame, self._began, self._height = frame, began, height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ascii_only = not options.encoding.startswith("utf")
        frame = self._frame
        head = [*_head_rows(frame, ascii_only=ascii_only), _legend(frame, ascii_only=ascii_only)]
        pending_rows = _pending_rows(frame.pending)
        free_rows = self._height - len(head) - len(pending_rows) - DECISIONS - 3
        pools = _pool_rows(frame.pools, width=options.max_width, max_rows=max(3, free_rows), ascii_only=ascii_only)
        used = len(head) + len(pools) + len(pending_rows) + 3
        texts = _decision_rows(tuple(lines(frame.happenings)), began=self._began, max_rows=max(DECISIONS, self._height - used))
        for row in (*head, *pools, *pending_rows, *texts):
            if ascii_only and isinstance(row, Text):
                # Not every terminal has the ellipsis character that marks cut text.
                row.overflow = "crop"
        yield Group(
            *head,
            _rule("pools", ascii_only=ascii_only),
            *pools,
            _rule(_pending_title(frame.pending), ascii_only=ascii_only),
            *pending_rows,
            _rule("decisions", ascii_only=ascii_only),
            *texts,
        )


def _rule(title: str, *, ascii_only: bool) -> Rule:
    return Rule(title, align="left", style="dim", characters="-" if ascii_only else "─")


def _head_rows(frame: Frame, *, ascii_only: bool) -> list[Text | Table]:
    clock = Text.assemble(("gpuscaler demo", "bold"), f"  {format_clock(frame.elapsed)}", (f" / {format_clock(frame.span)}", "dim"))
    clock.append(f"  {frame.speed:g}x", "dim")
    if frame.behind > LATE * frame.speed:
        clock.append(f"  {format_duration(frame.behind / frame.speed)} behind", "red")
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(no_wrap=True, overflow="crop" if ascii_only else "ellipsis")
    bar.add_column(ratio=1)
    bar.add_row(clock, ProgressBar(total=frame.span, completed=min(frame.elapsed, frame.span)))
    cost = Text.assemble((f"{format_dollars(frame.dollars_per_hour)}/h", "bold"), f"  {format_dollars(frame.spent)} so far")
    cost.append(f"  {format_count(frame.running, 'pod')} running, {len(frame.pending):,} pending, {frame.finished:,} done")
    command = Text(f"kubectl --server {frame.server} get nodes,pods", "dim")
    return [bar, _one_line(cost), *(_one_line(Text(escape_controls(trouble), "red")) for trouble in frame.troubles), _one_line(command)]


def _legend(frame: Frame, *, ascii_only: bool) -> Text:
    text = Text("GPUs: ", no_wrap=True, overflow="ellipsis")
    for (state, (character, ascii_character, colour)), number in zip(STATES.items(), frame.gpus, strict=True):
        text.append(f"{ascii_character if ascii_only else character}", colour).append(f" {number} {state}  ")
    return text


def _pool_rows(pools: Sequence[PoolView], *, width: int, max_rows: int, ascii_only: bool) -> list[Text]:
    """Return a line for each pool and lines for its machines by type, cut after ``max_rows`` lines."""
    rows: list[Text] = []
    for pool in pools:
        if not pool.machines and not pool.gpus:
            continue
        title = Text.assemble((pool.name, "bold"), f"  {format_count(len(pool.machines), 'machine')}")
        if pool.refused:
            title.append(f"  {pool.refused} of {pool.offerings} offerings paused after refusals", "red")
        rows.append(_one_line(title))
        rows += _type_rows(pool.machines, width=width, ascii_only=ascii_only)
    if len(rows) > max_rows:
        rows = [*rows[: max_rows - 1], Text(f"  and {len(rows) - max_rows + 1} more lines", "dim")]
    return rows


def _type_rows(machines: Sequence[Machine], *, width: int, ascii_only: bool) -> list[Text]:
    """Return the machines of each type, their GPUs as blocks; a type takes as many lines as it needs."""
    types: dict[str, list[Machine]] = defaultdict(list)
    for planned in machines:
        types[planned.instance_type].append(planned)
    rows = []
    for name in sorted(types):
        label = f"  {name:<13}"
        row = Text(label)
        for number, machine in enumerate(types[name]):
            blocks = _blocks(machine, ascii_only=ascii_only)
            if number and len(row) + len(blocks) + 1 > width:
                rows.append(row)
                row = Text(" " * len(label))
            row.append(" ").append_text(blocks)
        rows.append(row)
    return [_one_line(row) for row in rows]


def _blocks(machine: Machine, *, ascii_only: bool) -> Text:
    text = Text()
    for state, (character, ascii_character, colour) in STATES.items():
        text.append((ascii_character if ascii_only else character) * getattr(machine, state), colour)
    return text


def _pending_title(pending: Sequence[Pending]) -> str:
    if not pending:
        return "no pod is pending"
    return f"{format_count(len(pending), 'pod')} pending, for {format_count(sum(pod.gpus for pod in pending), 'GPU')}"


def _pending_rows(pending: Sequence[Pending]) -> list[Text]:
    rows = []
    for pod in pending[:PODS]:
        text = Text.assemble(
            f"  {escape_controls(pod.key)}",
            (f"  {format_count(pod.gpus, 'GPU')}, {format_duration(pod.seconds)}: ", "dim"),
            escape_controls(pod.why),
        )
        rows.append(_one_line(text))
    return [*rows, *(Text("") for _ in range(PODS - len(rows)))]


def _decision_rows(lines: Sequence[DecisionLine], *, began: float, max_rows: int) -> list[Text]:
    return [decision_line(line, began=began) for line in reversed(lines[-max_rows:])]


def decision_line(line: DecisionLine, *, began: float) -> Text:
    """Format a decision as one line."""
    text = Text.assemble(
        (f"{format_clock(line.at - began)} ", "dim"), (f"{line.word:<10} ", COLOURS.get(line.kind, "")), escape_controls(line.text)
    )
    return _one_line(text)


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def format_clock(seconds: float) -> str:
    """Format a time as ``1:02:03`` (hours, minutes, seconds)."""
    total = max(0, int(seconds))
    return f"{total // 3600}:{total % 3600 // 60:02}:{total % 60:02}"


def status_line(frame: Frame) -> str:
    """Format a frame as one line of text."""
    numbers = ", ".join(f"{number} {state}" for state, number in zip(STATES, frame.gpus, strict=True))
    lag = f"; {format_duration(frame.behind / frame.speed)} behind" if frame.behind > LATE * frame.speed else ""
    pods = f"{frame.running:,} pods running, {len(frame.pending):,} pending, {frame.finished:,} done"
    cost = f"{format_dollars(frame.dollars_per_hour)}/h, {format_dollars(frame.spent)} so far"
    return f"{format_clock(frame.elapsed)} {cost}; GPUs: {numbers}; {pods}{lag}"


#: rich's SVG template of a terminal, without the web fonts that it would fetch.
PICTURE = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")


def svg_picture(frame: Frame, *, began: float, width: int = 110, height: int = 36) -> str:
    """Return a frame as a self-contained SVG picture."""
    console = Console(
        record=True,
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        highlight=False,
    )
    console.print(Screen(frame, began=began, height=height))
    return console.export_svg(title="gpuscaler demo", code_format=PICTURE, unique_id="demo")


def rank_frame(frame: Frame) -> tuple[bool, int, int]:
    """Rank a frame by how much it shows: a refusal, GPUs in many states, many GPUs in transition."""
    states = sum(number > 0 for number in frame.gpus)
    return any(pool.refused for pool in frame.pools), states + bool(frame.pending), frame.gpus[2] + frame.gpus[3]
