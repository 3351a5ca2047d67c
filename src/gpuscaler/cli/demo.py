"""``gpuscaler demo``: runs the real controller on a cluster in this process and shows its actions as they happen."""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.control_plane import REAL, check_release_option, compile_programs, control_plane_options, report_exited_programs

if TYPE_CHECKING:
    from rich.console import Console

    from gpuscaler.embedded.controlplane.building import Programs
    from gpuscaler.embedded.controlplane.plane import ControlPlane
    from gpuscaler.embedded.demo.frames import Frame
    from gpuscaler.embedded.demo.scenario import Scenario
    from gpuscaler.embedded.demo.stage import Demo
    from gpuscaler.simulation.world.meter import Result

#: Speed at which two hours pass in a minute.
SPEED = 120.0
#: A real control plane runs on the wall clock, so jobs and machines are shortened by this factor: two hours in six minutes.
HASTE = 20.0
#: Time between two redraws of a terminal, in seconds of real time.
REDRAW = 0.15
#: Without a terminal: how often lines are printed, and how often one of them is a summary, in seconds of the cluster's time.
LINES, STATUS = 20.0, 600.0
#: Maximum height of the view, in rows.
ROWS = 40
PICTURE = "screen.svg"
#: The chart's characters for terminals that lack block characters.
ASCII = str.maketrans("█▇▆▅▄▃▂▁░·┤┼─", "#####...:,|+-")


@click.command()
@click.option(
    "--trace", "trace_file", metavar="FILE", type=click.Path(path_type=Path), help="Submit the jobs of two busy hours of this trace."
)
@click.option(
    "--seed", default=1, show_default=True, type=click.IntRange(min=0), help="Seed of the workload and of the delays of machines."
)
@click.option(
    "--speed",
    default=SPEED,
    show_default=True,
    metavar="X",
    type=click.FloatRange(min=0.1, max=1e6),
    help="How many seconds pass in the cluster per real second.",
)
@click.option(
    "--out",
    default=Path("gpuscaler-demo"),
    show_default=True,
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the report: report.html, report.json, and a picture of the screen.",
)
@control_plane_options
def demo(  # noqa: PLR0917 - click passes them by their names
    trace_file: Path | None, seed: int, speed: float, out: Path, control_plane: str, kubernetes: str | None
) -> None:
    """Run a cluster in this process and watch gpuscaler scale it, in about a minute.

    API server, scheduler, kubelets and cloud are built in and reached over HTTP; the controller is the one of `gpuscaler run`. Halfway
    through, the spot market runs dry. The demo has no requirements, and writes nothing but the folder of the report.
    """
    from gpuscaler.cli.reporting import create_report_folder
    from gpuscaler.embedded.serving.pacing import PacedLoop

    scenario = _scenario(trace_file, seed)
    check_release_option(control_plane, kubernetes)
    if real := control_plane == REAL:
        if speed != SPEED:
            raise click.BadParameter(
                f"saw {speed:g}, expected none: a real control plane runs on this machine's clock", param_hint="--speed"
            )
        speed = 1.0
    create_report_folder(out)
    programs = compile_programs(kubernetes) if real else None
    with _no_logs(), asyncio.Runner(loop_factory=None if real else partial(PacedLoop, speed)) as runner, report_exited_programs():
        show = _Show(speed)
        try:
            runner.run(show.run(scenario) if programs is None else _show_on_real_plane(show, scenario, programs))
        except asyncio.CancelledError:
            # The exit status that shells report after SIGTERM; the view has already restored the terminal's cursor.
            sys.exit(128 + signal.SIGTERM)
        except KeyboardInterrupt:
            _report(show, out)
            raise
    _report(show, out)


async def _show_on_real_plane(show: "_Show", scenario: "Scenario", programs: "Programs") -> None:
    """Show ``scenario``, shortened, on a real control plane that is removed at the end."""
    from gpuscaler.embedded.controlplane.plane import ControlPlane
    from gpuscaler.embedded.demo.scenario import accelerate

    with tempfile.TemporaryDirectory(prefix="gpuscaler-") as folder:
        plane = ControlPlane(programs, Path(folder) / "plane", now=time.time(), environ=os.environ)
        await plane.start()
        try:
            await show.run(accelerate(scenario, HASTE), plane)
        finally:
            plane.stop()


def _scenario(trace_file: Path | None, seed: int) -> "Scenario":
    from gpuscaler.embedded.demo.scenario import scenario
    from gpuscaler.simulation.traces.traces import TraceError, read_trace

    try:
        return scenario(seed, None if trace_file is None else read_trace(trace_file))
    except TraceError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


@contextmanager
def _no_logs() -> Iterator[None]:
    """Suppress the controller's log, which would be printed over the view; the view shows the same events."""
    import structlog

    configuration = structlog.get_config()
    structlog.configure(processors=[_drop])
    try:
        yield
    finally:
        structlog.configure(**configuration)


def _drop(_logger: object, _name: str, _event: object) -> str:
    import structlog

    raise structlog.DropEvent


