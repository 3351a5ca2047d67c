"""Microsoft's Philly trace (ATC 2019), github.com/msr-fiddle/philly-traces: ``cluster_job_log``, a list of JSON objects."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gpuscaler.simulation.traces.formats.fields import duration_between, parse_identity, parse_label, parse_timestamp
from gpuscaler.simulation.traces.jobs import Job, TraceError, printable_names

NEEDED = ("jobid", "submitted_time", "attempts")
_BETWEEN = re.compile(r"[\s,\[\]]*")


class Server(msgspec.Struct, frozen=True, gc=False):
    """The GPUs that an attempt had on one server."""

    gpus: tuple[str, ...]


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One run of a job; its times may be missing from the scheduler's log."""

    start_time: str | None = None
    end_time: str | None = None
    detail: tuple[Server, ...] = ()


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    jobid: str
    submitted_time: str
    attempts: tuple[Attempt, ...]
    user: str | None = None
    vc: str | None = None


def entries(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """The objects of a list, or one after the other, with the line where each begins."""
    decoder = json.JSONDecoder()
    line, place = 1, 0
    while True:
        match = _BETWEEN.match(text, place)
        start = match.end() if match else place
        line += text.count("\n", place, start)
        if start == len(text):
            return
        try:
            entry, place = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise TraceError(f"{path}:{line + text.count(chr(10), start, error.pos)}: not JSON ({error.msg})") from error
        except (ValueError, RecursionError) as error:
            # Numbers with thousands of digits, and thousands of nested brackets.
            raise TraceError(f"{path}:{line}: JSON that cannot be a job ({error})") from error
        yield line, entry
        line += text.count("\n", start, place)


def check_first_entry(entry: Any, path: Path) -> None:
    """Raise :class:`TraceError` if the first entry of a file is not an entry of a job log."""
    keys = list(entry) if isinstance(entry, dict) else []
    missing = [key for key in NEEDED if key not in keys]
    if missing:
        keys_text = printable_names(keys) or "no object"
        missing_keys = "key " + missing[0] if len(missing) == 1 else "keys " + ", ".join(missing)
        raise TraceError(
            f"{path}: {missing_keys} missing in the first entry; seen: {keys_text}; read as cluster_job_log of the Philly trace"
        )


def philly_job(entry: Any) -> Job:
    """Read a job. It runs as long as all its attempts together, on the GPUs of its last one, in pods of equal size."""
    try:
        parsed = msgspec.convert(entry, LogEntry)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    attempts = [attempt for attempt in parsed.attempts if _logged(attempt.start_time) and _logged(attempt.end_time)]
    servers = [len(server.gpus) for server in (attempts[-1].detail if attempts else ()) if server.gpus]
    if not servers:
        raise ValueError(f"attempts has {len(parsed.attempts)} attempts, expected one with a start, an end and GPUs")
    gpus_per_pod = math.gcd(*servers)
    return Job(
        id=parse_identity(parsed.jobid, "jobid"),
        submit=parse_timestamp(parsed.submitted_time, "submitted_time"),
        duration=sum(
            duration_between(
                parse_timestamp(str(attempt.end_time), "end_time") - parse_timestamp(str(attempt.start_time), "start_time"), "attempt"
            )
            for attempt in attempts
        ),
        pods=sum(servers) // gpus_per_pod,
        gpus=gpus_per_pod,
        user=parse_label(parsed.user or "", "user"),
        namespace=parse_label(parsed.vc or "", "vc"),
    )


def _logged(text: str | None) -> bool:
    """Whether the log has a time: a missing one is null, or the word None."""
    return text not in {None, "", "None"}
