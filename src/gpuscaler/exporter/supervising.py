"""Keeping a measuring process at work: one that hangs, crashes or ends is replaced, so that no scrape ever waits for a driver."""

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
from gpuscaler.exporter.lines import Asking, Line, Opening, Rested, Unavailable

#: From the beginning of the back-off after so many rounds.
HEALTHY_ROUNDS = 30
#: A process in a call that never returns cannot be killed. So many may be left behind; then no more are started until one goes.
MOST_STUCK = 3
#: A GPU at which this many processes hung one after the other is left alone for a while, so that the others are measured.
HANGS = 2
LONGEST_LINE = 1 << 20
#: A process that is told to end has so many seconds to, and one that is killed is gone by then, unless the driver holds it.
DYING = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds. ``opening``: loading the driver may take some for each GPU where nothing else holds it (no persistence mode).

    ``patience`` is between two lines of a process that measures, beyond the interval, and beyond ``pause`` after one that found nothing to
    measure. Before the next process is started there is ``first_wait``, doubled each time up to ``longest_wait``. A GPU that the driver
    does not answer for is left alone for ``leave_alone``.
    """

    opening: float = 60.0
    patience: float = 5.0
    pause: float = 10.0
    first_wait: float = 1.0
    longest_wait: float = 60.0
    leave_alone: float = 300.0


class HungError(Exception):
    """The process said nothing for too long. ``about`` is what it was asking."""

    def __init__(self, about: str, seconds: float) -> None:
        super().__init__(f"saw no answer from the driver for {seconds:g} s when asked about {about or 'its library'}")
        self.about = about


@dataclass(slots=True)
class Sampler:
    """Runs ``command`` again and again and hands each of its lines to ``take``. ``tell`` is told what a person should know.

    ``clock`` is the machine's monotonic clock. ``interval`` is that of the command, in seconds.
    """

    command: Sequence[str]
    interval: float
    take: Callable[[Line], None]
    tell: Callable[[str], None]
    clock: Callable[[], float]
    pace: Pace = field(default_factory=Pace)
    starts: int = field(default=0, init=False)
    #: Of the process that measures now, or 0.
    pid: int = field(default=0, init=False)
    #: GPUs that the driver did not answer for, and until when they are left alone.
    left_alone: dict[str, float] = field(default_factory=dict, init=False)
    _hangs: Counter[str] = field(default_factory=Counter, init=False)
    _stuck: list[subprocess.Popen[bytes]] = field(default_factory=list, init=False)
    _rounds: int = field(default=0, init=False)

    @property
    def hung(self) -> frozenset[str]:
        """GPUs that the driver lately did not answer for."""
        return frozenset(self._hangs) | frozenset(self.left_alone)

    @property
    def stuck(self) -> int:
        """Processes that were killed and are still there."""
        self._stuck = [process for process in self._stuck if process.poll() is None]
        return len(self._stuck)

    async def run(self) -> None:
        """Until cancelled; the process is gone then, or stuck in the driver."""
        wait = self.pace.first_wait
        while True:
            self._rounds = 0
            ended = await self._once() if self.stuck < MOST_STUCK else f"saw {self.stuck} processes that the driver does not let go"
            if self._rounds >= HEALTHY_ROUNDS:
                wait = self.pace.first_wait
            self.take(Unavailable("failed", ended))
            await asyncio.sleep(wait)
            wait = min(2 * wait, self.pace.longest_wait)

    async def _once(self) -> str:
        """One life of the process; how it ended."""
        now = self.clock()
        self.left_alone = {device: until for device, until in self.left_alone.items() if until > now}
        process = subprocess.Popen(  # noqa: ASYNC220, S603  # a start takes a millisecond; our own module with our own arguments
            [*self.command, *self.left_alone], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.starts, self.pid = self.starts + 1, process.pid
        try:
            async with _pipe(process.stdout) as output, _pipe(process.stderr) as errors:
                return await self._heard(process, output, errors)
        finally:
            self.pid = 0
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            await self._end(process)

    async def _end(self, process: "subprocess.Popen[bytes]") -> None:
        """In order, where it still can; at once where it hangs."""
        process.terminate()
        if not await _ended(process):
            process.kill()
            if not await _ended(process):
                self._stuck.append(process)

    async def _heard(self, process: "subprocess.Popen[bytes]", output: asyncio.StreamReader, errors: asyncio.StreamReader) -> str:
        """Hear the process to its end; how it ended."""
        last_words = asyncio.create_task(_tail(errors), name="errors of the measuring process")
        try:
            return await self._lines(output) or await self._farewell(process, last_words)
        except HungError as error:
            if error.about not in {"", "devices", "events"}:
                self._suspect(error.about)
            return str(error)
        except TimeoutError:
            return "the measuring process closed its output and went on"
        except ValueError as error:
            return f"saw a line of the measuring process that cannot be read: {error}"
        finally:
            last_words.cancel()

    async def _lines(self, output: asyncio.StreamReader) -> str:
        """Hand on what the process says until it ends, or should for the reason returned. Raises :class:`HungError`."""
        about, patience, line = "", self.pace.opening, None
        while True:
            try:
                # Not wait_for: before Python 3.12 it may lose a cancellation that comes together with a line.
                async with asyncio.timeout(patience):
                    text = await output.readline()
            except TimeoutError:
                raise HungError(about, patience) from None
            if not text:
                # One that ends with a reason of its own is not to be explained further.
                return line.text if isinstance(line, Unavailable) else ""
            line = lines.read(text)
            match line:
                case Opening():
                    about, patience = "", self.pace.opening
                case Asking(about=about):
                    patience = max(self.pace.patience, 2 * self.interval)
                case Unavailable():
                    patience = max(self.pace.pause, 2 * self.interval) + self.pace.patience
                case Rested():
                    about, patience = "", self.interval + self.pace.patience
                    self._rounds += 1
                    if self._rounds == HANGS:
                        self._hangs.clear()
                    if any(until <= self.clock() for until in self.left_alone.values()):
                        return f"{', '.join(self.left_alone)} to be asked again"
                case _:
                    pass
            self.take(line)

    def _suspect(self, device: str) -> None:
        self._hangs[device] += 1
        if self._hangs[device] >= HANGS:
            self.left_alone[device] = self.clock() + self.pace.leave_alone
            self.tell(
                f"{device}: left alone for {self.pace.leave_alone:g} s: the driver does not answer for it; see dmesg, and reset the GPU"
            )

    async def _farewell(self, process: "subprocess.Popen[bytes]", last_words: "asyncio.Task[str]") -> str:
        """How a process ended that closed its output."""
        async with asyncio.timeout(self.pace.patience):
            said = await last_words
        if not await _ended(process):
            raise TimeoutError
        return f"the measuring process ended with {process.returncode}" + (f": {said}" if said else "")


async def _ended(process: "subprocess.Popen[bytes]") -> bool:
    """Give a process a moment to end; whether it did. The standard library would wait asleep, and hold up scrapes."""
    for _ in range(round(DYING / 0.01)):
        if process.poll() is not None:
            return True
        await asyncio.sleep(0.01)
    return process.poll() is not None


@asynccontextmanager
async def _pipe(pipe: IO[bytes] | None) -> AsyncIterator[asyncio.StreamReader]:
    """What comes through ``pipe``, until the end of the block."""
    assert pipe is not None
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
    try:
        yield reader
    finally:
        transport.close()


async def _tail(errors: asyncio.StreamReader) -> str:
    """The last line of what comes; the rest is read too, so that the process never waits for it to be."""
    last: deque[bytes] = deque(maxlen=1)
    while block := await errors.read(4096):
        last.extend(line for line in block.splitlines() if line.strip())
    return b"".join(last).decode(errors="replace").strip()


def command(*, backend: str, interval: float, devices: int) -> list[str]:
    """How this package's own measuring process is started."""
    return [sys.executable, "-m", "gpuscaler.exporter.child", backend, f"{interval}", f"{devices}"]