class _Show:
    """Shows a demo while it runs: redrawn continuously in a terminal, printed as lines elsewhere."""

    def __init__(self, speed: float) -> None:
        from gpuscaler.cli.printing import uncut_console

        self.console: Console = uncut_console()
        #: The demo that is shown, once it has started.
        self.demo: Demo | None = None
        #: The frame that shows the most, for the picture.
        self.best: Frame | None = None
        self._speed = speed

    async def run(self, scenario: "Scenario", plane: "ControlPlane | None" = None) -> None:
        """Show a demo until it ends."""
        from gpuscaler.control.process.settings_file import SettingsFile
        from gpuscaler.embedded.demo.stage import Demo

        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        name = "run.yaml" if plane is None else "run-hurried.yaml"
        with resources.as_file(resources.files("gpuscaler.embedded.demo") / name) as path:
            demo = self.demo = Demo(SettingsFile(path), scenario, began=float(int(time.time())), speed=self._speed, plane=plane)
            running = asyncio.create_task(demo.run(), name="demo")
            terminal = self.console.is_terminal and not self.console.is_dumb_terminal
            watching = asyncio.create_task(self._draw(demo) if terminal else self._print(demo), name="show")
            try:
                await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                if not running.done():
                    running.cancel()
                await asyncio.wait((running,))
            running.result()

    async def _draw(self, demo: "Demo") -> None:
        from rich.live import Live

        from gpuscaler.cli.demo_screen import Screen

        with Live(console=self.console, auto_refresh=False, transient=True, redirect_stdout=False) as live:
            while True:
                await asyncio.sleep(REDRAW * self._speed)
                if (frame := await self._frame(demo)) is not None:
                    height = min(self.console.height - 1, ROWS)
                    live.update(Screen(frame, began=demo.began, height=height), refresh=True)

    async def _print(self, demo: "Demo") -> None:
        from gpuscaler.cli.demo_screen import status_line

        printed = 0
        due = 0.0
        while True:
            await asyncio.sleep(min(LINES, self._speed))
            printed = self.print_lines(demo, printed)
            if (frame := await self._frame(demo)) is not None and frame.elapsed >= due:
                self.console.print(status_line(frame), markup=False)
                due += STATUS

    def print_lines(self, demo: "Demo", printed: int) -> int:
        """Print the events after the first ``printed`` ones; return how many there are now."""
        from gpuscaler.cli.demo_screen import decision_line
        from gpuscaler.embedded.demo.decisions import lines

        for line in lines(demo.notes.happenings[printed:]):
            self.console.print(decision_line(line, began=demo.began).plain, markup=False)
        return len(demo.notes.happenings)

    async def _frame(self, demo: "Demo") -> "Frame | None":
        from gpuscaler.cli.demo_screen import rank_frame

        frame = await demo.frame()
        if frame is not None and (self.best is None or rank_frame(frame) > rank_frame(self.best)):
            self.best = frame
        return frame


def _report(show: _Show, out: Path) -> None:
    """Print the summary and write the report, for an interrupted demo up to its end. A demo that had hardly started gets neither."""
    from gpuscaler.cli.demo_screen import decision_line, svg_picture
    from gpuscaler.cli.reporting import print_comparison, print_machines, write
    from gpuscaler.embedded.demo.accounting import PEER, explain_cost, simulate_peer
    from gpuscaler.embedded.demo.decisions import lines
    from gpuscaler.embedded.demo.report import inputs_of, result_of
    from gpuscaler.model.quantities import format_count
    from gpuscaler.simulation.results.page import report_page
    from gpuscaler.simulation.results.report import document

    finished = show.demo
    if finished is None or finished.last is None:
        return
    result, inputs, console = result_of(finished), inputs_of(finished), show.console
    # The peer is simulated on the whole workload; a shortened demo has nothing comparable.
    comparable = not (finished.last.running or finished.last.pending) and finished.scenario.haste == 1 and finished.scenario.trace.jobs
    results = [result, simulate_peer(finished.scenario, finished.policy)] if comparable else [result]
    console.print(_closing_sentence(finished) + "\n")
    _print_chart(console, result)
    print_comparison(console, results)
    if len(results) > 1:
        console.print(f"{PEER}: its model in the simulator, with the same jobs, machines, delays and spot shortage.\n", markup=False)
    for line in explain_cost(result, finished.policy, finished.scenario):
        console.print(line, markup=False)
    console.print()
    print_machines(console, [result])
    promised = result.kept + result.broken
    console.print(f"Of {format_count(promised, 'pod')} with a promised machine, {result.kept:,} ran on that machine.")
    decisions = [decision_line(line, began=finished.began).plain for line in lines(finished.notes.happenings)]
    page = report_page(inputs, results, heading="Demo:", annex={"Decisions and reasons": decisions})
    write(out, document(inputs, results), page)
    if show.best is not None:
        (out / PICTURE).write_text(svg_picture(show.best, began=finished.began), encoding="utf-8")


def _closing_sentence(finished: "Demo") -> str:
    from gpuscaler.cli.demo_screen import format_clock
    from gpuscaler.model.quantities import format_count

    last, time_taken = finished.last, format_clock(finished.elapsed)
    if last is None or not (last.running or last.pending or finished.cluster.core.list()):
        return f"After {time_taken} all work is done and every machine is removed."
    machines = format_count(len(finished.cluster.core.list()), "machine")
    return f"Ended after {time_taken}: {format_count(last.running, 'pod')} still running, {len(last.pending):,} pending, {machines}."


def _print_chart(console: "Console", result: "Result") -> None:
    from gpuscaler.simulation.results.chart import text_chart, timeline_bins

    width = max(24, min((console.width if console.is_terminal else 100) - 8, 112))
    hours = (result.ended - result.began) / 3600
    text = ["GPUs over time:  █ in use   ░ paid for, idle   · requested, machine on its way"]
    text += text_chart(timeline_bins(result.timeline, began=result.began, ended=result.ended, count=width), height=10, hours=hours)
    for line in text:
        console.print(line if console.encoding.startswith("utf") else line.translate(ASCII), markup=False)
    console.print()
