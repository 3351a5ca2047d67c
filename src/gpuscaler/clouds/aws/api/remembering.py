"""What was read before and need not be read again, in memory and, where there is a folder, on disk.

A version of a launch template never changes and an instance type hardly ever; prices and node groups do. The file on disk is read as
strictly as anything from outside: one that cannot be understood is as good as none. What one region said says nothing of another, and what
one endpoint said nothing of another: a simulated account has other types at other prices than AWS.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T")

#: Seconds for which an answer counts: instance types and where they are offered, list prices, spot prices, node groups.
TYPES, LIST_PRICES, SPOT_PRICES, NODEGROUPS = 7 * 86_400.0, 86_400.0, 300.0, 360.0
#: Seconds for which it counts that there was nothing: a type that the region did not know.
NOTHING = 3_600.0
_FILE = "aws-types-{}.json"


class Dated(Struct, Generic[T], frozen=True):
    """Something that was read ``at``, in seconds since the epoch."""

    at: float
    value: T

    def fresh(self, now: float, seconds: float) -> bool:
        """Whether it counts for ``seconds``; what AWS did not have may come any day, and is asked for again sooner."""
        # A time in the future is of another clock, and says nothing.
        return 0 <= now - self.at < (seconds if self.value else min(seconds, NOTHING))


class Kept(Struct):
    """What is worth keeping over restarts.

    ``types`` are as DescribeInstanceTypes gives them, by region/type (None: the region has no such type), ``offered`` the zones by
    region/type, ``prices`` those on demand by region/type (None: not told).
    """

    types: dict[str, Dated[dict[str, Any] | None]] = {}
    offered: dict[str, Dated[list[str]]] = {}
    prices: dict[str, Dated[float | None]] = {}


def file_of(folder: Path, endpoint: str) -> Path:
    """Where what ``endpoint``, a URL, has said is kept."""
    return folder / _FILE.format(hashlib.sha256(endpoint.encode()).hexdigest()[:12])


def load(folder: Path | None, endpoint: str) -> Kept:
    """What an earlier process kept in ``folder`` of what ``endpoint`` said."""
    if folder is None:
        return Kept()
    try:
        return msgspec.json.decode(file_of(folder, endpoint).read_bytes(), type=Kept)
    except (OSError, msgspec.DecodeError):
        return Kept()


def save(kept: Kept, folder: Path | None, endpoint: str) -> None:
    """Write it down; a folder that cannot be written only costs calls at the next start."""
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        file = file_of(folder, endpoint)
        handle, name = tempfile.mkstemp(dir=folder, prefix=file.name)
        try:
            with os.fdopen(handle, "wb") as written:
                written.write(msgspec.json.encode(kept))
            Path(name).replace(file)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
