"""Caches answers of AWS that need not be read again, in memory and, if there is a folder, on disk.

A version of a launch template never changes, an instance type hardly ever; prices and node groups do. The file on disk is validated like
any outside input: one that cannot be decoded is ignored. Answers are kept apart by region and by endpoint: a simulated account has other
types and prices than AWS.
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

#: How long an answer is valid, in seconds: instance types and their zones, list prices, spot prices, node groups.
TYPES, LIST_PRICES, SPOT_PRICES, NODEGROUPS = 7 * 86_400.0, 86_400.0, 300.0, 360.0
#: How long an empty answer is valid, in seconds, such as a type that the region does not know.
NOTHING = 3_600.0
_FILE = "aws-types-{}.json"


class Dated(Struct, Generic[T], frozen=True):
    """A value that was read ``at``, in seconds since the epoch."""

    at: float
    value: T

    def fresh(self, now: float, seconds: float) -> bool:
        """Whether it is valid for ``seconds``; an empty answer is asked for again sooner, since AWS may add the thing any day."""
        # A time in the future comes from another clock and cannot be trusted.
        return 0 <= now - self.at < (seconds if self.value else min(seconds, NOTHING))


class Kept(Struct):
    """What is kept across restarts.

    ``types`` are as DescribeInstanceTypes returns them, by region/type (None: the region has no such type). ``offered`` are the zones by
    region/type, ``prices`` the on-demand prices by region/type (None: AWS lists none).
    """

    types: dict[str, Dated[dict[str, Any] | None]] = {}
    offered: dict[str, Dated[list[str]]] = {}
    prices: dict[str, Dated[float | None]] = {}


def file_of(folder: Path, endpoint: str) -> Path:
    """The cache file for answers of ``endpoint``, a URL."""
    return folder / _FILE.format(hashlib.sha256(endpoint.encode()).hexdigest()[:12])


def load(folder: Path | None, endpoint: str) -> Kept:
    """The answers of ``endpoint`` that an earlier process saved in ``folder``."""
    if folder is None:
        return Kept()
    try:
        return msgspec.json.decode(file_of(folder, endpoint).read_bytes(), type=Kept)
    except (OSError, msgspec.DecodeError):
        return Kept()


def save(kept: Kept, folder: Path | None, endpoint: str) -> None:
    """Save ``kept``; a folder that cannot be written only costs calls at the next start."""
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
