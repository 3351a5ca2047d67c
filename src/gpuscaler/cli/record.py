"""``gpuscaler record``: records the pods and machines of a cluster as a trace."""

import asyncio
import csv
import io
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.plan import load_pools
from gpuscaler.cli.reaching import FILE, access_options, report_api_errors, resolve_access

if TYPE_CHECKING:
    from gpuscaler.kube.access import Access
    from gpuscaler.kube.client import Client
    from gpuscaler.kube.reflector import Batch
    from gpuscaler.kube.resources import Resource
    from gpuscaler.model.pools import Policy
    from gpuscaler.simulation.traces.recording import Recording

#: How often the files are written, in seconds. A kill loses at most this much.
WRITE_SECONDS = 60.0
#: Suffix of a file's name until it is complete.
TEMPORARY_SUFFIX = ".new"


@click.command()
@access_options
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The trace to write; machines go to a file beside it."
)
@click.option("--pools", type=FILE, metavar="FILE", help="A pools file with prices that override list prices.")
@click.option("--for", "lasting", metavar="DURATION", help="How long to record, such as 168h; default: until stopped.")
def record(kubeconfig: Path | None, context: str, out: Path, pools: str | None, lasting: str | None) -> None:
    """Record the pods and machines of a cluster over time, for `simulate`. Nothing is changed in the cluster.

    A recording that was stopped or killed continues in the same file.
    """
    seconds = duration(lasting) if lasting is not None else None
    policy = load_pools(pools) if pools is not None else None
    recording = open_recording(out, policy)
    access = resolve_access(kubeconfig, context)
    with report_api_errors(access):
        asyncio.run(_record(recording, access, out, seconds))


def duration(text: str) -> float:
    """Parse a duration to seconds; only durations above 0 are valid."""
    from gpuscaler.model.durations import parse_duration

    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise click.BadParameter(f"saw {text!r}, expected a duration above 0 such as 168h or 30m", param_hint="--for")
    return seconds


def machines_path(out: Path) -> Path:
    """Return the file for the machines of a recording: week.machines.csv for week.csv."""
    return out.with_name(f"{out.stem}.machines{out.suffix}")


def open_recording(out: Path, policy: "Policy | None") -> "Recording":
    """Continue the recording in the files, or start a new one. Files that are not a recording end the command with exit code 2."""
    from gpuscaler.simulation.traces.machine_prices import offer_of
    from gpuscaler.simulation.traces.recording import JOB_COLUMNS, MACHINE_COLUMNS, Recording

    recording = Recording(began=time.time(), offer_of=lambda node: offer_of(node, policy))
    try:
        jobs, machines = read_rows(out, JOB_COLUMNS), read_rows(machines_path(out), MACHINE_COLUMNS)
        recording.resume(jobs, machines)
        # Check this now, not a minute into the recording.
        for path in (out, machines_path(out)):
            temporary_path(path).touch()
            temporary_path(path).unlink()
    except (ValueError, KeyError, csv.Error) as error:
        click.echo(
            f"{out}: saw a file that is not a recording ({error}), expected a recording of this command, or no file; choose another",
            err=True,
        )
        sys.exit(2)
    except OSError as error:
        name = str(error.filename or out).removesuffix(TEMPORARY_SUFFIX)
        click.echo(f"{name}: saw {error.strerror}, expected a writable file in an existing folder", err=True)
        sys.exit(2)
    return recording


