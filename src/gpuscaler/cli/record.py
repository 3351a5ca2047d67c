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

from gpuscaler.cli.plan import FILE, load_pools
from gpuscaler.cli.reaching import access_options, find, told

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
FRESH = ".new"


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
    recording = begun(out, policy)
    access = find(kubeconfig, context)
    with told(access):
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


def machines_beside(out: Path) -> Path:
    """Return the file for the machines of a recording: week.machines.csv for week.csv."""
    return out.with_name(f"{out.stem}.machines{out.suffix}")


def begun(out: Path, policy: "Policy | None") -> "Recording":
    """Continue the recording in the files, or start a new one. Files that are not a recording end the command with exit code 2."""
    from gpuscaler.simulation.traces.machine_prices import offer_of
    from gpuscaler.simulation.traces.recording import JOB_COLUMNS, MACHINE_COLUMNS, Recording

    recording = Recording(began=time.time(), offer_of=lambda node: offer_of(node, policy))
    try:
        jobs, machines = rows(out, JOB_COLUMNS), rows(machines_beside(out), MACHINE_COLUMNS)
        recording.resume(jobs, machines)
        # Check this now, not a minute into the recording.
        for path in (out, machines_beside(out)):
            fresh_beside(path).touch()
            fresh_beside(path).unlink()
    except (ValueError, KeyError, csv.Error) as error:
        click.echo(
            f"{out}: saw a file that is not a recording ({error}), expected a recording of this command, or no file; choose another",
            err=True,
        )
        sys.exit(2)
    except OSError as error:
        name = str(error.filename or out).removesuffix(FRESH)
        click.echo(f"{name}: saw {error.strerror}, expected a writable file in an existing folder", err=True)
        sys.exit(2)
    return recording


def fresh_beside(path: Path) -> Path:
    """Return the temporary name of a file until it is complete."""
    return path.with_name(path.name + FRESH)


def rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a file as they were written; none if there is no file."""
    if not path.exists():
        return []
    if not path.is_file() and not path.is_dir():
        raise ValueError("it is not a regular file")
    with path.open(encoding="utf-8", newline="") as file:
        read = csv.DictReader(file)
        if tuple(read.fieldnames or ()) != tuple(columns):
            raise ValueError(f"its columns are {', '.join(read.fieldnames or ['none'])[:80]}")
        return list(read)


class Files:
    """The files of a recording. Each is complete at any time: it is rewritten and renamed into place."""

    def __init__(self, out: Path) -> None:
        self._out = out
        #: The rows that are final, as text, and their number.
        self._over, self._rows = io.StringIO(), 0

    def write(self, recording: "Recording") -> None:
        from gpuscaler.simulation.traces.recording import JOB_COLUMNS, MACHINE_COLUMNS

        csv.writer(self._over, lineterminator="\n").writerows(recording.over[self._rows :])
        self._rows = len(recording.over)
        _replace(self._out, JOB_COLUMNS, self._over.getvalue(), recording.open_rows())
        _replace(machines_beside(self._out), MACHINE_COLUMNS, "", recording.machine_rows())


def _replace(path: Path, columns: Sequence[str], over: str, rows: Iterable[Sequence[object]]) -> None:
    fresh = fresh_beside(path)
    with fresh.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(columns)
        file.write(over)
        lines.writerows(rows)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


async def _record(recording: "Recording", access: "Access", out: Path, seconds: float | None) -> None:
    """Watch until terminated, or for ``seconds``. If the cluster cannot be watched, raise the error and write nothing."""
    from gpuscaler.kube.client import Client
    from gpuscaler.kube.errors import Unreachable
    from gpuscaler.kube.http import HttpTransport
    from gpuscaler.kube.resources import NODES, PODS

    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    if seconds is not None:
        loop.call_later(seconds, ended.set)
    async with HttpTransport(access) as transport:
        client = Client(transport, dry_run=True)
        for resource in (NODES, PODS):
            await may_watch(client, resource)
        watch = _Watch(client, recording, out)
        watching = loop.create_task(watch.run())
        try:
            while not ended.is_set() and not watching.done():
                try:
                    async with asyncio.timeout(WRITE_SECONDS):
                        await ended.wait()
                except TimeoutError:
                    pass
                watch.keep()
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            watch.keep()
            if watch.listed and not watch.unwritten:
                summarise(recording, out)
    if watch.unwritten:
        sys.exit(2)
    if not watch.listed:
        raise Unreachable(f"{access.server}: saw no complete list of nodes and pods until the end; nothing is written")


async def may_watch(client: "Client", resource: "Resource") -> None:
    """Raise the error if a resource cannot be listed or watched: a reflector would retry forever while the user waits."""
    from gpuscaler.kube.paging import pages
    from gpuscaler.kube.watching import watch_request

    async with aclosing(pages(client, resource, limit=1)) as found:
        version = (await anext(found)).metadata.resource_version
    async with client.exchange(watch_request(resource, version=version or "0", seconds=1, silence=30.0)):
        pass


class _Watch:
    """Feeds ``recording`` with all changes of nodes and pods."""

    def __init__(self, client: "Client", recording: "Recording", out: Path) -> None:
        from gpuscaler.kube.decode import ObjectDecoder
        from gpuscaler.kube.reflector import Reflector
        from gpuscaler.kube.resources import NODES, PODS
        from gpuscaler.kube.turns import Turn
        from gpuscaler.model.decoding import Interner
        from gpuscaler.model.nodes import Node
        from gpuscaler.model.pods import Pod

        clock, luck, turn, interner = asyncio.get_running_loop().time, Random(), Turn(), Interner()
        self._recording, self._out, self._files = recording, out, Files(out)
        #: The error of the last attempt to write the recording; empty after a success.
        self.unwritten = ""
        self._unlisted: set[type] = {Pod, Node}
        self._said = ""
        self._reflectors = [
            Reflector(client, resource, ObjectDecoder(resource, interner), self._hear, clock=clock, random=luck, turn=turn)
            for resource in (NODES, PODS)
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())

    @property
    def listed(self) -> bool:
        """Whether all nodes and pods were listed once; before that there is nothing to write."""
        return not self._unlisted

    def _hear(self, batch: "Batch") -> None:
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

    def keep(self) -> None:
        """Write the recording, once everything has been listed. A full disk is only reported: it may have room a minute later."""
        trouble = "; ".join(reflector.trouble for reflector in self._reflectors if reflector.trouble)
        if self.listed:
            if not trouble:
                self._recording.until(time.time())
            self.unwritten = self._written()
        told = "; ".join(filter(None, (trouble, self.unwritten)))
        if told != self._said:
            self._said = told
            click.echo(told or "watching and writing work again", err=True)

    def _written(self) -> str:
        """Write the files; return the error message, empty after a success."""
        try:
            self._files.write(self._recording)
        except OSError as error:
            return f"{error.filename or self._out}: saw {error.strerror or error}, expected to write the recording; make room, or fix that"
        return ""


def summarise(recording: "Recording", out: Path) -> None:
    """Print a summary of the recording to standard error."""
    from gpuscaler.cli.printing import count

    jobs = count(len(recording.over) + sum(1 for _ in recording.open_rows()), "job")
    left = f"; {count(recording.unserved, 'pod')} that never started omitted" if recording.unserved else ""
    click.echo(f"{out}: {jobs}{left}", err=True)
    click.echo(f"{machines_beside(out)}: {spent(recording)}", err=True)


def spent(recording: "Recording") -> str:
    """Describe the machines and dollars by market."""
    from gpuscaler.cli.printing import count

    hours: dict[str, float] = defaultdict(float)
    dollars, unknown = 0.0, 0
    for machine in recording.machines:
        hours[machine.offer.market] += (machine.end - machine.begin) / 3600
        paid = machine.dollars
        dollars += paid or 0.0
        unknown += paid is None
    told = "".join(f", {amount:,.1f} h {market}" for market, amount in sorted(hours.items()))
    without = f"; the price of {unknown:,} of them is unknown" if unknown else ""
    return f"{count(len(recording.machines), 'machine')}{told}, ${dollars:,.2f}{without}"
