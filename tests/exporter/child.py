"""A measuring process, as the exporter starts it, and the lines that it writes."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpuscaler.exporter import lines
from gpuscaler.exporter.lines import Devices, Event, Line, Reading, Unavailable

#: Seconds between two measurements.
INTERVAL = 0.05
PROGRAM = ("-m", "gpuscaler.exporter.child")
#: The same, but ten times a second it looks for a missing driver, or lists the GPUs.
IMPATIENT = ("-c", "import sys; from gpuscaler.exporter import child; sys.exit(child.main(sys.argv[1:], retry_seconds=0.1))")
ATTENTIVE = ("-c", "import sys; from gpuscaler.exporter import child; sys.exit(child.main(sys.argv[1:], list_seconds=0.1))")
#: Time-out in seconds, which is much longer than anything a test waits for.
PATIENCE = 20.0


@dataclass
class Child:
    """A measuring process. Its lines are read when a test waits for them."""

    process: "subprocess.Popen[bytes]"
    _text: bytearray = field(default_factory=bytearray)

    def line(self) -> Line | None:
        """The next line; None if the process ended."""
        assert self.process.stdout is not None
        due = time.monotonic() + PATIENCE
        while (end := self._text.find(b"\n")) < 0:
            assert select.select([self.process.stdout], [], [], max(0.0, due - time.monotonic()))[0], "the process wrote nothing"
            block = os.read(self.process.stdout.fileno(), 1 << 16)
            if not block:
                return None
            self._text += block
        line = lines.parse_line(bytes(self._text[:end]))
        del self._text[: end + 1]
        return line

    def until(self, wanted: Callable[[Line], bool]) -> Line:
        """The first line from now on that satisfies the condition."""
        due = time.monotonic() + PATIENCE
        while time.monotonic() < due:
            line = self.line()
            assert line is not None, self._last_words()
            if wanted(line):
                return line
        raise AssertionError("no such line")

    def _last_words(self) -> str:
        assert self.process.stderr is not None
        return f"ended: {self.process.stderr.read().decode()}"

    def devices(self) -> Devices:
        line = self.until(lambda line: isinstance(line, Devices))
        assert isinstance(line, Devices)
        return line

    def event(self) -> Event:
        line = self.until(lambda line: isinstance(line, Event))
        assert isinstance(line, Event)
        return line

    def unavailable(self) -> Unavailable:
        line = self.until(lambda line: isinstance(line, Unavailable))
        assert isinstance(line, Unavailable)
        return line

    def reading(self, key: str, wanted: Callable[[Reading], bool] = lambda _: True) -> Reading:
        """The next reading of a device that satisfies the condition."""
        line = self.until(lambda line: isinstance(line, Reading) and line.device == key and wanted(line))
        assert isinstance(line, Reading)
        return line

    def ended(self) -> int:
        """Wait for the process to end; return its exit status."""
        return self.process.wait(PATIENCE)


@contextmanager
def measuring(
    environment: Mapping[str, str],
    *skip: str,
    backend: str = "nvml",
    gpus: int = 2,
    program: Sequence[str] = PROGRAM,
    interval: float = INTERVAL,
) -> Iterator[Child]:
    """A process that measures every ``interval`` seconds, until the end of the block."""
    command = [sys.executable, *program, backend, f"{interval}", f"{gpus}", *skip]
    with subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield Child(process)
        finally:
            process.kill()
