"""CPU time and memory of the exporter's own processes, from Linux' ``/proc``."""

import os
from pathlib import Path
from typing import NamedTuple


class Footprint(NamedTuple):
    cpu_seconds: float
    resident_bytes: int


def footprint(pid: int) -> Footprint | None:
    """CPU time and memory of a process; None if the process is gone, or the system is not Linux."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name of the program, in parentheses, may contain spaces.
    fields = text.rpartition(")")[2].split()
    ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
    return Footprint(ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))
