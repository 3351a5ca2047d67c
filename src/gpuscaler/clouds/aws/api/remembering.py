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
TYPES_SECONDS, LIST_PRICES_SECONDS, SPOT_PRICES_SECONDS, NODEGROUPS_SECONDS = 7 * 86_400.0, 86_400.0, 300.0, 360.0
#: How long an empty answer is valid, in seconds, such as a type that the region does not know.
EMPTY_SECONDS = 3_600.0
_FILE = "aws-types-{}.json"


class DatedAnswer(Struct, Generic[T], frozen=True):
    """A value that was read ``at``, in seconds since the epoch."""

    at: float
    value: T

    def is_fresh(self, now: float, seconds: float) -> bool:
        """Whether the answer is valid for ``seconds``. An empty answer expires sooner, since AWS may add what was missing any day."""
        # A time in the future comes from another clock and cannot be trusted.
        return 0 <= now - self.at < (seconds if self.value else min(seconds, EMPTY_SECONDS))


class AnswerCache(Struct):
    """What is kept across restarts.

    ``types`` are as DescribeInstanceTypes returns them, by region/type (None: the region has no such type). ``offered`` are the zones by
    region/type, ``prices`` the on-demand prices by region/type (None: AWS lists none).
    """

    types: dict[str, DatedAnswer[dict[str, Any] | None]] = {}
    offered: dict[str, DatedAnswer[list[str]]] = {}
    prices: dict[str, DatedAnswer[float | None]] = {}


def cache_file(folder: Path, endpoint: str) -> Path:
    """The cache file for answers of ``endpoint``, a URL."""
    return folder / _FILE.format(hashlib.sha256(endpoint.encode()).hexdigest()[:12])


def load_cache(folder: Path | None, endpoint: str) -> AnswerCache:
    """The answers of ``endpoint`` that an earlier process saved in ``folder``."""
    if folder is None:
        return AnswerCache()
    try:
        return msgspec.json.decode(cache_file(folder, endpoint).read_bytes(), type=AnswerCache)
    except (OSError, msgspec.DecodeError):
        return AnswerCache()


def save_cache(cache: AnswerCache, folder: Path | None, endpoint: str) -> None:
    """Save ``cache``; a folder that cannot be written only costs calls at the next start."""
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        file = cache_file(folder, endpoint)
        handle, name = tempfile.mkstemp(dir=folder, prefix=file.name)
        try:
            with os.fdopen(handle, "wb") as written:
                written.write(msgspec.json.encode(cache))
            Path(name).replace(file)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
