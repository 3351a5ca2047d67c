"""Supervises the measuring process: one that hangs, crashes or ends is replaced, so that no scrape ever waits for a driver."""

import asyncio
import subprocess
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import IO

from gpuscaler.exporter import lines
from gpuscaler.exporter.lines import CallStart, LibraryLoading, Line, RoundEnd, Unavailable

#: After this many rounds the back-off is reset.
HEALTHY_ROUNDS = 30
#: A process in a call that never returns cannot be killed. This many may be left behind; then no more are started until one is gone.
MOST_STUCK = 3
#: A GPU at which this many processes in a row hung is skipped for a while, so that the others are measured.
HANGS = 2
LONGEST_LINE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times in seconds. ``opening``: loading the driver may take a few seconds per GPU if nothing keeps it loaded (no persistence mode).

    ``patience`` is the longest time between two lines of the measuring process, in addition to the interval, or to ``pause`` after it found
    nothing to measure. The wait before the next process is ``first_wait``, doubled each time up to ``longest_wait``. A GPU that the driver
    does not answer for is skipped for ``skip_seconds``. Within ``dying`` a process ends after SIGTERM, or is gone after SIGKILL, unless the
    driver holds it.
    """

    opening: float = 60.0
    patience: float = 5.0
    pause: float = 10.0
    first_wait: float = 1.0
    longest_wait: float = 60.0
    skip_seconds: float = 300.0
    dying: float = 0.5


class HungError(Exception):
    """The process wrote nothing for too long. ``about`` is the subject of its current call."""

    def __init__(self, about: str, seconds: float) -> None:
        super().__init__(f"saw no answer from the driver for {seconds:g} s when asked about {about or 'its library'}")
        self.about = about


@dataclass(slots=True)
class Sampler:
    """Runs ``command`` repeatedly and passes each of its lines to ``take``. ``warn`` receives messages for people.

    ``clock`` is the machine's monotonic clock. ``interval`` is the sampling interval of the command, in seconds.
    """

    command: Sequence[str]
    interval: float
    take: Callable[[Line], None]
    warn: Callable[[str], None]
    clock: Callable[[], float]
    pace: Pace = field(default_factory=Pace)
    starts: int = field(default=0, init=False)
    #: Process ID of the current measuring process, or 0.
    pid: int = field(default=0, init=False)
    #: GPUs that the driver did not answer for, and until when they are skipped.
    skipped_until: dict[str, float] = field(default_factory=dict, init=False)
    _hangs: Counter[str] = field(default_factory=Counter, init=False)
    _stuck: list[subprocess.Popen[bytes]] = field(default_factory=list, init=False)
    _rounds: int = field(default=0, init=False)

    @property
    def hung(self) -> frozenset[str]:
        """GPUs that the driver recently did not answer for."""
        return frozenset(self._hangs) | frozenset(self.skipped_until)

    @property
    def stuck(self) -> int:
        """Number of processes that were killed and are still there."""
        self._stuck = [process for process in self._stuck if process.poll() is None]
        return len(self._stuck)

    async def run(self) -> None:
        """Run until cancelled; afterwards the process is gone, or stuck in the driver."""
        wait = self.pace.first_wait
        while True:
            self._rounds = 0
            ended = (
                await self._run_once() if self.stuck < MOST_STUCK else f"saw {self.stuck} killed processes that the driver has not released"
            )
            if self._rounds >= HEALTHY_ROUNDS:
                wait = self.pace.first_wait
            self.take(Unavailable("failed", ended))
            await asyncio.sleep(wait)
            wait = min(2 * wait, self.pace.longest_wait)

    async def _run_once(self) -> str:
        """Run the process once; return how it ended."""
        now = self.clock()
        self.skipped_until = {device: until for device, until in self.skipped_until.items() if until > now}
        process = subprocess.Popen(  # noqa: ASYNC220, S603  # a start takes a millisecond; our own module with our own arguments
            [*self.command, *self.skipped_until], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.starts, self.pid = self.starts + 1, process.pid
        try:
            async with _pipe(process.stdout) as output, _pipe(process.stderr) as errors:
                return await self._read_output(process, output, errors)
        finally:
            self.pid = 0
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            await self._end(process)

    async def _end(self, process: "subprocess.Popen[bytes]") -> None:
        """End the process: with SIGTERM if it reacts, otherwise with SIGKILL."""
        process.terminate()
        if not await _ended(process, within=self.pace.dying):
            process.kill()
            if not await _ended(process, within=self.pace.dying):
                self._stuck.append(process)

    async def _read_output(self, process: "subprocess.Popen[bytes]", output: asyncio.StreamReader, errors: asyncio.StreamReader) -> str:
        """Read the output of the process to its end; return how it ended."""
        last_words = asyncio.create_task(_read_last_line(errors), name="errors of the measuring process")
        try:
            return await self._lines(output) or await self._describe_end(process, last_words)
        except HungError as error:
            if error.about not in {"", "devices", "events"}:
                self._suspect(error.about)
            return str(error)
        except TimeoutError:
            return "the measuring process closed its output but is still running"
        except ValueError as error:
            return f"saw a line from the measuring process that cannot be parsed: {error}"
        finally:
            last_words.cancel()

    async def _lines(self, output: asyncio.StreamReader) -> str:
        """Pass on the lines of the process until it ends; return the reason, or empty. Raises :class:`HungError`."""
        about, patience, line = "", self.pace.opening, None
        while True:
            try:
                # Not wait_for: before Python 3.12 it may lose a cancellation that arrives together with a line.
                async with asyncio.timeout(patience):
                    text = await output.readline()
            except TimeoutError:
                raise HungError(about, patience) from None
            if not text:
                # If the process gave its own reason, no further explanation is needed.
                return line.text if isinstance(line, Unavailable) else ""
            line = lines.parse_line(text)
            match line:
                case LibraryLoading():
                    about, patience = "", self.pace.opening
                case CallStart(about=about):
                    patience = max(self.pace.patience, 2 * self.interval)
                case Unavailable():
                    patience = max(self.pace.pause, 2 * self.interval) + self.pace.patience
                case RoundEnd():
                    about, patience = "", self.interval + self.pace.patience
                    self._rounds += 1
                    if self._rounds == HANGS:
                        self._hangs.clear()
                    if any(until <= self.clock() for until in self.skipped_until.values()):
                        return f"measuring {', '.join(self.skipped_until)} again"
                case _:
                    pass
            self.take(line)

    def _suspect(self, device: str) -> None:
        self._hangs[device] += 1
        if self._hangs[device] >= HANGS:
            self.skipped_until[device] = self.clock() + self.pace.skip_seconds
            self.warn(
                f"{device}: skipped for {self.pace.skip_seconds:g} s: the driver does not answer for this device; "
                "see dmesg, and reset the GPU"
            )

    async def _describe_end(self, process: "subprocess.Popen[bytes]", last_words: "asyncio.Task[str]") -> str:
        """Describe how a process that closed its output ended."""
        async with asyncio.timeout(self.pace.patience):
            last_line = await last_words
        if not await _ended(process, within=self.pace.dying):
            raise TimeoutError
        return f"the measuring process ended with {process.returncode}" + (f": {last_line}" if last_line else "")


async def _ended(process: "subprocess.Popen[bytes]", *, within: float) -> bool:
    """Give a process ``within`` seconds to end; return whether it did. The standard library's wait would block scrapes."""
    for _ in range(round(within / 0.01)):
        if process.poll() is not None:
            return True
        await asyncio.sleep(0.01)
    return process.poll() is not None


@asynccontextmanager
async def _pipe(pipe: IO[bytes] | None) -> AsyncIterator[asyncio.StreamReader]:
    """A reader of ``pipe``, until the end of the block."""
    assert pipe is not None
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
    try:
        yield reader
    finally:
        transport.close()


async def _read_last_line(errors: asyncio.StreamReader) -> str:
    """The last line of the error output. All of it is read, so that the process never blocks on a full pipe."""
    last: deque[bytes] = deque(maxlen=1)
    while block := await errors.read(4096):
        last.extend(line for line in block.splitlines() if line.strip())
    return b"".join(last).decode(errors="replace").strip()


def sampler_command(*, backend: str, interval: float, devices: int) -> list[str]:
    """The command that starts this package's own measuring process."""
    return [sys.executable, "-m", "gpuscaler.exporter.child", backend, f"{interval}", f"{devices}"]
