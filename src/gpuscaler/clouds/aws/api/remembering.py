"""Caches answers of AWS that need not be read again, in memory and, if there is a folder, on disk.

A version of a launch template never changes, an instance type hardly ever; prices and node groups do. Answers are kept apart by region and
by endpoint: a simulated account has other types and prices than AWS.
"""

import hashlib
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpuscaler.clouds.remembering import DatedAnswer, load_answers, save_answers

#: How long an answer is valid, in seconds: instance types and their zones, list prices, spot prices, node groups.
TYPES_SECONDS, LIST_PRICES_SECONDS, SPOT_PRICES_SECONDS, NODEGROUPS_SECONDS = 7 * 86_400.0, 86_400.0, 300.0, 360.0
_FILE = "aws-types-{}.json"


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
    return (load_answers(cache_file(folder, endpoint), AnswerCache) if folder is not None else None) or AnswerCache()


def save_cache(cache: AnswerCache, folder: Path | None, endpoint: str) -> None:
    """Save ``cache``; a folder that cannot be written only costs calls at the next start."""
    if folder is not None:
        save_answers(cache, cache_file(folder, endpoint))
