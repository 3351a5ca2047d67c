"""The process that calls the driver. If it hangs there or crashes, :mod:`gpuscaler.exporter.supervising` replaces it.

``python -m gpuscaler.exporter.child NAME INTERVAL DEVICES [SKIP]...`` writes lines of JSON to its standard output: arrays whose first
element is their type (:mod:`gpuscaler.exporter.lines` reads them). It ends when its output is closed. It imports little, to stay small.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from types import FrameType
from typing import Any, NoReturn

from gpuscaler.exporter.backends import Backend, StaleError, UnavailableError, make
from gpuscaler.exporter.parts import Device

#: Seconds between attempts to find GPUs while there are none, and between listings of the devices.
RETRY_SECONDS = 5.0
LIST_SECONDS = 10.0

Write = Callable[[list[Any]], None]


def sample(
    backend: Backend,
    write: Write,
    *,
    interval: float,
    skip: Sequence[str],
    retry_seconds: float,
    list_seconds: float,
) -> NoReturn:
    """Measure every ``interval`` seconds, forever; devices in ``skip`` are not measured. Raises :class:`StaleError`.

    ``retry_seconds`` and ``list_seconds`` are usually :data:`RETRY_SECONDS` and :data:`LIST_SECONDS`.
    """
    while True:
        write(["opening"])
        try:
            backend.open()
            _rounds(backend, write, interval=interval, skip=skip, list_seconds=list_seconds)
        except UnavailableError as error:
            write(["unavailable", error.cause, str(error)])
            time.sleep(max(retry_seconds, interval))


def _rounds(backend: Backend, write: Write, *, interval: float, skip: Sequence[str], list_seconds: float) -> NoReturn:
    devices: tuple[Device, ...] = ()
    listed_at = -list_seconds
    due = time.monotonic()
    while True:
        if due - listed_at >= list_seconds:
            write(["asking", "devices"])
            present, listed_at = backend.devices(), due
            if present != devices:
                devices = present
                write(["devices", devices, *backend.versions()])
        for device in devices:
            if device.uuid not in skip:
                write(["asking", device.uuid])
                for reading in backend.measure(device):
                    write(["reading", *reading])
        write(["asking", "events"])
        for event in backend.events():
            write(["event", *event])
        write(["rested"])
        # Rounds start on a fixed time grid: a long round is followed by the next time of the grid, not by a burst.
        due += interval * max(1, -int((due - time.monotonic()) // interval))
        time.sleep(max(0.0, due - time.monotonic()))


def _stop(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def main(arguments: Sequence[str], *, retry_seconds: float = RETRY_SECONDS, list_seconds: float = LIST_SECONDS) -> int:
    """Run, and return the exit status: 0 on SIGTERM or when the output is closed, 1 to load another library, 2 if not installed."""
    name, interval, devices, *skip = arguments
    # Shut the driver down in order: A100s with MIG froze when a process that watched them was killed (dcgm-exporter issue 84).
    signal.signal(signal.SIGTERM, _stop)

    buffered: list[str] = []

    def write(line: list[Any]) -> None:
        buffered.append(json.dumps(line, separators=(",", ":")))
        # Before a call that may hang, everything measured so far and the name of the call must have left this process.
        if line[0] not in {"devices", "reading", "event"}:
            text = "".join(f"{buffered_line}\n" for buffered_line in buffered).encode()
            buffered.clear()
            while text:
                text = text[os.write(1, text) :]

    try:
        with closing(make(name, devices=int(devices))) as backend:
            sample(backend, write, interval=float(interval), skip=skip, retry_seconds=retry_seconds, list_seconds=list_seconds)
    except UnavailableError as error:
        write(["unavailable", error.cause, str(error)])
        return 2
    except StaleError as error:
        write(["unavailable", "stale", str(error)])
        return 1
    except (BrokenPipeError, KeyboardInterrupt):
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