def temporary_path(path: Path) -> Path:
    """Return the temporary name of a file until it is complete."""
    return path.with_name(path.name + TEMPORARY_SUFFIX)


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a file as they were written; none if there is no file."""
    if not path.exists():
        return []
    if not path.is_file() and not path.is_dir():
        raise ValueError("it is not a regular file")
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != tuple(columns):
            raise ValueError(f"its columns are {', '.join(reader.fieldnames or ['none'])[:80]}")
        return list(reader)


class Files:
    """The files of a recording. A file is complete at any time: the new content is written to another file, which is renamed to it."""

    def __init__(self, out: Path) -> None:
        self._out = out
        #: The rows that are final, as text, and their number.
        self._final_rows, self._rows = io.StringIO(), 0

    def write(self, recording: "Recording") -> None:
        from gpuscaler.simulation.traces.recording import JOB_COLUMNS, MACHINE_COLUMNS

        csv.writer(self._final_rows, lineterminator="\n").writerows(recording.over[self._rows :])
        self._rows = len(recording.over)
        _replace(self._out, JOB_COLUMNS, self._final_rows.getvalue(), recording.open_rows())
        _replace(machines_path(self._out), MACHINE_COLUMNS, "", recording.machine_rows())


def _replace(path: Path, columns: Sequence[str], final_rows: str, rows: Iterable[Sequence[object]]) -> None:
    temporary = temporary_path(path)
    with temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        file.write(final_rows)
        writer.writerows(rows)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


async def _record(recording: "Recording", access: "Access", out: Path, seconds: float | None) -> None:
    """Watch until terminated, or for ``seconds``. If the cluster cannot be watched, raise the error and write nothing."""
    from gpuscaler.kube.client import Client
    from gpuscaler.kube.errors import Unreachable
    from gpuscaler.kube.http import HttpTransport
    from gpuscaler.kube.resources import NODES, PODS

    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    if seconds is not None:
        loop.call_later(seconds, stopped.set)
    async with HttpTransport(access) as transport:
        client = Client(transport, dry_run=True)
        for resource in (NODES, PODS):
            await check_watchable(client, resource)
        watch = _Watch(client, recording, out)
        watching = loop.create_task(watch.run())
        try:
            while not stopped.is_set() and not watching.done():
                try:
                    async with asyncio.timeout(WRITE_SECONDS):
                        await stopped.wait()
                except TimeoutError:
                    pass
                watch.save()
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            watch.save()
            if watch.listed and not watch.unwritten:
                summarise(recording, out)
    if watch.unwritten:
        sys.exit(2)
    if not watch.listed:
        raise Unreachable(f"{access.server}: saw no complete list of nodes and pods until the end; nothing is written")


async def check_watchable(client: "Client", resource: "Resource") -> None:
    """Raise the error if a resource cannot be listed or watched: a reflector would retry forever while the user waits."""
    from gpuscaler.kube.paging import pages
    from gpuscaler.kube.watching import watch_request

    async with aclosing(pages(client, resource, limit=1)) as page_iterator:
        version = (await anext(page_iterator)).metadata.resource_version
    async with client.exchange(watch_request(resource, version=version or "0", seconds=1, silence=30.0)):
        pass


class _Watch:
    """Feeds ``recording`` with all changes of nodes and pods."""

    def __init__(self, client: "Client", recording: "Recording", out: Path) -> None:
        from gpuscaler.kube.decode import ObjectDecoder
        from gpuscaler.kube.reflector import Reflector
        from gpuscaler.kube.resources import NODES, PODS
        from gpuscaler.kube.turns import DecodeLock
        from gpuscaler.model.decoding import Interner
        from gpuscaler.model.nodes import Node
        from gpuscaler.model.pods import Pod

        clock, random, turn, interner = asyncio.get_running_loop().time, Random(), DecodeLock(), Interner()
        self._recording, self._out, self._files = recording, out, Files(out)
        #: The error of the last attempt to write the recording; empty after a success.
        self.unwritten = ""
        self._unlisted: set[type] = {Pod, Node}
        self._reported = ""
        self._reflectors = [
            Reflector(client, resource, ObjectDecoder(resource, interner), self._receive, clock=clock, random=random, decode_lock=turn)
            for resource in (NODES, PODS)
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())

    @property
    def listed(self) -> bool:
        """Whether all nodes and pods were listed once; nothing is written before that moment."""
        return not self._unlisted

    def _receive(self, batch: "Batch") -> None:
        from gpuscaler.model.nodes import Node
        from gpuscaler.model.pods import Pod

        now = time.time()
        for key, item in batch.changes.items():
            if batch.model is Pod and (item is None or isinstance(item, Pod)):
                self._recording.pod(key, item, now)
            elif item is None or isinstance(item, Node):
                self._recording.node(key, item, now)
        if batch.listed and self._unlisted:
            self._unlisted.discard(batch.model)
            if not self._unlisted:
                self._recording.settle()

    def save(self) -> None:
        """Write the recording, once everything has been listed. A full disk is only reported, since it may have room a minute later."""
        problem = "; ".join(reflector.trouble for reflector in self._reflectors if reflector.trouble)
        if self.listed:
            if not problem:
                self._recording.until(time.time())
            self.unwritten = self._written()
        problems = "; ".join(filter(None, (problem, self.unwritten)))
        if problems != self._reported:
            self._reported = problems
            click.echo(problems or "watching and writing work again", err=True)

    def _written(self) -> str:
        """Write the files; return the error message, empty after a success."""
        try:
            self._files.write(self._recording)
        except OSError as error:
            name, problem = error.filename or self._out, error.strerror or error
            return f"{name}: saw {problem}, expected room to write the recording; free space, or correct this"
        return ""


def summarise(recording: "Recording", out: Path) -> None:
    """Print a summary of the recording to standard error."""
    from gpuscaler.model.quantities import format_count

    jobs = format_count(len(recording.over) + sum(1 for _ in recording.open_rows()), "job")
    omitted = f"; {format_count(recording.unserved, 'pod')} that never started omitted" if recording.unserved else ""
    click.echo(f"{out}: {jobs}{omitted}", err=True)
    click.echo(f"{machines_path(out)}: {describe_spending(recording)}", err=True)


def describe_spending(recording: "Recording") -> str:
    """Describe the machines and dollars by market."""
    from gpuscaler.model.quantities import format_count

    hours: dict[str, float] = defaultdict(float)
    dollars, unknown = 0.0, 0
    for machine in recording.machines:
        hours[machine.offer.market] += (machine.end - machine.begin) / 3600
        machine_dollars = machine.dollars
        dollars += machine_dollars or 0.0
        unknown += machine_dollars is None
    hours_by_market = "".join(f", {amount:,.1f} h {market}" for market, amount in sorted(hours.items()))
    unpriced = f"; the price of {unknown:,} of them is unknown" if unknown else ""
    return f"{format_count(len(recording.machines), 'machine')}{hours_by_market}, ${dollars:,.2f}{unpriced}"
